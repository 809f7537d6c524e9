"""Every second of a group is under exactly one cause."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.goodput.causes import (
    OF_EVENT,
    Cause,
    Interval,
    Mark,
    cover,
    during,
    kept_waiting,
    of_lines,
    ratios,
    totals,
)

OVERLAPPING: dict[str, object] = {"event": "heal", "start": 1.0, "t": 2.0, "overlaps": True}


def line(event: str, start: float, t: float, **about: object) -> dict[str, object]:
    return {"event": event, "start": start, "t": t, "overlaps": False, **about}


# --- one process ---


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        ("start", Cause.START),
        ("imported", Cause.START),
        ("constructed", Cause.START),
        ("resumed", Cause.START),
        ("built", Cause.START),
        ("admitted", Cause.ADMISSION),
        ("quorum", Cause.QUORUM),
        ("checkpoint_start", Cause.CHECKPOINT),
        ("checkpoint_wait", Cause.CHECKPOINT),
        ("checkpoint_end", Cause.CHECKPOINT),
        ("purged", Cause.CHECKPOINT),
        ("evaluated", Cause.EVALUATE),
        ("digest", Cause.DIGEST),
        ("finished", Cause.END),
        ("closed", Cause.END),
        ("terminated", Cause.LOST_STEP),
        ("failed", Cause.LOST_STEP),
        ("peers_gone", Cause.LOST_STEP),
        ("what a later version may write", Cause.OTHER),
    ],
)
def test_an_event_has_a_cause(event: str, cause: Cause) -> None:
    assert of_lines([line(event, 1.0, 3.0)]) == [Interval(1.0, 3.0, cause)]


def written() -> set[str]:
    """The names of the lines that trainers write and that do not overlap."""
    found = set()
    root = Path(__file__).parents[4]
    for path in [*(root / "titan_actor").glob("*.py"), *(root / "everstep_trainer").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("ledger.event"):
                (name, *_) = node.args
                if ast.unparse(node) == "self._ledger.event(event, **changes)":
                    continue  # everstep_trainer's last line: finished, terminated or peers_gone
                assert isinstance(name, ast.Constant), f"{path.name}: {ast.unparse(node)}"
                found.add(str(name.value))
    return found


def test_every_line_that_trainers_write_has_a_cause() -> None:
    names = written()
    assert {"start", "resumed", "failed", "finished"} <= names
    assert names - OF_EVENT.keys() == set()


@pytest.mark.parametrize(
    "left_out",
    [
        OVERLAPPING,
        {"event": "start"},
        {"event": "start", "start": 1.0},
        {"event": "start", "start": None, "t": 2.0},
        {"event": "start", "start": "1", "t": 2.0},
        {},
    ],
)
def test_lines_that_overlap_or_have_no_times_are_left_out(left_out: dict[str, object]) -> None:
    assert of_lines([line("start", 0.0, 1.0), left_out]) == [Interval(0.0, 1.0, Cause.START)]


def test_a_step_without_parts_is_productive() -> None:
    assert of_lines([line("step", 1.0, 3.0, committed=True)]) == [Interval(1.0, 3.0, Cause.PRODUCTIVE)]


def test_a_step_that_was_not_committed_is_lost() -> None:
    parts = {"data": 1.0, "compute": 1.0}
    assert of_lines([line("step", 1.0, 3.0, committed=False, seconds=parts)]) == [Interval(1.0, 3.0, Cause.FAILED_STEP)]


def test_a_steps_seconds_are_split() -> None:
    parts = {"data": 0.5, "quorum": 0.25, "heal": 1.0, "commit": 0.25, "compute": 2.0, "new": 4.0}
    assert of_lines([line("step", 10.0, 18.0, committed=True, seconds=parts)]) == [
        Interval(10.0, 10.5, Cause.DATA),
        Interval(10.5, 10.75, Cause.QUORUM),
        Interval(10.75, 11.75, Cause.HEAL),
        Interval(11.75, 12.0, Cause.PRODUCTIVE),
        Interval(12.0, 14.0, Cause.PRODUCTIVE),
        Interval(14.0, 18.0, Cause.OTHER),
    ]


def test_parts_that_are_more_than_the_step_are_scaled_to_it() -> None:
    parts = {"heal": 6.0, "compute": 2.0}
    assert totals(of_lines([line("step", 0.0, 4.0, committed=True, seconds=parts)])) == {
        Cause.HEAL: 3.0,
        Cause.PRODUCTIVE: 1.0,
    }


# --- a group: gaps and marks ---


def test_before_the_first_mark_a_group_has_no_process_yet() -> None:
    assert cover([], [], 0.0, 5.0) == [Interval(0.0, 5.0, Cause.ALLOCATE)]


def test_gaps_are_under_the_newest_mark() -> None:
    marks = [Mark(6.0, Cause.DETECT), Mark(1.0, Cause.ACT), Mark(7.0, Cause.PLACE)]  # in any order
    process = [Interval(3.0, 5.0, Cause.PRODUCTIVE)]
    assert cover([process], marks, 0.0, 9.0) == [
        Interval(0.0, 1.0, Cause.ALLOCATE),
        Interval(1.0, 3.0, Cause.ACT),
        Interval(3.0, 5.0, Cause.PRODUCTIVE),
        Interval(5.0, 6.0, Cause.ACT),
        Interval(6.0, 7.0, Cause.DETECT),
        Interval(7.0, 9.0, Cause.PLACE),
    ]


def test_a_mark_inside_a_process_counts_from_its_end_on() -> None:
    process = [Interval(0.0, 5.0, Cause.PRODUCTIVE)]
    assert cover([process], [Mark(4.0, Cause.DETECT)], 0.0, 6.0)[-1] == Interval(5.0, 6.0, Cause.DETECT)


def test_of_two_marks_at_one_moment_the_later_in_the_list_counts() -> None:
    marks = [Mark(1.0, Cause.PLACE), Mark(1.0, Cause.ACT)]
    assert cover([], marks, 1.0, 2.0) == [Interval(1.0, 2.0, Cause.ACT)]
    assert cover([], marks, 0.0, 2.0) == [Interval(0.0, 1.0, Cause.ALLOCATE), Interval(1.0, 2.0, Cause.ACT)]


def test_a_later_generation_wins() -> None:
    """A fenced process lives on and steps in vain."""
    old = [Interval(0.0, 4.0, Cause.PRODUCTIVE), Interval(4.0, 8.0, Cause.FAILED_STEP)]
    new = [Interval(5.0, 6.0, Cause.START), Interval(6.0, 7.0, Cause.PRODUCTIVE)]
    assert cover([old, new], [Mark(0.0, Cause.DETECT)], 0.0, 9.0) == [
        Interval(0.0, 4.0, Cause.PRODUCTIVE),
        Interval(4.0, 5.0, Cause.FAILED_STEP),
        Interval(5.0, 6.0, Cause.START),
        Interval(6.0, 7.0, Cause.PRODUCTIVE),
        Interval(7.0, 9.0, Cause.DETECT),
    ]


def test_only_the_span_is_covered() -> None:
    process = [Interval(-5.0, 3.0, Cause.START), Interval(3.0, 99.0, Cause.PRODUCTIVE)]
    assert cover([process], [], 1.0, 4.0) == [Interval(1.0, 3.0, Cause.START), Interval(3.0, 4.0, Cause.PRODUCTIVE)]
    assert cover([process], [], 4.0, 4.0) == []


# --- every second once ---

# Eighths are exact in binary: values that should be equal are equal.
MOMENTS = st.integers(0, 160).map(lambda eighths: eighths / 8)
CAUSES = st.sampled_from(list(Cause))
INTERVALS = st.builds(Interval, MOMENTS, MOMENTS, CAUSES)  # also empty ones and ones that go back: a clock was set
PROCESSES = st.lists(st.lists(INTERVALS, max_size=6), max_size=4)
MARKS = st.lists(st.builds(Mark, MOMENTS, CAUSES), max_size=6)
QUICK = settings(max_examples=100, derandomize=True, database=None)


@QUICK
@given(PROCESSES, MARKS, MOMENTS, MOMENTS)
def test_each_second_is_covered_once(
    processes: list[list[Interval]], marks: list[Mark], begin: float, end: float
) -> None:
    found = cover(processes, marks, begin, end)
    assert sum(i.seconds for i in found) == max(0.0, end - begin)
    assert all(i.seconds > 0 for i in found)
    assert all(a.end == b.start for a, b in pairwise(found))
    if found:
        assert (found[0].start, found[-1].end) == (begin, end)


@QUICK
@given(st.lists(st.lists(st.tuples(MOMENTS, CAUSES), min_size=1, max_size=6), min_size=1, max_size=4), MARKS, MOMENTS)
def test_the_newest_process_keeps_all_of_its_time(
    lines: list[list[tuple[float, Cause]]], marks: list[Mark], born: float
) -> None:
    """The processes write as trainers do: each line starts at the end of the one before."""
    processes = []
    for body in lines:
        moments = sorted([born, *(t for t, _ in body)])
        spans = zip(pairwise(moments), (c for _, c in body), strict=True)
        processes.append([Interval(a, b, cause) for (a, b), cause in spans])
    found = cover(processes, marks, 0.0, 20.0)
    newest = [i for i in processes[-1] if i.seconds > 0]
    assert [i for i in found if newest and newest[0].start <= i.start < newest[-1].end] == newest


@QUICK
@given(st.lists(PROCESSES, max_size=3), MARKS, MOMENTS, MOMENTS)
def test_shares_add_up_to_one(groups: list[list[list[Interval]]], marks: list[Mark], begin: float, end: float) -> None:
    ledgers = [cover(processes, marks, begin, end) for processes in groups]
    ettr, badput = ratios(ledgers)
    assert 0.0 <= ettr <= 1.0
    assert all(0.0 < share <= 1.0 for share in badput.values())
    assert Cause.PRODUCTIVE.value not in badput
    assert ettr + sum(badput.values()) == pytest.approx(1.0 if groups and end > begin else 0.0)


def test_totals_and_ratios() -> None:
    first = [Interval(0.0, 3.0, Cause.PRODUCTIVE), Interval(3.0, 4.0, Cause.HEAL), Interval(4.0, 5.0, Cause.PRODUCTIVE)]
    second = [Interval(0.0, 1.0, Cause.START), Interval(1.0, 5.0, Cause.PRODUCTIVE)]
    assert totals(first) == {Cause.PRODUCTIVE: 4.0, Cause.HEAL: 1.0}
    assert ratios([first, second]) == (0.8, {"heal": 0.1, "start": 0.1})
    assert ratios([]) == (0.0, {})
    assert ratios([[], []]) == (0.0, {})


# --- an incident's share ---


def test_a_step_that_was_committed_before_is_recomputed() -> None:
    parts = {"data": 1.0, "compute": 2.0}
    two = [line("step", 3.0 * n, 3.0 * n + 3.0, step=n, committed=True, seconds=parts) for n in (4, 5)]
    assert totals(of_lines(two, redone=4)) == {Cause.DATA: 2.0, Cause.RECOMPUTE: 2.0, Cause.PRODUCTIVE: 2.0}
    assert Cause.RECOMPUTE not in totals(of_lines(two))


def test_a_time_is_given_to_another_cause_where_it_may_be() -> None:
    found = [Interval(0.0, 4.0, Cause.PRODUCTIVE), Interval(4.0, 8.0, Cause.DETECT)]
    assert during(found, 2.0, 6.0, Cause.HUNG) == [
        Interval(0.0, 2.0, Cause.PRODUCTIVE),
        Interval(2.0, 4.0, Cause.HUNG),
        Interval(4.0, 6.0, Cause.HUNG),
        Interval(6.0, 8.0, Cause.DETECT),
    ]
    assert totals(during(found, 2.0, 6.0, Cause.STORE_AWAY, {Cause.DETECT})) == {
        Cause.PRODUCTIVE: 4.0, Cause.STORE_AWAY: 2.0, Cause.DETECT: 2.0,
    }  # fmt: skip
    assert during(found, 9.0, 20.0, Cause.HUNG) == found


def test_only_what_is_beyond_an_ordinary_step_was_waited_for() -> None:
    found = [Interval(0.0, 1.0, Cause.PRODUCTIVE), Interval(1.0, 5.0, Cause.PRODUCTIVE), Interval(5.0, 9.0, Cause.HEAL)]
    assert kept_waiting(found, 2.0, 20.0, Cause.HUNG, 1.0) == [
        found[0], Interval(1.0, 2.0, Cause.PRODUCTIVE), Interval(2.0, 5.0, Cause.HUNG), found[2],
    ]  # fmt: skip
    assert kept_waiting(found, 2.0, 20.0, Cause.HUNG, 0.0) == found, "what is ordinary is not known"
    assert kept_waiting(found, 5.0, 20.0, Cause.HUNG, 1.0) == found, "it was over before"
    assert kept_waiting(found, 2.0, 20.0, Cause.HUNG, 3.5) == found, "hardly longer"


@QUICK
@given(PROCESSES, MARKS, MOMENTS, MOMENTS, CAUSES, st.sets(CAUSES), st.sampled_from([0.0, 0.5, 4.0]))
def test_no_second_is_won_or_lost_by_it(
    processes: list[list[Interval]],
    marks: list[Mark],
    start: float,
    end: float,
    cause: Cause,
    only: set[Cause],
    s: float,
) -> None:
    whole = cover(processes, marks, 0.0, 20.0)
    for found in (during(whole, start, end, cause, only), kept_waiting(whole, start, end, cause, s)):
        assert sum(i.seconds for i in found) == pytest.approx(20.0)
        assert all(a.end == b.start for a, b in pairwise(found))
        assert all(i.seconds > 0 for i in found)
        for other in Cause:
            if other != cause:
                assert totals(found).get(other, 0.0) <= totals(whole).get(other, 0.0) + 1e-9
