"""Groups that compute longer than the others. All step together, so their steps take as long as the slowest one's; what each
computes itself tells them apart. Reported, and nothing is done."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.core.detect import ranks_of
from supervisor.core.model import GroupMemory, Observed
from supervisor.core.spec import RunSpec

DIFFERENCE_S = 0.02
"""Below this a factor says nothing: steps of a few milliseconds differ by noise."""
NAMED = 5
"""So many at most, the slowest first: of more than that it is the others who are unusual."""


def stragglers(groups: Mapping[int, GroupMemory], observed: Observed, spec: RunSpec) -> list[str]:
    """A sentence for each, the slowest first."""
    taken = {
        g: slowest for g, group in groups.items() if group.phase == "running" and (slowest := _slowest(group, observed))
    }
    if len(taken) < 2:
        return []
    in_order = sorted(seconds for _, seconds in taken.values())
    found = []
    for g, (rank, seconds) in taken.items():
        # of two the other is all there is to compare with
        usual = sum(in_order) - seconds if len(taken) == 2 else in_order[(len(in_order) - 1) // 2]
        if seconds > spec.policy.straggler_factor * usual and seconds - usual > DIFFERENCE_S:
            times = round(2 * seconds / usual) / 2
            node = groups[g].node
            found.append(
                (
                    -seconds,
                    f"group {g} is slow: rank {rank} on node {node} computes about {times:g} times as long as the others",
                )
            )
    return [sentence for _, sentence in sorted(found)][:NAMED]


def _slowest(group: GroupMemory, observed: Observed) -> tuple[int, float] | None:
    known = [(r.compute_s, r.rank) for r in ranks_of(group, observed) if r.state == "running" and r.compute_s > 0]
    if not known:
        return None
    seconds, rank = max(known)
    return rank, seconds
