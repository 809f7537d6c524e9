"""Detects ranks that the kernel shows as stopped: a fact, for which no step has to take too long first."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.core.evidence.group_nodes import ranks_answering
from supervisor.core.model.incident import Confidence, Failure
from supervisor.core.model.kinds import Kind
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import Observed, RankView
from supervisor.core.model.reason import Code, Reason


def for_long(groups: Mapping[int, GroupMemory], observed: Observed, limit_s: float) -> tuple[int, ...]:
    """Groups of which a rank has been stopped for longer than `policy.hang.stopped_s`."""
    return tuple(sorted(g for g, group in groups.items() if _stopped(group, observed, limit_s))) if limit_s else ()


def together(groups: Mapping[int, GroupMemory], observed: Observed) -> bool:
    """True if a rank of every group is stopped now, for however short a time: one hand did it, and may undo it."""
    alive = [g for g in groups.values() if any(rank.state != "exited" for rank in _ranks(g, observed))]
    return len(alive) > 1 and all(any(rank.stopped for rank in _ranks(g, observed)) for g in alive)


def debugged(group: GroupMemory, observed: Observed) -> bool:
    """True if a person has a rank of the group stopped in the debugger: it makes no steps, and nothing is wrong."""
    return any(rank.debugging and rank.state != "exited" for rank in _ranks(group, observed))


def failure(group: GroupMemory, observed: Observed, limit_s: float) -> Failure | None:
    """Returns the hang of a group with such a rank; None if it has none."""
    ranks = _stopped(group, observed, limit_s) if limit_s else []
    if not ranks:
        return None
    return Failure(
        Kind.HANG,
        tuple(Reason.of(Code.STOPPED, rank=r.rank, how=r.stopped, limit_s=limit_s) for r in ranks),
        rank=ranks[0].rank if len(ranks) == 1 else None,
        confidence=Confidence.CERTAIN,
        took_s=max(rank.stopped_s for rank in ranks),
        outside=True,
    )


def _stopped(group: GroupMemory, observed: Observed, limit_s: float) -> list[RankView]:
    return [rank for rank in _ranks(group, observed) if rank.stopped and rank.stopped_s >= limit_s]


def _ranks(group: GroupMemory, observed: Observed) -> tuple[RankView, ...]:
    """Ranks of the group's current generation. None of a node that does not answer: its reports are old."""
    return ranks_answering(group, observed) if group.phase in ("starting", "running") else ()
