"""Groups that take longer for a step than the others are named, and acted on only where the policy allows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.attribution.cross_host_recurrence import WITHIN_S
from supervisor.core.model.incident import Confidence
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import StuckView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import FirstRungSpec
from supervisor.shell.inspect.pending_reasons import held
from tests.helpers.reasons import codes, spent, values
from tests.unit.core.world import World

FOR_S = 300.0


def world(*computes: float, ranks: int = 1, **policy: Any) -> World:
    w = World(groups=len(computes), ranks=ranks, **policy).bring_up()
    says(w, *computes)
    w.round(1.0)
    return w


def says(w: World, *computes: float, step: int = 50, **about: float) -> None:
    for group, seconds in enumerate(computes):
        w.commit(group, step=step, compute_s=seconds, **about)


def is_slow(group: int, node: str, times: float, rank: int = 0, for_data: bool = False) -> Reason:
    """Returns the reason that a group takes longer than the others."""
    return Reason.of(Code.GROUP_SLOW, group=group, rank=rank, node=node, times=times, for_data=for_data)


def test_the_slow_one_is_named_with_its_rank_and_node() -> None:
    w = world(0.4, 0.9, 0.4, 0.42)
    assert w.last.waits == (is_slow(1, "n2", 2.0),)
    w.commit(1, step=51, compute_s=0.87)
    before = w.last.waits
    w.round(1.0)
    assert w.last.waits == before, "the same values: it is journaled when they change"
    assert w.memory.incidents == {}
    assert {g.generation for g in w.memory.groups.values()} == {1}


def test_where_the_policy_takes_little_for_slow_the_words_are_finer() -> None:
    w = world(0.4, 0.5, 0.4, 0.4, straggler_factor=1.2)
    assert w.last.waits == (is_slow(1, "n2", 1.2),)


def test_of_two_the_slower_one() -> None:
    assert world(0.8, 0.4).last.waits == (is_slow(0, "n1", 2.0),)


def test_a_little_is_noise_and_so_are_milliseconds() -> None:
    assert world(0.4, 0.55).last.waits == ()
    assert world(0.004, 0.02).last.waits == ()


def test_all_that_are_slow_alike_are_not() -> None:
    assert world(0.9, 0.9, 0.9).last.waits == ()


def test_one_that_has_not_learned_yet_is_not_compared() -> None:
    assert world(0.0, 0.9).last.waits == ()


def test_one_that_waits_for_its_data_is_told_from_one_that_computes() -> None:
    w = world(0.4, 0.4, 0.4)
    w.commit(2, step=51, compute_s=0.4, data_s=0.6)
    w.round(1.0)
    assert w.last.waits == (is_slow(2, "n3", 2.5, for_data=True),)


def test_what_a_silent_node_said_last_is_not_compared() -> None:
    w = world(0.4, 0.9, 0.4)
    w.node(2, registered=False)
    w.round(1.0)
    assert not codes(*w.last.waits) & {Code.GROUP_SLOW, Code.NOT_TOUCHED}


def test_the_slowest_rank_counts_and_five_are_named_at_most() -> None:
    w = world(0.4, 0.4, ranks=2)
    w.report(1, 1, commits=1, step=50, compute_s=0.8)
    w.round(1.0)
    assert is_slow(1, "n2", 2.0, rank=1) in w.last.waits
    many = world(*[0.4] * 10, *[0.9] * 7)
    assert [why["group"] for why in many.waiting(Code.GROUP_SLOW)] == [10, 11, 12, 13, 14]


# --- all of them, or one alone ---


def began(*computes: float, past: float = 0.4, data: float = 0.0) -> World:
    """A world whose groups compute for these seconds now, and for `past` seconds when their generations began."""
    w = World(groups=len(computes)).bring_up()
    for group, seconds in enumerate(computes):
        w.commit(group, step=500, compute_s=seconds, compute_past_s=past, data_s=data)
    w.round(1.0)
    return w


def together(number: int, of: int, times: float = 2.0, for_data: bool = False) -> Reason:
    """Returns the reason that `number` of `of` groups take longer than when they began."""
    return Reason.of(Code.ALL_SLOWER, slow=number, of=of, times=times, past_s=0.4, for_data=for_data)


def alone(times: float, for_data: bool) -> Reason:
    """Returns the reason that the only group takes longer than when it began."""
    return Reason.of(Code.ALONE_SLOWER, group=0, times=times, past_s=0.4, for_data=for_data)


ALL = together(3, 3)


def test_that_all_take_longer_than_they_did_is_said_and_nothing_done() -> None:
    w = began(0.8, 0.81, 0.79)
    assert w.last.waits == held(w.memory, w.observed(), w.spec) == (ALL,), "status says so too"
    for group in range(3):
        w.commit(group, step=600, compute_s=0.84, compute_past_s=0.4)
    w.round(10_000.0)
    assert w.last.waits == (ALL,), "the same values: it is journaled when they change"
    assert (w.memory.incidents, w.memory.slow) == ({}, {})
    for group in range(3):
        w.commit(group, step=700, compute_s=0.41, compute_past_s=0.4)
    w.round(1.0)
    assert w.last.waits == held(w.memory, w.observed(), w.spec) == (), "it is over"


def test_one_alone_is_compared_with_what_it_took_at_first() -> None:
    assert began(1.2).last.waits == (alone(3.0, for_data=False),)
    assert began(0.45, data=0.8).last.waits == (alone(3.0, for_data=True),)


def test_that_all_wait_for_their_data_is_told_from_that_they_compute() -> None:
    assert began(0.4, 0.42, data=0.8).last.waits == (together(2, 2, 3.0, for_data=True),)


def test_of_most_of_them_their_number_is_said() -> None:
    """None of the others is unusual among as many slow ones."""
    w = began(0.8, 0.8, 0.8, 0.4, 0.4)
    assert w.last.waits == (together(3, 5),)
    half = began(0.8, 0.8, 0.4, 0.4)
    assert half.waiting(Code.ALL_SLOWER) == [], "half of them are told one by one, or not at all"


def test_one_that_is_slower_than_the_others_is_told_as_ever_where_they_are_slow_too() -> None:
    w = began(0.8, 0.8, 2.0)
    assert w.last.waits == (is_slow(2, "n3", 2.5), ALL)


@pytest.mark.parametrize(
    ("now", "past"), [(0.8, 0.0), (0.55, 0.4), (0.024, 0.008)], ids=["just started", "a little", "milliseconds"]
)
def test_what_says_nothing_of_all_of_them_is_not_said(now: float, past: float) -> None:
    assert began(now, now, past=past).last.waits == ()
    assert began(now, past=past).last.waits == ()


def test_who_was_started_a_moment_ago_has_nothing_to_be_compared_with() -> None:
    w = began(0.8, 0.8, 0.8)
    w.crash(1)
    w.round(1.0)
    w.recover(1, step=501)
    assert w.last.waits == (together(2, 3),), "the others are as slow as they were"


def acting(*computes: float, rung: Any = "restart", **policy: Any) -> World:
    """A world that acts on stragglers; they were slow for long enough, but the last steps are not in yet."""
    first = FirstRungSpec(straggler=rung)
    w = world(*computes, first_rung=first, straggler_for_s=FOR_S, **policy)
    assert w.last.look_again_at == w.now + FOR_S
    return w


def stays(w: World, *computes: float, **about: float) -> None:
    """Keeps the groups at this pace for long enough, with steps committed."""
    says(w, *computes, step=50 + 64, **about)
    w.round(FOR_S + 1.0)


def test_by_default_nothing_is_remembered_and_nothing_done() -> None:
    w = world(0.4, 0.9, 0.4)
    before = w.memory
    stays(w, 0.4, 0.9, 0.4)
    w.round(1e6)
    assert w.memory == before


def test_one_that_stays_slow_is_restarted_where_the_policy_says_so() -> None:
    w = acting(0.4, 0.9, 0.4)
    says(w, 0.4, 0.9, 0.4, step=114)
    assert w.verbs(FOR_S - 1.0) == [], "not yet for long enough"
    w.round(2.0)
    assert (w.incident.kind, w.incident.group, w.incident.rung) == (Kind.STRAGGLER, 1, Rung.RESTART)
    assert w.incident.reason == Reason.of(Code.POLICY_RUNG, kind="straggler", rung="restart")
    assert (w.incident.rank, w.incident.confidence, w.incident.took_s) == (0, Confidence.SUSPECTED, FOR_S + 1.0)
    assert w.incident.evidence == (
        Reason.of(
            Code.SLOW,
            rank=0,
            times=2.0,
            for_data=False,
            seconds=0.9,
            compute_s=0.9,
            data_s=0.0,
            usual_s=0.4,
            past_s=0.0,
        ),
        Reason.of(Code.SLOW_FOR, seconds=301, steps=64),
    )
    assert [w.group(g).generation for g in range(3)] == [1, 2, 1]
    w.recover(1, step=115)
    assert w.incident.state == "recovered"
    w.round(1.0)
    assert w.memory.slow == {}


def test_a_new_generation_is_judged_anew() -> None:
    w = acting(0.4, 0.9, 0.4)
    w.crash(1)
    w.round(FOR_S - 1.0)
    w.recover(1, step=100)
    says(w, 0.4, 0.9, 0.4, step=164)
    w.round(2.0)
    assert w.memory.slow[1].generation == 2
    assert w.memory.slow[1].since == w.now
    assert w.verbs(FOR_S - 1.0) == []


def test_one_that_was_fast_in_between_is_judged_anew() -> None:
    w = acting(0.4, 0.9, 0.4)
    says(w, 0.4, 0.5, 0.4, step=80)
    w.round(FOR_S - 1.0)
    assert w.memory.slow == {}
    stays(w, 0.4, 0.9, 0.4)
    assert w.memory.incidents == {}


def test_no_time_without_steps_is_counted() -> None:
    w = acting(0.4, 0.9, 0.4)
    assert w.verbs(10 * FOR_S) == []


def test_of_two_groups_it_must_be_slower_than_it_was_itself() -> None:
    w = world(0.4, 0.9, first_rung=FirstRungSpec(straggler="restart"), straggler_for_s=FOR_S)
    stays(w, 0.4, 0.9)
    w.round(10 * FOR_S)
    assert w.memory.slow == {}
    assert is_slow(1, "n2", 2.0) in w.last.waits, "it is reported all the same"
    w.commit(1, step=200, compute_s=0.9, compute_past_s=0.4, data_past_s=0.05)
    w.round(1.0)
    w.commit(1, step=300, compute_s=0.9, compute_past_s=0.4, data_past_s=0.05)
    w.round(FOR_S)
    assert (w.incident.kind, w.incident.group) == (Kind.STRAGGLER, 1)
    assert w.incident.confidence == Confidence.LIKELY
    (slow,) = values(w.incident.evidence, Code.SLOW)
    assert (slow["usual_s"], slow["past_s"]) == (0.4, 0.45)


def test_never_two_at_once() -> None:
    w = acting(0.4, 0.9, 0.4, 0.4, 0.8, 0.4)
    stays(w, 0.4, 0.9, 0.4, 0.4, 0.8, 0.4)
    assert [w.group(g).generation for g in range(6)] == [1, 2, 1, 1, 1, 1], "the slowest"
    w.round(1.0)
    busy = Reason.of(Code.ANOTHER_IS_BUSY, other=1, incident="i1", phase="starting")
    assert w.waiting(Code.NOT_TOUCHED) == [{"group": 4, "why": (busy,)}]
    w.recover(1, step=115)
    w.round(1.0)
    assert [w.group(g).generation for g in range(6)] == [1, 2, 1, 1, 2, 1]


@pytest.mark.parametrize("gone", ["spare", "budget"])
def test_the_run_is_neither_halted_nor_a_group_left_without_a_node(gone: str) -> None:
    budget = {"replace": 0} if gone == "budget" else {}
    w = acting(0.4, 0.9, 0.4, rung="replace", budget=budget)
    if gone == "spare":
        w.lapse("n4")
    stays(w, 0.4, 0.9, 0.4)
    assert w.memory.incidents == {}
    why = Reason.of(Code.NO_SPARE) if gone == "spare" else spent("replace", 0)
    assert w.waiting(Code.NOT_TOUCHED) == [{"group": 1, "why": (why,)}]


def test_one_that_failed_and_is_only_observed_keeps_nobody_from_being_mended() -> None:
    w = acting(0.4, 0.9, 0.4, 0.4, observe=("crash",))
    w.crash(3)
    w.round(1.0)
    stays(w, 0.4, 0.9, 0.4)
    assert [(i.kind, i.shadow) for i in w.incidents.values()] == [(Kind.CRASH, True), (Kind.STRAGGLER, False)]
    assert [w.group(g).generation for g in range(4)] == [1, 2, 1, 1]


def test_but_it_is_nobody_to_heal_from() -> None:
    w = acting(0.4, 0.9, 0.4, observe=("hang",))
    for group, (seconds, does) in enumerate(((0.4, "data"), (0.9, "collective"), (0.4, "data"))):
        stuck = StuckView(activity=does, activity_s=31.0, bound_s=30.0, usual_s=1.0)
        w.commit(group, step=114, compute_s=seconds, stuck=stuck)
    w.round(1.0)
    assert [(i.group, i.kind, i.shadow) for i in w.incidents.values()] == [(0, Kind.HANG, True), (2, Kind.HANG, True)]
    w.round(FOR_S)
    assert w.group(1).generation == 1
    assert w.waiting(Code.NOT_TOUCHED) == [{"group": 1, "why": (Reason.of(Code.NONE_TRAINS_BESIDE),)}]


def test_replaced_its_host_is_suspect() -> None:
    w = acting(0.4, 0.9, 0.4, rung="replace")
    stays(w, 0.4, 0.9, 0.4)
    assert (w.incident.rung, list(w.memory.cordons)) == (Rung.REPLACE, ["n2"])


def test_it_is_observed_as_everything_is() -> None:
    w = acting(0.4, 0.9, 0.4, observe=("straggler",))
    stays(w, 0.4, 0.9, 0.4)
    assert (w.incident.kind, w.incident.shadow, w.incident.rung) == (Kind.STRAGGLER, True, Rung.RESTART)
    before = w.memory
    says(w, 0.4, 0.95, 0.4, step=130)
    w.round(5.0)
    assert w.memory == before, "said once"
    says(w, 0.4, 0.41, 0.4, step=200)
    w.round(5.0)
    assert (w.incidents["i1"].state, w.memory.incidents) == ("recovered", {})


def test_a_paused_run_and_one_that_drains_are_left_alone() -> None:
    w = acting(0.4, 0.9, 0.4)
    w.control = replace(w.control, paused=True)
    stays(w, 0.4, 0.9, 0.4)
    assert w.group(1).generation == 1
    w = acting(0.4, 0.9, 0.4)
    w.control = replace(w.control, stop=True)
    w.round(1.0)
    stays(w, 0.4, 0.9, 0.4)
    assert {g.phase for g in w.memory.groups.values()} == {"running"}


# --- on another host again ---


def moved(*computes: float, **policy: Any) -> World:
    """A world in which group 1 was slow, was replaced, and trains on n4 (of as many groups as there are numbers)."""
    w = acting(*computes, rung="replace", spares=4, **policy)
    stays(w, *computes)
    assert w.incident.rung == Rung.REPLACE
    w.recover(1, step=115)
    assert [s.host for s in w.suspicions] == ["n2"]
    return w


def slow_again(w: World, *computes: float) -> None:
    """Makes the groups slow again, for long enough to be acted on."""
    says(w, *computes, step=200)
    w.round(1.0)
    says(w, *computes, step=264)
    w.round(FOR_S + 1.0)


def test_one_that_is_slow_on_the_next_host_too_costs_no_further_node() -> None:
    w = moved(0.4, 0.9, 0.4)
    slow_again(w, 0.4, 0.9, 0.4)
    assert (w.group(1).generation, len(w.incidents)) == (2, 1)
    elsewhere = Reason.of(Code.SLOW_ELSEWHERE, host="n2", incident="i1")
    assert w.last.waits == (is_slow(1, "n4", 2.0), Reason.of(Code.NOT_TOUCHED, group=1, why=(elsewhere,)))
    assert (w.memory.cordons, w.suspicions) == ({}, []), "nor is the first host to blame"
    says(w, 0.4, 0.9, 0.4, step=10_000)
    w.round(3 * WITHIN_S)
    assert (w.group(1).generation, len(w.memory.spent["replace"])) == (2, 1), "however long it stays so"


def test_another_that_is_slow_has_its_turn_all_the_same() -> None:
    w = moved(0.4, 0.9, 0.4, 0.4)
    slow_again(w, 0.4, 0.9, 0.4, 0.8)
    assert (w.incident.kind, w.incident.group) == (Kind.STRAGGLER, 3)


def test_one_that_becomes_slow_on_the_next_host_after_a_day_is_replaced_again() -> None:
    w = moved(0.4, 0.9, 0.4)
    says(w, 0.4, 0.4, 0.4, step=180)
    w.round(WITHIN_S + 1.0)
    slow_again(w, 0.4, 0.9, 0.4)
    assert (w.group(1).generation, w.incident.rung) == (3, Rung.REPLACE)


def test_after_a_restart_in_place_it_may_still_be_the_host() -> None:
    w = acting(0.4, 0.9, 0.4, budget={"restart": 1})
    stays(w, 0.4, 0.9, 0.4)
    w.recover(1, step=115)
    slow_again(w, 0.4, 0.9, 0.4)
    assert (w.incident.id, w.incident.rung) == ("i2", Rung.REPLACE)
    w.recover(1, step=300)
    says(w, 0.4, 0.9, 0.4, step=400)
    w.round(1.0)
    says(w, 0.4, 0.9, 0.4, step=464)
    w.round(FOR_S + 1.0)
    assert w.group(1).generation == 3
    assert w.memory.cordons == {}
