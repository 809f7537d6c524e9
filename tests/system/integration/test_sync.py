"""Code that is edited, synced, and seen by the next start: real etcd, supervisors, agents, and a script of the user's."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World
from supervisor.core.model.code import SHOWN
from supervisor.shell.code.scan import scan
from supervisor.shell.control import observe
from supervisor.wire import keys
from supervisor.wire.code import digest_of
from supervisor.wire.code_tree import DIGITS
from supervisor.wire.records import NodeObserved, RunRecord
from tests.helpers.code_site import written
from tests.helpers.killed import after_s, killed
from tests.system.integration.test_cli import cli, fails
from tests.system.integration.test_launch import said
from tests.system.integration.test_pools import done, launched, pool

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(300)]

SCRIPT = """
import os, sys, time
from pkg import model
print("VERSION", model.VERSION, flush=True)
while True:
    if os.path.exists(sys.argv[1]):
        os.unlink(sys.argv[1])
        raise RuntimeError("it fails by " + model.VERSION)
    print("on", flush=True)
    time.sleep(0.1)
"""


def run_file(folder: Path, crash: Path, more: str = "") -> Path:
    text = f"""
name = "first"
titan = {{ steps = 1000000, checkpoint_interval_steps = 1000000 }}
groups = {{ count = 2 }}
policy = {{ node_lease_s = 5, term_grace_s = 1.0, backoff_first_s = 0.0, healthy_after_s = 0.5 }}
trainer = {{ command = ["python", "train.py", "{crash}"], reports = "output" }}
{more}
"""
    return written(folder, {"run.toml": text}) / "run.toml"


def code(folder: Path, version: str) -> Path:
    return written(folder, {"train.py": SCRIPT, "pkg/__init__.py": "", "pkg/model.py": f"VERSION = {version!r}\n"})


def printed(w: World, record: RunRecord, group: int, generation: int) -> str:
    """The version that rank 0 of a generation prints, once it does."""

    def look() -> str:
        for path in (w.system / "nodes").glob(f"*/ranks/{record.spec.name}.{group}.{generation}.0/output.log"):
            for line in path.read_text().splitlines():
                if line.startswith("VERSION "):
                    return line.removeprefix("VERSION ")
        return ""

    return eventually(look, 60, f"generation {generation} of group {group} prints its version")


def version_of(w: World, name: str) -> str:
    found = observe.code(w.mirror(), name)
    return found.version if found is not None else ""


def lies(w: World, node: str, version: str) -> bool:
    seen = w.mirror().record(keys.observed(node), NodeObserved)
    return seen is not None and version in (seen.codes or ())


def held(w: World, folder: Path, nodes: int) -> None:
    eventually(w.led, 30, "a supervisor leads")
    done(w, "hold", str(folder / "run.toml"), "--name", "lab", "--nodes", str(nodes))
    eventually(lambda: [n.state for n in pool(w).nodes] == ["granted"] * nodes, 60, "its nodes are there")


@pytest.mark.long
def test_code_that_was_edited_is_seen_by_the_next_start_of_each_group(empty: World, tmp_path: Path) -> None:
    w, crash, folder = empty, tmp_path / "crash", code(tmp_path / "code", "one")
    file = run_file(folder, crash)
    held(w, folder, 3)
    assert "4 new" in done(w, "sync", str(folder), "--on", "lab")
    first = version_of(w, "lab")
    for node in pool(w).nodes:
        eventually(partial(lies, w, node.node, first), 30, "every node of the pool gets it before any start")
    record = launched(w, file, "first")
    eventually(w.running(record, 1, 1), 60, "both groups run")
    assert [printed(w, record, group, 1) for group in (0, 1)] == ["one", "one"]

    code(folder, "two")
    synced = said(w, "sync", str(folder), "--on", "lab")
    assert synced.returncode == 0, synced.stderr
    assert "1 new" in synced.stdout
    assert "run first trains on with other code in groups 0, 1" in synced.stderr
    second = version_of(w, "lab")
    eventually(lambda: all(lies(w, g.node, second) for g in w.status(record).groups), 30, "it is on the way at once")
    assert w.running(record, 1, 1)(), "nothing is restarted for it"

    done(w, "restart", "0", "--run", "first")
    assert printed(w, record, 0, 2) == "two"
    status = cli("status", "first", world=w).stdout
    assert f"code {second[:SHOWN]} of {folder}, synced " in status
    assert f"; group 1: {first[:SHOWN]}" in status
    crash.touch()
    eventually(lambda: len(w.incidents(record)) == 2 and not crash.exists(), 30, "one of them crashes")
    crashed = w.incidents(record)[1]
    ran = {0: second, 1: first}[crashed.group]
    assert f"It ran code {ran[:SHOWN]} of {folder}." in cli("explain", crashed.id, world=w).stdout
    eventually(lambda: all(i.state == "recovered" for i in w.incidents(record)), 60, "it is over")

    w.check(record, stepped=False)


def test_a_node_that_comes_later_gets_it_and_a_relaunch_starts_all_groups_with_it(empty: World, tmp_path: Path) -> None:
    w, folder = empty, code(tmp_path / "code", "one")
    file = run_file(folder, tmp_path / "crash")
    held(w, folder, 3)
    done(w, "sync", str(folder), "--on", "lab")
    record = launched(w, file, "first")
    eventually(w.running(record, 1, 1), 60, "both groups run")
    code(folder, "two")
    done(w, "sync", str(folder), "--on", "lab")
    second = version_of(w, "lab")

    lost = w.status(record).groups[1].node
    held_by = {n.node for n in pool(w).nodes}
    w.kill_node(lost)
    eventually(lambda: w.status(record).groups[1].node not in ("", lost), 60, "another node takes its place")
    group = w.status(record).groups[1]
    assert printed(w, record, 1, group.generation) == "two"
    done(w, "cordon", lost, "--because", "it was killed")
    eventually(lambda: any(n.node not in held_by and n.node for n in pool(w).nodes), 60, "the pool gets another node")
    late = next(n.node for n in pool(w).nodes if n.node not in held_by)
    eventually(lambda: lies(w, late, second), 60, "a node that comes later gets it")

    before = {g.group: g.generation for g in w.status(record).groups}
    code(folder, "three")
    done(w, "sync", str(folder), "--on", "first")
    done(w, "relaunch", "first", "--yes")
    now = eventually(
        lambda: w.running(record)() and all(g.generation > before[g.group] for g in w.status(record).groups) and w.status(record),
        90, "all groups start again",
    )  # fmt: skip
    assert [printed(w, record, g.group, g.generation) for g in now.groups] == ["three", "three"]
    assert version_of(w, "lab") == second, "the pool's stays"
    w.check(record, stepped=False)


@pytest.mark.long
def test_a_client_that_is_killed_at_any_moment_loses_nothing(empty: World, tmp_path: Path) -> None:
    w, folder = empty, code(tmp_path / "code", "one")
    run_file(folder, tmp_path / "crash")
    held(w, folder, 1)
    done(w, "sync", str(folder), "--on", "lab")
    began = time.monotonic()
    assert cli("sync", str(folder), "--on", "lab", world=w).returncode == 0
    whole_s = time.monotonic() - began
    command = [sys.executable, "-m", "supervisor.cli", "sync", str(folder), "--on", "lab", "--etcd", w.etcd.endpoint]
    kills = 0
    for number in range(8):
        for part in range(40):
            (folder / f"data-{part}.bin").write_bytes(os.urandom(500_000))
        before = version_of(w, "lab")
        ended = killed(command, w.environment, after_s(whole_s * (0.5 + 0.125 * number)))
        kills += ended == -signal.SIGKILL
        version = digest_of(scan(folder, 2**30).manifest.encode())
        assert version_of(w, "lab") in (before, version), "the old one or the new one"
        done(w, "sync", str(folder), "--on", "lab")
        assert version_of(w, "lab") == version
        [node] = pool(w).nodes
        eventually(partial(lies, w, node.node, version), 30, "the node has what was synced again")
    assert kills >= 3


def test_a_leader_that_dies_in_the_middle_of_a_transfer_leaves_no_half_tree(empty: World, tmp_path: Path) -> None:
    w, folder = empty, code(tmp_path / "code", "one")
    file = run_file(folder, tmp_path / "crash")
    held(w, folder, 2)
    for part in range(12):
        (folder / f"data-{part}.bin").write_bytes(os.urandom(8_000_000))
    done(w, "sync", str(folder), "--on", "lab")
    version = version_of(w, "lab")
    trees = [w.system / "nodes" / n.node / "code" for n in pool(w).nodes]
    leader = w.supervisors[0]
    eventually(lambda: any([*tree.glob("*.part/*")] for tree in trees), 30, "a node is in the middle of it")
    leader.send_signal(signal.SIGKILL)
    leader.wait()
    torn = [tree for tree in trees if not (tree / version[:DIGITS]).exists()]
    assert torn, "the leader was killed before all had it"
    w.supervisor()
    for n in pool(w).nodes:
        eventually(partial(lies, w, n.node, version), 60, "it goes on with the next leader")
    for tree in trees:
        whole = tree / version[:DIGITS]
        assert {p.name: p.stat().st_size for p in folder.iterdir() if p.is_file()} == {
            p.name: p.stat().st_size for p in whole.iterdir() if p.is_file()
        }
        assert not [*tree.glob("*.part")]
    record = launched(w, file, "first")
    eventually(w.running(record, 1, 1), 60, "both groups run")
    assert w.incidents(record) == []


def test_a_mistake_has_a_sentence(empty: World, tmp_path: Path) -> None:
    w = empty
    eventually(w.led, 30, "a supervisor leads")
    folder = code(tmp_path / "code", "one")
    fails(said(w, "sync", str(folder), "--on", "none"), 1, "there is no run or pool 'none'; known: none")
    run_file(folder, tmp_path / "crash")
    held(w, folder, 1)
    fails(said(w, "sync", str(tmp_path / "other"), "--on", "lab"), 1, "is not a folder")
    (folder / "data.bin").write_bytes(bytes(2000))
    fails(said(w, "sync", str(folder), "--on", "lab", "--most-mib", "0.001"), 1, "raise --most-mib")
    (folder / "l").symlink_to("/etc/passwd")
    fails(said(w, "sync", str(folder), "--on", "lab"), 1, "leads out of the folder, to /etc/passwd")
