"""The time of a hand-over of all groups: the last step and its checkpoint must fit into the rest of the warning."""

from __future__ import annotations

import pytest

from supervisor.core.model.reason import Code
from tests.helpers.reasons import codes, values
from tests.unit.core.remediation.test_drain import WARN_S, drain, limit, settle, world
from tests.unit.core.world import World


def _begun_at(w: World, told_at: float) -> float:
    """Seconds from the warning to the begin of the hand-over, a second's round at a time."""
    while w.memory.handover_at_step is None and w.now < told_at + WARN_S:
        w.round(1.0)
    assert w.memory.handover_at_step is not None, w.last.waits
    return w.now - told_at


@pytest.mark.parametrize("pace", [0.1, 1.0, 20.0, 60.0, 80.0])
def test_the_last_step_and_its_checkpoint_fit_into_the_warning(pace: float) -> None:
    w = world(groups=1, spares=0)
    w.report(0, commits=1, step=100, step_s=pace)
    limit(w, 1)
    settle(w)
    begun = _begun_at(w, w.now)
    step = w.memory.handover_at_step
    assert step is not None
    assert step >= 102, "nobody has passed it when the agents hear of it"
    assert begun <= WARN_S / 2 + 1
    assert begun + (step - 100) * pace + 30.0 <= WARN_S - 60.0 + 1


def test_a_step_that_takes_longer_than_the_warning_is_begun_at_once_and_said() -> None:
    w = world(groups=1, spares=0)
    w.report(0, commits=1, step=100, step_s=400.0)
    limit(w, 1)
    decision = w.round()
    while w.memory.handover_at_step is None and decision.look_again_at == w.now:
        decision = w.round()
    (action,) = [a for a in decision.actions if a.verb == "hand_over"]
    assert values([action.reason], Code.STEP_TOO_LONG) == [{"step_s": 400.0, "warning_s": 300.0}]


def _half_moved() -> World:
    """A world in which both nodes got notice at once; one successor came late, and a group is being started on it."""
    w = world(groups=2, spares=0)
    limit(w, 1)
    limit(w, 2)
    settle(w)
    w.round(140.0)
    w.bring(3)
    settle(w)
    w.admit(0)
    settle(w)
    assert [(g.phase, g.first_node) for g in w.memory.groups.values()] == [("starting", "n3"), ("running", "n2")]
    return w


def test_whoever_only_starts_on_a_node_that_stays_does_not_hold_up_the_others() -> None:
    w = _half_moved()
    told = w.memory.allocations["run-a2"].leaving_since
    assert told is not None
    begun = _begun_at(w, told)
    assert WARN_S / 2 < begun <= WARN_S * 3 / 4 + 1
    assert any(Code.TRAINING_LEAVE in codes(a.reason) for a in w.last.actions)


def test_who_has_healed_on_a_node_that_stays_keeps_the_steps() -> None:
    w = _half_moved()
    w.commit(0, step=10)
    w.round()
    w.hear(0, "beating")
    w.round(WARN_S)
    assert w.memory.handover_at_step is None


def test_a_drained_node_has_no_deadline() -> None:
    w = world(groups=2, spares=0)
    limit(w, 1)
    drain(w, 2)
    settle(w)
    for _ in range(40):
        w.round(10.0)
    assert w.memory.handover_at_step is None
