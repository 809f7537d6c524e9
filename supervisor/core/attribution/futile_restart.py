"""Finds failures that no restart in place can mend: each would take a whole start, so a spare is taken at once."""

from __future__ import annotations

from supervisor.core.evidence import group_failure, group_nodes
from supervisor.core.model.incident import Failure
from supervisor.core.model.kinds import Is, Kind, Rung, that_are
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.reason import Code, Reason
from supervisor.core.policy import ladder
from supervisor.core.round.view import RoundView

LIVES = that_are(Is.LIVES)


def elsewhere(r: RoundView, group: GroupMemory, failure: Failure) -> Reason | None:
    """Explains why the group must not start where it is, if a spare is there and paid for; else None."""
    if ladder.first_rung(failure.kind, r.spec.policy) != Rung.RESTART:
        return None
    if not r.can_move(group.group) or r.left(Rung.REPLACE, group.group) == 0:
        return None  # the ladder reports why
    if failure.kind == Kind.HANG:
        return _cannot_be_ended(r, group, failure)
    if failure.kind not in LIVES:
        return None
    if group_failure.cut_off(group, r.observed):
        return Reason.of(Code.GATE_UNREACHED)
    return _has_not_ended(r, group) if failure.kind == Kind.START_TIMEOUT else None


def _cannot_be_ended(r: RoundView, group: GroupMemory, failure: Failure) -> Reason | None:
    """Finds a rank in uninterruptible sleep: no signal ends it, and its agent starts nothing beside it."""
    for rank in group_nodes.ranks_of(group, r.observed):
        if rank.rank == failure.rank and rank.stuck is not None and rank.stuck.process == "uninterruptible":
            return Reason.of(Code.UNINTERRUPTIBLE, rank=rank.rank)
    return None


def _has_not_ended(r: RoundView, group: GroupMemory) -> Reason | None:
    """Finds a rank of an older generation that was signalled to end a whole start ago, and has not."""
    ranks = (x for node in group_nodes.views(group, r.observed) for x in node.ranks if x.group == group.group)
    left = next((x for x in ranks if x.generation < group.generation and x.state != "exited"), None)
    if left is None:
        return None
    return Reason.of(Code.NOT_ENDED, rank=left.rank, generation=left.generation)
