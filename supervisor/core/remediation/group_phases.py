"""Moves each group's phase by what is observed: fencing, placing, starting, running, finished."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.attribution import recurrence
from supervisor.core.evidence import group_failure, group_nodes
from supervisor.core.model.incident import Incident
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import RankView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.remediation import handover, recovery_cost
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView, is_rider, trains


def follow(r: Round, group: GroupMemory) -> None:
    """Moves a group's phase by what is observed."""
    if r.full(group.group):
        return
    if group.phase == "fencing":
        _follow_fence(r, group)
        return
    if group.phase not in ("starting", "running"):
        return
    ranks = group_nodes.ranks_of(group, r.observed)
    group = recurrence.forget(r, group, ranks)
    incident = r.incidents.get(group.incident)
    if incident is not None and incident.state == "acting" and incident.acted is None and ranks:
        incident = replace(incident, acted=r.now)
        r.set_incident(incident)
    if group_failure.finished(group, r.observed, r.spec.groups.ranks_per_group):
        if handover.ended(r, group):
            return
        recover(r, incident)
        r.set_group(replace(group, phase="finished", since=r.now, incident=""))
    elif group.phase == "starting":
        if not any(rank.commits > 0 for rank in ranks):
            r.look_again(group.since + r.spec.policy.start_timeout_s + 0.001)
        elif with_the_others(r, group, ranks) and not _may_end_again(r, group, incident):
            _joined(r, group, incident)
        else:
            r.set_group(replace(group, phase="running", since=r.now))
    elif _steps_alone(group, incident):
        if with_the_others(r, group, ranks) and not _may_end_again(r, group, incident):
            _joined(r, group, incident)
    elif is_rider(incident) and _heard(r, group):
        recover(r, incident)
        r.set_group(replace(group, incident=""))
    elif group.attempts and not group.incident:
        if r.now - group.since >= r.spec.policy.healthy_after_s:
            r.set_group(replace(group, attempts=0))
        else:
            r.look_again(group.since + r.spec.policy.healthy_after_s)


def with_the_others(r: RoundView, group: GroupMemory, ranks: tuple[RankView, ...]) -> bool:
    """True if the group committed a step with the others: made together, healed from them, or no other trains."""
    committed = [rank for rank in ranks if rank.commits > 0]
    alone = all(rank.participants == 1 and rank.healed is False for rank in committed)
    return bool(committed) and not (
        alone and any(trains(other, r.incidents) for other in r.groups.values() if other.group != group.group)
    )


def _may_end_again(r: RoundView, group: GroupMemory, incident: Incident | None) -> bool:
    """Returns true if a command that reports no steps ended by itself, and has not run for long since: that its process
    is up shows no recovery. Looks again when it has."""
    if not r.spec.trainer.plain or incident is None or incident.kind not in recurrence.BY_END:
        return False
    if group.phase == "running" and recurrence.ran_well(r, group):
        return False
    since = group.since if group.phase == "running" else r.now
    r.look_again(since + r.spec.policy.healthy_after_s)
    return True


def _steps_alone(group: GroupMemory, incident: Incident | None) -> bool:
    """Returns true if the new generation has committed steps, none of them with the others."""
    if incident is None or incident.state != "acting" or incident.shadow or group.phase != "running":
        return False
    return incident.generation_before < incident.generation_after == group.generation


def _joined(r: Round, group: GroupMemory, incident: Incident | None) -> None:
    recovery_cost.note(r, incident, mended=True)
    recover(r, incident)
    r.set_group(replace(group, phase="running", since=r.now, incident=""))


def _heard(r: RoundView, group: GroupMemory) -> bool:
    gate = group_failure.listening(r.observed)
    return gate is not None and gate.hearing.get(group.group) == "beating"


def recover(r: Round, incident: Incident | None) -> None:
    if incident is not None:
        r.set_incident(replace(incident, state="recovered", recovered=r.now))


def _follow_fence(r: Round, group: GroupMemory) -> None:
    gate = r.observed.gate
    if gate is not None and gate.admitted.get(group.group, -1) >= group.generation:
        proof = Reason.of(Code.GATE_ADMITS, generation=group.generation)
    elif group_failure.gone(group.group, group.generation, group.left, r.observed):
        proof = Reason.of(Code.NODE_HAS_NONE, node=group.left[0].node)
    else:
        still = [
            seat for seat in group.left if not group_failure.gone(group.group, group.generation, [seat], r.observed)
        ]
        r.wait(Reason.of(Code.NOT_FENCED, node=still[0].node if still else ""), group=group.group)
        return
    r.set_group(replace(group, phase="placing", since=r.now))
    r.act(
        "fence", f"fence:{group.group}:{group.generation}", proof, group=group.group, generation=group.generation,
        incident=group.incident,
    )  # fmt: skip
