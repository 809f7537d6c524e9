"""Notices to a person: rungs 3 and 4, an open breaker and a hang for which no group is ended, each once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.model.decision import Decision
from supervisor.core.model.kinds import Rung
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import StuckView
from supervisor.core.model.reason import Code
from supervisor.core.model.spec import BreakerSpec
from supervisor.core.report import words
from supervisor.core.report.notifications import Notice, due, notices
from supervisor.core.report.words import say
from tests.unit.core.world import World


def told(w: World, after: float = 0.0) -> list[Notice]:
    before = w.memory
    return due("run", before, w.round(after))


def all_told(w: World, rounds: int = 30) -> list[Notice]:
    return [notice for _ in range(rounds) for notice in told(w, 1.0)]


def told_by_the_next_leader(w: World) -> set[str]:
    """Subjects of the next leader's notices. It does not know which ones the last leader sent."""
    return {notice.about for notice in notices("run", w.round(), w.incidents.values())}


def test_a_lost_allocation_is_told_once() -> None:
    w = World(groups=2, spares=1).bring_up()
    w.grant(1, "gone", reason="preempted")
    (notice,) = [*told(w), *all_told(w)]
    assert (notice.about, notice.incident, notice.rung, notice.group) == ("i1-3", "i1", Rung.REALLOCATE, 0)
    assert notice.kind == "allocation_lost"
    assert notice.text.startswith(
        "run run asks for another allocation: incident i1, group 0 on node n1: allocation_lost: "
    )
    assert notice.text.endswith("more: supervisor explain i1 --run run")
    assert any("preempted" in sentence for sentence in notice.evidence)
    assert told_by_the_next_leader(w) == {"i1-3"}


def test_a_hang_for_which_nobody_is_ended_is_told_once() -> None:
    w = World(groups=2).bring_up()
    for group in (0, 1):
        w.report(group, step=50, stuck=StuckView(activity="checkpoint", activity_s=31.0, bound_s=30.0))
    (notice,) = [*told(w), *all_told(w)]
    assert notice.text.startswith(
        "run run stands still, and nothing is done about it: every group hangs, in checkpoint"
    )
    assert notice.text.endswith("more: supervisor status --run run")
    assert told_by_the_next_leader(w) == {notice.about}
    for group in (0, 1):
        w.commit(group, step=60)
    assert all_told(w, 3) == []
    assert told_by_the_next_leader(w) == set()
    for group in (0, 1):
        w.report(group, step=60, stuck=StuckView(activity="checkpoint", activity_s=31.0, bound_s=30.0))
    (again,) = all_told(w, 3)
    assert again.about != notice.about, "and when it hangs again"


def test_a_hang_of_which_something_else_is_said_meanwhile_is_the_same() -> None:
    w = World(groups=2).bring_up()
    for group in (0, 1):
        w.report(group, step=50, stuck=StuckView(activity="checkpoint", activity_s=31.0, bound_s=30.0))
    (notice,) = [*told(w), *all_told(w, 3)]
    for group in (0, 1):
        w.report(group, step=50, stuck=StuckView(activity="evaluation", activity_s=31.0, bound_s=30.0))
    assert all_told(w, 3) == []
    assert "in evaluation" in say(w.memory.held_hang)
    assert told_by_the_next_leader(w) == {notice.about}


def test_one_of_which_more_is_to_be_heard_is_not() -> None:
    w = World(groups=2).bring_up()
    w.report(0, step=50, stuck=StuckView(activity="data", activity_s=31.0, bound_s=30.0))
    assert told(w) == []


def test_a_halt_is_told() -> None:
    w = World(groups=3).bring_up()
    for group in range(3):
        w.fail(group, 1, "ValueError: bad data", step=40)
    found = [*told(w), *all_told(w, 3)]
    assert found
    assert {n.rung for n in found} == {Rung.STOP}
    assert len({n.about for n in found}) == len(found)
    assert found[0].text.startswith("run run is halted, a person has to look: incident i")
    assert "same_error: every group ended with the same error" in found[0].text
    all_told(w)
    assert w.memory.phase == "halted"
    assert w.memory.incidents == {}
    assert told_by_the_next_leader(w) == {n.about for n in found}
    w.memory = replace(w.memory, phase="running")
    assert {n.about for n in notices("run", Decision(memory=w.memory), w.incidents.values())} == set(), "it was resumed"


def test_who_climbs_from_the_third_rung_to_the_fourth_is_told_of_again() -> None:
    w = World(groups=2, spares=1).bring_up()
    w.crash(1)
    before = w.memory
    decision = w.round()
    (incident,) = decision.incidents
    third, fourth = (replace(incident, rung=rung) for rung in (Rung.REALLOCATE, Rung.STOP))
    assert [n.about for n in due("run", before, replace(decision, incidents=(third,)))] == ["i1-3"]
    known = replace(before, incidents={"i1": third})
    assert due("run", known, replace(decision, incidents=(replace(third, acted=1e9),))) == []
    assert [n.about for n in due("run", known, replace(decision, incidents=(fourth,)))] == ["i1-4"]


@pytest.mark.parametrize("shadow", [False, True])
def test_a_restart_and_what_is_only_observed_wake_nobody(shadow: bool) -> None:
    w = World(groups=2, spares=1).bring_up()
    w.crash(1)
    before = w.memory
    decision = w.round()
    (incident,) = decision.incidents
    given = replace(incident, rung=Rung.STOP if shadow else Rung.RESTART, shadow=shadow)
    assert due("run", before, replace(decision, incidents=(given,))) == []


def test_a_breaker_that_opens_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World(groups=12, spares=2).bring_up()
    w.spec = replace(w.spec, policy=replace(w.spec.policy, breaker=BreakerSpec()))
    for group in range(5):
        w.hear(group, "silent")
        w.nodes[w.group(group).first_node] = replace(w.nodes[w.group(group).first_node], registered=False)
    (notice,) = [*told(w), *all_told(w, 5)]
    assert notice.about.startswith("breaker-")
    assert told_by_the_next_leader(w) == {notice.about}
    assert notice.text.startswith("run run: breaker: 5 of 12 nodes lost within 60 s")
    assert notice.incident == ""
    monkeypatch.setattr(words, "_WORDS", dict.fromkeys(Code, "many are gone"))
    assert [n.text for n in notices("run", w.round())] == ["run run: many are gone"], "however it is worded"


def test_a_suspended_group_is_told_with_what_a_person_can_do() -> None:
    w = World(groups=4, spares=0, budget={"reallocate": 0}).bring_up()
    w.grant(1, "gone", "preempted")
    w.nodes["n1"] = replace(w.nodes["n1"], registered=False)
    (notice,) = told(w, 1.0)
    assert notice.about == "i1-left-out-2"
    assert notice.text == (
        "run run goes on without a group: group 0 is left out: nothing cheaper is left: "
        "reallocate: budget spent (0 within 3600 s); it is tried again once a budget has one left, or at once by "
        "supervisor restart 0 (incident i1); more: supervisor explain i1 --run run"
    )


def test_nothing_happened() -> None:
    assert due("run", Memory(), World().round()) == []
