"""What a person is told of: rungs 3 and 4 and an open breaker, each once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.model import Memory, Rung
from supervisor.core.notice import Notice, due
from supervisor.core.spec import BreakerSpec
from tests.unit.core.world import World


def told(w: World, after: float = 0.0) -> list[Notice]:
    before = w.memory
    return due("run", before, w.round(after))


def all_told(w: World, rounds: int = 30) -> list[Notice]:
    return [notice for _ in range(rounds) for notice in told(w, 1.0)]


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


def test_a_breaker_that_opens_is_told_once() -> None:
    w = World(groups=12, spares=2).bring_up()
    w.spec = replace(w.spec, policy=replace(w.spec.policy, breaker=BreakerSpec()))
    for group in range(5):
        w.hear(group, "silent")
        w.nodes[w.group(group).node] = replace(w.nodes[w.group(group).node], registered=False)
    (notice,) = [*told(w), *all_told(w, 5)]
    assert notice.about.startswith("breaker-")
    assert notice.text.startswith("run run: breaker: 5 of 12 nodes lost within 60 s")
    assert notice.incident == ""


def test_nothing_happened() -> None:
    assert due("run", Memory(), World().round()) == []
