"""The simulator's bounds on recoveries: slower ones are reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fault_injection.sim.bounds import RECOVERY_BOUND_S, SEEN_S, Bounds
from fault_injection.sim.faults import Fault
from fault_injection.sim.judge import MAY_HAVE, OTHERS_S, _others_s
from fault_injection.sim.pace import pace
from fault_injection.sim.world import spec

BOUNDS = Bounds(spec(8), pace(), climbs=False)
CRASH = Fault(20.0, "crash", 0, 5.0)


def within_s(fault: Fault, *others: Fault, of: Bounds = BOUNDS, clear: bool = True, trained: bool = True) -> float:
    return of.within_s(fault, [fault, *others], clear, trained)


def test_a_restart_is_bounded_by_its_start_and_the_steps_in_which_it_heals() -> None:
    at = BOUNDS.pace
    least = at.start_s[1] + at.step_s + at.heal_s[1]
    assert least < BOUNDS.in_place_s < 2 * least
    assert within_s(CRASH) == pytest.approx(BOUNDS.in_place_s), (
        "and it is over at once, however long it is said to last"
    )
    assert BOUNDS.in_place_s < BOUNDS.moved_s < BOUNDS.elsewhere_s < RECOVERY_BOUND_S / 6


def test_a_spare_is_moved_to_at_once_if_nothing_else_is_broken() -> None:
    lost = Fault(20.0, "node_lost", 0, 5.0)
    assert BOUNDS.within_s(lost, [lost], clear=True, trained=True, spare=True) == pytest.approx(BOUNDS.moved_s)
    both = BOUNDS.within_s(lost, [lost, CRASH], clear=True, trained=True, spare=True)
    assert both == pytest.approx(BOUNDS.elsewhere_s + BOUNDS.again_s)


@pytest.mark.parametrize("kind", [*MAY_HAVE, "frozen_for_good", "frozen_at_start"])
def test_whatever_is_alone_has_its_own_bound_from_its_end(kind: str) -> None:
    fault = Fault(20.0, kind, 0, 7.0)
    assert fault.lasts_s <= within_s(fault) < fault.lasts_s + RECOVERY_BOUND_S / 6


@pytest.mark.parametrize(("kind", "moves"), [("leader_killed", False), ("node_lost", True)])
def test_what_comes_before_all_is_due_to_be_well_is_waited_for_and_what_comes_later_is_not(
    kind: str, moves: bool
) -> None:
    other = Fault(30.0, kind, 0, 9.0)
    mended_s = BOUNDS.elsewhere_s if moves else BOUNDS.in_place_s + BOUNDS.control_s
    assert within_s(CRASH, other) == pytest.approx(30.0 - 20.0 + mended_s + BOUNDS.again_s)
    late = Fault(CRASH.at + max(BOUNDS.in_place_s, CRASH.seconds + SEEN_S) + 0.1, kind, 0, 9.0)
    assert within_s(CRASH, late) == pytest.approx(BOUNDS.in_place_s)


TAKEN = Fault(99.3, "allocation_taken", 61218, 3.9)
LOST = Fault(99.3, "node_lost", 0, 5.0)


@pytest.mark.parametrize(
    ("faults", "windows"),
    [
        ([TAKEN], 0),
        ([TAKEN, TAKEN], 1),
        ([TAKEN, TAKEN, TAKEN], 2),
        ([LOST, TAKEN], 0),
        ([LOST, LOST], 0),
        ([LOST, LOST, TAKEN], 1),
        ([CRASH, CRASH, CRASH], 0),
        ([CRASH, CRASH, CRASH, CRASH], 1),
        ([replace(CRASH, kind="heal_source_killed"), CRASH, TAKEN], 1),
        ([replace(CRASH, kind="leader_killed"), TAKEN], 0),
    ],
)
def test_what_no_budget_pays_for_waits_for_as_many_windows(faults: list[Fault], windows: int) -> None:
    tight = Bounds(spec(8, tight=True), pace(), climbs=True)
    window_s = tight.spec.policy.budget.window_s
    assert tight.spent_s(faults) == windows * window_s
    assert BOUNDS.spent_s(faults * 9) == 0.0
    first, *others = faults
    bound = within_s(first, *others, of=tight)
    assert windows * window_s < bound <= RECOVERY_BOUND_S
    assert windows or bound < window_s + tight.control_s


def test_what_comes_before_it_is_taken_for_over_is_waited_for() -> None:
    cut = Fault(83.13, "agent_cut", 0, 1.8)
    assert cut.lasts_s + BOUNDS.of(["agent_cut"]) < 11.5, "all would be well again"
    before, after = (Fault(cut.at + cut.seconds + SEEN_S + s, "host_off", 0, 5.0) for s in (-0.1, 0.1))
    assert within_s(cut, before) > 20.0
    assert within_s(cut, after) == within_s(cut)


def test_the_others_may_stand_still_as_long_as_etcd_is_away_beside_it() -> None:
    away = Fault(CRASH.at, "etcd_away", 0, 19.5)
    assert _others_s(CRASH, [CRASH], 60.0, clear=True) == OTHERS_S
    assert _others_s(CRASH, [CRASH, away], 60.0, clear=True) == OTHERS_S + 19.5
    assert _others_s(CRASH, [CRASH, replace(away, at=CRASH.at + OTHERS_S + 1)], 60.0, clear=True) == OTHERS_S
    assert _others_s(CRASH, [CRASH, replace(away, at=CRASH.at - 20.0)], 60.0, clear=True) == OTHERS_S


def test_what_came_before_and_is_not_due_to_be_well_is_waited_for_and_so_is_what_waits_for_a_decision() -> None:
    away = Fault(30.0, "engine_away", 0, 5.0)
    frozen = Fault(10.0, "frozen_at_start", 0, 1.0)
    assert within_s(away, frozen) > within_s(away) + BOUNDS.never_trains_s / 2
    armed = Fault(-600.0, "leader_killed_deciding", 0, 1.0)
    assert within_s(CRASH, armed) == pytest.approx(BOUNDS.in_place_s + BOUNDS.again_s + BOUNDS.control_s)


def test_what_is_not_clear_may_be_mended_one_after_the_other_and_who_has_not_trained_has_the_widest_bound() -> None:
    lost = Fault(20.0, "node_lost", 0, 5.0)
    one_by_one = BOUNDS.in_place_s + BOUNDS.elsewhere_s + 2 * BOUNDS.again_s
    assert within_s(CRASH, lost, clear=False) == pytest.approx(one_by_one)
    assert within_s(CRASH, *[lost] * 40, clear=False) == pytest.approx(RECOVERY_BOUND_S)
    assert within_s(CRASH, trained=False) == pytest.approx(RECOVERY_BOUND_S)


def test_a_run_with_few_budgets_may_have_to_move_or_to_wait_for_their_window() -> None:
    tight = Bounds(spec(8, tight=True), pace(), climbs=True)
    assert within_s(CRASH, of=tight) == pytest.approx(tight.elsewhere_s)
    assert within_s(CRASH, of=tight, clear=False) == pytest.approx(RECOVERY_BOUND_S)
