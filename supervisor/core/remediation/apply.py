"""Applies the chosen rung to the memory; the records in etcd follow from it."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.attribution import flapping_hosts
from supervisor.core.evidence import group_failure
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import OF_A_PERSON, GroupPhase, Kind, Rung
from supervisor.core.model.memory import AllocationMemory, GroupMemory
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.policy import ladder
from supervisor.core.round.draft import NEW_A_ROUND, Round
from supervisor.core.round.view import RoundView


def apply(r: Round, group: GroupMemory, incident: Incident, choice: ladder.Choice, followed: bool = False) -> None:
    """Applies the chosen rung to the memory. `followed`: the same failure befell the group on another host too."""
    incident = replace(incident, followed=followed)
    about = {"group": group.group, "node": group.failed_node, "rung": choice.rung, "incident": incident.id}
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
    if incident.kind in OF_A_PERSON:
        attempts, group = group.attempts, group.without_history()
        r.restarts_done[group.group] = r.observed.control.restarts.get(group.group, 0)
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
            flapping_hosts.hold(r, group, incident)
            group = flapping_hosts.remember(group, incident.kind)
        # on several nodes no rank starts before the last old one, on any of them, is gone or shut out
        r.set_group(replace(group, phase="placing" if group.size == 1 else "fencing", left=group.last_seats))
        return
    _move_away(r, group, incident, choice, followed)


def _move_away(r: Round, group: GroupMemory, incident: Incident, choice: ladder.Choice, followed: bool) -> None:
    leaves = seats_at_fault(group)
    given = [r.allocations.get(r.given_by(seat)) for seat in leaves]
    suspect = give_up_nodes(r, group, replace(incident, followed=followed), choice.reason)
    # A group that only waited for a node has started nothing, so there is nothing to fence.
    phase: GroupPhase = "fencing" if group.seats or group.phase == "fencing" else "placing"
    kept = tuple(seat for seat in group.seats if seat not in leaves)
    r.set_group(replace(group, phase=phase, seats=kept, left=group.last_seats))
    ours: list[AllocationMemory | None] = [*filter(None, given)]
    for known in ours or [None]:
        if choice.rung == Rung.REALLOCATE or (known is not None and known.state == "wanted"):
            why = Reason.of(Code.FOR_INCIDENT, incident=incident.id, reason=choice.reason)
            _refill(r, why, choice, known, suspect)
    if choice.reason.code in (Code.EVERYTHING_GONE, Code.GONE_AGAIN):
        _replace_spares(r)


def seats_at_fault(group: GroupMemory) -> tuple[Seat, ...]:
    """Returns the seats that a group leaves when it moves: those at fault, or all if that is unknown."""
    return tuple(seat for seat in group.seats if seat.node in group.at_fault) or group.seats


def give_up_nodes(r: Round, group: GroupMemory, incident: Incident, reason: Reason) -> bool:
    """Gives back the nodes that a group leaves. Returns true if the failure cordoned their hosts. Of several nodes none
    is cordoned unless it is known to be at fault."""
    leaves = seats_at_fault(group)
    if not leaves:
        return False
    # An allocation that the engine takes back does not count against its host: the engine gives out no host that it
    # knows is bad.
    free = incident.followed or incident.outside or incident.kind == Kind.ALLOCATION_LOST
    free = free or (group.size > 1 and not group.at_fault)
    held = False
    for seat in leaves:
        host, allocation, why = r.host_of(seat.node), r.given_by(seat), reason
        if not (free or r.is_taken_away(seat)):
            held = True
            r.cordon(host, seat.node, incident)
            why = Reason.of(Code.NODE_CORDONED, node=seat.node, why=r.cordons[host])
        if allocation:
            r.release(allocation, why)
    return held


def _refill(r: Round, reason: Reason, choice: ladder.Choice, known: AllocationMemory | None, suspect: bool) -> None:
    """Asks for a node to replace the one given up, unless its successor was asked for when it began to leave."""
    if known is not None and (r.successor(known.key) or _was_refused(r, known.successor)):
        return
    instead_of = known.key if known is not None and suspect else ""
    r.acquire(reason, rung=None if choice.free else choice.rung, instead_of=instead_of)


def _was_refused(r: RoundView, key: str) -> bool:
    grant = r.observed.grants.get(key)
    return grant is not None and grant.state == "refused"


def _replace_spares(r: Round) -> None:
    """Replaces the spares that were lost together with all other allocations."""
    held = {r.given_by(seat) for g in r.groups.values() for seat in g.seats}
    for allocation in list(r.allocations.values()):
        grant = r.observed.grants.get(allocation.key)
        went = allocation.state == "wanted" and grant is not None and grant.state == "gone"
        if went and allocation.key not in held and len(r.allocations) - len(r.before.allocations) < NEW_A_ROUND:
            gone = Reason.of(Code.EVERYTHING_GONE)
            r.release(allocation.key, gone)
            if not r.successor(allocation.key):
                r.acquire(gone)


def look_at_silence(r: RoundView, group: GroupMemory, incident: Incident) -> None:
    """Schedules the next look for when the silence has lasted `silent_timeout_s`."""
    since = group_failure.silent_since(group, incident, r.observed, r.before)
    r.look_again(since + r.spec.policy.silent_timeout_s + 0.001)
