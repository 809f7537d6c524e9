"""etcd keys: one prefix, none equal to or under another by accident."""

from __future__ import annotations

from itertools import combinations

import pytest

from supervisor.wire import keys

KEYS = {
    "leader": keys.LEADER,
    "registration": keys.registration("n1"),
    "health": keys.health("n1"),
    "observed": keys.observed("n1"),
    "check": keys.check("n1"),
    "gate": keys.gate("n1", "run"),
    "desired": keys.desired("n1", "run"),
    "spec": keys.spec("run"),
    "control": keys.control("run"),
    "memory": keys.memory("run", "run"),
    "memory of a group": keys.memory("run", "group-1"),
    "gate_presence": keys.gate_presence("n1", "run"),
    "epochs_before": keys.EPOCHS_BEFORE,
    "incident": keys.incident("run", "i1"),
    "allocation": keys.allocation("run", "run-a1"),
    "grant": keys.grant("run", "run-a1"),
    "checkpoint": keys.checkpoint("run"),
    "removed": keys.removed("run"),
}


def test_all_live_under_the_prefix() -> None:
    assert all(key.startswith(keys.PREFIX) for key in KEYS.values())


def test_no_key_is_another_or_a_folder_of_it() -> None:
    for (a, first), (b, second) in combinations(KEYS.items(), 2):
        assert first != second, (a, b)
        assert not first.startswith(second + "/"), (a, b)
        assert not second.startswith(first + "/"), (a, b)


@pytest.mark.parametrize(
    ("prefix", "key"),
    [
        (keys.NODES, keys.registration("n1")),
        (keys.NODES, keys.gate("n1", "run")),
        (keys.RUNS, keys.spec("run")),
        (keys.DESIRED, keys.desired("n1", "run")),
        (keys.desired("n1", ""), keys.desired("n1", "run")),
        (keys.memory("run", ""), keys.memory("run", "group-3")),
        (keys.allocation("run", ""), keys.allocation("run", "run-a1")),
        (keys.grant("run", ""), keys.grant("run", "run-a1")),
        (keys.incident("run", ""), keys.incident("run", "i1")),
    ],
)
def test_what_is_listed_by_a_prefix_is_under_it(prefix: str, key: str) -> None:
    assert prefix.endswith("/")
    assert key.startswith(prefix)
    assert "/" not in key.removeprefix(prefix).split("gate/")[-1] or prefix in (keys.NODES, keys.RUNS, keys.DESIRED)


def test_a_run_or_node_whose_name_begins_like_another_is_not_listed_with_it() -> None:
    assert not keys.allocation("run-2", "x").startswith(keys.allocation("run", ""))
    assert not keys.memory("run-2", "run").startswith(keys.memory("run", ""))
    assert not keys.desired("n10", "run").startswith(keys.desired("n1", ""))
