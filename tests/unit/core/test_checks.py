"""Nodes whose machine is being checked, or failed its checks; and the effect of a passed check on what is held against
a host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import invariants
from supervisor.core.model.incident import Suspicion
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import CordonView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.policy.cordons import REPEATED_S, freeable, repeated
from tests.helpers.reasons import codes, held_against, text, values
from tests.unit.core.world import World

FAILED = "its checks failed on node n1 (before its first rank): disk: 0.1 MB/s: below 1 MB/s"


def arrived(groups: int = 2, spares: int = 0, **about: object) -> World:
    """A world whose nodes and gate are there, but nothing was started."""
    w = World(groups=groups, spares=spares, **about)  # type: ignore[arg-type]
    w.host()
    w.round()
    for number in range(1, groups + spares + 1):
        w.bring(number)
    w.open_gate()
    return w


def homes(w: World) -> list[str]:
    return [g.first_node for g in w.memory.groups.values()]


def fail(w: World, number: int) -> None:
    w.node(number, checking=False, failed=FAILED)
    w.cordons[f"n{number}"] = CordonView(why=FAILED, failed=True)


def passes(w: World, number: int) -> None:
    """Reports that the agent's next try of the checks passed."""
    w.node(number, failed="", unsure="")
    w.cordons.pop(f"n{number}", None)


UNSURE = "its checks could not be done on node n1 (before its first rank): device: no answer within 120 s"


# --- being checked ---


def test_nothing_starts_on_a_node_before_it_is_checked_however_late_it_is() -> None:
    w = arrived()
    w.node(2, checking=True)
    assert w.verbs(after=2 * w.spec.policy.allocation_timeout_s) == [], "it is there: its run is not given up for it"
    there = Reason.of(Code.NODES_THERE, free=1, of=2)
    checked = Reason.of(Code.BEING_CHECKED, node="n2", more=0)
    assert w.last.waits == (Reason.of(Code.AND, reason=there, note=checked),)
    w.node(2, checking=False)
    w.round()
    assert homes(w) == ["n1", "n2"]


def test_a_group_without_a_node_waits_for_the_spare_that_is_being_checked() -> None:
    w = World(groups=2, spares=1).bring_up()
    w.node(3, checking=True)
    w.hear(0, "gone")
    w.lapse("n1")
    w.round()
    w.admit(0)
    w.round(1.0)
    w.round(w.spec.policy.backoff_max_s)
    assert w.group().phase == "placing"
    assert w.waiting(Code.BEING_CHECKED) == [{"group": 0, "node": "n3", "more": 0}]
    w.node(3, checking=False)
    w.recover(0)
    assert w.group().first_node == "n3"


def test_a_restart_in_place_waits_too() -> None:
    w = World(groups=2, spares=0).bring_up()
    w.node(1, checking=True)
    assert w.verbs(after=10.0) == [], "what runs there goes on"
    w.crash(0)
    w.admit(0)
    assert "start" not in [verb for _ in range(3) for verb in w.verbs(after=1.0)]
    assert w.waiting(Code.IN_ITS_CHECKS) == [{"group": 0, "node": "n1"}]
    w.node(1, checking=False)
    w.recover(0)
    assert (w.group().first_node, w.group().generation) == ("n1", 2)


def test_a_node_that_could_take_no_group_is_not_waited_for() -> None:
    w = arrived(groups=1, spares=1)
    w.nodes["n9"] = replace(w.nodes["n1"], name="n9", allocation="run-a9", checking=True)
    w.nodes["host"] = replace(w.nodes["host"], checking=True)
    w.round()
    assert homes(w) == ["n1"]


# --- failed ---


@pytest.mark.parametrize(("mode", "done"), [("act", ["release", "acquire"]), ("observe", [])])
def test_a_spare_that_fails_them_is_replaced_unless_the_run_is_only_observed(mode: str, done: list[str]) -> None:
    w = World(groups=2, spares=1, mode=mode).bring_up()
    fail(w, 3)
    assert w.verbs(1.0) == done
    assert ("reallocate" in w.memory.spent) == (mode == "act")
    failed = {"allocation": "run-a3", "why": Reason.of(Code.HOST_CORDONED, host="n3", why=FAILED)}
    assert w.waiting(Code.SPARE_OBSERVED) == ([failed] if mode == "observe" else [])


def test_a_spare_that_the_engine_took_is_asked_for_again_also_where_the_run_is_only_observed() -> None:
    w = World(groups=2, spares=1, mode="observe").bring_up()
    w.grant(3, "gone", "preempted")
    w.node(3, registered=False)
    assert w.verbs(w.spec.policy.allocation_timeout_s + 1.0) == ["release", "acquire"]


def test_a_run_that_begins_asks_for_another_also_where_it_is_only_observed() -> None:
    w = World(groups=2, spares=0, mode="observe", min_groups=2)
    w.host()
    w.round()
    for number in (1, 2):
        w.bring(number)
    w.open_gate()
    fail(w, 1)
    assert "acquire" in w.verbs()


def test_a_run_asks_for_another_in_the_place_of_one_whose_checks_failed_and_gives_it_time() -> None:
    w = arrived(min_groups=2)
    for number in (1, 2):
        w.node(number, checking=True)
    timeout_s = w.spec.policy.allocation_timeout_s
    w.round(2 * timeout_s)
    fail(w, 1)
    w.node(2, checking=False)
    decision = w.round()
    assert [a.verb for a in decision.actions] == ["release", "acquire"]
    assert decision.actions[0].reason == Reason.of(Code.HOST_CORDONED, host="n1", why=FAILED)
    assert w.memory.allocations["run-a3"].exclude == ("n1",)
    assert (w.memory.phase, set(w.memory.spent)) == ("running", {"reallocate"})
    assert w.waiting(Code.NODES_REPLACED) == [{"free": 1, "of": 2}]
    w.bring(3)
    w.round(timeout_s / 2)
    assert homes(w) == ["n2", "n3"]


def test_it_is_halted_when_that_one_does_not_come_either() -> None:
    w = arrived(min_groups=2)
    fail(w, 1)
    w.round()
    assert w.memory.phase == "running"
    w.round(w.spec.policy.allocation_timeout_s + 1.0)
    assert w.memory.phase == "stopping"


def test_one_that_could_not_be_checked_is_given_no_group_and_another_is_asked_for() -> None:
    w = arrived(min_groups=2)
    w.node(1, unsure=UNSURE)
    decision = w.round()
    assert [a.verb for a in decision.actions] == ["release", "acquire"]
    assert (decision.actions[0].reason, decision.actions[1].rung) == (text(UNSURE), Rung.REALLOCATE)
    assert w.memory.allocations["run-a3"].exclude == ("n1",), "for this run: it bars nothing for others"
    w.bring(3)
    w.round(1.0)
    assert homes(w) == ["n2", "n3"]


def test_a_node_whose_budget_is_spent_is_kept_and_taken_once_it_passes() -> None:
    w = arrived(groups=2, min_groups=2, budget={"reallocate": 1})
    w.node(1, unsure=UNSURE)
    w.round()
    assert homes(w) == ["", ""]
    assert w.waiting(Code.NODE_UNFIT) == [{"node": "n1", "why": UNSURE}]
    passes(w, 1)
    w.round(w.spec.policy.allocation_timeout_s / 2)
    assert homes(w) == ["n1", "n2"]


def test_a_run_that_is_halted_for_them_says_so() -> None:
    w = arrived(groups=2, min_groups=2, budget={"reallocate": 1})
    fail(w, 1)
    w.round()
    w.round(w.spec.policy.allocation_timeout_s + 1.0)
    assert w.memory.phase == "stopping"
    assert codes(w.memory.halt_reason) >= {Code.TOO_FEW_NODES, Code.UNFIT_THERE}
    unfit = Reason.of(Code.NODE_UNFIT, node="n1", why=FAILED)
    assert values([w.memory.halt_reason], Code.UNFIT_THERE) == [{"count": 1, "first": unfit}]


# --- failed where a group will be started again ---


def ends_and_waits_there(w: World) -> None:
    """Crashes a second time, so that the restart in place has a pause in which its node is checked."""
    w.crash(0)
    w.round()
    w.recover(0)
    w.crash(0)
    w.round()
    w.admit(0)
    assert (w.group().phase, w.group().first_node) == ("placing", "n1")


def test_a_restart_in_place_becomes_a_replacement_when_its_node_has_failed_its_checks() -> None:
    w = World(groups=2, spares=1).bring_up()
    ends_and_waits_there(w)
    fail(w, 1)
    decision = w.round(w.spec.policy.backoff_max_s)
    assert "start" not in [a.verb for a in decision.actions]
    assert (w.incident.rung, w.incident.kind) == (Rung.REPLACE, Kind.CRASH)
    assert Reason.of(Code.TEXT, text=FAILED) in w.incident.evidence
    failed = Reason.of(Code.CHECKS_FAILED, evidence=FAILED)
    assert Reason.of(Code.PASSED, rung="restart", why=failed) in w.incident.considered
    w.recover(0)
    assert w.group().first_node == "n3"
    assert [s.host for s in w.suspicions] == ["n1"]


def test_with_nothing_left_to_pay_it_waits_until_its_node_passes_while_others_train() -> None:
    w = World(groups=2, spares=0, budget={"reallocate": 0}).bring_up()
    ends_and_waits_there(w)
    fail(w, 1)
    for _ in range(3):
        w.round(w.spec.policy.backoff_max_s)
    assert (w.memory.phase, w.group().phase) == ("running", "placing")
    (waits,) = w.waiting(Code.NOT_BEFORE_IT_PASSES)
    assert (waits["group"], waits["fact"], waits["then"].code) == (0, FAILED, Code.NOTHING_LEFT)
    passes(w, 1)
    w.recover(0)
    assert w.group().first_node == "n1"


def test_a_person_who_frees_it_meanwhile_is_obeyed() -> None:
    w = World(groups=2, spares=1).bring_up()
    ends_and_waits_there(w)
    w.control = replace(w.control, paused=True)
    fail(w, 1)
    w.round(w.spec.policy.backoff_max_s)
    assert w.group().phase == "placing", "the run is paused"
    passes(w, 1)
    w.control = replace(w.control, paused=False)
    w.recover(0)
    assert w.group().first_node == "n1"


def test_what_another_node_of_its_host_failed_moves_nobody_nor_what_could_not_be_done() -> None:
    w = World(groups=2, spares=1).bring_up()
    ends_and_waits_there(w)
    w.cordons["n1"] = CordonView(why=FAILED, failed=True)
    w.node(1, unsure=UNSURE)
    w.recover(0, after=w.spec.policy.backoff_max_s)
    assert w.group().first_node == "n1"


def test_a_group_that_trains_on_a_node_that_fails_its_checks_goes_on() -> None:
    w = World(groups=2, spares=1).bring_up()
    fail(w, 1)
    assert [w.verbs(after=10.0) for _ in range(3)] == [[], [], []]


# --- failed on many ---


def test_a_cause_that_fails_the_checks_of_many_is_held_and_is_over_by_itself() -> None:
    """The cause is a driver that was upgraded on all of them: no node is given up, nothing is paid, no run is
    halted."""
    w = arrived(groups=10, spares=2, min_groups=10)
    for number in range(1, 13):
        fail(w, number)
    w.round()
    assert w.memory.breaker_since is not None
    about = {"run": "run", "given_up": 0, "window_s": 60.0}
    assert w.waiting(Code.CHECKS_OF_MANY) == [{"failed": 12, "of": 12, "fact": FAILED, **about}]
    assert w.waiting(Code.NODE_UNFIT) == [{"node": f"n{n}", "why": FAILED} for n in range(1, 6)]
    assert w.waiting(Code.MORE_UNFIT) == [{"more": 7}]
    for _ in range(30):
        w.round(w.spec.policy.allocation_timeout_s)
    assert (w.memory.phase, w.memory.spent, len(w.memory.allocations)) == ("running", {}, 12)
    for number in range(1, 13):
        passes(w, number)
    w.round(1.0)
    assert w.memory.breaker_since is None
    w.round(1.0)
    assert all(homes(w))


def test_those_that_pass_train_meanwhile_and_the_others_follow() -> None:
    w = arrived(groups=10, spares=2)
    for number in range(4, 13):
        fail(w, number)
    w.round()
    w.round(w.spec.policy.allocation_timeout_s)
    w.open_gate()
    for group in range(3):
        w.commit(group)
    for _ in range(5):
        w.round(10.0)
    assert [g.phase for g in w.memory.groups.values()] == ["running"] * 3 + ["unplaced"] * 7
    assert (w.memory.phase, w.memory.spent) == ("running", {})
    for number in range(4, 13):
        passes(w, number)
    w.round(1.0)
    w.round(1.0)
    assert all(homes(w))


def test_what_comes_little_by_little_costs_what_the_budget_has_and_is_then_held() -> None:
    w = arrived(groups=10, spares=2, min_groups=10)
    for number in range(1, 13):
        w.node(number, checking=True)
    for number in range(1, 13):
        fail(w, number)
        w.round(0.5)
    assert w.memory.breaker_since is not None
    assert len(w.memory.allocations) < 12 + w.spec.policy.budget.reallocate


def test_a_group_that_waits_for_such_a_node_is_held_too_and_a_person_may_give_them_up() -> None:
    w = World(groups=10, spares=1).bring_up()
    for group in range(10):
        w.crash(group)
        w.round()
        w.recover(group)
    for group in range(10):
        w.crash(group)
    w.round()
    for group in range(10):
        w.admit(group)
    for number in range(1, 12):
        fail(w, number)
    for _ in range(5):
        w.round(w.spec.policy.backoff_max_s)
    assert w.memory.breaker_since is not None
    assert {"group": 0, "why": FAILED} in w.waiting(Code.NOT_STARTED_THERE)
    assert (w.memory.phase, w.memory.cordons) == ("running", {})
    spent = w.memory.spent
    w.control = replace(w.control, evictions=1, because="these nodes are scrap")
    for _ in range(4):
        w.round(1.0)
    assert w.memory.phase == "running"
    assert {g.first_node for g in w.memory.groups.values()} == {""}
    assert w.memory.spent == spent


def test_the_invariant_holds_it_off() -> None:
    w = World(groups=2, spares=1).bring_up()
    before = replace(w.memory, groups={**w.memory.groups, 0: replace(w.group(), phase="placing", seats=())})
    after = replace(
        before, groups={**before.groups, 0: replace(w.group(), phase="starting", seats=(Seat("n3", "n3"),))}
    )
    for about, words in (
        ({"checking": True}, "which is being checked"),
        ({"unsure": UNSURE}, UNSURE),
        ({"failed": FAILED}, FAILED),
    ):
        w.node(3, **{"checking": False, "unsure": "", "failed": "", **about})
        found = invariants.violations(before, after, w.observed(), w.spec)
        assert f"I20: group 0 is placed on n3, {words}" in found
    fail(w, 3)
    assert any("I20" in v and FAILED in v for v in invariants.violations(before, after, w.observed(), w.spec))


# --- freed ---


def held(at: float, freed: str = "", run: str = "a", incident: str = "i1", kind: Kind = Kind.NODE_LOST) -> Suspicion:
    return Suspicion(host="h1", run=run, incident=incident, kind=kind, at=at, freed=freed)


def test_a_check_frees_a_host_of_all_that_was_before_it() -> None:
    two = [held(5.0), held(9.0, run="b")]
    assert freeable(two, two) == two
    assert freeable(two[:1], two) == two[:1], "of the other it knew nothing"
    assert repeated([replace(s, freed="passed") for s in two]) == ()


def test_one_that_comes_within_a_day_of_one_that_was_freed_needs_a_person() -> None:
    old, soon, late = held(5.0, freed="passed"), held(5.0 + REPEATED_S, run="b"), held(5.1 + REPEATED_S, run="c")
    assert freeable([old, soon], [old, soon]) == []
    assert repeated([old, soon]) == (old, soon), "and it bars the host for every run"
    assert freeable([late], [old, late]) == [late]
    assert repeated([old, late]) == ()


def test_what_a_program_says_of_itself_is_freed_once_a_day_too() -> None:
    old, soon = held(5.0, freed="passed", kind=Kind.ERROR), held(6.0, run="b", kind=Kind.ERROR)
    assert (freeable([soon], [old, soon]), repeated([old, soon])) == ([], ())


def test_a_run_lets_go_of_a_host_that_passed_and_says_by_what() -> None:
    w = World(groups=2, spares=1).bring_up()
    w.hear(0, "gone")
    w.lapse("n1")
    w.round()
    w.recover(0)
    assert "n1" in w.memory.cordons
    w.cordons["n1"] = CordonView(passed="the checks that it passed on node n1 (by hand, ann@n1)")
    decision = w.round()
    assert decision.actions[0].verb == "uncordon"
    by, was = "the checks that it passed on node n1 (by hand, ann@n1)", held_against("i1", Kind.NODE_LOST)
    assert decision.actions[0].reason == Reason.of(Code.FREED_BY, host="n1", by=by, was=was)
    assert w.memory.cordons == {}


def test_what_fails_on_every_host_is_not_tried_on_all_of_them() -> None:
    """The cause is a driver, an environment, a file system, not the machines. Replacements draw on the budget."""
    w = arrived()
    for _ in range(40):
        for number in range(1, len(w.memory.allocations) + 1):
            if f"run-a{number}" not in w.grants:
                w.bring(number)
            fail(w, number)
        w.round(5.0)
    budget = w.spec.policy.budget
    assert len(w.memory.allocations) <= w.spec.allocation.nodes + w.spec.allocation.spares + budget.reallocate
    assert homes(w) == ["", ""]
