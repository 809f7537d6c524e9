"""Stacks, commands and logs of a run, asked for from a place that has none of its files."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agents.shim import process
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World
from supervisor.wire import node_requests
from supervisor.wire.records import RunRecord
from tests.helpers.commands import ran

pytestmark = pytest.mark.etcd


def cli(w: World, elsewhere: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    where = ["--etcd", w.etcd.endpoint, "--home", str(elsewhere)]
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return ran(*arguments[:at], *where, *arguments[at:])


def test_the_stacks_of_all_ranks(one_run: tuple[World, RunRecord], tmp_path: Path) -> None:
    w, record = one_run
    shown = cli(w, tmp_path, "stacks")
    assert shown.returncode == 0, shown.stderr
    nodes = [group.node for group in w.status(record).groups]
    for group, node in enumerate(nodes):
        (row,) = [line for line in shown.stdout.splitlines() if line.startswith(f"g{group}.gen1.r0")]
        assert node in row
        assert re.search(r"\(\w+\.py:\d+\)", row), "wherever it is at the moment"
    found = json.loads(cli(w, tmp_path, "stacks", "--group", "1", "--json").stdout)
    assert [(each["group"], each["rank"], each["node"]) for each in found] == [(1, 0, nodes[1])]
    main = found[0]["threads"][0]
    assert main["main"]
    assert any(frame["file"].endswith("toy_trainer.py") for frame in main["frames"])
    assert found[0]["pid"] == w.trainer(record, 1).pid


def test_a_command_on_a_node_and_in_a_ranks_place(one_run: tuple[World, RunRecord], tmp_path: Path) -> None:
    w, record = one_run
    group = w.status(record).groups[1]
    done = cli(w, tmp_path, "exec", "1.0", "--", "sh", "-c", "pwd; echo $SUPERVISOR_NODE_DIR; echo bad >&2; exit 3")
    folder = w.system / "nodes" / group.node
    assert (done.returncode, done.stdout.splitlines()) == (1, [str(folder / "ranks" / "toy.1.1.0"), str(folder)])
    assert done.stderr.splitlines() == ["bad", f"supervisor: {group.node}: the command ended with exit code 3"]
    assert "runs a command in the folder of toy.1.1.0: sh -c pwd" in (folder / "agent.log").read_text()
    assert cli(w, tmp_path, "exec", "n1", "--", "true").returncode == 0
    late = cli(w, tmp_path, "exec", "--limit-s", "1", "n1", "--", "sleep", "600")
    assert (late.returncode, late.stderr) == (1, "supervisor: n1: the command was ended: it took longer than 1 s\n")
    for wrong, why in (("n9", "there is no node 'n9'; registered: host, n1"), ("7.0", "run toy has no group 7")):
        refused = cli(w, tmp_path, "exec", wrong, "--", "true")
        assert refused.returncode == 1
        assert why in refused.stderr
    assert cli(w, tmp_path, "exec", "n1").returncode == 2


def test_a_command_ends_with_who_asked(one_run: tuple[World, RunRecord], tmp_path: Path) -> None:
    w, _ = one_run
    command = [sys.executable, "-m", "supervisor.cli", "exec", "--etcd", w.etcd.endpoint, "n1", "--", "sh", "-c"]
    with subprocess.Popen([*command, "echo $$; exec sleep 601"], stdout=subprocess.PIPE, text=True) as asks:
        assert asks.stdout is not None
        pid = int(asks.stdout.readline())
        asks.send_signal(signal.SIGKILL)
    eventually(lambda: (stat := process.stat_of(pid)) is None or not stat.running, 30, "its lease lapses")
    eventually(lambda: w.store.list(node_requests.PREFIX).items == (), 30, "nothing of it is left")


def test_the_logs_of_all_ranks_merged(one_run: tuple[World, RunRecord], tmp_path: Path) -> None:
    w, record = one_run
    for group in w.status(record).groups:
        log = w.system / "nodes" / group.node / "ranks" / f"toy.{group.group}.1.0" / "output.log"
        with log.open("a") as file:
            file.write(f"[bold]needle[/bold] of {group.group} \x1b]0;title\x07\nhay\n")
    shown = cli(w, tmp_path, "logs", "--grep", "needle")
    assert shown.returncode == 0, shown.stderr
    lines = sorted(line.partition(" ")[2] for line in shown.stdout.splitlines())
    assert lines == [f"g{group}.gen1.r0 | [bold]needle[/bold] of {group} ␛]0;title␇" for group in (0, 1)]
    one = json.loads(cli(w, tmp_path, "logs", "--group", "1", "--tail", "1", "--since", "1h", "--json").stdout)
    assert [(each["group"], each["text"]) for each in one] == [(1, "hay")]
    none = cli(w, tmp_path, "logs", "--grep", "no such text")
    assert (none.returncode, none.stderr) == (1, "supervisor: no node has such lines of run toy\n")
    for wrong in (["--follow", "--remote"], ["--supervisor", "--group", "1"], ["--since", "1 week"]):
        assert cli(w, tmp_path, "logs", *wrong).returncode == 2
    here = cli(w, w.runs, "logs", "--supervisor", "-n", "1000")
    assert here.returncode == 0, here.stderr
    assert "== supervisor: " in here.stdout
    assert "no log of a supervisor below" in cli(w, tmp_path, "logs", "--supervisor").stderr
