"""Judges a group that shows a failure: whose fault it is, and what is done about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.core.attribution import (
    circuit_breaker,
    cross_host_recurrence,
    futile_restart,
    recurrence,
    shared_outage,
)
from supervisor.core.attribution.full_preemption import all_lost, nobody_left
from supervisor.core.evidence import group_failure, group_nodes
from supervisor.core.model.incident import Failure, Incident
from supervisor.core.model.kinds import OF_A_PERSON, Is, Kind, Rung, that_are
from supervisor.core.model.memory import GroupMemory, PastFailure
from supervisor.core.model.observed import Verdict
from supervisor.core.model.reason import Code, Reason
from supervisor.core.policy import ladder
from supervisor.core.remediation import recovery_cost, scale, suspended_groups
from supervisor.core.remediation.apply import apply, look_at_silence, seats_at_fault
from supervisor.core.remediation.group_phases import recover
from supervisor.core.round import observe_mode
from supervisor.core.round.draft import Round, newest_of
from supervisor.core.round.view import RoundView, is_rider

ENDED = that_are(Is.ENDED)
TAKEN = that_are(Is.TAKEN)
"""Kinds as which a node that the engine takes away may appear."""


def judge(r: Round, group: GroupMemory, failure: Failure | None) -> None:
    """Opens or escalates the incident of a group that shows a failure."""
    if failure is None:
        _say_unknown(r, group)
        if group.incident:
            _close_untouched(r, group)
            _leave_what_failed_its_checks(r, group)
        return
    if r.full(group.group):
        return
    failure = observe_mode.as_told_first(r, group, group_failure.with_facts(failure, group, r.observed, r.spec))
    failure = observe_mode.or_asked_for(r, group, failure)
    if group.at_fault != failure.nodes:
        group = replace(group, at_fault=failure.nodes)
        r.set_group(group)
    ranks = group_nodes.ranks_of(group, r.observed)
    step = max((rank.step for rank in ranks), default=0)
    if r.phase == "stopping":
        _judge_draining(r, group, failure, step)
        return
    if group.group >= r.spec.groups.count:
        if failure.kind in ENDED and group.phase in ("starting", "running"):
            scale.fence(r, group)  # it ends anyway, and one that lives does so in its time
        return
    known = r.incidents.get(group.incident)
    if failure.kind == Kind.SILENT and known is not None and known.decided is not None:
        if is_rider(known):
            look_at_silence(r, group, known)
        return
    _weigh(r, recurrence.remember(r, group, failure, ranks), failure, known, step)


def _weigh(r: Round, group: GroupMemory, failure: Failure, known: Incident | None, step: int) -> None:
    """Decides whose fault a failure is, and acts on it. `known`: the incident that the group already has."""
    failure = recurrence.told(group, failure)
    kind, earlier = failure.kind, cross_host_recurrence.before(r, group, failure)
    failure = cross_host_recurrence.told(failure, earlier)
    fault, passed = recurrence.programs_fault(r, group, failure), recurrence.elsewhere(r, group, failure)
    if earlier is not None and kind == Kind.NUMERICS:
        fault = cross_host_recurrence.not_finite(r, group, step, earlier)
    failure = recurrence.as_the_programs(failure) if fault else failure
    incident = r.incident_for(group, failure, step)
    group = r.groups[group.group]
    if r.paused:
        r.wait(Reason.of(Code.PAUSED, evidence=failure.evidence[0]), group=group.group)
        return
    if circuit_breaker.holds(r, group, incident.kind):
        return  # the incident is open, and ends by itself if its node comes back
    in_place = circuit_breaker.in_place(r, incident.kind) or shared_outage.waited_for(r, group, failure)
    tried = known if known is not None and _has_failed(known, kind) else None
    at_least = min(tried.rung, Rung.REALLOCATE) if tried is not None else Rung.RIDE_THROUGH
    if tried is not None and incident.kind not in OF_A_PERSON and not in_place:
        recovery_cost.note(r, tried, mended=False)
    if passed is None and earlier is None:
        passed = futile_restart.elsewhere(r, group, failure) or recovery_cost.elsewhere(r, group, incident.kind)
    if fault:
        choice = ladder.Choice(Rung.STOP, fault)
    else:
        choice = _choice(r, group, failure, incident, _Limits(at_least, passed, in_place))
    out = None if fault or choice.free else suspended_groups.why(r, group, failure, choice)
    costs = recovery_cost.of(r, group, incident.kind) if choice.rung > Rung.RIDE_THROUGH and not fault else ()
    if observe_mode.only_observed(r, failure) and choice.rung != Rung.RIDE_THROUGH:
        observe_mode.observe(r, replace(incident, costs=costs), choice)
    else:
        incident = observe_mode.ended(r, incident, failure, step)
        host = r.its_host(r.groups[group.group])
        rank = failure.rank if group.size > 1 else None
        now = PastFailure(kind=kind, host=host, incident=incident.id, at=r.now, step=step, same=failure.same, rank=rank)
        cross_host_recurrence.remember(r, r.groups[group.group], now, earlier)
        if out:
            suspended_groups.leave_out(
                r, r.groups[group.group], replace(incident, costs=costs, followed=earlier is not None), out, choice
            )
            return
        apply(r, r.groups[group.group], replace(incident, costs=costs), choice, followed=earlier is not None)


def _has_failed(known: Incident, kind: Kind) -> bool:
    """Tells if what was done for an incident has not mended it, as its group now shows a failure of this kind. One that
    was only opened, while the run was paused, or that only left a node, has tried nothing. And where the peers to heal
    from ended meanwhile, what was done was not tried out."""
    if known.decided is None or known.kind == Kind.LEAVING:
        return False
    return kind != Kind.PEERS_GONE or known.kind == kind


@dataclass(frozen=True, slots=True)
class _Limits:
    """Bounds of the ladder, each with its reason."""

    at_least: Rung
    passed: Reason | None
    """Reason to begin at another node."""
    in_place: Reason | None
    """Reason to stay: no other node would cure it."""


def _choice(r: Round, group: GroupMemory, failure: Failure, incident: Incident, limits: _Limits) -> ladder.Choice:
    """Chooses the rung for an incident."""
    kind, known = incident.kind, r.before.incidents.get(incident.id)
    at_least, passed = limits.at_least, None
    if limits.passed is not None and at_least < Rung.REPLACE:
        at_least, passed = Rung.REPLACE, limits.passed
    if kind in OF_A_PERSON:
        return ladder.Choice(Rung.RESTART, ladder.why_first(kind, r.spec.policy), free=True)
    if failure.blameless:
        why = Reason.of(Code.ANOTHERS_FAULT, evidence=failure.evidence[-1])
        return ladder.Choice(Rung.RESTART, why, free=True)
    if kind == Kind.ALLOCATION_LOST and nobody_left(r):
        return all_lost(r, group)
    if kind in TAKEN and (successor := _successor(r, group)):
        return _succeeded(r, incident, successor)
    if circuit_breaker.evicting(r) and kind in circuit_breaker.HELD:
        at_least = max(at_least, circuit_breaker.passes(r, kind, known))
        return replace(r.choose(kind, group.group, at_least, passed, unpaid=True), free=True)
    choice = r.choose(kind, group.group, at_least, passed)
    if limits.in_place is not None and ladder.first_rung(kind, r.spec.policy) != Rung.STOP:
        return ladder.in_place(choice, limits.in_place)
    return choice


def _successor(r: RoundView, group: GroupMemory) -> str:
    """The allocation that was asked for in place of one that the group leaves, if any."""
    return next(filter(None, (r.successor(r.given_by(seat)) for seat in seats_at_fault(group))), "")


def _leave_what_failed_its_checks(r: Round, group: GroupMemory) -> None:
    """Moves a group one rung up, if it waits to start again in place and that machine has failed its checks since."""
    incident, nodes = r.incidents.get(group.incident), group_nodes.views(group, r.observed)
    node = next((node for node in nodes if node.failed), None)
    if group.phase != "placing" or not group.placed or incident is None or node is None:
        return
    failed = node.failed
    if group.size > 1:
        group = replace(group, at_fault=(node.name,))
    if r.paused or r.phase != "running" or circuit_breaker.tripped(r) or r.full(group.group):
        return  # the placement reports what is waited for
    seen = Reason.of(Code.TEXT, text=failed)
    if seen not in incident.evidence:
        incident = replace(incident, evidence=newest_of((*incident.evidence, seen), group))
    given_up, why = circuit_breaker.evicting(r), Reason.of(Code.CHECKS_FAILED, evidence=failed)
    choice = r.choose(incident.kind, group.group, Rung.REPLACE, why, unpaid=given_up)
    choice = replace(choice, free=given_up)
    if choice.rung == Rung.STOP and any(g.phase in ("starting", "running") for g in r.groups.values()):
        r.wait(Reason.of(Code.NOT_BEFORE_IT_PASSES, fact=failed, then=choice.reason), group=group.group)
        return  # its agent checks again
    apply(r, group, replace(incident, costs=recovery_cost.of(r, group, incident.kind)), choice)


def _succeeded(r: RoundView, incident: Incident, successor: str) -> ladder.Choice:
    """Choice for a group whose node has gone before it moved: the allocation of rung 3 is asked for already."""
    passed = range(ladder.first_rung(incident.kind, r.spec.policy), Rung.REALLOCATE)
    considered = tuple(
        Reason.of(Code.ASKED_BEFORE, rung=ladder.name(Rung(rung)), allocation=successor) for rung in passed
    )
    why = Reason.of(Code.SUCCEEDED, kind=incident.kind.value, allocation=successor)
    return ladder.Choice(Rung.REALLOCATE, why, considered, free=True)


def _judge_draining(r: Round, group: GroupMemory, failure: Failure, step: int) -> None:
    """Finishes a group that fails while it drains. Neither a hiccup nor a requested restart counts."""
    if failure.kind in OF_A_PERSON:
        return
    if failure.kind == Kind.SILENT:
        incident = r.incident_for(group, failure, step)
        look_at_silence(r, group, incident)
        return
    r.set_group(replace(group, phase="finished", since=r.now, incident=""))


def _say_unknown(r: RoundView, group: GroupMemory) -> None:
    if group.phase not in ("starting", "running") or group_nodes.all_answer(group, r.observed):
        return
    verdict, why = group_failure.verdict_on(group, r.observed, r.spec)
    if verdict == Verdict.UNKNOWN:
        r.wait(why, until=r.now + 1.0, group=group.group)


def _close_untouched(r: Round, group: GroupMemory) -> None:
    """Closes an incident whose cause has gone while a pause, or the breaker, kept anything from being done."""
    incident = r.incidents.get(group.incident)
    if incident is None or group.phase not in ("starting", "running"):
        return
    # a hiccup counts as decided: it is ridden through
    if incident.decided is not None and (incident.generation_after > incident.generation_before or is_rider(incident)):
        return
    if not group_failure.suspect(group, r.observed) and not r.full(group.group):
        recover(r, incident)
        r.set_group(replace(group, incident=""))
