"""What the benchmark of detection makes of its trials: nothing wrong is counted as right, and a goal that is missed is said."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.detection import HANGS, percentile, row, summary
from benchmarks.detection_cases import CASES


def trial(**about: Any) -> dict[str, Any]:
    right = {"kind_right": True, "culprit_right": True, "rung_right": True}
    return {"found": ["crash rung 1"], "detect_s": 0.1, **right, **about}


def rows(**trials: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: row(CASES[name], found) for name, found in trials.items()}


def test_a_row_counts_what_is_right_and_shows_what_was_found() -> None:
    found = row(
        CASES["sigkill"],
        [trial(), trial(detect_s=0.3, culprit_right=False), trial(found=["hang rung 1"], kind_right=False)],
    )
    assert (found["seeds"], found["kind_right"], found["culprit_right"], found["rung_right"]) == (3, 2, 2, 3)
    assert (found["detect_s_median"], found["detect_s_p99"]) == (0.1, 0.3)
    assert found["found"] == {"crash rung 1": 2, "hang rung 1": 1}


def test_what_was_never_found_has_no_time() -> None:
    found = row(CASES["sigkill"], [trial(detect_s=math.nan, kind_right=False, found=["nothing"])])
    assert found["detect_s_median"] is None


def test_the_percentile_is_a_value_that_was_seen() -> None:
    assert percentile([float(n) for n in range(1, 101)], 0.99) == 99.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0


def test_goals_are_met_by_the_slowest_alone() -> None:
    well = rows(sigkill=[trial(), trial(detect_s=0.19)], gil_held=[trial(times_the_bound=1.9, bound_s=4.0)])
    assert all(summary(well)[goal] for goal in ("crash_goal_met", "hang_goal_met", "culprit_goal_met"))
    slow = rows(sigkill=[trial(), trial(detect_s=0.21)], gil_held=[trial(times_the_bound=2.1, bound_s=4.0)])
    assert not any(summary(slow)[goal] for goal in ("crash_goal_met", "hang_goal_met"))


def test_a_culprit_is_asked_for_wherever_something_is_broken() -> None:
    missed = rows(sigkill=[trial()] * 40, nan_in_one_group=[trial(culprit_right=False)])
    assert not summary(missed)["culprit_goal_met"]
    assert summary(missed)["culprit_right_share"] == round(40 / 41, 4)
    padded = rows(sigkill=[trial(culprit_right=False)], hiccup=[trial(detect_s=None)] * 1000)
    assert summary(padded)["culprit_right_share"] == 0.0, (
        "where nothing is broken there is no culprit to be right about"
    )


def test_what_is_not_measured_meets_no_goal() -> None:
    assert not any(summary(rows(hiccup=[trial(detect_s=None)]))[goal] for goal in ("crash_goal_met", "hang_goal_met"))


def test_every_cause_can_be_told_from_a_wrong_verdict() -> None:
    assert len(CASES) >= 15
    for name, case in CASES.items():
        assert bool(case.kinds) == (case.rung is not None), name


def test_a_bound_that_is_the_policys_own_was_not_learned() -> None:
    bounds = (HANGS.at_least_s, HANGS.at_least_s + 0.5, HANGS.at_most_s)
    found = row(CASES["gil_held"], [trial(times_the_bound=1.1, bound_s=bound) for bound in bounds])
    assert found["bound_was_learned"] == 1
