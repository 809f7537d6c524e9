"""In the simulator: how long a recovery may take, and that slower ones are told."""

from __future__ import annotations

import pytest

from fault_injection.sim.bounds import RECOVERY_BOUND_S, Bounds
from fault_injection.sim.faults import Fault
from fault_injection.sim.pace import pace
from fault_injection.sim.world import spec

BOUNDS = Bounds(spec(8), pace(), climbs=False)
CRASH = Fault(20.0, "crash", 0, 5.0)


def test_a_restart_is_bounded_by_its_pause_its_start_and_the_steps_in_which_it_heals() -> None:
    of, at = BOUNDS.spec.policy, BOUNDS.pace
    least = of.backoff_max_s + at.start_s[1] + at.step_s + at.heal_s[1]
    assert least < BOUNDS.in_place_s < 3 * least
    assert BOUNDS.within_s(CRASH, [CRASH], clear=True) == 5.0 + BOUNDS.in_place_s
    assert BOUNDS.in_place_s < BOUNDS.elsewhere_s < RECOVERY_BOUND_S / 3


@pytest.mark.parametrize(("kind", "moves"), [("leader_killed", False), ("node_lost", True)])
def test_what_comes_before_all_is_due_to_be_well_is_waited_for_and_what_comes_later_is_not(
    kind: str, moves: bool
) -> None:
    other = Fault(30.0, kind, 0, 9.0)
    mended_s = BOUNDS.elsewhere_s if moves else BOUNDS.in_place_s + BOUNDS.control_s
    assert BOUNDS.within_s(CRASH, [CRASH, other], clear=True) == pytest.approx(39.0 - 20.0 + mended_s)
    late = Fault(CRASH.at + CRASH.seconds + BOUNDS.in_place_s + 0.1, kind, 0, 9.0)
    assert BOUNDS.within_s(CRASH, [CRASH, late], clear=True) == 5.0 + BOUNDS.in_place_s


def test_what_is_not_clear_has_the_widest_bound_and_a_run_with_few_budgets_may_have_to_move() -> None:
    assert BOUNDS.within_s(CRASH, [CRASH], clear=False) == 5.0 + RECOVERY_BOUND_S
    tight = Bounds(spec(8, tight=True), pace(), climbs=True)
    assert tight.within_s(CRASH, [CRASH], clear=True) == 5.0 + tight.elsewhere_s
