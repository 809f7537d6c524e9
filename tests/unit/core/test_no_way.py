"""Groups whose forwarder does not reach the gate: all of them, or some while the gate hears others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code, Reason
from supervisor.shell.inspect.pending_reasons import held
from tests.helpers.reasons import codes
from tests.unit.core.world import World

NO_WAY = Reason.of(Code.NO_WAY, host="host")
UNREACHED = {Code.NO_WAY, Code.GATE_UNREACHABLE}


def no_way(w: World, *groups: int, for_s: int = 0) -> None:
    """Makes their agents report each second that the gate is unreachable; it has not heard them. The others step on."""
    for g in groups:
        if w.group(g).phase == "running":
            w.hear(g, "silent")
    for _ in range(for_s + 1):
        for g in groups:
            group = w.group(g)
            if group.phase in ("starting", "running"):
                w.report(g, commits=1 if group.phase == "running" else 0, step=50, reaches_gate=False)
        w.round(1.0)


@pytest.mark.parametrize("groups", [1, 2, 4, 5])
def test_where_nobody_reaches_the_gate_nobody_is_ended(groups: int) -> None:
    w = World(groups=groups, spares=1).bring_up()
    no_way(w, *range(groups), for_s=200)
    assert [g.generation for g in w.memory.groups.values()] == [1] * groups
    why = Reason.of(Code.GATE_UNREACHABLE, groups=tuple(range(groups)), host="host")
    assert why in w.last.waits
    assert why in held(w.memory, w.observed(), w.spec), "status says so too"
    for g in range(groups):
        w.hear(g, "beating")
        w.report(g, commits=2, step=51, reaches_gate=True)
    w.round(1.0)
    assert not codes(*w.last.waits) & UNREACHED
    assert held(w.memory, w.observed(), w.spec) == ()


def test_what_has_just_started_may_not_have_found_its_way_yet() -> None:
    w = World(groups=2, spares=0).start_up()
    no_way(w, 0, 1, for_s=20)
    assert not codes(*w.last.waits) & UNREACHED
    no_way(w, 0, 1, for_s=20)
    assert w.waiting(Code.GATE_UNREACHABLE) == [{"groups": (0, 1), "host": "host"}]


def test_nor_may_any_after_the_lighthouse_has_moved() -> None:
    w = World(groups=2, spares=0).bring_up()
    w.now += 600.0
    w.memory = replace(w.memory, lighthouse=replace(w.memory.lighthouse, opened=w.now))
    no_way(w, 0, 1, for_s=20)
    assert not codes(*w.last.waits) & UNREACHED


def test_one_that_does_not_reach_it_while_others_do_moves_to_a_spare() -> None:
    w = World(groups=3, spares=1).bring_up()
    no_way(w, 1, for_s=int(w.spec.policy.silent_timeout_s) + 1)
    assert (w.incident.kind, w.incident.rung) == (Kind.STALLED, Rung.REPLACE)
    assert w.incident.evidence[-1] == NO_WAY
    assert codes(w.incident.considered[-1]) == {Code.PASSED, Code.GATE_UNREACHED}
    assert not codes(*w.last.waits) & UNREACHED
    w.start_again(1)
    assert w.group(1).first_node == "n4"


def test_nor_is_a_start_tried_there_again() -> None:
    w = World(groups=2, spares=1).bring_up()
    w.crash(1)
    w.round()
    w.start_again(1)
    w.hear(1, "absent")
    no_way(w, 1, for_s=int(w.spec.policy.start_timeout_s) + 1)
    assert (w.incident.kind, w.incident.rung) == (Kind.START_TIMEOUT, Rung.REPLACE)
    assert NO_WAY in w.incident.evidence


@pytest.mark.parametrize("reaches", [True, None])
def test_of_any_other_a_restart_in_place_is_tried(reaches: bool | None) -> None:
    w = World(groups=3, spares=1).bring_up()
    w.hear(1, "silent")
    w.report(1, commits=1, step=50, reaches_gate=reaches)
    w.round(1.0)
    w.round(w.spec.policy.silent_timeout_s + 1.0)
    assert (w.incident.kind, w.incident.rung) == (Kind.STALLED, Rung.RESTART)
    assert Code.NO_WAY not in codes(*w.incident.evidence)


def test_without_a_spare_it_is_restarted_where_it_is_and_says_why_it_stalled() -> None:
    w = World(groups=3, spares=0).bring_up()
    no_way(w, 1, for_s=int(w.spec.policy.silent_timeout_s) + 1)
    assert (w.incident.kind, w.incident.rung) == (Kind.STALLED, Rung.RESTART)
    assert NO_WAY in w.incident.evidence


def is_woken_in_time(w: World) -> bool:
    """True if no wake-up is due in the past: a loop that must look at a past time looks again and again."""
    return w.last.look_again_at is None or w.last.look_again_at >= w.now


def test_whoever_waits_for_it_keeps_the_leader_from_no_sleep() -> None:
    trains = World(groups=2, spares=1).bring_up()
    no_way(trains, 0, 1, for_s=int(trains.spec.policy.silent_timeout_s) + 10)
    assert is_woken_in_time(trains)
    starts = World(groups=2, spares=0).start_up()
    starts.now += starts.spec.policy.start_timeout_s
    no_way(starts, 0, 1, for_s=10)
    assert is_woken_in_time(starts)


def test_one_that_the_gate_has_never_heard_where_it_is_now_moves_to_a_spare() -> None:
    """The lighthouse went to another host, which all but group 1's node reach."""
    w = World(groups=3, spares=1).bring_up()
    w.memory = replace(w.memory, lighthouse=replace(w.memory.lighthouse, opened=w.now))
    w.hear(1, "absent")
    for _ in range(int(w.spec.policy.silent_timeout_s)):
        w.report(1, commits=1, step=50, reaches_gate=False)
        w.round(1.0)
    assert w.group(1).generation == 1, "it may find the gate yet"
    w.round(2.0)
    assert (w.incident.kind, w.incident.rung, w.incident.group) == (Kind.STALLED, Rung.REPLACE, 1)
    assert w.incident.took_s == pytest.approx(w.spec.policy.silent_timeout_s + 2.0), "measured, not the limit"
    assert NO_WAY in w.incident.evidence


def test_one_that_the_gate_hears_is_not_cut_off_whatever_its_forwarder_said_last() -> None:
    """Its last report is about a pong that came late."""
    w = World(groups=1, spares=1).start_up()
    w.hear(0, "beating")
    w.report(0, commits=0, reaches_gate=False)
    w.round(w.spec.policy.start_timeout_s + 7.0)
    assert (w.incident.kind, w.incident.rung) == (Kind.START_TIMEOUT, Rung.RESTART)
    assert w.incident.took_s >= w.spec.policy.start_timeout_s + 7.0, "measured, not the limit"
    assert Code.NO_WAY not in codes(*w.incident.evidence)
