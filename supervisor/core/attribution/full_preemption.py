"""Handles a full preemption: the engine has taken every allocation of a run."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.reason import Code, Reason
from supervisor.core.policy import ladder
from supervisor.core.round import disk_checkpoint
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView


def nobody_left(r: RoundView) -> bool:
    """True if no placed group has an allocation any more: the run as a whole is down."""
    for group in r.before.groups.values():
        if group.seats and group.phase in ("starting", "running", "placing"):
            grants = [r.observed.grants.get(r.given_by(seat)) for seat in group.seats]
            if any(grant is None or grant.state != "gone" for grant in grants):
                return False
    return True


def all_lost(r: Round, group: GroupMemory) -> ladder.Choice:
    """Chooses to start the whole run again, for free if any group got somewhere since its start. Otherwise it draws on
    a budget: an engine that keeps taking everything is not asked for ever. One loss draws once, whatever it takes."""
    last = r.draft.all_lost_at
    if last is not None and group.since <= last:
        return ladder.Choice(Rung.REALLOCATE, Reason.of(Code.EVERYTHING_GONE), free=True)
    r.draft = replace(r.draft, all_lost_at=r.now)
    if any(_got_somewhere(r, g) for g in r.before.groups.values()):
        return ladder.Choice(Rung.REALLOCATE, Reason.of(Code.EVERYTHING_GONE), free=True)
    choice = r.choose(Kind.ALLOCATION_LOST, group.group)
    return replace(choice, reason=Reason.of(Code.GONE_AGAIN, then=choice.reason))


def _got_somewhere(r: RoundView, group: GroupMemory) -> bool:
    """Returns true if the group ran long enough to be healthy, or a checkpoint is newer than what it started from."""
    if not group.seats or group.phase not in ("starting", "running"):
        return False
    known, resumed = r.draft.checkpoint, r.before.resumed
    newest, _ = disk_checkpoint.choose(known, r.observed.disk, resumed.generations if resumed is not None else {})
    began_at = group.checkpoint.step if group.checkpoint is not None else 0
    lasted = group.phase == "running" and r.now - group.since >= r.spec.policy.healthy_after_s
    return lasted or (newest is not None and newest.step > began_at)
