"""`decide`: an allocation that the engine gives to another job, after a grace, is left like one near its time limit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code, Reason
from tests.helpers.reasons import codes, texts, values
from tests.unit.core.remediation.test_drain import WARN_S, drain, follow, limit, settle, wanted, world
from tests.unit.core.world import World

GRACE_S = 60.0
WORD_S = 2.2
"""engines.TRAITS["slurm"].word_s, for runs under Slurm."""
NOTICE = "the scheduler gave notice (SIGUSR1)"


def preempt(w: World, number: int, grace_s: float = GRACE_S) -> None:
    key = f"run-a{number}"
    why = f"Slurm preempts job {number}, after a grace of {grace_s:.0f} s"
    w.grants[key] = replace(w.grants[key], leaving=why, leaves_in_s=grace_s)


def under_slurm(groups: int = 2, spares: int = 1) -> World:
    w = world(groups=groups, spares=spares)
    w.spec = replace(w.spec, allocation=replace(w.spec.allocation, engine="slurm"))
    return w


def test_the_group_moves_while_it_trains_and_the_incident_says_preempted() -> None:
    w = world()
    preempt(w, 1)
    assert w.verbs() == ["acquire", "move"]
    assert (w.group().phase, w.group().last_node, w.group(1).phase) == ("fencing", "n1", "running")
    assert (w.incident.kind, w.incident.rung, w.incident.node) == (Kind.LEAVING, Rung.REPLACE, "n1")
    assert "Slurm preempts job 1, after a grace of 60 s" in texts(w.incident.evidence[0])
    leaving = Reason.of(Code.NODE_LEAVING, node="n1", why="Slurm preempts job 1, after a grace of 60 s")
    assert w.incident.reason == Reason.of(Code.LEFT_BEFORE, why=leaving)
    follow(w, 0)
    assert (w.group().first_node, w.group().resume, w.incident.state) == ("n3", "peers", "recovered")
    assert wanted(w) == ["run-a2", "run-a3", "run-a4"], "it is given back before its grace is over"
    assert (w.memory.spent, w.memory.cordons) == ({}, {})


def test_a_grace_that_ends_before_another_node_came_is_nobodys_fault() -> None:
    w = world(spares=0)
    preempt(w, 1)
    assert w.verbs() == ["acquire"]
    w.grant(1, "gone", reason="Slurm's job 1 on n1: PREEMPTED")
    w.nodes["n1"] = replace(w.nodes["n1"], registered=False)
    w.hear(0, "gone")
    w.round()
    assert (w.incident.kind, w.incident.rung) == (Kind.ALLOCATION_LOST, Rung.REALLOCATE)
    assert "PREEMPTED" in texts(w.incident.evidence[0])
    assert Code.SUCCEEDED in codes(w.incident.reason)
    assert w.group(1).phase == "running"
    assert (w.memory.spent, w.memory.cordons) == ({}, {})
    w.bring(3)
    follow(w, 0)
    assert wanted(w) == ["run-a2", "run-a3"]


def test_a_successor_that_is_preempted_soon_is_replaced_within_its_grace() -> None:
    """Else its end would look like that of a spare which the engine took, which is paid for."""
    w = world(spares=1)
    limit(w, 3)
    w.round()
    w.bring(4)
    w.round(1.0)
    preempt(w, 4)
    assert w.verbs() == []
    leaves = {"allocation": "run-a4", "why": "Slurm preempts job 4, after a grace of 60 s", "graced": True}
    assert w.waiting(Code.LEAVES_ALREADY) == [leaves]
    assert sorted(w.verbs(after=GRACE_S - 1.0)) == ["acquire", "release"]
    assert w.memory.spent == {}


# --- distinguished from a time limit ---


def test_the_engines_word_counts_more_than_a_signal() -> None:
    w = world()
    w.node(1, leaving=NOTICE)
    preempt(w, 1)
    w.round()
    assert "Slurm preempts job 1" in texts(w.incident.evidence[0])
    assert NOTICE not in texts(w.incident.reason, *w.incident.evidence)


@pytest.mark.parametrize("preempted", [True, False])
def test_after_a_signal_the_engine_is_asked_why(preempted: bool) -> None:
    w = under_slurm()
    w.engine_listed_at = w.now - 0.5
    w.node(1, leaving=NOTICE)
    assert w.verbs() == ["acquire"]
    assert w.waiting(Code.ENGINE_IS_ASKED) == [{"group": 0, "node": "n1", "why": NOTICE}]
    assert w.last.look_again_at == pytest.approx(w.now + WORD_S)
    w.now += 0.5
    w.engine_listed_at = w.now
    if preempted:
        preempt(w, 1)
    assert w.verbs() == ["move"]
    why = texts(w.incident.evidence[0])
    assert ("preempts" in why, NOTICE in why) == (preempted, not preempted)


def test_an_engine_that_does_not_answer_is_not_waited_for_longer_than_usual() -> None:
    w = under_slurm()
    w.engine_listed_at = w.now - 60.0
    w.node(1, leaving=NOTICE)
    w.round()
    assert w.verbs(after=WORD_S - 0.1) == []
    assert w.verbs(after=0.1) == ["move"]


def test_nothing_is_asked_where_a_person_drains() -> None:
    w = under_slurm()
    w.engine_listed_at = w.now - 60.0
    drain(w, 1)
    assert w.verbs() == ["acquire", "move"]


# --- its end is known, and may be nearer than the warning of a time limit ---


def test_the_shortest_grace_goes_first() -> None:
    w = world(groups=3, spares=1)
    limit(w, 1)
    preempt(w, 2, grace_s=100.0)
    preempt(w, 3, grace_s=30.0)
    w.round()
    assert [w.group(g).phase for g in range(3)] == ["running", "running", "fencing"]


@pytest.mark.parametrize("grace_s", [GRACE_S, 2 * WARN_S])
def test_where_everybody_is_preempted_all_are_handed_over_within_the_grace(grace_s: float) -> None:
    w = world(spares=0)
    for g in w.memory.groups:
        w.commit(g, step=100, step_s=1.0)
        preempt(w, g + 1, grace_s)
    settle(w)
    w.round(grace_s / 2 - 1.0)
    assert w.memory.handover_at_step is None
    assert w.verbs(after=1.0) == ["hand_over"]
    assert w.memory.handover_at_step is not None
    assert 100 < w.memory.handover_at_step <= 100 + 2 + math.ceil(min(10.0, grace_s / 8))


def test_handed_over_it_says_preempted_too() -> None:
    w = world(groups=1, spares=1)
    w.commit(0, step=100, step_s=1.0)
    preempt(w, 1)
    settle(w)
    step = w.memory.handover_at_step
    assert step is not None
    w.fail(0, 0, step=step)
    w.round()
    (left,) = values([w.incident.reason], Code.HANDED_OVER)
    assert (w.incident.kind, left["node"]) == (Kind.LEAVING, "n1")
    assert left["why"] == "Slurm preempts job 1, after a grace of 60 s"
