"""The kernel shows a rank as stopped: it is ended at once, and no other group must take too long first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.model.incident import Confidence
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import StuckView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import HangSpec
from supervisor.shell.inspect.pending_reasons import held
from tests.helpers.reasons import values
from tests.unit.core.world import World

WHY = "is stopped by a signal"
LIMIT_S = HangSpec().stopped_s


def stop(w: World, group: int, for_s: float = LIMIT_S + 0.04, rank: int = 0, **about: object) -> None:
    w.report(group, rank, **{"commits": 1, "step": 50, "stopped": WHY if for_s else "", "stopped_s": for_s, **about})


@pytest.fixture
def w() -> World:
    return World(groups=3).bring_up()


def test_it_is_started_again_and_its_true_time_is_told(w: World) -> None:
    stop(w, 1)
    w.round()
    incident = w.incident
    assert (incident.kind, incident.group, incident.rung, incident.rank) == (Kind.HANG, 1, Rung.RESTART, 0)
    assert incident.evidence == (Reason.of(Code.STOPPED, rank=0, how="is stopped by a signal", limit_s=1.5),)
    assert (incident.confidence, incident.took_s) == (Confidence.CERTAIN, LIMIT_S + 0.04)
    assert [w.group(g).generation for g in range(3)] == [1, 2, 1]


def test_before_its_first_commit_it_is_too() -> None:
    w = World().start_up()
    w.commit(0)
    w.round(1.0)
    stop(w, 1, commits=0, step=0, state="starting", phase="starting")
    w.round()
    assert (w.incident.kind, w.incident.group) == (Kind.HANG, 1)


def test_one_of_two_ranks_is_named() -> None:
    w = World(ranks=2).bring_up()
    stop(w, 1, rank=1)
    w.round()
    assert (w.incident.kind, w.incident.group, w.incident.rank) == (Kind.HANG, 1, 1)


def test_a_hiccup_is_left_alone(w: World) -> None:
    stop(w, 1, LIMIT_S - 0.01)
    w.round()
    stop(w, 1, 0.0)
    w.round(1.0)
    assert w.incidents == {}


def test_a_policy_gives_it_longer_or_for_ever() -> None:
    for limit_s, ended in ((60.0, False), (0.0, False), (1.0, True)):
        w = World(groups=3, hang=HangSpec(stopped_s=limit_s)).bring_up()
        stop(w, 1, 10.0)
        w.round()
        assert bool(w.incidents) == ended, limit_s


def test_for_ever_leaves_it_to_the_bound_of_its_step() -> None:
    w = World(groups=3, hang=HangSpec(stopped_s=0.0)).bring_up()
    stuck = StuckView(activity="collective", activity_s=31.0, bound_s=30.0, process="stopped")
    stop(w, 1, 31.0, stuck=stuck)
    w.others_wait(1)
    w.round()
    assert w.incident.kind == Kind.HANG
    assert values(w.incident.evidence, Code.NO_STEP)[0]["bound_s"] == 30.0


@pytest.mark.parametrize("policy", [{"mode": "observe"}, {"observe": ("hang",)}])
def test_where_it_is_only_observed_it_is_written_down_once(policy: dict[str, object]) -> None:
    w = World(groups=3, **policy).bring_up()
    stop(w, 1)
    assert w.verbs() == ["observe"]
    before = w.memory
    stop(w, 1, 60.0)
    w.round(60.0)
    assert w.memory.groups == before.groups
    assert [w.group(g).generation for g in range(3)] == [1, 1, 1]
    stop(w, 1, 0.0)
    w.round(1.0)
    assert w.incidents["i1"].state == "recovered"


def test_one_that_is_only_observed_is_over_once_the_gate_hears_it_again() -> None:
    """Its node reports a moment earlier that it goes on."""
    w = World(groups=3, mode="observe").bring_up()
    w.hear(1, "silent")
    stop(w, 1)
    w.round()
    stop(w, 1, 0.0)
    w.round(0.1)
    w.hear(1, "beating")
    w.round(0.1)
    assert {i.id: (i.kind, i.state, i.shadow) for i in w.incidents.values()} == {"i1": (Kind.HANG, "recovered", True)}


def test_a_paused_run_does_nothing_and_what_goes_on_is_over(w: World) -> None:
    w.control = replace(w.control, paused=True)
    stop(w, 1)
    w.round()
    assert w.group(1).generation == 1
    stopped = Reason.of(Code.STOPPED, rank=0, how="is stopped by a signal", limit_s=1.5)
    assert w.waiting(Code.PAUSED) == [{"group": 1, "evidence": stopped}]
    stop(w, 1, 0.0)
    w.round(1.0)
    assert w.incidents["i1"].state == "recovered"


def test_a_node_that_does_not_answer_says_nothing_of_now(w: World) -> None:
    stop(w, 1)
    node = w.group(1).first_node
    w.nodes[node] = replace(w.nodes[node], registered=False)
    w.round()
    assert Kind.HANG not in {incident.kind for incident in w.incidents.values()}


def test_where_one_hand_stops_all_none_is_ended_and_letting_them_go_on_ends_none(w: World) -> None:
    """The agents see them go on one after the other."""
    for group in range(3):
        stop(w, group, 0.1)
    w.round()
    for group in range(3):
        stop(w, group, 10.0)
    w.round(10.0)
    assert w.last.waits == held(w.memory, w.observed(), w.spec) == (Reason.of(Code.ALL_STOPPED),)
    stop(w, 0, 0.0)
    w.round(0.1)
    stop(w, 1, 0.0)
    w.round(0.1)
    stop(w, 2, 0.0)
    w.round(0.1)
    w.go_on()
    w.round(LIMIT_S)
    assert w.incidents == {}


def test_one_that_the_hand_forgot_is_started_again(w: World) -> None:
    for group in range(3):
        stop(w, group, 10.0)
    w.round()
    stop(w, 0, 0.0)
    stop(w, 1, 0.0)
    decision = w.round(0.1)
    assert decision.look_again_at is not None
    w.round(decision.look_again_at - w.now)
    assert (w.incident.kind, w.incident.group) == (Kind.HANG, 2)
