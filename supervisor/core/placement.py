"""Which node gets which group."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import budget as budgets
from supervisor.core import detect
from supervisor.core.model import GroupMemory, Rung, Verdict
from supervisor.core.round import Round


def place(r: Round) -> None:
    """Start the groups that are ready for a node and for which there is one; say why for the others."""
    waiting = [g for g in r.groups.values() if g.phase in ("unplaced", "placing")]
    if not waiting:
        return
    if r.paused:
        r.wait("the run is paused: nothing is started")
        return
    if not r.rest.get("lighthouse", r.before.lighthouse).address:
        return
    spares = r.spares()
    if not _enough_to_begin(r, waiting, spares):
        return
    for group in sorted(waiting, key=lambda g: g.group):
        if group.not_before > r.now:
            r.wait(f"group {group.group}: backoff before attempt {group.attempts}", until=group.not_before)
        elif group.node:
            _start_in_place(r, group)
        elif spares and not r.full(group.group):
            _start(r, group, spares.pop(0))
        elif not spares:
            _no_node(r, group)


def _enough_to_begin(r: Round, waiting: list[GroupMemory], spares: list[str]) -> bool:
    """The first groups start together, so that none trains alone for want of a few seconds."""
    unplaced = [g for g in waiting if g.phase == "unplaced"]
    if len(unplaced) < len(r.groups) or len(spares) >= len(unplaced):
        return True
    since = min((a.since for a in r.allocations.values()), default=r.now)
    deadline = since + r.spec.policy.allocation_timeout_s
    if r.now < deadline and r.pending():
        r.wait(f"{len(spares)} of {len(unplaced)} nodes are there", until=deadline)
        return False
    if len(spares) >= max(1, r.spec.groups.min_groups):
        return True
    if r.observed.store_stable_s < r.spec.policy.node_lease_s:
        r.wait("the store was away: the nodes may not have come back to it yet", until=r.now + 1.0)
        return False
    refused = [g for g in r.observed.grants.values() if g.state == "refused"]
    why = f"the engine refused: {refused[0].reason}" if refused else "the engine gave too few in time"
    r.halt(f"{len(spares)} nodes for {len(unplaced)} groups (at least {r.spec.groups.min_groups}): {why}", None)
    return False


def _start_in_place(r: Round, group: GroupMemory) -> None:
    verdict, sentence = detect.node_verdict(group.node, group, r.observed, r.spec)
    if verdict == Verdict.HEALTHY:
        if not r.full(group.group):
            _start(r, group, group.node)
    else:
        # A dead node is the business of the next round's judgement: it sees the group placed on it.
        r.wait(f"group {group.group}: {sentence}", until=r.now + 1.0)


def _start(r: Round, group: GroupMemory, node: str) -> None:
    others_train = any(g.phase == "running" for g in r.groups.values() if g.group != group.group)
    generation = max(1, group.generation)
    incident = r.incidents.get(group.incident)
    r.set_group(
        replace(
            group,
            generation=generation,
            node=node,
            phase="starting",
            since=r.now,
            old_node="",
            checkpoint=r.rest.get("checkpoint", r.before.checkpoint),
            resume="peers" if others_train else "disk",
        )
    )
    r.act(
        "start" if group.node else "place",
        f"start:{group.group}:{generation}",
        incident.reason if incident is not None else "the run starts",
        group=group.group,
        generation=generation,
        node=node,
        rung=incident.rung if incident is not None else None,
        incident=group.incident,
    )
    r.look_again(r.now + r.spec.policy.start_timeout_s + 0.001)


def _no_node(r: Round, group: GroupMemory) -> None:
    if r.full(group.group):
        return
    pending = r.pending()
    if pending:
        oldest = min(pending, key=lambda a: a.since)
        deadline = oldest.since + r.spec.policy.allocation_timeout_s
        if r.now < deadline:
            r.wait(f"group {group.group}: allocation {oldest.key} is pending", until=deadline)
        else:
            r.wait(f"group {group.group}: allocation {oldest.key} is late; the run goes on with fewer groups")
        return
    incident = r.incidents.get(group.incident)
    budget = r.spec.policy.budget
    if budgets.left(r.spent, budget, Rung.REALLOCATE, group.group, r.now) == 0:
        if not any(g.phase in ("starting", "running") for g in r.groups.values()):
            r.halt(f"group {group.group} has no node, and the budget for new allocations is spent", incident)
        else:
            r.wait(f"group {group.group}: no node, and the budget for new allocations is spent: fewer groups go on")
        return
    # The spare that rung 2 counted on has gone in the meantime.
    if incident is not None and incident.rung < Rung.REALLOCATE:
        note = "replace: the spare is gone"
        reason = f"{incident.reason}; {note}"
        incident = replace(
            incident, rung=Rung.REALLOCATE, reason=reason, considered=(*incident.considered, note), decided=r.now
        )
        r.set_incident(incident)
    r.draw(Rung.REALLOCATE, group.group)
    r.acquire(f"group {group.group} has no node" + (f" (incident {incident.id})" if incident else ""))
