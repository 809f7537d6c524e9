"""The sentence about nodes that this machine's pool lacks for a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.core.model.spec import AllocationSpec, GroupsSpec, RunSpec
from supervisor.shell.engines import local_room
from supervisor.shell.engines.local import Pool, PoolNode


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (5, ""),
        (4, "the run starts without 1 of its spares"),
        (3, "1 of 2 groups start at once, the others join"),
        (1, "nothing starts before groups.min_groups = 1 is met"),
    ],
)
def test_a_group_needs_all_of_its_nodes(tmp_path: Path, pool: int, said: str) -> None:
    Pool(nodes=tuple(PoolNode(f"n{n}") for n in range(pool)), etcd="127.0.0.1:1", gpus=()).save(tmp_path)
    groups = GroupsSpec(count=2, min_groups=1, nodes_per_group=2, ranks_per_group=2)
    found = local_room.lacks(RunSpec(name="run", groups=groups, allocation=AllocationSpec(nodes=4, spares=1)), tmp_path)
    assert said in found
    assert (f"nodes in the pool: {pool}, free: {pool}, wanted: 5 (4 for groups, 1 more)" in found) is bool(said)
