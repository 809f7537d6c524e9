"""Applies the chosen rung to the memory; the records in etcd follow from it."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import detect, ladder, often
from supervisor.core.model import AllocationMemory, GroupMemory, GroupPhase, Incident, Kind, Rung
from supervisor.core.reason import Code, Reason
from supervisor.core.round import NEW_A_ROUND, Round


def apply(r: Round, group: GroupMemory, incident: Incident, choice: ladder.Choice, followed: bool = False) -> None:
    """Applies the chosen rung to the memory. `followed`: the same failure befell the group on another host too."""
    incident = replace(incident, followed=followed)
    about = {"group": group.group, "node": group.node, "rung": choice.rung, "incident": incident.id}
    after = group.generation if choice.rung in (Rung.RIDE_THROUGH, Rung.STOP) else group.generation + 1
    incident = r.decide_incident(incident, choice, after)
    key = f"{choice.rung.name.lower()}:{group.group}:{after}"
    if choice.rung == Rung.RIDE_THROUGH:
        r.act("ride_through", key, choice.reason, generation=after, **about)
        look_at_silence(r, group, incident)
        return
    if choice.rung == Rung.STOP:
        r.set_incident(replace(incident, state="halted"))
        r.set_group(replace(group, phase="finished", since=r.now, incident=""))
        why = Reason.of(Code.HALT, reason=choice.reason, incident=incident.id, evidence=incident.evidence)
        r.halt(why, incident)
        return
    attempts = group.attempts + 1
    if incident.kind == Kind.REQUESTED:
        attempts, group = (
            group.attempts,
            replace(group, seen=None, oom_at=None, oom_host="", restarts_here=(), shown=()),
        )
        r.restarts_done[group.group] = r.observed.control.restarts.get(group.group, 0)
    elif incident.kind == Kind.OOM:
        group = replace(group, oom_at=r.now, oom_host=r.host_of(group.node))
    if not choice.free:
        r.draw(choice.rung, group.group)
        r.draw_of_kind(incident.kind, group.group)
    delay = 0.0
    if attempts > 1:
        first_s = r.spec.policy.kind_backoff_s.get(incident.kind, r.spec.policy.backoff_first_s)
        delay = min(r.spec.policy.backoff_max_s, first_s * 2.0 ** min(attempts - 2, 30))
    group = replace(
        group, generation=after, since=r.now, attempts=attempts, not_before=r.now + delay, incident=incident.id
    )
    if choice.rung == Rung.RESTART:
        if not (choice.free or incident.outside):
            often.hold(r, group, incident)
            group = often.remember(r, group, incident.kind)
        r.set_group(replace(group, phase="placing", old_node=group.node))
        return
    _move_away(r, group, incident, choice, followed)


def _move_away(r: Round, group: GroupMemory, incident: Incident, choice: ladder.Choice, followed: bool) -> None:
    old = group.node
    allocation = r.placed_by(group) if old else ""
    known = r.allocations.get(allocation)
    suspect = give_up_node(r, group, replace(incident, followed=followed), choice.reason)
    # A group that only waited for a node has started nothing, so there is nothing to fence.
    phase: GroupPhase = "fencing" if old or group.phase == "fencing" else "placing"
    r.set_group(replace(group, phase=phase, node="", host="", old_node=old or group.old_node))
    if choice.rung == Rung.REALLOCATE or (known is not None and known.state == "wanted"):
        why = Reason.of(Code.FOR_INCIDENT, incident=incident.id, reason=choice.reason)
        _refill(r, why, choice, known, suspect)
    if choice.reason.code in (Code.EVERYTHING_GONE, Code.GONE_AGAIN):
        _replace_spares(r)


def give_up_node(r: Round, group: GroupMemory, incident: Incident, reason: Reason) -> bool:
    """Gives back the node of a group that leaves it. Returns true if the failure cordoned its host."""
    if not group.node:
        return False
    allocation = r.placed_by(group)
    known = r.allocations.get(allocation)
    # An allocation that the engine takes back does not count against its host: the engine gives out no host that it
    # knows is bad.
    leaves = known is not None and known.leaving_since is not None
    suspect = not (leaves or incident.followed or incident.outside or incident.kind == Kind.ALLOCATION_LOST)
    host = r.host_of(group.node)
    if suspect:
        r.cordon(host, group.node, incident)
    if allocation:
        cordoned = Reason.of(Code.NODE_CORDONED, node=group.node, why=r.cordons[host]) if suspect else None
        r.release(allocation, cordoned or reason)
    return suspect


def _refill(r: Round, reason: Reason, choice: ladder.Choice, known: AllocationMemory | None, suspect: bool) -> None:
    """Asks for a node to replace the one given up, unless its successor was asked for when it began to leave."""
    if known is not None and (r.successor(known.key) or _was_refused(r, known.successor)):
        return
    instead_of = known.key if known is not None and suspect else ""
    r.acquire(reason, rung=None if choice.free else choice.rung, instead_of=instead_of)


def _was_refused(r: Round, key: str) -> bool:
    grant = r.observed.grants.get(key)
    return grant is not None and grant.state == "refused"


def _replace_spares(r: Round) -> None:
    """Replaces the spares that were lost together with all other allocations."""
    held = {r.placed_by(g) for g in r.groups.values() if g.node}
    for allocation in list(r.allocations.values()):
        grant = r.observed.grants.get(allocation.key)
        went = allocation.state == "wanted" and grant is not None and grant.state == "gone"
        if went and allocation.key not in held and len(r.allocations) - len(r.before.allocations) < NEW_A_ROUND:
            gone = Reason.of(Code.EVERYTHING_GONE)
            r.release(allocation.key, gone)
            if not r.successor(allocation.key):
                r.acquire(gone)


def look_at_silence(r: Round, group: GroupMemory, incident: Incident) -> None:
    """Schedules the next look for when the silence has lasted `silent_timeout_s`."""
    since = detect.silent_since(group, incident, r.observed, r.before)
    r.look_again(since + r.spec.policy.silent_timeout_s + 0.001)
