"""Places groups on nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from supervisor.core.attribution import circuit_breaker
from supervisor.core.evidence import group_failure, group_nodes
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import AllocationMemory, GroupMemory
from supervisor.core.model.observed import NodeView, Verdict
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.policy import budgets
from supervisor.core.remediation import handover, neighbours, recovery_cost, spare_pool, suspended_groups
from supervisor.core.remediation.drain import leaving_allocations
from supervisor.core.round import disk_checkpoint, observe_mode
from supervisor.core.round.draft import MAX_GIVEN_BACK, Round, newest_of
from supervisor.core.round.view import RoundView, lack_of_code

SHOWN = 5
"""Most nodes that are named each: one cause may make thousands unfit."""


def place(r: Round) -> None:
    """Starts the groups that are ready for a node and for which there is one; reports why the others wait."""
    of_spec = (g for g in r.groups.values() if g.group < r.spec.groups.count)  # the others end
    waiting = [g for g in of_spec if g.phase in ("unplaced", "placing")]
    if not waiting:
        return
    if r.paused:
        r.wait(Reason.of(Code.PAUSED_STARTS))
        return
    if not r.draft.lighthouse.address:
        return
    if r.handover_at_step is not None:
        return  # all start again together
    free, last = r.spares(), r.last_resort()
    for why in passed_over(r):
        r.wait(why)
    if not _enough_to_begin(r, waiting, [*free, *last]):
        return
    for number in sorted(g.group for g in waiting):
        group = r.groups[number]
        if suspended_groups.stays_out(r, group) or _waits(r, group):
            continue
        if group.placed and (leaves := _not_there(r, group)) and len(free) >= len(leaves):
            if not r.full(number):
                del free[: len(leaves)]
                _start_elsewhere(r, group, leaves)
        elif group.placed:
            _start_in_place(r, group)
        elif not r.full(number):
            _start_on(r, group, free, last)


def _start_on(r: Round, group: GroupMemory, free: list[str], last: list[str]) -> None:
    """Starts a group that lacks nodes on those that it has kept and on free ones, or reports why it waits: on all of
    its nodes or on none. The free ones that no other waiting group has kept come first, of these the ones at one switch."""
    for seat in group.seats:
        verdict, why = group_failure.node_verdict(seat.node, None, r.observed, r.spec)
        if verdict == Verdict.UNKNOWN:
            r.wait(why, until=r.now + 1.0, group=group.group)
            return
        if verdict == Verdict.HEALTHY and (why_not := _not_ready(r, r.observed.nodes[seat.node])):
            r.wait(why_not, group=group.group)
            return
    kept = [seat.node for seat in group.seats if r.may_stay(seat)]
    if len(kept) < len(group.seats):
        group = _leave(r, group, kept)
    wanted = {node: g for g, each in r.groups.items() if g != group.group and not each.placed for node in each.nodes}
    others, lacks = [node for node in free if node not in kept], group.size - len(kept)
    if group.size > 1:
        others = _in_order(r, kept, others, lacks, wanted)
    taken = others[:lacks]
    if len(kept) + len(taken) < group.size:
        _no_node(r, group, others, last)
        return
    free[:] = [node for node in free if node not in kept and node not in taken]
    for g in dict.fromkeys(wanted[node] for node in taken if node in wanted):
        seats = tuple(seat for seat in r.groups[g].seats if seat.node not in taken)
        r.set_group(replace(r.groups[g], seats=seats))
    _start(r, group, [*kept, *taken])


def _in_order(r: RoundView, kept: list[str], free: list[str], lacks: int, wanted: Mapping[str, int]) -> list[str]:
    nodes = r.observed.nodes
    unclaimed = [node for node in free if node not in wanted]
    if len(unclaimed) >= lacks:
        return neighbours.nearest_first(kept, unclaimed, lacks, nodes)
    claimed = [node for node in free if node in wanted]
    return [*unclaimed, *neighbours.nearest_first([*kept, *unclaimed], claimed, lacks - len(unclaimed), nodes)]


def _leave(r: Round, group: GroupMemory, kept: list[str]) -> GroupMemory:
    """Leaves the nodes of a waiting group on which it can no longer start. One that is lost is replaced, and held against
    its host, as the incident is for which the group waits. Nothing ran there any more."""
    incident = r.incidents.get(group.incident)
    for seat in group.seats:
        if seat.node in kept:
            continue
        verdict, why = group_failure.node_verdict(seat.node, None, r.observed, r.spec)
        if verdict == Verdict.DEAD:
            suspect = incident is not None and not incident.outside
            if incident is not None:
                incident = replace(
                    incident,
                    nodes=tuple(dict.fromkeys((*incident.nodes, seat.node))),
                    evidence=newest_of((*incident.evidence, why), group),
                )
                r.set_incident(incident)
                why = Reason.of(Code.FOR_INCIDENT, incident=incident.id, reason=why)
                if suspect:
                    r.cordon(r.host_of(seat.node), seat.node, incident)
            _in_place_of(r, r.allocations.get(r.given_by(seat)), why, suspect)
    group = replace(group, seats=tuple(seat for seat in group.seats if seat.node in kept))
    r.set_group(group)
    return group


def _in_place_of(r: Round, lost: AllocationMemory | None, why: Reason, suspect: bool) -> None:
    """Gives back the allocation of a lost node, and asks for another unless its successor was asked for before."""
    if lost is None or lost.state != "wanted":
        return
    r.release(lost.key, why)
    if not r.successor(lost.key):
        r.acquire(why, instead_of=lost.key if suspect else "")


def _waits(r: RoundView, group: GroupMemory) -> bool:
    """Returns true if the group is not started yet, on any node, and reports why."""
    until = group.since + r.spec.policy.silent_timeout_s
    if group.not_before > r.now:
        r.wait(Reason.of(Code.BACKOFF, attempt=group.attempts), until=group.not_before, group=group.group)
    elif r.now < until and _hears_no_one_to_heal_from(r, group):
        r.wait(Reason.of(Code.NO_PEER_HEARD), until=until, group=group.group)
    elif _resumes(r, group) == "disk" and (listing := disk_checkpoint.waits_for_list(r, group)):
        r.wait(listing, group=group.group)
    else:
        return False
    return True


def passed_over(r: RoundView) -> list[Reason]:
    """Explains why nodes that are there get no group: a reason each for the first ones."""
    found = list(r.passed_over().values())
    more = len(found) - SHOWN
    return found if more <= 0 else [*found[:SHOWN], Reason.of(Code.MORE_UNFIT, more=more)]


def _enough_to_begin(r: Round, waiting: list[GroupMemory], free: list[str]) -> bool:
    """True if groups may start: the first ones together, so that none trains alone for want of a few seconds."""
    unplaced = [g for g in waiting if g.phase == "unplaced"]
    size = r.spec.groups.nodes_per_group
    if len(unplaced) < len(r.groups) or len(free) >= len(unplaced) * size:
        return True
    there = {"free": len(free), "of": len(unplaced) * size}
    if checking := r.checking():
        r.wait(Reason.of(Code.AND, reason=Reason.of(Code.NODES_THERE, **there), note=checking))
        return False
    # wanted ones only: a run that was resumed has released ones, as old as it is itself
    since = min((a.since for a in r.allocations.values() if a.state == "wanted"), default=r.now)
    deadline = since + r.spec.policy.allocation_timeout_s
    pending, refused, least = r.pending(), r.refused(), max(1, r.spec.groups.min_groups) * size
    hope = not refused or len(free) + len(pending) >= least
    repeated = circuit_breaker.unchecked(r, r.observed.nodes)  # their checks are repeated, and may pass
    coming = [a for a in pending if not r.exhausted(a)]
    if pending and not (coming or repeated or r.spec.allocation.wait_for_all) and len(free) >= least:
        return True
    if r.now < deadline and (repeated or (pending and hope)):
        r.wait(Reason.of(Code.NODES_THERE, **there), until=deadline)
        return False
    if len(free) >= least:
        return True
    if r.observed.store_stable_s < r.spec.policy.node_lease_s:
        r.wait(Reason.of(Code.AWAY_NODES), until=r.now + 1.0)
        return False
    queued = r.queued()
    if len(free) + len(queued) >= least:
        word = r.engines_word(queued[0].key)
        r.wait(Reason.of(Code.NODES_QUEUED, **there, least=least, queued=len(queued), word=word))
        return False
    # one that was asked for in place of another, whose host failed its checks, has had no time yet
    instead = [a.since + r.spec.policy.allocation_timeout_s for a in pending if any(map(r.why_barred, a.exclude))]
    if instead and r.now < max(instead) and not refused:
        r.wait(Reason.of(Code.NODES_REPLACED, **there), until=max(instead))
        return False
    if circuit_breaker.tripped(r):
        return False  # the breaker reports what is waited for
    why = Reason.of(Code.TOO_FEW_IN_TIME)
    if refused:
        why = Reason.of(Code.ALL_REFUSED, word=r.engines_word(refused[0].key))
    if unfit := list(r.unfit().values()):
        why = Reason.of(Code.AND, reason=why, note=Reason.of(Code.UNFIT_THERE, count=len(unfit), first=unfit[0]))
    least = r.spec.groups.min_groups * size
    r.halt(Reason.of(Code.TOO_FEW_NODES, free=len(free), groups=len(unplaced), least=least, why=why), None)
    return False


def _start_in_place(r: Round, group: GroupMemory) -> None:
    verdict, why = group_failure.verdict_on(group, r.observed, r.spec)
    other = group_failure.under_another(group, r.observed)
    views = group_nodes.views(group, r.observed)
    if other:
        r.wait(Reason.of(Code.NOT_STARTED_THERE, why=other), until=r.now + 1.0, group=group.group)
    elif not_ready := [*filter(None, (_not_ready(r, view) for view in views))]:
        r.wait(not_ready[0], group=group.group)
    elif failed := [view.failed for view in views if view.failed]:
        r.wait(Reason.of(Code.NOT_STARTED_THERE, why=failed[0]), group=group.group)
    elif verdict == Verdict.HEALTHY:
        if not r.full(group.group):
            _start(r, group, group.nodes)
    else:
        # The next round judges a dead node: it sees the group placed on it.
        r.wait(why, until=r.now + 1.0, group=group.group)


def _not_ready(r: RoundView, view: NodeView) -> Reason | None:
    """Returns why no group may start on a node yet; None if one may, or will not for another reason."""
    if view.checking:
        return Reason.of(Code.IN_ITS_CHECKS, node=view.name)
    return lack_of_code(r.observed, [view])


def _hears_no_one_to_heal_from(r: RoundView, group: GroupMemory) -> bool:
    """Tells if a group that has found no peer would find none again; else it may find one, or starts from disk.
    Frozen groups count as training until they are found hung, and a start a second would be lost on them. The wait is
    bounded, as they may be unheard through no fault of their own."""
    incident, gate = r.incidents.get(group.incident), group_failure.listening(r.observed)
    if incident is None or incident.kind != Kind.PEERS_GONE or gate is None or _is_asked_for(r, group):
        return False
    heard = any(gate.hearing.get(g) == "beating" for g in observe_mode.training_beside(r, group))
    return _resumes(r, group) != "disk" and not heard


def _is_asked_for(r: RoundView, group: GroupMemory) -> bool:
    """Returns true if a person asked for a restart that has not been made."""
    return r.observed.control.restarts.get(group.group, 0) > r.restarts_done.get(group.group, 0)


def _not_there(r: RoundView, group: GroupMemory) -> tuple[Seat, ...]:
    """Returns the seats on which a group is not started again, if other nodes are there."""
    return tuple([seat for seat in group.seats if seat.node in r.ill or r.leaving(seat.node)])


def _start_elsewhere(r: Round, group: GroupMemory, leaves: tuple[Seat, ...]) -> None:
    node = leaves[0].node
    if leaving := r.leaving(node):
        why = Reason.of(Code.NODE_LEAVING, node=node, why=leaving)
    else:
        why = Reason.of(Code.DISK_UNUSABLE, node=node, why=r.ill[node])
    handover.off(r, group, why, leaves)
    r.act(
        "move", f"move:{group.group}:{group.generation}", why, group=group.group, generation=group.generation,
        node=node, incident=group.incident,
    )  # fmt: skip
    r.look_again(r.now)


def _start(r: Round, group: GroupMemory, nodes: Sequence[str]) -> None:
    generation, store = max(1, group.generation), ""
    if group.size > 1:
        # the first node is one that was kept, if any was
        first = r.observed.nodes.get(nodes[0])
        store = first.store if first is not None else ""
        if store in ("", group.store):
            r.wait(Reason.of(Code.NO_STORE_YET, node=nodes[0]), until=r.now + 1.0, group=group.group)
            return
    resume = _resumes(r, group)
    if resume == "disk":
        disk_checkpoint.note(r, group, disk_checkpoint.take(r, group))
    incident = r.incidents.get(group.incident)
    if _is_asked_for(r, group):
        r.restarts_done[group.group] = r.observed.control.restarts[group.group]  # that restart is this start
    seats = tuple([r.seat_on(node) for node in nodes])
    for seat in seats:
        if not group.holds(seat.node):
            recovery_cost.note_placed(r, group, seat.allocation)
    r.set_group(
        replace(
            group,
            generation=generation,
            seats=seats,
            left=(),
            at_fault=(),
            store=store,
            phase="starting",
            since=r.now,
            checkpoint=r.draft.checkpoint,
            resume=resume,
            code=r.observed.code,
        )
    )
    why = (incident.reason if incident is not None else None) or Reason.of(Code.RUN_STARTS)
    if not group.placed and group.size > 1 and (switch := neighbours.common_switch(nodes, r.observed.nodes)):
        why = Reason.of(Code.AND, reason=why, note=Reason.of(Code.TOGETHER, switch=switch))
    r.act(
        "start" if group.placed else "place",
        f"start:{group.group}:{generation}",
        why,
        group=group.group,
        generation=generation,
        node=nodes[0],
        nodes=tuple(nodes) if group.size > 1 else (),
        rung=incident.rung if incident is not None else None,
        incident=group.incident,
    )
    r.look_again(r.now + r.spec.policy.start_timeout_s + 0.001)


def _resumes(r: RoundView, group: GroupMemory) -> Literal["disk", "peers"]:
    checkpoint = r.draft.checkpoint
    # a group that trains behind the checkpoint has none of its steps: it heals from this one then
    behind = checkpoint is not None and _newest_step(r, group) < checkpoint.step
    return "peers" if observe_mode.trains_beside(r, group) and not behind else "disk"


def _newest_step(r: RoundView, group: GroupMemory) -> int:
    """Newest step that the others that train have reported."""
    others = (g for g in r.groups.values() if g.group != group.group and g.phase == "running")
    return max((rank.step for g in others for rank in group_nodes.ranks_of(g, r.observed)), default=0)


def _no_node(r: Round, group: GroupMemory, free: list[str], last: list[str]) -> None:
    """Finds the nodes that a group lacks, or reports why it waits. `free`: too few. `last`: nodes taken when nothing
    else comes."""
    lacks = group.size - len(group.seats) - len(free)
    if checking := r.checking():
        r.wait(checking, group=group.group)
        return
    pending = r.pending()
    in_need = [*group.nodes, *free, *last[:lacks]] if len(last) >= lacks else []
    if in_need and pending and all(a.late for a in pending):
        _start_in_need(r, group, in_need, last)
        return
    if pending:
        _wait_for(r, group, min(pending, key=lambda a: (a.unheard_since is not None, a.since)))
        return
    if circuit_breaker.tripped(r) and circuit_breaker.unchecked(r, r.observed.nodes):
        return  # the breaker reports what is waited for
    if r.observed.store_stable_s < r.spec.policy.node_lease_s:
        r.wait(Reason.of(Code.AWAY_NODES), until=r.now + 1.0)
        return
    unasked = [key for key in leaving_allocations(r) if not r.allocations[key].successor]
    if unasked:
        r.wait(Reason.of(Code.NOT_ASKED_YET, allocation=unasked[0]), group=group.group)
        return
    incident = r.incidents.get(group.incident)
    refused = r.refused()
    if _is_asked_for(r, group):
        _ask_again(r, group, refused, lacks)
        return
    spent = budgets.left(r.spent, r.spec.policy.budget, Rung.REALLOCATE, group.group, r.now) == 0
    if (refused or spent) and in_need:
        _start_in_need(r, group, in_need, last)
        return
    if refused or spent:
        why = Reason.of(Code.ALLOCATIONS_SPENT)
        if refused:
            why = Reason.of(Code.REFUSED, allocation=refused[0].key, word=r.engines_word(refused[0].key))
        if not any(_may_train(r, g) for g in r.groups.values()):
            r.halt(Reason.of(Code.NO_NODE, group=group.group, why=why), incident)
        else:
            r.wait(Reason.of(Code.FEWER_GO_ON, group=group.group, why=why), group=group.group)
        return
    # The spare that rung 2 counted on has gone in the meantime.
    if incident is not None and incident.rung < Rung.REALLOCATE:
        note = Reason.of(Code.SPARE_ILL, why=r.ill[last[0]]) if last else Reason.of(Code.SPARE_GONE)
        reason = Reason.of(Code.AND, reason=incident.reason, note=note)
        incident = replace(
            incident, rung=Rung.REALLOCATE, reason=reason, considered=(*incident.considered, note), decided=r.now
        )
        r.set_incident(incident)
    r.draw(Rung.REALLOCATE, group.group)
    spare_pool.give_up_one(r)
    because = Reason.of(Code.WITHOUT_NODE, group=group.group, incident=incident.id if incident is not None else "")
    for _ in range(lacks):
        r.acquire(because, rung=Rung.REALLOCATE)


def _start_in_need(r: Round, group: GroupMemory, nodes: list[str], last: list[str]) -> None:
    last[:] = [node for node in last if node not in nodes]
    _start(r, group, nodes)


def _may_train(r: RoundView, group: GroupMemory) -> bool:
    """Returns true if the group trains, or will be started on a node that it has, or one that may come."""
    to_start = group.phase == "fencing" or (group.phase == "placing" and group.placed)
    return to_start or (
        group.phase in ("starting", "running") and not observe_mode.has_ended(group, r.incidents, r.observed)
    )


def _wait_for(r: Round, group: GroupMemory, allocation: AllocationMemory) -> None:
    about = {"allocation": allocation.key, "word": r.engines_word(allocation.key)}
    if allocation.unheard_since is not None:
        until = allocation.unheard_since + r.spec.policy.allocation_timeout_s
        r.wait(Reason.of(Code.UNHEARD_OF, **about), until=until, group=group.group)
        return
    deadline = allocation.since + r.spec.policy.allocation_timeout_s
    if r.now < deadline:
        pending = Reason.of(Code.PENDING, **about, usual_s=recovery_cost.usual_wait_s(r, allocation))
        r.wait(pending, until=deadline, group=group.group)
        return
    r.wait(Reason.of(Code.LATE, **about), group=group.group)
    if not allocation.late:
        r.set_allocation(replace(allocation, late=True))


def _ask_again(r: Round, group: GroupMemory, refused: list[AllocationMemory], lacks: int) -> None:
    """Asks once more, because a person did, for all nodes that a group lacks: the engine refused, or no budget was left."""
    r.restarts_done[group.group] = r.observed.control.restarts[group.group]
    for allocation in refused[:MAX_GIVEN_BACK]:
        r.release(allocation.key, Reason.of(Code.ENGINE_REFUSED_IT, word=r.engines_word(allocation.key)))
    for _ in range(lacks):
        r.acquire(Reason.of(Code.ASKED_ONCE_MORE, group=group.group))
