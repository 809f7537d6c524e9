"""`decide`: an engine that refuses, or lets wait, is not asked again and again."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.kinds import Rung
from supervisor.core.model.reason import Code, Reason
from tests.unit.core.world import World

WORDS = "QOSMaxJobsPerUserLimit"


def refused(number: int) -> Reason:
    return Reason.of(Code.REFUSED, allocation=f"run-a{number}", word=WORDS)


def lost_and_refused(spares: int = 0) -> World:
    """A world in which group 0 has lost its node, and the engine refuses another."""
    w = World(groups=2, spares=spares).bring_up()
    w.lapse("n1")
    w.hear(0, "gone")
    w.round()
    w.grant(3, "refused", reason=WORDS)
    w.admit(0)
    w.round()
    w.round()
    return w


def asked(w: World) -> int:
    return len(w.memory.allocations)


def test_a_refusal_is_not_followed_by_another_submission_and_fewer_groups_go_on() -> None:
    w = lost_and_refused()
    assert asked(w) == 3
    assert [w.verbs(after=1000.0) for _ in range(10)] == [[]] * 10
    assert w.waiting(Code.FEWER_GO_ON) == [{"group": 0, "why": refused(3)}]
    assert w.memory.phase == "running"


def test_a_person_asks_once_more() -> None:
    w = lost_and_refused()
    spent = w.memory.spent
    w.control = replace(w.control, restarts={0: 1})
    assert w.verbs() == ["release", "acquire"]
    assert (asked(w), w.memory.spent, w.memory.restarts_done) == (4, spent, {0: 1})
    w.grant(4, "refused", reason=WORDS)
    assert [w.verbs(after=100.0) for _ in range(5)] == [[]] * 5
    assert w.waiting(Code.FEWER_GO_ON) == [{"group": 0, "why": refused(4)}]
    w.control = replace(w.control, restarts={0: 2})
    w.round()
    w.bring(5)
    assert w.verbs() == ["place"]
    w.commit(0)
    assert w.verbs() == []
    assert w.verbs() == [], "the wish is fulfilled: it is no restart of what runs now"


def test_with_nothing_left_that_trains_it_halts_with_the_engines_words() -> None:
    w = World(groups=1, spares=0).bring_up()
    w.lapse("n1")
    w.hear(0, "gone")
    w.round()
    w.grant(2, "refused", reason=WORDS)
    w.admit(0)
    w.stable = 1.0
    w.round()
    w.round()
    assert w.memory.phase == "running", "the store was away: nodes may be there"
    w.stable = 1e6
    w.round()
    assert w.memory.halt_reason == Reason.of(Code.NO_NODE, group=0, why=refused(2))
    w.round()
    assert w.memory.phase == "halted"


def test_a_refused_refill_stops_nobody_and_is_not_asked_again() -> None:
    """The group has the spare; the next loss makes one request of its own."""
    w = World(groups=2, spares=1).bring_up()
    w.lapse("n1")
    w.hear(0, "gone")
    w.round()
    w.grant(4, "refused", reason=WORDS)
    w.recover(0)
    assert [w.verbs(after=100.0) for _ in range(5)] == [[]] * 5
    w.lapse("n2")
    w.hear(1, "gone")
    w.round()
    assert (asked(w), w.incident.rung) == (5, Rung.REALLOCATE)
    w.bring(5)
    w.recover(1)
    assert w.group(1).first_node == "n5"


def test_a_refused_successor_is_not_asked_for_again() -> None:
    w = World(groups=2, spares=0).bring_up()
    w.node(1, leaving="time limit")
    w.round()
    w.grant(3, "refused", reason=WORDS)
    assert [w.verbs(after=10.0) for _ in range(5)] == [[]] * 5
    answer = {"allocation": "run-a3", "state": "refused", "word": WORDS}
    assert w.waiting(Code.NO_OTHER_YET) == [{"group": 0, "node": "n1", "why": "time limit", **answer}]
    w.grant(1, "gone", reason="TIMEOUT")
    w.nodes["n1"] = replace(w.nodes["n1"], registered=False, leaving="")
    w.round()
    w.admit(0)
    for _ in range(5):
        w.round(10.0)
    assert asked(w) == 3
    assert w.waiting(Code.FEWER_GO_ON) == [{"group": 0, "why": refused(3)}]


def test_at_the_start_a_refusal_that_leaves_too_few_halts_at_once() -> None:
    w = World(groups=3, spares=0, min_groups=3)
    w.host()
    w.open_gate()
    w.round()
    w.grant(1)
    w.grant(2, "pending")
    w.grant(3, "refused", reason=WORDS)
    w.round()
    w.round()
    all_refused = Reason.of(Code.ALL_REFUSED, word=WORDS)
    assert w.memory.halt_reason == Reason.of(Code.TOO_FEW_NODES, free=0, groups=3, least=3, why=all_refused)


def test_at_the_start_those_that_can_come_are_waited_for() -> None:
    w = World(groups=3, spares=0, min_groups=2)
    w.host()
    w.round()
    w.open_gate()
    w.bring(1)
    w.grant(2, "pending", reason="Priority")
    w.grant(3, "refused", reason=WORDS)
    w.round()
    assert w.waiting(Code.NODES_THERE) == [{"free": 1, "of": 3}]
    w.bring(2)
    w.round()
    assert [g.phase for g in w.memory.groups.values()] == ["starting", "starting", "unplaced"]
    assert asked(w) == 3
    assert [w.verbs(after=1.0) for _ in range(5)] == [[]] * 5
    assert w.waiting(Code.FEWER_GO_ON) == [{"group": 2, "why": refused(3)}]


def test_a_pending_one_is_told_of_in_the_engines_words() -> None:
    w = World(groups=2, spares=0, allocation_timeout_s=60.0).bring_up()
    w.lapse("n1")
    w.hear(0, "gone")
    w.round()
    w.grant(3, "pending", reason="ReqNodeNotAvail")
    w.admit(0)
    w.round()
    assert w.waiting(Code.PENDING) == [{"group": 0, "allocation": "run-a3", "word": "ReqNodeNotAvail", "usual_s": 0.0}]
    w.round(61.0)
    assert w.waiting(Code.LATE) == [{"group": 0, "allocation": "run-a3", "word": "ReqNodeNotAvail"}]
    assert w.memory.allocations["run-a3"].late
    before = w.memory
    w.round(61.0)
    assert w.memory is before
