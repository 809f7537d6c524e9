"""Clients that are killed between any two messages with etcd: what they asked for is there, or nothing of it is."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World
from supervisor.shell.control.audit import audit
from supervisor.shell.inspect import client, status
from supervisor.wire import keys
from tests.helpers.killed import Client, killed
from tests.helpers.relay import Relay, relay
from tests.system.integration.test_launch import command, said
from tests.system.integration.test_pools import RUN, done, given, pool

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(600)]

WISHES = ("/spec", "/next-spec", "/control", "/policy", "/code", "/removed")
"""Ends of the keys below a run that clients write; the leader writes some of them too, for what they ask."""
PIECES = 200
"""More than any of these commands exchanges with etcd."""


def wishes(w: World) -> dict[str, int]:
    """Returns the revisions of the keys that clients write."""
    return {
        k: item.mod_revision for k, item in w.mirror().items.items() if k.startswith(keys.RUNS) and k.endswith(WISHES)
    }


def after_pieces(between: Relay, most: int) -> Callable[[Client], None]:
    """Returns a moment: once the client has exchanged that many pieces with etcd, and the next one is lost."""
    between.most = most

    def wait(one: Client) -> None:
        eventually(lambda: between.seen > most or one.poll() is not None, 60, "it comes so far")

    return wait


def killed_until_it_is_there(w: World, every: int, *arguments: str) -> dict[str, int]:
    """Kills the command ever later, by `every` pieces, until etcd has what it asks for. Returns how often it was killed
    before and after that."""
    before, nodes = wishes(w), set() if arguments[0] == "release" else alive(w)
    for number, most in enumerate(range(every, PIECES, every)):
        with relay(w.etcd.endpoint) as between:
            line = [*command(w, *arguments), "--etcd", between.endpoint]
            ended = killed(line, w.environment, after_pieces(between, most))
        assert audit(w.mirror(), w.mirror().items) == {}
        assert alive(w) >= nodes
        if wishes(w) != before:
            return {"before": number, "after": int(ended < 0)}
        assert ended == -signal.SIGKILL, "it has ended, and what it asks for is not there"
    raise AssertionError(f"not there after {PIECES} pieces")


def alive(w: World) -> set[str]:
    return {node.node for node in status.node_status(w.mirror()) if node.alive}


def trains(w: World, number: int, *generations: int) -> bool:
    record = client.choose_run(w.mirror(), "first")
    return record.number == number and w.running(record, *generations)()


def held(w: World, file: Path, ask: Callable[..., object]) -> None:
    file.write_text(RUN)
    eventually(lambda: w.led() and alive(w), 30, "a supervisor leads, and the service host is there")
    ask("hold", str(file), "--name", "lab", "--nodes", "3")
    eventually(lambda: [n.state for n in pool(w).nodes] == ["granted"] * 3, 60, "its nodes are there")


def ends_well(w: World, nodes: int, ask: Callable[..., object]) -> None:
    """Checks that nothing half-made is there, and ends run and pool."""
    assert {key.rpartition("-")[0] for key in given(w)} == {"lab"}, "the run asks the engine for nothing"
    assert pool(w).used_by == {"first": nodes}
    assert sorted(path.name for path in w.runs.iterdir()) == [".supervisor", "first", "lab"]
    healthy = said(w, "doctor")
    assert healthy.returncode == 0, healthy.stdout
    record = client.choose_run(w.mirror(), "first")
    assert w.incidents(record) == []
    ask("stop", "first")
    eventually(lambda: not pool(w).used_by, 60, "no run uses it")
    ask("release", "lab")
    eventually(lambda: not given(w), 60, "the engine has all nodes")
    w.check(record)


def test_a_launch_on_a_pool_that_is_killed(empty: World, tmp_path: Path) -> None:
    w, file = empty, tmp_path / "run.toml"
    held(w, file, partial(done, w))
    assert killed_until_it_is_there(w, 12, "launch", str(file), "--on", "lab")["before"]
    eventually(lambda: trains(w, 1, 1, 1), 60, "both groups run")
    ends_well(w, 2, partial(done, w))


@pytest.mark.long
def test_requests_that_are_killed_between_any_two_messages(empty: World, tmp_path: Path) -> None:
    w, file = empty, tmp_path / "run.toml"
    found: list[dict[str, int]] = []

    def ask(*arguments: str) -> None:
        found.append(killed_until_it_is_there(w, 1, *arguments))
        print(*arguments[:2], found[-1])

    held(w, file, ask)
    ask("launch", str(file), "--on", "lab")
    eventually(lambda: trains(w, 1, 1, 1), 60, "both groups run")
    file.write_text(RUN.replace("steps = 1000000,", "steps = 900000,").replace('"first"', '"other"'))
    ask("relaunch", "first", str(file), "--yes")
    eventually(lambda: trains(w, 2, 2, 2), 90, "both groups run by the next file, under their name")
    assert client.choose_run(w.mirror(), "first").spec.titan.steps == 900_000
    ask("scale", "first", "--groups", "3")
    eventually(lambda: trains(w, 3, 2, 2, 1), 90, "three groups run")
    ends_well(w, 3, ask)
    assert all(one["before"] > 3 for one in found)
    # the number of pieces varies: in the try in which a wish comes through, its answer may too
    assert any(one["after"] for one in found), "one was killed with its wish in etcd, and before it heard of that"
