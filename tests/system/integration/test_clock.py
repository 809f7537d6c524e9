"""A clock that is moved is reported and escalates nothing: no decision reads a machine's clock."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import pytest

from fault_injection.doubles import clocks
from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.unavailable import NotHere
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec, world
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.report.durations import incident_s
from supervisor.shell.control import journal
from supervisor.shell.inspect import status
from supervisor.wire.programs import SEAM
from tests.system.integration.outage import passes
from tests.system.integration.test_cli import cli

pytestmark = pytest.mark.etcd

HOUR_S = 3600
NODE_LEASE_S = 6


def libfaketime() -> str:
    try:
        return clocks.library()
    except NotHere as error:
        pytest.skip(f"NO MOVED CLOCK WAS TESTED: {error}")


def off(w: World) -> dict[str, str]:
    """node -> the fact reported of its clock against this test's."""
    return {n.node: fact for n in status.node_status(w.mirror()) for fact in n.facts if fact.startswith("clock_off: ")}


def trainers(w: World) -> list[str]:
    """Nodes that live and are no service hosts."""
    return [n.node for n in status.node_status(w.mirror()) if n.role == "trainer"]


@pytest.mark.long
def test_a_clock_that_jumps_hours_ahead_and_back_escalates_nothing(tmp_path: Path) -> None:
    """The supervisor's and the nodes' clock jump; etcd's stays. The idle toys count their steps by that clock, so the
    history checkers, which read times, cannot judge here."""
    clock = tmp_path / "clock"

    def move(by: str) -> None:
        scratch = clock.with_suffix(".new")
        scratch.write_text(by)
        scratch.replace(clock)

    move("+0")
    with world(tmp_path) as w:
        w.supervisor(
            LD_PRELOAD=libfaketime(),
            FAKETIME_TIMESTAMP_FILE=str(clock),
            FAKETIME_CACHE_DURATION="1",
            FAKETIME_DONT_FAKE_MONOTONIC="1",
        )
        # Longer leases than etcd's least: here it is the clock that must not end one, not a machine that is too busy for 2 s.
        record = w.launch(toy_spec(node_lease_s=NODE_LEASE_S))
        eventually(w.running(record, 1, 1), 60, "both groups run")
        for by in ("+3h", "-5h", "+40d"):
            move(by)
            passes(1.5 * NODE_LEASE_S)  # a wait by the clock would have lost it by then
            assert w.incidents(record) == []
            assert w.running(record, 1, 1)()
        said = "clock_off: its clock is 40 days ahead of the one here"
        eventually(
            lambda: len(trainers(w)) == 3 and off(w) == dict.fromkeys(trainers(w), said), 30, "theirs are told alone"
        )
        w.kill_trainer(record, 1)
        eventually(w.running(record, 1, 2), 60, "a real failure is mended as ever")
        (incident,) = w.incidents(record)
        assert (incident.kind, incident.group, incident.rung) == (Kind.CRASH, 1, Rung.RESTART)
        times = [line["t"] for line in journal.read(Path(record.run_dir) / "journal.jsonl")]
        assert times[-1] > time.time() + 39 * 24 * HOUR_S, "the clock was really moved"
        move("-5h")  # a window of budgets is an hour
        passes(1.5)
        w.kill_trainer(record, 1)
        eventually(w.running(record, 1, 3), 60, "and once more")
        assert w.status(record).budgets_left["restart:1"] == record.spec.policy.budget.restart - 2
        lasted_s = [incident_s(i, status.account(w.mirror(), "toy").stood) for i in w.incidents(record)]
        assert all(s is not None and s < 60.0 for s in lasted_s), lasted_s


@pytest.mark.long
def test_a_node_whose_clock_is_hours_off_is_named_and_nothing_is_done(tmp_path: Path) -> None:
    """Its kernel still reports the clock as synchronized, but the clock differs from all others."""
    libfaketime()
    moved = clocks.Clocks(tmp_path / "clocks")
    for name in ("n1", "n2", "n3", "n4"):
        moved.move(name, "+0")
    with world(tmp_path) as w:
        w.supervisor(
            **{clocks.FOLDER: str(moved.folder), SEAM: json.dumps({**TOYS, "agent": "fault_injection.doubles.agent"})}
        )
        record = w.launch(toy_spec(node_lease_s=NODE_LEASE_S))
        eventually(w.running(record, 1, 1), 60, "both groups run")
        node = w.status(record).groups[1].node
        for by, said in (("+3h", "3 h ahead of"), ("-5h", "5 h behind")):
            moved.move(node, by)
            eventually(lambda said=said: off(w) == {node: f"clock_off: its clock is {said} the one here"}, 30, by)
            passes(2 * NODE_LEASE_S)
            assert w.incidents(record) == []
            assert w.running(record, 1, 1)()
        told = partial(cli, "nodes", "--json", world=w)
        # a node with a late report or lease has no fact for a moment
        eventually(lambda: "clock_off: its clock is 5 h behind" in told().stdout, 30, "the command says it too")
        moved.move(node, "+0")
        eventually(lambda: off(w) == {}, 30, "and that it is over")
        w.check(record)
