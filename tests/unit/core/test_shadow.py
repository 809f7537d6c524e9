"""Where the policy is only to observe: what would be done is written down, and nothing is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.explain import explain
from supervisor.core.model import Kind, Rung, StuckView
from tests.unit.core.world import World

STUCK = StuckView(activity="data", activity_s=31.0, bound_s=30.0, usual_s=1.0)


def hangs(w: World, group: int = 1) -> None:
    w.report(group, commits=1, step=50, stuck=STUCK)
    w.others_wait(group)


def observing(**policy: object) -> World:
    return World(groups=3, **(policy or {"mode": "observe"})).bring_up()


def test_a_hang_is_written_down_and_left_alone() -> None:
    w = observing()
    hangs(w)
    decision = w.round()
    assert [action.verb for action in decision.actions] == ["observe"]
    assert "would restart" in decision.actions[0].reason
    assert (w.incident.kind, w.incident.rung, w.incident.shadow) == (Kind.HANG, Rung.RESTART, True)
    assert "would restart, but the policy is only to observe" in w.waits()
    assert [w.group(g).generation for g in range(3)] == [1, 1, 1]
    assert w.memory.spent == {}
    before = w.memory
    w.round(60.0)
    assert w.memory == before, "said once"


def test_one_that_steps_again_has_recovered_by_itself() -> None:
    w = observing()
    hangs(w)
    w.round()
    w.go_on()
    w.round(5.0)
    incident = w.incidents["i1"]
    assert (incident.state, incident.shadow) == ("recovered", True)
    assert incident.recovered is not None
    assert w.memory.incidents == {}
    assert w.group(1).incident == ""
    assert "It recovered by itself." in "\n".join(explain(incident))
    hangs(w)
    w.round()
    assert set(w.memory.incidents) == {"i2"}, "the next one is another"


def test_only_the_kinds_that_are_named_are_observed() -> None:
    w = observing(observe=("hang",))
    hangs(w, 1)
    w.crash(2)
    w.round()
    assert [w.group(g).generation for g in range(3)] == [1, 1, 2]
    assert {(i.kind, i.shadow) for i in w.memory.incidents.values()} == {(Kind.HANG, True), (Kind.CRASH, False)}


def test_what_is_acted_on_after_all_is_another_incident() -> None:
    w = observing(observe=("hang",))
    hangs(w, 1)
    w.round()
    w.crash(1)
    w.round()
    assert w.group(1).generation == 2
    assert (w.incidents["i1"].state, w.incidents["i1"].shadow) == ("halted", True)
    assert (w.incident.id, w.incident.kind, w.incident.shadow) == ("i2", Kind.CRASH, False)
    assert "It did not recover by itself." in "\n".join(explain(w.incidents["i1"]))
    w.recover(1)
    assert w.incidents["i2"].state == "recovered"


@pytest.mark.parametrize("how", ["hang", "crash"])
def test_a_person_may_restart_what_is_only_observed(how: str) -> None:
    w = observing()
    hangs(w) if how == "hang" else w.crash(1)
    w.round()
    w.control = replace(w.control, restarts={1: 1})
    w.round()
    assert w.group(1).generation == 2
    assert w.incidents["i1"].state == "halted"


@pytest.mark.parametrize("kind", ["node", "crash"])
def test_neither_a_lost_node_nor_a_crash_is_acted_on(kind: str) -> None:
    w = observing()
    if kind == "node":
        w.hear(1, "gone")
        w.lapse(w.group(1).node)
    else:
        w.crash(1)
    w.round(1.0)
    assert [i.shadow for i in w.memory.incidents.values()] == [True]
    assert w.group(1).generation == 1
    assert w.memory.cordons == {}


def test_a_hiccup_is_ridden_through_and_its_end_is_observed() -> None:
    """Silent first, which is nothing to be done about; then for too long; then heard again."""
    w = observing()
    w.hear(1, "silent")
    w.round()
    assert (w.incident.kind, w.incident.shadow) == (Kind.SILENT, False)
    w.round(w.spec.policy.silent_timeout_s + 1.0)
    assert (w.incident.kind, w.incident.shadow, w.incident.rung) == (Kind.STALLED, True, Rung.RESTART)
    assert w.group(1).generation == 1
    w.hear(1, "beating")
    w.round(1.0)
    assert (w.incidents["i1"].state, w.incidents["i1"].shadow) == ("recovered", True)
