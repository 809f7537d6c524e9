"""The command line as a user meets it: its output, and its failures."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from agents.shim import process
from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World
from supervisor.shell.dev.home import system_folder
from supervisor.shell.engines.local import Pool
from supervisor.shell.etcd import connect
from supervisor.wire import keys, programs
from supervisor.wire.address import free_port
from supervisor.wire.records import LeaderRecord, RunRecord, decode
from tests.helpers.commands import ran


def cli(*arguments: str, world: World | None = None, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "supervisor.cli", *arguments]
    if world is not None:
        command += ["--etcd", world.etcd.endpoint, "--home", str(world.runs)]
    elif home is not None:
        command += ["--home", str(home)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def fails(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """Checks that it ended with this code and a sentence, no traceback."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_every_reading_command_prints_a_table_and_json(one_run: tuple[World, RunRecord]) -> None:
    w, _ = one_run

    def reads(*arguments: str) -> subprocess.CompletedProcess[str]:
        return ran(*arguments, "--etcd", w.etcd.endpoint, "--home", str(w.runs))

    for command in ("status", "nodes", "incidents"):
        plain = reads(command)
        assert plain.returncode == 0, plain.stderr
        assert plain.stdout.strip()
        json.loads(reads(command, "--json").stdout)
    found = json.loads(reads("status", "--json").stdout)
    assert [g["phase"] for g in found["groups"]] == ["running", "running"]
    assert {n["node"] for n in json.loads(reads("nodes", "--json").stdout)} == {"host", "n1", "n2", "n3"}
    shown = reads("logs", "-n", "1000").stdout
    for group in (0, 1):
        assert f"---- group {group} generation 1 rank 0 on n" in shown, "its start"


def test_the_bundle_holds_state_journal_and_logs_and_no_secret(
    one_run: tuple[World, RunRecord], tmp_path: Path
) -> None:
    w, _ = one_run
    out = tmp_path / "bundle.tar.gz"
    assert cli("support-bundle", "--out", str(out), world=w).returncode == 0
    with tarfile.open(out) as archive:
        names = archive.getnames()
    assert {"state.json", "journal.jsonl", "supervisor.log"} <= set(names)
    assert any(name.endswith("shim.jsonl") for name in names)


def test_mistakes_are_sentences(one_run: tuple[World, RunRecord]) -> None:
    w, _ = one_run
    fails(cli("status", "--run", "nobody", world=w), 1, "no run 'nobody'", "known: toy")
    fails(cli("restart", "7", world=w), 1, "no group 7", "0 to 1")
    fails(cli("explain", "i9", world=w), 1, "no incident 'i9'")
    fails(cli("restart", "x", world=w), 2)
    fails(cli("statsu", world=w), 2)


def test_a_run_name_that_is_taken(one_run: tuple[World, RunRecord], tmp_path: Path) -> None:
    w, _ = one_run
    file = tmp_path / "run.toml"
    file.write_text('name = "toy"\n')
    fails(cli("launch", str(file), world=w), 1, "a run named 'toy' already")


def test_a_wrong_run_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('name = "x"\n[torchft]\nhearbeat_timeout_ms = 5\n[titan]\nsteps = "many"\n')
    fails(
        cli("launch", str(file), home=tmp_path),
        2,
        "torchft.hearbeat_timeout_ms = 5",
        "heartbeat_timeout_ms",
        "titan.steps",
    )
    file.write_text("name = \n")
    fails(cli("launch", str(file), home=tmp_path), 2, "not valid TOML")
    fails(cli("launch", str(tmp_path / "none.toml"), home=tmp_path), 2, "cannot read the run file")


@pytest.mark.long
def test_an_override_that_torchtitan_does_not_know(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('name = "x"\n[titan.overrides]\n"training.local_batch_sizes" = 4\n"training.seq_len" = "long"\n')
    words = ("training.local_batch_sizes", "training.local_batch_size", "seq_len")
    fails(cli("validate", str(file), home=tmp_path), 2, *words)


def test_no_etcd(tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    fails(cli("status", "--etcd", endpoint, home=tmp_path), 1, "no etcd answers", "supervisor up")


def test_a_port_in_use(one_run: tuple[World, RunRecord]) -> None:
    w, _ = one_run
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        fails(
            cli("run", "--metrics-port", port, "--etcd", w.etcd.endpoint, "--home", str(w.runs)),
            1,
            "cannot serve metrics",
            port,
        )


@pytest.mark.root
def test_a_full_disk(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("cannot mount a tmpfs here: not root")
    try:
        (full / "filler").write_bytes(b"x" * 60_000)
        fails(cli("up", home=full / "runs"), 1)
    finally:
        subprocess.run(["umount", str(full)], check=True)


def test_a_control_record_that_cannot_be_read_holds_the_run(one_run: tuple[World, RunRecord]) -> None:
    w, record = one_run
    w.store.put(keys.control("toy"), b"{torn")
    fails(cli("pause", world=w), 1, "control cannot be read", "delete it")
    assert json.loads(cli("status", "--json", world=w).stdout)["paused"] is True
    w.kill_trainer(record, 1)
    eventually(lambda: [i.state for i in w.incidents(record)] == ["open"], 20, "seen, and nothing done")
    client = w.store._connection.client
    client.delete(keys.control("toy"))
    eventually(lambda: [i.state for i in w.incidents(record)] == ["recovered"], 30, "acts once it is gone")


@pytest.mark.long
def test_up_starts_its_parts_again_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "supervisor.cli", "up", "--home", str(tmp_path), "--nodes", "1", "--cold"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            assert up.stdout.readline().startswith("up: 1 local nodes")
            pool = Pool.load(tmp_path / ".supervisor")
            assert pool is not None
            with connect([pool.etcd]) as store:

                def leader() -> int:
                    item = store.get(keys.LEADER)
                    return decode(item.value, LeaderRecord).pid if item is not None else 0

                first = leader()
                os.kill(first, signal.SIGKILL)
                eventually(lambda: leader() not in (0, first), 30, "another supervisor leads")
        finally:
            up.terminate()
            _, said = up.communicate(timeout=240)
    assert up.returncode == 0
    assert "the supervisor ended by signal 9" in said
    assert "started again" in said
    assert process.marked(str(tmp_path / ".supervisor" / "nodes" / "host")) == []


RUN = """
name = "toy"
titan = { steps = 1000000, checkpoint_interval_steps = 1000000 }
groups = { count = 2 }
allocation = { engine = "local", nodes = 2, spares = 1 }
policy = { term_grace_s = 1.0 }
"""


def test_up_hold_launch_and_release_on_a_laptop(tmp_path: Path) -> None:
    """The commands of a first hour, as they are typed, in a folder of their own. Toys train."""
    (tmp_path / "RUN.toml").write_text(RUN)
    env = {**os.environ, programs.SEAM: json.dumps(TOYS)}
    for name in ("SUPERVISOR_HOME", "SUPERVISOR_ETCD"):
        env.pop(name, None)

    def typed(line: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "supervisor.cli", *line.split()[1:]], cwd=tmp_path, env=env, capture_output=True,
            text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pool() -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(typed("supervisor pools --json"))
        assert len(found) == 1
        return found[0]

    command = [sys.executable, "-m", "supervisor.cli", "up", "--nodes", "4"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            assert up.stdout.readline().startswith("up: 4 local nodes")
            assert typed("supervisor hold --nodes 4").startswith("pool pool holds 4 nodes; folder ")
            eventually(lambda: [n["state"] for n in pool()["nodes"]] == ["granted"] * 4, 60, "its nodes are there")
            assert typed("supervisor pools").splitlines()[1].split()[:4] == ["pool", "running", "local", "4"]
            typed("supervisor launch RUN.toml --on pool")
            assert typed("supervisor wait toy --for step=5 --timeout-s 60").startswith("run toy is at step 5")
            assert pool()["used_by"] == {"toy": 3}

            typed("supervisor stop toy")
            eventually(lambda: not pool()["used_by"], 60, "no run uses it")
            (log,) = system_folder(tmp_path / "runs").glob("nodes/*/ranks/toy.0.1.0/output.log")
            log.write_text("as a rank prints\n")
            assert "g0.gen1.r0 | as a rank prints" in typed("supervisor logs toy --remote"), (
                "the pool's nodes have them"
            )
            assert typed("supervisor release pool") == "pool pool: its 4 nodes are given back to the engine\n"
            eventually(lambda: pool()["phase"] == "stopped", 60, "the engine has all nodes")
        finally:
            up.terminate()
            up.communicate(timeout=240)
    assert up.returncode == 0
    assert "g0.gen1.r0 | as a rank prints\n" in typed("supervisor logs runs/toy --group 0"), "there is no etcd left"
    nodes = sorted((system_folder(tmp_path / "runs") / "nodes").iterdir())
    assert [folder.name for folder in nodes] == ["host", "n1", "n2", "n3", "n4"]
    assert [process.marked(str(folder)) for folder in nodes] == [[]] * 5, "nothing is left"
