"""The benchmark's summary of its trials; the trials themselves need a Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import slurm_node_loss
from benchmarks.slurm_node_loss import _settled, summary

FULL = {"seconds": 60.0, "seen_s": 20.0, "started_s": 30.0}
REQUEUE = {"seconds": 160.0, "seen_s": 20.0, "started_s": 130.0}


def trials(*ours: tuple[float, float]) -> dict[str, dict[str, list[dict[str, float]]]]:
    """`ours`: seconds until its group was back, and the other's longest pause."""
    told = [{"seconds": s, "seen_s": 1.0, "started_s": 1.5, "others_longest_gap_s": gap} for s, gap in ours]
    return {"silent": {"ours": told, "full_restart": [FULL] * len(told), "requeue": [REQUEUE] * len(told)}}


@pytest.mark.parametrize(
    ("ours", "never_stopped"),
    [(((8.0, 2.0), (9.0, 3.0)), True), (((8.0, 2.0), (9.0, 4.5)), False), (((8.0, 4.0), (30.0, 3.0)), False)],
)
def test_one_long_pause_of_the_other_group_is_enough(
    ours: tuple[tuple[float, float], ...], never_stopped: bool
) -> None:
    found = summary(trials(*ours), "silent")
    assert found["others_longest_gaps_s"] == [gap for _, gap in ours]
    assert found["other_group_never_stopped"] is never_stopped


def test_the_ratios_are_of_the_medians() -> None:
    found = summary(trials((5.0, 1.0), (6.0, 1.0), (30.0, 1.0)), "silent")
    assert (found["ratio_to_full_restart"], found["ratio_to_full_restart_that_knew_at_once"]) == (0.1, 0.15)
    assert found["ratio_to_requeue"] == pytest.approx(6 / 160, abs=0.001)
    assert found["goal_met"]
    assert (found["ours_s"], found["requeue_s"]) == ([5.0, 6.0, 30.0], [160.0] * 3)


def test_the_raw_trials_are_in_the_result_and_no_longer_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = trials((5.0, 1.0))
    found["killed"] = found["silent"]

    def inside(rounds: int, partial: Path) -> dict[str, Any]:
        partial.write_text("{}")
        assert (rounds, partial) == (1, tmp_path / "x.partial.json")
        return found

    monkeypatch.setattr(slurm_node_loss, "inside", inside)
    monkeypatch.setenv(slurm_node_loss.NETWORK, "{}")
    monkeypatch.setattr("sys.argv", ["x", "--rounds", "1", "--results", str(tmp_path / "x.json")])
    assert slurm_node_loss.main() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    body = json.loads((tmp_path / "x.json").read_text())
    assert body["trials"] == found
    assert body["hosts_held"] == {"ours": 3, "full_restart": 2, "requeue": 2}
    assert body["killed"]["lost_by"] == "all its processes are killed"


@pytest.mark.parametrize(
    ("state", "restarts", "settled"),
    [("RUNNING", 0, False), ("COMPLETING", 0, False), ("FAILED", 0, True), ("PENDING", 0, True), ("RUNNING", 1, True)],
)
def test_what_becomes_of_a_job_is_known_when_it_is_not_completing(state: str, restarts: int, settled: bool) -> None:
    assert _settled({"job_state": state, "restart_cnt": restarts}) is settled
