"""Finds the allocations of a group that are asked for together, where a run wants one job for each group."""

from __future__ import annotations

from collections.abc import Collection

from supervisor.core.model.memory import AllocationMemory, Memory
from supervisor.core.model.reason import Code
from supervisor.core.model.spec import RunSpec


def blocks(
    spec: RunSpec, memory: Memory, allocations: Collection[AllocationMemory]
) -> dict[str, tuple[str, ...] | None]:
    """Returns, by key, the keys that are asked for together; None where the rest of them comes in the next round.

    These are as many as a group has nodes, numbered one after the other, all wanted for the start of the run or its
    resumption. Spares, replacements and parts of such a block are asked for alone, and are not in it.
    """
    size, first = spec.groups.nodes_per_group, memory.allocations_above + 1
    if spec.allocation.slurm.shape != "job_per_group" or size == 1:
        return {}
    members: dict[int, list[AllocationMemory]] = {}
    for allocation in sorted(allocations, key=_number):
        members.setdefault((_number(allocation) - first) // size, []).append(allocation)
    nodes, all_ = spec.allocation.nodes, spec.allocation.nodes + spec.allocation.spares
    found: dict[str, tuple[str, ...] | None] = {}
    for block, of_it in members.items():
        spare = nodes < (block + 1) * size and block * size < all_
        if spare or not all(a.state == "wanted" and a.reason.code == Code.RUN_STARTS for a in of_it):
            continue
        if len(of_it) == size:
            found |= dict.fromkeys((a.key for a in of_it), tuple(a.key for a in of_it))
        elif memory.phase == "new":
            found |= dict.fromkeys((a.key for a in of_it), None)
    return found


def _number(allocation: AllocationMemory) -> int:
    return int(allocation.key.rpartition("-a")[2])
