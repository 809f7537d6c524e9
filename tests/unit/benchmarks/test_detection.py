"""The detection benchmark's verdict on its trials: nothing wrong counts as right, and a missed goal is reported."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks import detection
from benchmarks import detection_rows as made
from benchmarks.detection_cases import CASES
from benchmarks.detection_rows import HANGS, MET, missed, not_made, percentile, row
from fault_injection.testbed.unavailable import NotHere
from supervisor.ports.errors import Fatal


def trial(**about: Any) -> dict[str, Any]:
    right = {"kind_right": True, "culprit_right": True, "rung_right": True, "named_right": True}
    return {"found": ["crash rung 1"], "detect_s": 0.1, **right, **about}


def rows(**trials: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: row(CASES[name], found) for name, found in trials.items()}


def summary(
    found: dict[str, dict[str, Any]], *also: str, seeds: int = 1, strays: tuple[str, ...] = ()
) -> dict[str, Any]:
    return made.summary(found, [*found, *also], seeds, list(strays))


def well(**other: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Results with which every goal is met."""
    found = {
        "sigkill": [trial()],
        "gil_held": [trial(times_the_bound=1.9, bound_s=4.0)],
        "hiccup": [trial(detect_s=None)],
    }
    return rows(**{**found, **other})


NEVER = {
    "detect_s": None,
    "kind_right": False,
    "culprit_right": False,
    "rung_right": False,
    "named_right": False,
    "found": ["nothing"],
}


def test_a_row_counts_what_is_right_and_shows_what_was_found() -> None:
    found = row(
        CASES["sigkill"],
        [trial(), trial(detect_s=0.3, culprit_right=False), trial(found=["hang rung 1"], kind_right=False)],
    )
    assert (found["seeds"], found["kind_right"], found["culprit_right"], found["rung_right"]) == (3, 2, 2, 3)
    assert (found["detect_s_median"], found["detect_s_p99"]) == (0.1, 0.3)
    assert found["found"] == {"crash rung 1": 2, "hang rung 1": 1}


def test_what_was_never_found_has_no_time() -> None:
    found = row(CASES["sigkill"], [trial(**NEVER)])
    assert (found["detect_s_median"], found["without_a_time"]) == (None, 1)
    ended = row(CASES["sigkill"], [trial(**NEVER, ended_after_s=0.1)])
    assert ended["from_its_end_s_p99"] is None
    assert row(CASES["hiccup"], [trial(detect_s=None)])["without_a_time"] == 0


def test_the_percentile_is_a_value_that_was_seen() -> None:
    assert percentile([float(n) for n in range(1, 101)], 0.99) == 99.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0


def test_goals_are_met_by_the_slowest_alone() -> None:
    quick = rows(sigkill=[trial(), trial(detect_s=0.19)], gil_held=[trial(times_the_bound=1.9, bound_s=4.0)])
    assert missed(summary(quick), {}) == []
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


def test_all_that_is_well_misses_nothing() -> None:
    assert missed(summary(well()), {"single_owner": "pass"}) == []
    assert [goal for goal in MET if not summary(well())[goal]] == []


@pytest.mark.parametrize(
    ("other", "short"),
    [
        ({"sigkill": [trial(), trial(kind_right=False)]}, ["all_kinds_right"]),
        ({"sigkill": [trial(), trial(rung_right=False)]}, ["all_rungs_right"]),
        ({"sigkill": [trial(), trial(named_right=False)]}, ["all_named_right"]),
        (
            {"hiccup": [trial(kind_right=False, detect_s=None)]},
            ["all_kinds_right", "nothing_done_where_nothing_is_to_be_done"],
        ),
        ({"sigkill": [trial()] * 99 + [trial(detect_s=None)]}, ["crash_goal_met"]),
        ({"gil_held": [trial(times_the_bound=1.1, bound_s=4.0), trial(detect_s=9.0)]}, ["hang_goal_met"]),
        ({"sigkill": [trial(helped_before=True)]}, ["all_came_back_by_themselves"]),
        (
            {"sigkill": [trial()] * 99 + [not_made(1, Fatal("there is no process 7"))]},
            ["crash_goal_met", "all_kinds_right", "all_rungs_right", "all_named_right"],
        ),
    ],
)
def test_one_trial_that_is_wrong_is_a_goal_that_is_missed(other: dict[str, Any], short: list[str]) -> None:
    """A crash without a time was never found; a hang without a bound was found by another rule than its bound."""
    assert missed(summary(well(**other)), {}) == short


def test_whoever_is_acted_on_between_trials_is_a_goal_that_is_missed() -> None:
    found = summary(well(), strays=("group 0 rank 0 on n1: rank 0 was ended by SIGSEGV",))
    assert missed(found, {}) == ["nobody_acted_on_between_trials"]


def test_a_cause_with_fewer_trials_than_seeds_is_refused() -> None:
    found = summary(well(), "killed_for_memory", seeds=1)
    assert (missed(found, {}), found["fewer_trials_of"]) == (["all_trials_made"], ["killed_for_memory"])
    assert summary(well(sigkill=[trial()] * 2), seeds=2)["fewer_trials_of"] == ["gil_held", "hiccup"]


def test_a_checker_that_does_not_pass_is_named() -> None:
    assert missed(summary(well()), {"single_owner": "unknown: no history", "generations_grow": "pass"}) == [
        "single_owner"
    ]


class System:
    """A system in which no run is broken: it only gives the end of each trial."""

    def __init__(self) -> None:
        self.w = self
        self.record = None
        self.strays: list[str] = []
        self.judged = 0

    def acted(self, count: int) -> dict[str, Any]:
        return {}

    def settle(self) -> None: ...

    def history(self, _: object) -> None: ...


def measured(monkeypatch: pytest.MonkeyPatch, folder: Path, ends: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The benchmark's exit code and result, when each trial of a cause ends in this way."""

    def ended(_: object, name: str, seed: int) -> dict[str, Any]:
        if isinstance(ends[name], Exception):
            raise ends[name]
        return {"seed": seed, **ends[name]}

    results = folder / "results.json"
    monkeypatch.setattr(tempfile, "tempdir", str(folder))  # a trial that goes wrong leaves its files
    monkeypatch.setattr(detection, "bench", lambda *_: contextlib.nullcontext(System()))
    monkeypatch.setattr(detection, "trial", ended)
    monkeypatch.setattr(detection.consistency, "check", lambda _: [])
    monkeypatch.setattr(sys, "argv", ["x", "--seeds", "2", "--results", str(results), "--only", *ends])
    return detection.main(), json.loads(results.read_text())


def test_only_what_this_machine_cannot_make_is_left_out_and_the_exit_code_says_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = {"sigkill": trial(), "gil_held": trial(times_the_bound=1.1, bound_s=4.0)}
    code, result = measured(monkeypatch, tmp_path, found)
    assert (code, result["missed"]) == (0, [])
    assert result["commit"]
    code, result = measured(monkeypatch, tmp_path, found | {"disk_full": NotHere("needs root")})
    assert (code, result["missed"]) == (1, ["all_trials_made"])
    assert (result["not_measured"], result["fewer_trials_of"]) == ({"disk_full": "needs root"}, ["disk_full"])
    code, result = measured(monkeypatch, tmp_path, found | {"node_killed": Fatal("the run still drains")})
    assert (code, result["not_measured"]) == (1, {})
    assert result["kinds"]["node_killed"]["found"] == {"not made: the run still drains": 2}
    assert result["kinds"]["node_killed"]["kind_right"] == 0


def test_every_cause_can_be_told_from_a_wrong_verdict() -> None:
    assert len(CASES) >= 15
    for name, case in CASES.items():
        assert bool(case.kinds) == bool(case.says) == (case.rung is not None), name


def test_a_bound_that_is_the_policys_own_was_not_learned() -> None:
    bounds = (HANGS.at_least_s, HANGS.at_least_s + 0.5, HANGS.at_most_s)
    found = row(CASES["gil_held"], [trial(times_the_bound=1.1, bound_s=bound) for bound in bounds])
    assert found["bound_was_learned"] == 1
