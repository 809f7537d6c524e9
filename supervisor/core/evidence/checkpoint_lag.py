"""Detects steps that no checkpoint holds although one was due: they are lost if all groups are lost at once. They are
only reported: no restart mends a full disk or a missing folder, and the groups train on."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.core.evidence.group_nodes import ranks_of
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import Checkpoint, Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import RunSpec

BEHIND = 3
"""Intervals that the newest complete checkpoint may be old. Two are normal, since the next is due while one is written.
The third is for a write that is slow now and then, which is no failure."""


def writer(groups: Mapping[int, GroupMemory]) -> int | None:
    """Returns the group that writes checkpoints: the lowest that trains, else the lowest that starts."""
    for phase in ("running", "starting"):
        found = [g.group for g in groups.values() if g.phase == phase]
        if found:
            return min(found)
    return None


def steps(groups: Mapping[int, GroupMemory], newest: Checkpoint | None, observed: Observed) -> int | None:
    """Number of committed steps since the newest complete checkpoint, or since the run began if none is known. None: no
    group trains, or nothing is heard of those that do."""
    train = [g for g in groups.values() if g.phase == "running"]
    reached = max((rank.step for g in train for rank in ranks_of(g, observed)), default=None)
    if reached is None:
        return None
    return max(0, reached - (newest.step if newest is not None else _began(train, observed)))


def behind(
    groups: Mapping[int, GroupMemory], newest: Checkpoint | None, observed: Observed, spec: RunSpec
) -> Reason | None:
    """States that the newest complete checkpoint is more than BEHIND intervals old; None: it is not. The reason stays
    the same until twice as many steps are unsaved."""
    every = spec.titan.checkpoint_interval_steps
    unsaved, more_than = steps(groups, newest, observed) or 0, BEHIND * every
    if every <= 0 or unsaved <= more_than:
        return None
    while unsaved > 2 * more_than:
        more_than *= 2
    return Reason.of(Code.UNSAVED, newest=newest.step if newest is not None else None, every=every, more_than=more_than)


def with_reason(
    groups: Mapping[int, GroupMemory], newest: Checkpoint | None, observed: Observed, spec: RunSpec
) -> Reason | None:
    """Adds the writer's report on the newest failed one. It changes, so it is for a person who asks now."""
    found = behind(groups, newest, observed, spec)
    return Reason.of(Code.AND, reason=found, note=_why(groups, observed)) if found else None


def _began(train: list[GroupMemory], observed: Observed) -> int:
    """The step that a run without a known checkpoint began with: a run of the same name may have left one in its
    folder. A group that has healed from peers has not made all steps since."""
    began = (g for g in train if g.resume == "disk")
    return min((rank.step - rank.commits for g in began for rank in ranks_of(g, observed)), default=0)


def _why(groups: Mapping[int, GroupMemory], observed: Observed) -> Reason:
    """Report of the one group that writes: that of an earlier writer is old."""
    number = writer(groups)
    ranks = ranks_of(groups[number], observed) if number is not None else ()
    failed = min((rank for rank in ranks if rank.save_failed), key=lambda rank: rank.rank, default=None)
    if failed is None:
        return Reason.of(Code.NO_SAVE_FAILED)
    return Reason.of(Code.SAVE_FAILED, rank=failed.rank, group=failed.group, why=failed.save_failed)
