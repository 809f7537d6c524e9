"""Notices to a person: what the supervisor cannot mend alone, or what is dear."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from supervisor.core.model.decision import Decision
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Rung
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.reason import BREAKER, Reason
from supervisor.core.model.signs import HELD
from supervisor.core.remediation import suspended_groups
from supervisor.core.report.words import said, say


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
    """Returns the new notices: rung 3 or 4 decided, a group suspended, the breaker tripped, a hang held."""
    known = {notice.about for notice in _standing(run, before, before.incidents.values(), ())}
    return [n for n in notices(run, decision) if n.about not in known]


def notices(run: str, decision: Decision, kept: Iterable[Incident] = ()) -> list[Notice]:
    """Returns all that a person must know after a decision. `kept`: incidents that are over; one that halted the run
    counts while the halt lasts."""
    halted = [i for i in kept if i.state == "halted" and decision.memory.phase == "halted"]
    incidents = {i.id: i for i in (*halted, *decision.memory.incidents.values(), *decision.incidents)}
    return _standing(run, decision.memory, incidents.values(), decision.waits)


def _standing(run: str, memory: Memory, incidents: Iterable[Incident], waits: Iterable[Reason]) -> list[Notice]:
    found = [_of_incident(run, i) for i in incidents if _told(i)]
    # a suspended group whose incident closes in this round is left to the report of the run's end
    out = [g for g in memory.groups.values() if g.left_out and g.incident in memory.incidents]
    found += [_of_left_out(run, group, memory.incidents[group.incident]) for group in out]
    if memory.breaker_since is not None:
        why = next((say(wait) for wait in waits if wait.code in BREAKER), "breaker: many nodes are held")
        found.append(Notice(about=f"breaker-{_ms(memory.breaker_since)}", run=run, text=f"run {run}: {why}"))
    since = memory.suspects.get(HELD)
    if memory.held_hang is not None and since is not None:
        why = say(memory.held_hang)
        text = f"run {run} stands still, and nothing is done about it: {why}; more: supervisor status --run {run}"
        found.append(Notice(about=f"hang-{_ms(since)}", run=run, text=text))
    return found


def _ms(run_clock: float) -> int:
    """Identifies what has no number of its own by when it began."""
    return round(1000 * run_clock)


def _told(incident: Incident) -> bool:
    return incident.rung >= Rung.REALLOCATE and incident.decided is not None and not incident.shadow


def _of_left_out(run: str, group: GroupMemory, incident: Incident) -> Notice:
    text = f"run {run} goes on without a group: {say(suspended_groups.about(group))}; more: supervisor explain {incident.id} --run {run}"
    return Notice(
        about=f"{incident.id}-left-out-{group.generation}", run=run, text=text, incident=incident.id, kind=incident.kind.value,
        group=group.group, node=group.at_fault[0] if group.at_fault else group.last_node, rung=incident.rung.value, evidence=said(incident.evidence),
    )  # fmt: skip


def _of_incident(run: str, incident: Incident) -> Notice:
    rung = incident.rung
    done = "is halted, a person has to look" if rung == Rung.STOP else "asks for another allocation"
    text = (
        f"run {run} {done}: incident {incident.id}, group {incident.group} on node {incident.node or '-'}: {incident.kind.value}: "
        f"{say(incident.reason)}; more: supervisor explain {incident.id} --run {run}"
    )
    return Notice(
        about=f"{incident.id}-{rung.value}", run=run, text=text, incident=incident.id, kind=incident.kind.value,
        group=incident.group, node=incident.node, rung=rung.value, evidence=said(incident.evidence),
    )  # fmt: skip
