"""The comparison of steps on a token store with those on a folder."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from benchmarks.data_cost import RESULTS, STEPS, compared, cpu_of, figures, within


def rounds(*steps: float, data: float = 0.001) -> list[list[dict[str, float]]]:
    """Returns rounds of three steps, of which one is slow."""
    return [[{"step": s, "data": data, "quorum": 0.0} for s in (step, step, 10 * step)] for step in steps]


def test_a_ratio_is_of_one_round_whatever_the_others_took() -> None:
    found = compared(rounds(1.02, 2.04, 8.16), rounds(1.0, 2.0, 8.0))
    assert found == {"ratio": 1.02, "interval": [1.02, 1.02], "by_round": [1.02, 1.02, 1.02]}


def test_the_interval_is_as_wide_as_the_rounds_are_apart() -> None:
    low, high = compared(rounds(*(1.0, 1.1) * 10), rounds(*(1.0,) * 20))["interval"]
    assert 1.0 <= low < 1.05 < high <= 1.1


def test_runs_of_unequal_rounds_are_not_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        compared(rounds(1.0, 1.0), rounds(1.0))


def test_figures_are_milliseconds() -> None:
    found = figures(rounds(1.0, 1.0, data=0.25))
    assert (found["step_median_ms"], found["data_median_ms"], found["steps"]) == (1000.0, 250.0, 6)
    assert found["mean_ms"] == {"step": 4000.0, "data": 250.0, "quorum": 0.0}


def test_another_part_is_compared_by_its_own_figures() -> None:
    assert compared([[{"cpu": 2.0}]] * 2, [[{"cpu": 1.0}]] * 2, "cpu")["interval"] == [2.0, 2.0]


def test_the_processor_time_of_a_round_is_that_between_two_waits() -> None:
    turns = [{"event": "turn", "ended_cpu_s": ended, "begins_cpu_s": ended + 5.0} for ended in (1.0, 12.0, 29.0)]
    steps = [SimpleNamespace(lines=[{"event": "step"}, *turns])] * 2
    world = SimpleNamespace(history=lambda record: SimpleNamespace(steps=steps))
    found = cpu_of(world, None)  # type: ignore[arg-type]
    assert found == [[{"cpu": 6.0 / STEPS}] * 2, [{"cpu": 12.0 / STEPS}] * 2]


def test_a_bound_is_met_by_the_whole_interval() -> None:
    assert [within(1.01, each) for each in ([0.9, 1.01], [0.92, 1.05], [1.02, 1.1])] == [True, "not resolved", False]
    written = json.loads(RESULTS.read_text())
    assert written["met"] == within(written["most"], written["store_to_folder"]["interval"])
