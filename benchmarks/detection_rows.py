"""Summarises the trials of `benchmarks.detection`: a row for each cause, and whether the goals are met."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any

from benchmarks.detection_cases import CRASH, HANG, NOTHING, Case
from supervisor.core.model.spec import HangSpec

HANGS = HangSpec(factor=40.0, at_least_s=4.0, at_most_s=30.0)
"""`at_least_s`: the least that a run file accepts with these timeouts of TorchFT. `factor`: makes the bound that a rank
learns from steps of 0.1 s longer than that, so that the learned bound finds a hang."""

GOALS = {"crash_detect_s": 0.2, "hang_times_the_bound": 2.0, "culprit_right_share": 0.98}
RIGHT = ("kind_right", "culprit_right", "rung_right", "named_right")
MET = (
    "crash_goal_met", "hang_goal_met", "culprit_goal_met", "all_kinds_right", "all_rungs_right", "all_named_right",
    "nothing_done_where_nothing_is_to_be_done", "nobody_acted_on_between_trials", "all_came_back_by_themselves", "all_trials_made",
)  # fmt: skip


def not_made(seed: int, error: Exception) -> dict[str, Any]:
    """Returns the result of a trial that itself went wrong: no part is right."""
    wrong = dict.fromkeys(RIGHT, False)
    return {"seed": seed, "found": [f"not made: {error}"], **wrong, "detect_s": None}


def percentile(values: list[float], share: float) -> float:
    """Returns the percentile by the nearest rank."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _learned(bound_s: float) -> bool:
    """Returns true if the rank's own steps made the bound, not the policy's least or most."""
    return HANGS.at_least_s < bound_s < HANGS.at_most_s


def row(case: Case, trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns one cause's figures over its seeds."""
    seconds = [t["detect_s"] for t in trials if t["detect_s"] is not None]
    ratios = [t["times_the_bound"] for t in trials if "times_the_bound" in t]
    kinds = " or ".join(k.value for k in case.kinds) or "nothing is done"
    made: dict[str, Any] = {
        "how": case.how,
        "family": case.family,
        "right_kind": kinds,
        "right_rung": int(case.rung) if case.rung is not None else "none",
        "seeds": len(trials),
        **{key: sum(bool(t[key]) for t in trials) for key in RIGHT},
        "helped_before": sum("helped_before" in t for t in trials),
        "without_a_time": 0 if case.family == NOTHING else len(trials) - len(seconds),
        "detect_s_median": round(statistics.median(seconds), 4) if seconds else None,
        "detect_s_p99": round(percentile(seconds, 0.99), 4) if seconds else None,
        "found": dict(Counter(" and ".join(t["found"]) for t in trials)),
    }
    if ended := [t["ended_after_s"] for t in trials if "ended_after_s" in t]:
        made["of_that_until_it_had_ended_s_median"] = round(statistics.median(ended), 4)
        after = [
            t["detect_s"] - t["ended_after_s"] for t in trials if "ended_after_s" in t and t["detect_s"] is not None
        ]
        made["from_its_end_s_p99"] = round(percentile(after, 0.99), 4) if after else None
    if case.family == HANG:
        made["without_times_the_bound"] = len(trials) - len(ratios)
    if ratios:
        made |= {"times_the_bound_median": statistics.median(ratios), "times_the_bound_most": max(ratios)}
        bounds = [t["bound_s"] for t in trials if "bound_s" in t]
        made |= {"bound_s_median": statistics.median(bounds), "bound_was_learned": sum(map(_learned, bounds))}
    return made


def summary(rows: dict[str, dict[str, Any]], names: Iterable[str], seeds: int, strays: list[str]) -> dict[str, Any]:
    """Returns the goals over all named causes, with this number of seeds each, and whether they are met. `strays`:
    groups that were acted on while nothing was broken."""
    crashes = [r for r in rows.values() if r["family"] == CRASH]
    hangs = [r for r in rows.values() if r["family"] == HANG]
    slowest = max((r["detect_s_p99"] for r in crashes if r["detect_s_p99"] is not None), default=None)
    medians = [r["detect_s_median"] for r in crashes if r["detect_s_median"] is not None]
    most = max((r["times_the_bound_most"] for r in hangs if "times_the_bound_most" in r), default=None)
    faulty = [r for r in rows.values() if r["family"] != NOTHING]
    share = sum(r["culprit_right"] for r in faulty) / max(1, sum(r["seeds"] for r in faulty))
    all_timed = not any(r["without_a_time"] for r in crashes)
    all_bounded = not any(r["without_times_the_bound"] for r in hangs)
    fewer = sorted(name for name in names if name not in rows or rows[name]["seeds"] < seeds)
    return {
        "goals": GOALS,
        "crash_detect_s_slowest_median": max(medians, default=None),
        "crash_detect_s_slowest": slowest,
        "crash_goal_met": slowest is not None and slowest < GOALS["crash_detect_s"] and all_timed,
        "hang_times_the_bound_most": most,
        "hang_goal_met": most is not None and most <= GOALS["hang_times_the_bound"] and all_bounded,
        "culprit_right_share": round(share, 4),
        "culprit_goal_met": share >= GOALS["culprit_right_share"],
        "all_kinds_right": all(r["kind_right"] == r["seeds"] for r in rows.values()),
        "all_rungs_right": all(r["rung_right"] == r["seeds"] for r in rows.values()),
        "all_named_right": all(r["named_right"] == r["seeds"] for r in rows.values()),
        "nothing_done_where_nothing_is_to_be_done": all(
            r["kind_right"] == r["seeds"] for r in rows.values() if r["family"] == NOTHING
        ),
        "nobody_acted_on_between_trials": not strays,
        "acted_on_between_trials": strays,
        "all_came_back_by_themselves": not any(r["helped_before"] for r in rows.values()),
        "all_trials_made": not fewer,
        "fewer_trials_of": fewer,
    }


def missed(found: dict[str, Any], history: dict[str, str]) -> list[str]:
    """Returns the goals that a summary misses, and the checkers that do not pass."""
    return [goal for goal in MET if not found[goal]] + [name for name, said in history.items() if said != "pass"]
