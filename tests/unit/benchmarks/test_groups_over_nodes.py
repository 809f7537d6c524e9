"""The goals of the benchmark of groups over nodes are read from its lists."""

from __future__ import annotations

import pytest

from benchmarks.groups_over_nodes import result

MET = {
    "ours_s": [4.0, 5.0, 6.0],
    "group_restart_s": [10.0, 10.0, 10.0],
    "job_restart_s": [25.0, 25.0, 40.0],
    "one_node_case_s": [4.0, 4.0, 4.0],
    "others_stall_s": [1.0, 2.0, 1.5],
}


@pytest.mark.parametrize(
    ("name", "values", "missed"),
    [
        ("ours_s", [4.0, 5.0, 6.0], []),
        ("one_node_case_s", [3.0, 3.8, 3.8], ["at most 1.3 times the one-node case"]),
        ("job_restart_s", [24.0, 24.0, 40.0], ["at least 5 times faster than the whole job"]),
        ("others_stall_s", [1.0, 2.1, 1.5], ["others stall at most 2 s"]),
    ],
)
def test_a_goal_that_is_missed_is_named(name: str, values: list[float], missed: list[str]) -> None:
    made = result({**MET, name: values})
    assert [goal for goal, met in made["goals"].items() if not met] == missed
