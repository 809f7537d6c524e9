"""Estimates what each remedy for a failure costs, in lost group-seconds, by what this run has measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Is, Kind, Rung, that_are
from supervisor.core.model.memory import AllocationMemory, GroupMemory, Tried
from supervisor.core.model.reason import Code, Reason
from supervisor.core.policy.ladder import first_rung
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView, trains

KEPT = 8
"""Newest tries that are remembered of each remedy."""
ALLOCATION = "allocation"
"""Name of the time from asking for an allocation until a group starts on it."""
HISTORY = 4
"""Tries that it takes before a choice is made by them."""
OF_A_MACHINE = that_are(Is.OF_A_MACHINE)
"""Kinds that another node may cure. A program's own report is no reason to leave a host."""


def after(
    tried: Mapping[str, tuple[Tried, ...]], what: str, seconds: float, mended: bool
) -> dict[str, tuple[Tried, ...]]:
    """Returns the tries with one more."""
    one = Tried(seconds=round(max(0.0, seconds), 2), mended=mended)
    return {**tried, what: (*tried.get(what, ()), one)[-KEPT:]}


def usual_s(tried: Mapping[str, tuple[Tried, ...]], what: str, mended: bool = True) -> float | None:
    """Median duration of the tries that mended it (or that did not); None if there was none."""
    known = sorted(t.seconds for t in tried.get(what, ()) if t.mended == mended)
    return known[(len(known) - 1) // 2] if known else None


def note(r: Round, incident: Incident | None, mended: bool) -> None:
    """Notes that the rung tried for an incident is over: mended, or failed again."""
    if incident is None or incident.shadow or incident.decided is None or incident.acted is None:
        return
    if Rung.RESTART <= incident.rung <= Rung.REALLOCATE:
        r.draft = replace(r.draft, tried=after(_tried(r), incident.rung.name.lower(), r.now - incident.decided, mended))


def note_placed(r: Round, group: GroupMemory, key: str) -> None:
    """Notes how long an allocation took, when a group that waited for a node starts on it."""
    incident, allocation = r.incidents.get(group.incident), r.allocations.get(key)
    since = incident.decided if incident is not None and incident.decided is not None else 0.0
    waited = group.phase == "unplaced" or incident is not None
    if not group.placed and waited and allocation is not None and allocation.since >= since:
        r.draft = replace(r.draft, tried=after(_tried(r), ALLOCATION, r.now - allocation.since, True))


def of(r: RoundView, group: GroupMemory, kind: Kind) -> tuple[Reason, ...]:
    """States the cost of each rung from the kind's first one on, and of leaving the group as it is."""
    idle, tried = idle_groups(r, group), _tried(r)
    first = max(Rung.RESTART, first_rung(kind, r.spec.policy))
    found = [_cost(r, group, Rung(rung), idle, tried) for rung in range(first, Rung.STOP)]
    count, others = len(r.groups), _others(r, group)
    if idle == 1:
        return (*found, Reason.of(Code.COST_GOES_ON, others=others, count=count))
    return (*found, Reason.of(Code.COST_WAITS, others=others, count=count, idle=idle))


def elsewhere(r: RoundView, group: GroupMemory, kind: Kind) -> Reason | None:
    """Explains why a spare is cheaper than another restart in place; None if it is not, or too little is known."""
    policy, tried = r.spec.policy, _tried(r)
    restarts = tried.get("restart", ())
    spare_s = usual_s(tried, "replace")
    if (
        kind not in OF_A_MACHINE
        or first_rung(kind, policy) != Rung.RESTART
        or spare_s is None
        or len(restarts) < HISTORY
    ):
        return None
    failed = sum(not t.mended for t in restarts)
    if 2 * failed < len(restarts) or not r.can_move(group.group) or r.left(Rung.REPLACE, group.group) == 0:
        return None
    share = failed / len(restarts)
    once_s = (1 - share) * (usual_s(tried, "restart") or 0.0) + share * (usual_s(tried, "restart", mended=False) or 0.0)
    restart_s = once_s + share * spare_s
    if restart_s <= spare_s:
        return None
    idle = idle_groups(r, group)
    return Reason.of(
        Code.SPARE_CHEAPER, failed=failed, tries=len(restarts), restart_cost=restart_s * idle, spare_cost=spare_s * idle
    )


def usual_wait_s(r: RoundView, allocation: AllocationMemory) -> float | None:
    """How long an allocation took before; None if none was measured, or this one is late already."""
    return None if allocation.late else usual_s(_tried(r), ALLOCATION)


def idle_groups(r: RoundView, group: GroupMemory) -> int:
    """Number of groups that stand still while this one does: itself, or all where too few are left to step."""
    return 1 if _others(r, group) >= max(1, r.spec.groups.min_groups) else len(r.groups)


def _others(r: RoundView, group: GroupMemory) -> int:
    before = r.before.groups[group.group]
    return r.well - trains(before, r.before.incidents)


def _cost(r: RoundView, group: GroupMemory, rung: Rung, idle: int, tried: Mapping[str, tuple[Tried, ...]]) -> Reason:
    what = Reason.of(Code.REMEDY, rung=rung.name.lower())
    if rung == Rung.REPLACE:
        spare = r.next_spare if r.can_move(group.group) else r.one_in_need
        if not spare:
            return Reason.of(Code.WITHOUT_SPARE)
        what = Reason.of(Code.BY_SPARE, node=spare)
    seconds, measured = usual_s(tried, rung.name.lower()), Reason.of(Code.SO_FAR)
    start_s = min((s for one in ("restart", "replace") if (s := usual_s(tried, one)) is not None), default=None)
    if seconds is None and rung == Rung.REPLACE and start_s is not None:
        seconds, measured = start_s, Reason.of(Code.AS_IN_PLACE)
    granted_s = usual_s(tried, ALLOCATION)
    if seconds is None and rung == Rung.REALLOCATE and granted_s is not None:
        seconds = granted_s + (start_s or 0.0)
        measured = Reason.of(Code.AS_GRANTED, granted_s=granted_s, start_s=start_s or 0.0)
    if seconds is None:
        return Reason.of(Code.COST_UNKNOWN, what=what)
    tries = tried.get(rung.name.lower(), ())
    mended = sum(t.mended for t in tries)
    some = {"mended": mended, "tries": len(tries)} if mended < len(tries) else {"mended": 0, "tries": 0}
    return Reason.of(Code.COSTS, what=what, cost=seconds * idle, seconds=seconds, idle=idle, measured=measured, **some)


def _tried(r: RoundView) -> Mapping[str, tuple[Tried, ...]]:
    tried: Mapping[str, tuple[Tried, ...]] = r.draft.tried
    return tried
