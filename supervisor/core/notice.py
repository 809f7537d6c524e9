"""What a person is told of without asking: what the supervisor cannot mend alone, or what is dear."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core import left_out
from supervisor.core.model import Decision, GroupMemory, Incident, Memory, Rung


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One message. `about` is the same for every supervisor that would send it."""

    about: str
    run: str
    text: str
    """A sentence for a person."""
    incident: str = ""
    kind: str = ""
    group: int | None = None
    node: str = ""
    rung: int | None = None
    evidence: tuple[str, ...] = ()


def due(run: str, before: Memory, decision: Decision) -> list[Notice]:
    """A rung 3 or 4 that was just decided, a group that was just left out, and a breaker that has just opened."""
    found = [_of_incident(run, i) for i in decision.incidents if _told(i, before.incidents.get(i.id))]
    known = before.groups
    out = [
        g
        for g in decision.memory.groups.values()
        if g.left_out and not (g.group in known and known[g.group].left_out) and g.incident in decision.memory.incidents
    ]  # of one whose incident is closed in the same round the run is at its end: that is told
    found += [_of_left_out(run, group, decision) for group in out]
    if before.breaker_since is None and decision.memory.breaker_since is not None:
        why = next((wait for wait in decision.waits if wait.startswith("breaker: ")), "breaker: many nodes are held")
        text = f"run {run}: {why}"
        found.append(Notice(about=f"breaker-{decision.memory.decisions}", run=run, text=text))
    return found


def _told(incident: Incident, known: Incident | None) -> bool:
    if incident.rung < Rung.REALLOCATE or incident.decided is None or incident.shadow:
        return False
    return known is None or known.decided is None or known.rung < incident.rung


def _of_left_out(run: str, group: GroupMemory, decision: Decision) -> Notice:
    incident = decision.memory.incidents[group.incident]
    text = f"run {run} goes on without a group: {left_out.sentence(group)}; more: supervisor explain {incident.id} --run {run}"
    return Notice(
        about=f"{incident.id}-left-out-{group.generation}", run=run, text=text, incident=incident.id, kind=incident.kind.value,
        group=group.group, node=group.old_node, rung=incident.rung.value, evidence=incident.evidence,
    )  # fmt: skip


def _of_incident(run: str, incident: Incident) -> Notice:
    rung = incident.rung
    done = "is halted, a person has to look" if rung == Rung.STOP else "asks for another allocation"
    text = (
        f"run {run} {done}: incident {incident.id}, group {incident.group} on node {incident.node or '-'}: {incident.kind.value}: "
        f"{incident.reason}; more: supervisor explain {incident.id} --run {run}"
    )
    return Notice(
        about=f"{incident.id}-{rung.value}", run=run, text=text, incident=incident.id, kind=incident.kind.value,
        group=incident.group, node=incident.node, rung=rung.value, evidence=incident.evidence,
    )  # fmt: skip
