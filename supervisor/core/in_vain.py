"""What a restart in place cannot mend, so that a spare is better taken at once: each such try takes the time of a whole start."""

from __future__ import annotations

from supervisor.core import detect, ladder
from supervisor.core.model import Failure, GroupMemory, Kind, Rung
from supervisor.core.round import Round


def elsewhere(r: Round, group: GroupMemory, failure: Failure) -> str:
    """Why this group is not to be started where it is, if a spare is there and paid for; else empty."""
    if ladder.first_rung(failure.kind, r.spec.policy) != Rung.RESTART:
        return ""
    if not r.next_spare or r.left(Rung.REPLACE, group.group) == 0:
        return ""  # then the ladder says why
    if failure.kind == Kind.HANG:
        return _cannot_be_ended(r, group, failure)
    if failure.kind not in (Kind.STALLED, Kind.START_TIMEOUT):
        return ""
    if detect.cut_off(group, r.observed):
        return "the gate, which hears others, is not reached from there by any process"
    return _has_not_ended(r, group) if failure.kind == Kind.START_TIMEOUT else ""


def _cannot_be_ended(r: Round, group: GroupMemory, failure: Failure) -> str:
    """No signal ends a process in uninterruptible sleep, and its agent starts nothing beside one that has not ended."""
    for rank in detect.ranks_of(group, r.observed):
        if rank.rank == failure.rank and rank.stuck is not None and rank.stuck.process == "uninterruptible":
            return f"the process of rank {rank.rank} sleeps where no signal ends it, and nothing is started there before it has ended"
    return ""


def _has_not_ended(r: Round, group: GroupMemory) -> str:
    """As above, of one that was told to end a whole start ago."""
    node = r.observed.nodes.get(group.node)
    older = [x for x in node.ranks if x.group == group.group and x.generation < group.generation] if node else []
    left = next((x for x in older if x.state != "exited"), None)
    if left is None:
        return ""
    return f"rank {left.rank} of generation {left.generation} has not ended there, and nothing is started beside it"
