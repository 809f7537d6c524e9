"""Stacks, commands and logs of a run, asked for from a place that has none of its files."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agents.shim import process
from fault_injection.testbed.stopping import frozen
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World
from supervisor.shell.dev.etcd_server import EtcdServer
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
    assert (none.returncode, none.stderr) == (1, "supervisor: run toy has no such lines\n")
    for wrong in (["--follow", "--hooks"], ["--supervisor", "--group", "1"], ["--since", "1 week"]):
        assert cli(w, tmp_path, "logs", *wrong).returncode == 2


def test_the_leaders_log_from_elsewhere(one_run: tuple[World, RunRecord], tmp_path: Path) -> None:
    w, _ = one_run
    here = cli(w, w.runs, "logs", "--supervisor", "-n", "1000")
    assert here.returncode == 0, here.stderr
    assert here.stdout.startswith(f"== supervisor: {w.system / 'supervisor.log'}")
    there = cli(w, tmp_path, "logs", "--supervisor", "-n", "1000", "--grep", "leading, epoch", "--since", "1h")
    assert there.returncode == 0, there.stderr
    first, line = there.stdout.splitlines()
    assert first == f"== supervisor on {socket.gethostname()}: {w.system / 'supervisor.log'}"
    assert line in here.stdout
    (tail,) = json.loads(cli(w, tmp_path, "logs", "--supervisor", "--remote", "-n", "3", "--json").stdout)
    assert (tail["node"], len(tail["lines"])) == (socket.gethostname(), 3)


def test_the_output_of_hooks_from_elsewhere(one_run: tuple[World, RunRecord], tmp_path: Path) -> None:
    w, record = one_run
    none = cli(w, tmp_path, "logs", "--hooks")
    assert (none.returncode, none.stdout) == (1, "")
    assert none.stderr == "supervisor: no node has output of a hook of run toy\n"
    nodes = sorted(group.node for group in w.status(record).groups)
    for node in nodes:
        folder = w.system / "nodes" / node / "hooks" / "toy"
        folder.mkdir(parents=True)
        (folder / "before.log").write_text(f"one\nmounted on {node} \x1b]0;title\x07\n")
    shown = cli(w, tmp_path, "logs", "--hooks", "-n", "1")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == cli(w, w.runs, "logs", "--hooks", "-n", "1").stdout, "as on the machine itself"
    assert [line for line in shown.stdout.splitlines() if "mounted" in line] == [
        f"mounted on {node} ␛]0;title␇" for node in nodes
    ]


def test_logs_are_followed_from_elsewhere(one_run: tuple[World, RunRecord], tmp_path: Path) -> None:
    """Each line once, over a restart and an etcd that is away; Ctrl-C ends it without a traceback."""
    w, record = one_run

    assert isinstance(w.etcd, EtcdServer)
    nodes = [group.node for group in w.status(record).groups]

    def write(group: int, text: str, generation: int = 1) -> None:
        with (w.system / "nodes" / nodes[group] / "ranks" / f"toy.{group}.{generation}.0" / "output.log").open(
            "a"
        ) as log:
            log.write(text)

    where = ["--etcd", w.etcd.endpoint, "--home", str(tmp_path)]
    command = [sys.executable, "-m", "supervisor.cli", "logs", "toy", "-f", "-n", "1", *where]
    with (
        (tmp_path / "out").open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True) as follower,
        contextlib.ExitStack() as ends,
    ):
        ends.callback(follower.kill)  # a failure below must not wait for it

        def shown() -> str:
            return (tmp_path / "out").read_text()

        eventually(shown, 20, "it begins with the newest line")
        write(0, "first\nhalf a")
        eventually(lambda: "first" in shown(), 20, "it follows")
        write(0, " line\n")
        with frozen(w.etcd.pid):
            write(1, "while etcd is away\n")
            assert follower.stderr is not None
            assert "this goes on once etcd answers" in follower.stderr.readline()
        assert follower.stderr.readline() == "supervisor: etcd answers again\n"
        eventually(lambda: "while etcd is away" in shown(), 20, "it goes on")
        write(1, "before the kill\n")
        w.kill_trainer(record, 1)
        eventually(w.running(record, 1, 2), 60, "it runs again")
        write(1, "after it\n", generation=2)
        eventually(lambda: "g1.gen2.r0 | after it" in shown(), 20, "a new generation is picked up")
        eventually(lambda: "incident i1 recovered" in shown(), 20, "incidents are in their places")
        follower.send_signal(signal.SIGINT)
        assert follower.wait(20) == 0
        assert follower.stderr.read() == ""
    lines = [line.partition(" ")[2] for line in shown().splitlines()]
    for text in ("first", "half a line", "while etcd is away", "before the kill", "after it"):
        assert sum(line.endswith(f"| {text}") for line in lines) == 1, text
    end = f"==== group 1 generation 1 rank 0 on {nodes[1]} ended by SIGKILL (signal 9)"
    assert lines.index("g1.gen1.r0 | before the kill") < lines.index(end)
    assert any("group 1 generation 2 rank 0" in line and "starts (pid" in line for line in lines)
