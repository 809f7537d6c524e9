"""A person's cordons and drains with real processes, across runs: toys in the place of trainers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, World, toy_spec, world
from supervisor.core.model.kinds import Kind
from supervisor.wire.records import RunRecord
from tests.real_trainers.test_lighthouse import quorum_spec, trains
from tests.system.integration.test_cli import cli, fails


def _say(w: World, *command: str) -> str:
    done = cli(*command, world=w)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _nodes(w: World, record: RunRecord) -> list[str]:
    """Nodes of the groups, by their numbers."""
    return [g.node for g in w.status(record).groups]


def _one_spare(w: World, record: RunRecord) -> str:
    """Waits until exactly one node may take a group; returns it."""

    def look() -> str:
        spares = w.status(record).spares
        return spares[0] if len(spares) == 1 else ""

    return str(eventually(look, 30, "one spare is there"))


@pytest.mark.long
def test_a_cordoned_host_gets_no_group_until_it_is_free_again(toy_run: tuple[World, RunRecord]) -> None:
    """Four nodes, two groups. The spare's host is cordoned, so a lost node's group goes to the fourth."""
    w, record = toy_run
    barred = _one_spare(w, record)
    fails(cli("cordon", "n11", "--because", "typo", world=w), 1, "no node was ever on a host 'n11'", "nearest: n1")
    assert f"host {barred} is cordoned" in _say(w, "cordon", barred, "--because", "its disk is failing")
    assert "its disk is failing" in json.loads(_say(w, "status", "--json"))["cordons"][barred]
    eventually(lambda: w.status(record).spares not in ((), (barred,)), 30, "another spare in its place")
    fourth = _one_spare(w, record)
    first, second = _nodes(w, record)
    w.kill_node(second)
    eventually(w.running(record, 1, 2), 30 + 5 * LEASE_S, "the group runs on the fourth node")
    assert _nodes(w, record) == [first, fourth]
    found = {n["node"]: n["cordon"] for n in json.loads(_say(w, "nodes", "--json"))}
    assert "its disk is failing" in found[barred]
    assert "(only for run toy)" in found[second]
    assert f"host {barred} is free again" in _say(w, "uncordon", barred)
    assert barred not in json.loads(_say(w, "status", "--json"))["cordons"]
    fails(cli("uncordon", barred, world=w), 1, "is not cordoned")


@pytest.mark.long
def test_a_drained_node_is_left_at_no_budget_and_a_later_run_leaves_it_out(tmp_path: Path) -> None:
    """Toys that step in a real quorum: a group moves only while another trains that it can heal from."""
    with world(tmp_path) as w:
        record = trains(w, quorum_spec(groups=2, mode="quorum"))
        _drain_and_launch(w, record)
        w.check(record)


def _drain_and_launch(w: World, record: RunRecord) -> None:
    before = w.status(record).budgets_left
    spare = _one_spare(w, record)
    first, drained = _nodes(w, record)
    said = _say(w, "drain", drained, "--because", "it gets a new card")
    assert "group 1 of run toy will leave it when another node is there" in said
    eventually(w.running(record, 1, 2), 60, "the group has moved")
    assert _nodes(w, record) == [first, spare]
    (incident,) = w.incidents(record)
    assert (incident.kind, incident.state) == (Kind.LEAVING, "recovered")
    assert w.status(record).budgets_left == before
    w.control(record, stop=True)
    eventually(lambda: w.status(record).phase == "stopped", 60, "the first run ends")
    # Of four nodes it may use three, and it wants them all.
    later = w.launch(toy_spec(name="later"))
    eventually(w.running(later, 1, 1), 60, "the second run trains")
    used = {*_nodes(w, later), _one_spare(w, later)}
    assert used == {f"n{i}" for i in range(1, 5)} - {drained}
    w.check(later)
    assert f"host {drained} is free again" in _say(w, "uncordon", drained)
