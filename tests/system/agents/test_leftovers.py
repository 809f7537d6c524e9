"""A rank's leftovers are ended before the next generation starts on its node, wherever they moved; nothing else is."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.shim import main as shims
from agents.shim import process
from agents.shim.main import Refusal, Shim
from agents.shim.settings import parse
from fault_injection.testbed.nodes import Node, Nodes, desire, kill, running, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.ports.store import Store
from supervisor.wire import marks

FIRST = "toy.0.1.0"


@pytest.fixture
def elsewhere() -> Iterator[subprocess.Popen[bytes]]:
    """A process that a person started, in a shell with the environment of a rank."""
    child = subprocess.Popen(["sleep", "1000"], env={**os.environ, marks.STARTED_BY: marks.mark(FIRST)})
    yield child
    child.kill()
    child.wait()


@pytest.fixture(params=["warm", "cold"])
def node(request: pytest.FixtureRequest, nodes: Nodes) -> Node:
    if request.param == "cold":
        return nodes.cold()
    made = nodes.start()
    eventually(made.warm_ready, 15)
    return made


def left(node: Node, name: str) -> dict[str, int]:
    """The pids of the leftovers, by the way in which each was left."""
    path: Path = node.folder / "ranks" / name / "left.json"
    found: dict[str, int] = eventually(lambda: path.exists() and json.loads(path.read_text() or "{}"), 10)
    assert all(lives(pid) for pid in found.values())
    return found


def lives(pid: int) -> bool:
    stat = process.stat_of(pid)
    return stat is not None and stat.running


def test_all_that_it_left_is_ended_before_the_next_generation(
    node: Node, store: Store, elsewhere: subprocess.Popen[bytes]
) -> None:
    desire(store, "n0", trainer(toy_leaves=True))
    pid = running(store, node, 1)
    pids = left(node, FIRST)
    assert {process.stat_of(each).parent for each in pids.values()} == {node.shim.pid}
    assert [marks.of(pids[how]) for how in ("marked", "forked", "bare")] == [FIRST, FIRST, ""]
    kill(pid)
    eventually(lambda: not node.pid(FIRST), 10)
    desire(store, "n0", trainer(generation=2))
    running(store, node, 2)
    assert [how for how, each in pids.items() if lives(each)] == []
    events = [(line["event"], line.get("pid")) for line in node.history()]
    ended = [events.index(("left_behind_killed", each)) for each in pids.values()]
    second = next(n for n, line in enumerate(node.history()) if line.get("name") == "toy.0.2.0")
    assert max(ended) < second
    assert elsewhere.poll() is None


def test_what_another_group_here_left_and_still_uses_is_left_alone(node: Node, store: Store) -> None:
    """Nor is a process ended that names no rank as its origin, while a rank lives that may have started it."""
    desire(store, "n0", trainer(0, toy_leaves=True), trainer(1, toy_leaves=True))
    pid, _ = (running(store, node, 1, group) for group in (0, 1))
    ours, theirs = left(node, FIRST), left(node, "toy.1.1.0")
    kill(pid)
    eventually(lambda: not any(lives(ours[how]) for how in ("marked", "forked")), 10, "its own are ended at once")
    desire(store, "n0", trainer(0, 2), trainer(1, toy_leaves=True))
    running(store, node, 2)
    assert all(map(lives, [*theirs.values(), ours["bare"]]))


def test_a_stopped_node_leaves_nothing_behind(node: Node, store: Store) -> None:
    desire(store, "n0", trainer(toy_leaves=True))
    running(store, node, 1)
    pids = left(node, FIRST)
    node.shim.send_signal(signal.SIGTERM)
    assert node.shim.wait(30) == 0
    eventually(lambda: not any(map(lives, pids.values())), 10)


def test_nothing_is_started_beside_what_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Shim(parse(["--node=n0", f"--home={tmp_path}", "--etcd=127.0.0.1:1", "--cold"]))
    mine = process.stat_of(os.getpid())
    assert mine is not None
    monkeypatch.setattr(shims, "LEFTOVER_DEADLINE_S", 0.1)
    monkeypatch.setattr(made, "_end_left_behind", lambda: [mine])
    request = {"name": FIRST, "argv": ["true"], "env": {}, "folder": str(tmp_path), "log": str(tmp_path / "log")}
    with pytest.raises(Refusal, match=f"left behind .* not ended even by SIGKILL: process {mine.pid}"):
        asyncio.run(made._spawn(request))
