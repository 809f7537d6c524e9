"""A run that every failure stops."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from benchmarks import simulated_vs_published as published
from fault_injection.sim.whole import Whole, estimate, ettr

DAY_S = 86_400.0
RARE = Whole(mttf_s=10 * 3600.0, recovery_s=300.0, interval_s=1800.0, pause_s=30.0)


def mean(run: Whole, days: float = 60.0) -> float:
    return statistics.fmean(ettr(run, days * DAY_S, seed) for seed in range(20))


def test_rare_failures_cost_what_the_published_expression_says() -> None:
    assert mean(RARE) == pytest.approx(estimate(RARE), abs=0.005)


def test_every_part_costs() -> None:
    without = mean(replace(RARE, interval_s=0.0, pause_s=0.0))
    assert without > mean(replace(RARE, pause_s=0.0)) > mean(RARE) > mean(replace(RARE, recovery_s=3600.0))


def test_one_that_fails_all_the_time_is_down_for_as_long_as_its_failures_take() -> None:
    """Ten minutes for each failure, of which one comes every eighteen."""
    assert mean(Whole(mttf_s=1080.0, recovery_s=600.0)) == pytest.approx(1 - 10 / 18, abs=0.02)


def test_a_run_that_does_not_fail() -> None:
    never = Whole(mttf_s=1e12, recovery_s=600.0, interval_s=900.0, pause_s=100.0)
    assert ettr(never, 10 * DAY_S, 0) == pytest.approx(0.9)
    assert ettr(replace(never, interval_s=0.0), 10 * DAY_S, 0) == 1.0


def test_a_seed_is_a_seed() -> None:
    assert ettr(RARE, DAY_S, 3) == ettr(RARE, DAY_S, 3) != ettr(RARE, DAY_S, 4)


def test_what_a_paper_does_not_state_is_not_compared() -> None:
    told = published.of_run(
        {"name": "x", "source": "y", "mttf_min": 180.0, "reported_above": 0.9, "why_not": "no recovery"}
    )
    assert not told["compared"]
    assert told["what_it_implies"] == "at most 18.0 minutes for each failure, all in all"


@pytest.mark.parametrize(("reported", "within"), [(0.80, False), (0.83, True)])
def test_three_points_are_the_bound(reported: float, within: bool) -> None:
    body = {"name": "x", "source": "y", "mttf_min": 18.0, "recovery_min": 3.0, "reported": reported}
    assert published.of_run(body)["within_3_points"] is within
