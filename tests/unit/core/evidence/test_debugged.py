"""A rank stands in the debugger: its group is not to blame for anything, and its end is a person's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import StuckView
from supervisor.core.model.reason import Code, Reason
from supervisor.shell.control import projection
from tests.unit.core.world import World

OWN = StuckView(activity="compute", activity_s=31.0, bound_s=30.0, usual_s=1.5)


@pytest.fixture
def w() -> World:
    return World(groups=3).bring_up()


def debug(w: World, group: int, **about: object) -> None:
    w.report(group, 0, **{"commits": 1, "step": 50, "debugging": True, **about})


def test_its_group_may_be_silent_and_stand_still_for_hours(w: World) -> None:
    debug(w, 1, stuck=OWN)
    w.hear(1, "silent")
    w.others_wait(1)
    for _ in range(20):
        assert w.round(600.0).actions == ()
    assert w.memory.incidents == {}
    assert [w.group(g).generation for g in range(3)] == [1, 1, 1]


def test_without_the_debugger_the_same_is_a_failure(w: World) -> None:
    debug(w, 1, stuck=OWN, debugging=False)
    w.hear(1, "silent")
    w.others_wait(1)
    w.round(1.0)
    assert w.incident.group == 1


def test_another_group_that_hangs_by_itself_is_blamed_meanwhile(w: World) -> None:
    debug(w, 1)
    w.hear(1, "silent")
    w.report(2, 0, commits=1, step=50, stuck=OWN)
    w.report(0, 0, commits=1, step=50, stuck=replace(OWN, activity="quorum"))
    w.round(1.0)
    assert (w.incident.group, w.incident.kind) == (2, Kind.HANG)
    assert w.group(1).generation == 1


def test_what_all_others_share_is_held_as_without_it() -> None:
    w = World(groups=4).bring_up()
    debug(w, 0)
    w.hear(0, "silent")
    saves = StuckView(activity="checkpoint", activity_s=31.0, bound_s=30.0, usual_s=1.5)
    for group in (1, 2, 3):
        w.report(group, 0, commits=1, step=50, stuck=saves)
    for _ in range(4):
        w.round(1.0)
    assert w.incidents == {}, "a store that stalls for all ends none of them"


def test_a_stopped_rank_of_another_group_is_found_as_without_it(w: World) -> None:
    debug(w, 0)
    w.hear(0, "silent")
    w.report(1, 0, commits=1, step=50, stopped="is stopped", stopped_s=1e5)
    w.round(1.0)
    assert (w.incident.group, w.incident.kind) == (1, Kind.HANG)


def test_one_that_ends_again_before_it_has_committed_is_judged_as_any_other(w: World) -> None:
    for _ in range(3):
        generation = w.group(1).generation
        w.fail(1, 1, "ValueError: x", debugging=True, commits=0)
        w.round(1.0)
        w.round(20.0)
        assert w.group(1).generation == generation + 1
    assert w.memory.spent


def test_one_that_does_not_start_because_of_it_is_given_time() -> None:
    w = World(groups=2).start_up()
    w.commit(0)
    w.report(1, phase="starting", debugging=True)
    for _ in range(5):
        w.round(w.spec.policy.start_timeout_s)
        w.commit(0, step=2)
    assert w.group(1).generation == 1
    assert w.memory.incidents == {}


def test_a_node_that_is_lost_is_lost_all_the_same(w: World) -> None:
    debug(w, 1)
    (node,) = w.group(1).nodes
    w.hear(1, "silent")
    w.lapse(node)
    w.round(5.0)
    assert (w.incident.group, w.incident.kind) == (1, Kind.NODE_LOST)


def test_all_may_be_left_in_their_first_step(w: World) -> None:
    """A breakpoint in the code of a step stops every generation in its first. The same error in all is no bug of theirs."""
    for number in range(4):
        generations = [w.group(g).generation for g in (0, 1)]
        for group in (0, 1):
            w.fail(group, 1, "BdbQuit: ", debugging=True, commits=0, step=0)
        for _ in range(10):
            w.round(5.0)
        assert w.memory.phase == "running", number
        assert [w.group(g).generation for g in (0, 1)] == [generation + 1 for generation in generations]
    assert w.memory.spent == {}


@pytest.mark.parametrize("how", ["quit", "its peers gave up", "killed"])
def test_its_end_is_a_restart_that_costs_nothing(w: World, how: str) -> None:
    before = w.memory.spent
    if how == "quit":
        w.fail(1, 1, "BdbQuit", debugging=True, commits=1)
    elif how == "killed":
        w.crash(1, signal=9, debugging=True, commits=1)
    else:
        w.fail(1, 1, "RuntimeError: Connection closed by peer", debugging=True, commits=1)
    w.round(1.0)
    w.round(20.0)
    incident = w.incident
    assert (incident.kind, incident.group, incident.rung) == (Kind.DEBUGGER, 1, Rung.RESTART)
    assert incident.evidence == (Reason.of(Code.DEBUGGED, rank=0),)
    assert w.group(1).generation == 2
    assert w.memory.spent == before


@pytest.mark.parametrize("about", [{"debugging": False}, {"state": "exited", "exit_code": 1}])
def test_the_others_wait_for_it_where_the_run_file_says_so_until_it_goes_on_or_ends(about: dict[str, Any]) -> None:
    w = World(groups=3, at_breakpoint="wait").bring_up()
    debug(w, 1)
    w.round(1.0)
    assert w.memory.debugged == (1,)
    wanted = projection.desired(w.spec, "/runs/run", w.memory)
    waits = {trainer.group: trainer.wait for node in wanted.values() for trainer in node.trainers}
    assert waits == {0: True, 1: False, 2: True}
    debug(w, 1, **about)
    w.round(1.0)
    assert w.memory.debugged == ()


@pytest.mark.parametrize("lost", [False, True])
def test_they_do_not_wait_for_one_that_is_not_asked_for_or_whose_node_is_away(lost: bool) -> None:
    w = World(groups=3, at_breakpoint="wait" if lost else "go_on").bring_up()
    debug(w, 1)
    if lost:
        w.lapse(w.group(1).nodes[0])
    w.round(1.0)
    assert w.memory.debugged == ()


def test_one_that_stands_in_a_quorum_while_the_others_wait_does_not_hang() -> None:
    w = World(groups=3, at_breakpoint="wait").bring_up()
    debug(w, 1)
    w.hear(1, "silent")
    w.report(2, 0, commits=1, step=50, phase="waiting")
    w.report(0, 0, commits=1, step=50, stuck=replace(OWN, activity="quorum"))
    for _ in range(5):
        assert w.round(60.0).actions == ()
    assert w.memory.incidents == {}
