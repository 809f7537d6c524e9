"""A group that is started again while the others do something long waits for its first quorum, and is not late."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor.core.model.kinds import Kind
from supervisor.core.model.reason import Code
from tests.unit.core.world import World

TIMEOUT_S = 60.0
Others = Callable[[World, float], None]


def started_again(groups: int = 2, **about: float) -> World:
    """A world in which group 1 was started again just now; the others had come to step 50."""
    w = World(groups=groups, start_timeout_s=TIMEOUT_S, **about).bring_up()
    for group in w.memory.groups:
        w.commit(group, step=50, phase="step")
    w.crash(1)
    w.round(1.0)
    w.start_again(1)
    return w


def pause(w: World, at: float) -> None:
    """Makes the others evaluate, or save."""


def go_on_without_it(w: World, at: float) -> None:
    for group in w.memory.groups:
        if group != 1:
            w.commit(group, step=50 + int(at), phase="step")


def wait_too(w: World, at: float) -> None:
    for group in w.memory.groups:
        if group != 1:
            w.commit(group, step=50, phase="quorum")


def after(w: World, seconds: float, others: Others, phase: str = "quorum") -> float:
    """Seconds until the start is ended, at most `seconds`."""
    began, generation = w.now, w.group(1).generation
    while w.now < began + seconds and w.group(1).generation == generation:
        others(w, w.now - began)
        w.report(1, phase=phase, commits=0, step=0)
        w.round(2.0)
    return w.now - began


@pytest.mark.parametrize("groups", [2, 4])
def test_it_is_waited_for_as_long_as_the_others_take(groups: int) -> None:
    w = started_again(groups)
    assert after(w, 1800.0, pause) == 1800.0
    assert w.incident.kind == Kind.CRASH
    wait_too(w, 0.0)
    after(w, 2.0, pause, phase="healing")
    go_on_without_it(w, 1.0)
    w.commit(1, step=51)
    w.round(1.0)
    assert (w.group(1).phase, w.incident.state, w.memory.waited) == ("running", "recovered", {})


@pytest.mark.parametrize("others", [go_on_without_it, wait_too])
def test_not_where_they_step_without_it_or_wait_for_it(others: Others) -> None:
    w = started_again(4)
    assert TIMEOUT_S < after(w, 300.0, others) <= TIMEOUT_S + 4.0
    assert (w.incident.kind, w.incident.group) == (Kind.START_TIMEOUT, 1)


@pytest.mark.parametrize("phase", ["starting", "built", "healing", "step"])
def test_not_while_it_is_at_something_else_itself(phase: str) -> None:
    w = started_again()
    assert TIMEOUT_S < after(w, 300.0, pause, phase) <= TIMEOUT_S + 4.0
    assert w.incident.kind == Kind.START_TIMEOUT


def test_that_they_tell_of_steps_with_it_before_it_does_ends_nothing() -> None:
    w = started_again()
    assert after(w, 600.0, pause) == 600.0
    go_on_without_it(w, 5.0)
    w.round(1.0)
    assert (w.group(1).generation, w.incident.kind) == (2, Kind.CRASH)
    w.commit(1, step=55)
    w.round(1.0)
    assert w.group(1).phase == "running"


def test_what_it_takes_itself_after_they_came_counts_on() -> None:
    w = started_again()
    assert after(w, 600.0, pause) == 600.0
    left_s = after(w, 300.0, wait_too)
    assert TIMEOUT_S / 2 - 4.0 <= left_s <= TIMEOUT_S / 2 + 4.0
    assert w.incident.kind == Kind.START_TIMEOUT


def test_who_is_left_out_after_their_pause_is_late() -> None:
    w = started_again(4)
    assert after(w, 600.0, pause) == 600.0
    assert after(w, 300.0, go_on_without_it) <= TIMEOUT_S
    assert (w.incident.kind, w.incident.group) == (Kind.START_TIMEOUT, 1)


def test_a_start_in_time_is_not_remembered() -> None:
    w = started_again()
    after(w, TIMEOUT_S / 2 - 2.0, pause)
    assert w.memory.waited == {}
    assert (w.last.look_again_at or 0.0) == pytest.approx(w.group(1).since + TIMEOUT_S / 2)


def test_what_is_remembered_is_of_one_generation() -> None:
    w = started_again(4)
    after(w, 300.0, pause)
    assert w.memory.waited[1].generation == w.group(1).generation
    w.crash(1)
    w.round(1.0)
    w.start_again(1, 5.0)
    assert w.memory.waited == {}


def test_it_is_written_seldom() -> None:
    w = started_again(4)
    before = w.memory.decisions
    after(w, 1800.0, pause)
    assert w.memory.decisions - before <= 1800 / (TIMEOUT_S / 10) + 2


# --- too few are there to step ---


def kinds(w: World, seconds: float, seen: Callable[[World], None]) -> list[tuple[Kind, int | None]]:
    """The incidents that were opened meanwhile."""
    began, known = w.now, set(w.incidents)
    while w.now < began + seconds:
        seen(w)
        w.round(10.0)
    return [(i.kind, i.group) for i in w.incidents.values() if i.id not in known]


def test_one_that_waits_for_a_group_that_is_being_built_is_not_late_but_that_one_is() -> None:
    w = World(groups=2, spares=0, min_groups=2, start_timeout_s=TIMEOUT_S).start_up()

    def seen(w: World) -> None:
        w.report(0, phase="quorum")
        w.report(1, phase="starting")

    assert kinds(w, 2 * TIMEOUT_S, seen) == [(Kind.START_TIMEOUT, 1)]
    assert w.group(0).generation == 1


def test_one_that_waits_for_a_group_whose_allocation_is_in_a_queue_is_not_late() -> None:
    w = World(groups=2, spares=0, min_groups=2, start_timeout_s=TIMEOUT_S).start_up()
    w.report(0, phase="quorum")
    w.round(20.0)
    w.lapse(w.group(1).first_node)

    def seen(w: World) -> None:
        w.report(0, phase="quorum")
        for number in range(1, len(w.memory.allocations) + 1):
            if f"run-a{number}" not in w.grants:
                w.grant(number, "pending")
        if w.group(1).phase == "fencing":
            w.admit(1)

    assert kinds(w, 60 * TIMEOUT_S, seen) == [(Kind.NODE_LOST, 1)]
    assert (w.group(0).generation, w.group(0).first_node) == (1, "n1")
    assert w.waiting(Code.LATE_FOR_OTHERS) == [{"groups": (0,), "more": 0, "there": 1, "needed": 2}]


def test_of_three_that_must_be_there_only_the_one_that_is_not_is_late() -> None:
    w = World(groups=3, spares=0, min_groups=3, start_timeout_s=TIMEOUT_S).bring_up()
    for group in (0, 1):
        w.crash(group, step=50, commits=5)
    w.round(1.0)
    w.round(1.0)
    for group in (0, 1):
        w.start_again(group)

    def seen(w: World) -> None:
        w.report(0, phase="quorum")
        w.report(1, phase="starting")
        w.report(2, commits=50, step=50, phase="quorum")

    began = kinds(w, TIMEOUT_S + 10.0, seen)
    assert began == []  # the crash's incident is still open: it is brought up to date
    late = [i.group for i in w.incidents.values() if i.kind == Kind.START_TIMEOUT]
    assert (late, w.group(0).generation) == ([1], 2)


def test_who_waits_with_enough_others_is_late_as_ever() -> None:
    w = World(groups=2, spares=0, min_groups=2, start_timeout_s=TIMEOUT_S).start_up()

    def seen(w: World) -> None:
        for group in (0, 1):
            w.report(group, phase="quorum")

    assert sorted(kinds(w, 1.2 * TIMEOUT_S, seen)) == [(Kind.START_TIMEOUT, 0), (Kind.START_TIMEOUT, 1)]


def test_who_waits_for_nobody_that_comes_is_late_as_ever() -> None:
    w = World(groups=2, spares=0, min_groups=2, start_timeout_s=TIMEOUT_S).bring_up()
    w.fail(0, code=0, commits=5, step=50)
    w.crash(1, commits=5, step=49)
    w.round(1.0)
    w.round(1.0)
    w.start_again(1)
    assert after(w, 300.0, pause) <= TIMEOUT_S + 4.0
    assert (w.incident.kind, w.incident.group) == (Kind.START_TIMEOUT, 1)


def refused(w: World) -> None:
    """Makes the engine refuse group 1 another node."""
    w.report(0, phase="quorum")
    for number in range(1, len(w.memory.allocations) + 1):
        if f"run-a{number}" not in w.grants:
            w.grant(number, "refused")
    if w.group(1).phase == "fencing":
        w.admit(1)


def test_who_waits_for_a_group_that_nobody_brings_is_not_waited_for() -> None:
    w = World(groups=2, spares=0, min_groups=2, start_timeout_s=TIMEOUT_S).start_up()
    w.report(0, phase="quorum")
    w.round(20.0)
    w.lapse(w.group(1).first_node)
    found = kinds(w, 3 * TIMEOUT_S, refused)
    assert (Kind.START_TIMEOUT, 0) in found or w.memory.phase != "running"


@pytest.mark.parametrize("kind", ["crash", "error"])
def test_nor_for_one_that_has_ended_and_is_left_so(kind: str) -> None:
    w = World(groups=2, spares=0, min_groups=2, start_timeout_s=TIMEOUT_S, observe=(kind,)).bring_up()
    if kind == "crash":
        w.crash(1, step=50, commits=5)
    else:
        w.fail(1, error="ValueError: no", step=50, commits=5)
    w.crash(0, step=50, commits=5) if kind == "error" else w.fail(0, error="ValueError: no", step=50, commits=5)
    w.round(1.0)
    w.round(1.0)
    w.start_again(0)
    began = w.now
    while w.now < began + 3 * TIMEOUT_S and w.group(0).generation == 2:
        w.report(0, phase="quorum")
        w.round(5.0)
    assert w.now - began <= TIMEOUT_S + 10.0


def test_of_many_that_wait_a_few_are_named() -> None:
    w = World(groups=14, spares=0, min_groups=14, start_timeout_s=TIMEOUT_S).start_up()

    def seen(w: World) -> None:
        for group in range(13):
            w.report(group, phase="quorum")
        w.report(13, phase="starting")

    kinds(w, TIMEOUT_S - 5.0, seen)
    named = (0, 1, 2, 3, 4, 5, 6, 7)
    assert w.waiting(Code.LATE_FOR_OTHERS) == [{"groups": named, "more": 5, "there": 13, "needed": 14}]
