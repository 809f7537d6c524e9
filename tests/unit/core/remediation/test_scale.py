"""A live run gets more groups and nodes, or fewer, while the others train."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.model.observed import NextSpec
from supervisor.core.model.reason import Code
from supervisor.core.model.spec import RunSpec, only_scales
from tests.unit.core.world import World


def sized(w: World, count: int, spares: int = 1) -> RunSpec:
    allocation = replace(w.spec.allocation, nodes=count, spares=spares)
    return replace(w.spec, groups=replace(w.spec.groups, count=count), allocation=allocation)


def scale(w: World, spec: RunSpec, number: int = 2) -> None:
    """Asks for it, and takes the rounds until it is in force."""
    w.relaunch = NextSpec(number=number, spec=spec, scales=only_scales(w.spec, spec))
    while w.memory.relaunches < number:
        w.round()
    w.take_spec()


def wanted(w: World) -> list[str]:
    return sorted(key for key, a in w.memory.allocations.items() if a.state == "wanted")


def test_more_groups_join_on_the_nodes_that_come_and_the_others_go_on() -> None:
    w = World(groups=2).bring_up()
    before = {g: w.group(g) for g in (0, 1)}
    scale(w, sized(w, 4))
    assert wanted(w) == [f"run-a{n}" for n in (1, 2, 3, 4, 5)]
    w.round()
    assert [w.group(g).phase for g in (2, 3)] == ["starting", "unplaced"], "the spare serves at once"
    for number in (4, 5):
        w.bring(number)
    w.round()
    assert [w.group(g).phase for g in (2, 3)] == ["starting", "starting"]
    assert [w.group(g).resume for g in (2, 3)] == ["peers", "peers"]
    assert {g: w.group(g) for g in (0, 1)} == before
    assert w.memory.phase == "running"
    assert w.memory.stop_at_step is None


def test_groups_that_are_too_many_end_after_one_step_and_their_nodes_are_given_back() -> None:
    w = World(groups=3).bring_up()
    before = {g: w.group(g) for g in (0, 1)}
    scale(w, sized(w, 2))
    w.round()
    assert w.memory.stop_at_step is not None
    assert w.group(2).phase == "running"
    assert w.waiting(Code.DRAINING) == [{"step": w.memory.stop_at_step}]
    w.fail(2, code=0)
    for _ in range(4):
        w.round()
    assert sorted(w.memory.groups) == [0, 1]
    assert len(wanted(w)) == 3
    assert {g: w.group(g) for g in (0, 1)} == before
    assert (w.memory.stop_at_step, w.memory.surplus, w.memory.generations_above) == (None, 0, 1)
    scale(w, sized(w, 3), number=3)
    w.round()
    assert w.group(2).generation == 2, "none is used twice"


def test_a_group_that_does_not_come_to_its_end_is_ended() -> None:
    w = World(groups=2, start_timeout_s=60.0).bring_up()
    scale(w, sized(w, 1))
    w.round()
    stop_by = w.memory.stop_by
    assert stop_by is not None
    w.round(stop_by - w.now + 0.1)
    assert (w.group(1).phase, w.group(1).generation) == ("fencing", 2)
    w.round()
    assert 1 in w.memory.groups, "its rank still runs, and the gate admits it"
    w.open_gate()
    for _ in range(2):
        w.round()
    assert sorted(w.memory.groups) == [0]
    assert w.memory.generations_above == 2


def test_a_group_that_fails_while_it_ends_is_no_failure_of_the_run() -> None:
    w = World(groups=3).bring_up()
    scale(w, sized(w, 1))
    w.round()
    w.crash(2)
    w.fail(1, code=0)
    w.open_gate()
    for _ in range(4):
        w.round()
        w.open_gate()
    assert sorted(w.memory.groups) == [0]
    assert w.incidents == {}
    assert w.memory.spent == {}


def test_nodes_that_were_too_many_once_are_not_given_back_later() -> None:
    """The run was stopped in the middle of a scale: after its resumption it has as many as it wants."""
    w = World(groups=4).bring_up()
    scale(w, sized(w, 2))
    w.round()
    w.control = replace(w.control, stop=True)
    for _ in range(2):
        w.round()
    for g in list(w.memory.groups):
        w.fail(g, code=0)
    for _ in range(4):
        w.round()
    assert w.memory.phase == "stopped"
    w.control = replace(w.control, stop=False, resumes=1, because="on")
    for _ in range(6):
        w.round()
    assert len(wanted(w)) == 3
    assert w.memory.surplus == 0


def test_what_a_group_waits_for_is_not_given_back() -> None:
    """Group 0 has lost its node, and another was asked for, when the run is made smaller: it takes the node that is left."""
    w = World(groups=3, spares=0).bring_up()
    w.lapse("n1")
    w.grant(1, "gone")
    for _ in range(3):
        w.round(1.0)
    assert wanted(w) == ["run-a2", "run-a3", "run-a4"]
    w.grant(4, "pending")
    scale(w, sized(w, 2, spares=0))
    w.round()
    assert wanted(w) == ["run-a2", "run-a3", "run-a4"]
    w.fail(2, code=0)
    w.open_gate()
    for _ in range(6):
        w.round()
    assert sorted(w.memory.groups) == [0, 1]
    assert w.group(0).nodes == ("n3",)
    assert wanted(w) == ["run-a2", "run-a3"]


def test_spares_alone() -> None:
    w = World(groups=2).bring_up()
    scale(w, sized(w, 2, spares=3))
    assert len(wanted(w)) == 5
    scale(w, sized(w, 2, spares=0), number=3)
    for _ in range(3):
        w.round()
    assert wanted(w) == ["run-a1", "run-a2"], "those with groups are kept"


def test_a_stop_while_groups_end_drains_all_at_a_step_ahead() -> None:
    w = World(groups=2).bring_up()
    scale(w, sized(w, 1))
    w.round()
    first = w.memory.stop_at_step
    assert first is not None
    for g in (0, 1):
        w.report(g, step=first + 5, commits=5, step_s=0.1)
    w.control = replace(w.control, stop=True)
    w.round()
    w.round()
    assert w.memory.stop_at_step is not None
    assert w.memory.stop_at_step > first + 5


@pytest.mark.parametrize(
    ("change", "scales"),
    [({"groups.count": 4}, True), ({"groups.min_groups": 2}, False), ({"titan.steps": 5}, False), ({}, True)],
)
def test_no_group_starts_again_for_a_number_of_groups(change: dict[str, int], scales: bool) -> None:
    w = World(groups=2)
    after = w.spec
    for key, value in change.items():
        part, _, name = key.partition(".")
        after = replace(after, **{part: replace(getattr(after, part), **{name: value})})
    assert only_scales(w.spec, after) is scales
