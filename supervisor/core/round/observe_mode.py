"""Shadow incidents: what would have been done to a group, if the policy only observes.

Nothing of the group changes. A shadow incident is over when its failure is: then it has recovered by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from supervisor.core.evidence import exit_status, gpu_faults, group_failure, group_nodes
from supervisor.core.model.incident import Failure, Incident
from supervisor.core.model.kinds import PLANNED, Is, Kind, that_are
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.policy.ladder import Choice, name
from supervisor.core.round.draft import Round
from supervisor.core.round.view import MAY_COME_BACK, RoundView

LIVES = that_are(Is.LIVES)
BY_WORD = that_are(Is.BY_WORD)
"""Kinds whose sign may pass before they are over: the others have started again, or a driver reports it no more."""


def only_observed(r: RoundView, failure: Failure) -> bool:
    """Returns true if nothing is done about a failure, since its kind, or one of its causes, is only observed."""
    policy = r.spec.policy
    observed = any(kind.value in policy.observe for kind in (failure.kind, *failure.causes))
    return failure.kind not in PLANNED and (policy.mode == "observe" or observed)


def has_ended(group: GroupMemory, incidents: Mapping[str, Incident], observed: Observed) -> bool:
    """True if a group has ended or lost its node, and is left so as that is only observed: none can heal from it."""
    incident = incidents.get(group.incident)
    if incident is None or not incident.shadow or group.phase not in ("starting", "running"):
        return False
    if incident.kind == Kind.ALLOCATION_LOST or exit_status.ended(group_nodes.ranks_of(group, observed)) is not None:
        return True  # a finished rank proves nothing about those that still save
    away = not group_nodes.all_answer(group, observed)
    return away and incident.kind == Kind.NODE_LOST and not _heard(group, observed)


def _heard(group: GroupMemory, observed: Observed) -> bool:
    """Returns true if the group trains although its node is silent."""
    gate = group_failure.listening(observed)
    admitted = gate is not None and gate.admitted.get(group.group) == group.generation
    return admitted and gate is not None and gate.hearing.get(group.group) == "beating"


def training_beside(r: RoundView, group: GroupMemory) -> Iterator[int]:
    """Yields the other groups that train, or may: one that is only silent does."""
    others = (g for g in r.groups.values() if g.group != group.group and g.phase == "running")
    return (g.group for g in others if not has_ended(g, r.incidents, r.observed))


def trains_beside(r: RoundView, group: GroupMemory) -> bool:
    return next(training_beside(r, group), None) is not None


def there(
    groups: Mapping[int, GroupMemory], incidents: Mapping[str, Incident], observed: Observed
) -> dict[int, GroupMemory]:
    """Returns the groups that others wait for: not those that have ended so, or are suspended."""
    if not any(incident.shadow for incident in incidents.values()):
        return {g: group for g, group in groups.items() if not group.left_out}
    return {g: group for g, group in groups.items() if not (group.left_out or has_ended(group, incidents, observed))}


def as_told_first(r: RoundView, group: GroupMemory, failure: Failure) -> Failure:
    """Returns the failure under the kind by which it was first observed. An end does not change its kind because its
    sign has passed, nor a silence because the store was away for a moment, nor a hang because its process goes on and
    the gate is still to hear it."""
    known = r.incidents.get(group.incident)
    if known is None or not known.shadow:
        return failure
    same_end = known.kind in BY_WORD and failure.kind in gpu_faults.MAY_BE_ITS_FAULT
    same_silence = known.kind in MAY_COME_BACK | LIVES and failure.kind == Kind.SILENT
    if not (same_end or same_silence):
        return failure
    return replace(
        failure, kind=known.kind, evidence=known.evidence, rank=known.rank, confidence=known.confidence,
        took_s=known.took_s,
    )  # fmt: skip


def or_asked_for(r: RoundView, group: GroupMemory, failure: Failure) -> Failure:
    """Turns a failure that is only observed into a restart, if a person asks for one: that is done all the same."""
    asked = r.observed.control.restarts.get(group.group, 0) > r.before.restarts_done.get(group.group, 0)
    if not asked or not only_observed(r, failure):
        return failure
    return Failure(Kind.REQUESTED, (Reason.of(Code.REQUESTED), *failure.evidence))


def observe(r: Round, incident: Incident, choice: Choice) -> None:
    """Records what would be done, as it was when it was first seen."""
    before = r.before.incidents.get(incident.id)
    if before is None or not before.shadow or before.kind != incident.kind:
        incident = replace(
            incident, shadow=True, rung=choice.rung, reason=choice.reason, considered=choice.considered, state="open",
            decided=None, acted=None,
        )  # fmt: skip
        r.set_incident(incident)
        key = f"observe:{incident.id}:{incident.kind.value}"
        about = {"group": incident.group, "node": incident.node, "rung": choice.rung, "incident": incident.id}
        r.act("observe", key, Reason.of(Code.WOULD, rung=name(choice.rung), reason=choice.reason), **about)
    would = Reason.of(Code.WOULD_BE, evidence=incident.evidence[0], rung=name(choice.rung))
    r.wait(would, group=incident.group)


def ended(r: Round, incident: Incident, failure: Failure, step: int) -> Incident:
    """Returns the incident to act on: a new one if this one was a shadow, which has not recovered by itself."""
    return r.incident_for(close(r, incident), failure, step) if incident.shadow else incident


def close(r: Round, incident: Incident) -> GroupMemory:
    """Closes a shadow incident that has not recovered by itself; returns its group without it."""
    r.set_incident(replace(incident, state="halted"))
    group = replace(r.groups[incident.group], incident="")
    r.set_group(group)
    return group
