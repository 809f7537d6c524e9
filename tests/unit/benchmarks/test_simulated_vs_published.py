"""Published results, compared with the model that `supervisor simulate` plays."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

import pytest

from benchmarks import simulated_vs_published as published

STOPS: dict[str, Any] = {
    "name": "x", "source": "y", "gpus": 8_192, "mttf_min": 20.0, "counted": "clock", "recovery_min": [5.0], "reported": 0.75,
}  # fmt: skip


def simulated(**more: Any) -> dict[str, Any]:
    body = STOPS | more
    return published.simulated(body, body["recovery_min"][0], seeds=(2, 2), failures=100)


def test_failures_that_are_counted_by_the_clock_come_as_often_as_they_are_counted() -> None:
    """The count is of five minutes of every twenty."""
    told = simulated()
    assert told["minutes_between_failures"] == pytest.approx(20.0, rel=0.15)
    assert told["simulated"] == pytest.approx(0.75, abs=0.05)
    assert told["halts"] == 0


def test_failures_of_who_trains_come_after_a_recovery() -> None:
    assert simulated(counted="running")["simulated"] == pytest.approx(20 / 25, abs=0.05)


def test_what_is_trained_a_second_time_costs() -> None:
    assert simulated(interval_min=10.0)["simulated"] < simulated()["simulated"] - 0.05


@pytest.mark.long
def test_of_replicas_one_alone_is_away() -> None:
    """The others lose the time for which they are stopped, and the step in flight."""
    told = simulated(replicas=8, stall_min=1.0)
    assert told["simulated"] == pytest.approx(1 - (5 / 8 + 7 / 8) / 20, abs=0.03)


@pytest.mark.long
def test_a_run_with_two_recovery_times_is_within_with_both_or_not_at_all() -> None:
    told = published.of_run(STOPS | {"recovery_min": [5.0, 12.0]}, seeds=(2, 2), failures=100)
    assert [case["within"] for case in told["cases"]] == [True, False]
    assert told["within_3_points"] is False


def test_seeds_are_added_until_the_interval_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = published.simulated(STOPS, 5.0, seeds=(2, 2), failures=30)
    monkeypatch.setattr(published, "SURE", wide["interval_95"] / 5)
    more = published.simulated(STOPS, 5.0, seeds=(2, 20), failures=30)
    assert 2 < more["seeds"] <= 20
    assert more["interval_95"] < wide["interval_95"]


@pytest.mark.long
def test_of_a_least_that_is_reported_more_is_within() -> None:
    body = {key: value for key, value in STOPS.items() if key != "reported"}
    assert published.of_run(body | {"reported_above": 0.5}, seeds=(2, 2), failures=50)["within_3_points"]
    assert not published.of_run(body | {"reported_above": 0.95}, seeds=(2, 2), failures=50)["within_3_points"]


def test_what_a_paper_does_not_state_is_not_compared() -> None:
    told = published.of_run(
        {"name": "x", "source": "y", "mttf_min": 180.0, "reported_above": 0.9, "why_not": "no recovery"}
    )
    assert not told["compared"]
    assert told["what_it_implies"] == "at most 18.0 minutes for each failure, all in all"


def test_the_expression_is_the_published_one() -> None:
    """Kokolis and others: an hour between checkpoints, 5 minutes to restart, 16,000 GPUs: 0.7; every 5 minutes:
    0.93."""
    between = 1440 / (2000 * 0.0065)
    assert published.estimate(between, 5.0, 60.0) == pytest.approx(0.7, abs=0.02)
    assert published.estimate(between, 5.0, 5.0) == pytest.approx(0.93, abs=0.005)


def test_the_data_file_has_a_source_for_each_and_what_is_not_found_is_said() -> None:
    text = (resources.files("fault_injection.whatif") / "data/papers/published.toml").read_text()
    for body in tomllib.loads(text)["run"]:
        assert body["source"], body
        complete = {"gpus", "counted", "recovery_min"} <= body.keys()
        assert complete or body["why_not"], body["name"]
        assert "reported" in body or "reported_above" in body, body["name"]
