"""The supervisor's whole brain: one pure function.

`decide(observed, spec, memory)` looks at one etcd revision and says what to remember, what was done and why, what is
waited for, and when to look again. It never asks for the time, never blocks, and gives the same answer for the same
input. The records in etcd are a projection of the memory that it returns.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import (
    away,
    breaker,
    cordons,
    cost,
    detect,
    disks,
    follows,
    handover,
    in_vain,
    ladder,
    late,
    left_out,
    numerics,
    often,
    repeat,
    shadow,
    straggler,
    timeouts,
    unsaved,
)
from supervisor.core.acting import apply, look_at_silence
from supervisor.core.all_lost import all_lost, nobody_left
from supervisor.core.blame import TOGETHER, UNSURE, Blame, blame
from supervisor.core.kinds import Is, that_are
from supervisor.core.leaving import leave
from supervisor.core.measured import remembered
from supervisor.core.model import (
    Decision,
    Failure,
    GroupMemory,
    Incident,
    Kind,
    Memory,
    Observed,
    RankView,
    Rung,
    Verdict,
)
from supervisor.core.placement import place
from supervisor.core.reason import Code, Reason
from supervisor.core.resume import resume
from supervisor.core.round import NEW_A_ROUND, Round, is_rider, trains
from supervisor.core.seat import seat_lighthouse
from supervisor.core.signs import HELD, Sign, SignKind, kind_of
from supervisor.core.spares import renew
from supervisor.core.spec import RunSpec
from supervisor.core.wind_down import wind_down
from supervisor.core.words import say

ENDED = ("finished", "stopped", "halted")

TAKEN = that_are(Is.TAKEN)
"""How it looks when the engine takes a node away."""


def decide(observed: Observed, spec: RunSpec, memory: Memory) -> Decision:
    """One round. Pure: same input, same output."""
    r = Round(observed, spec, memory)
    if memory.phase in ("halted", "stopped", "resuming"):
        resume(r)
        return r.done()
    if memory.phase in ENDED:
        return r.done()
    seat_lighthouse(r)
    for host in cordons.freed(observed, memory.cordons):
        r.uncordon(host)
        often.freed(r, host)
    _note_checkpoint(r)
    _note_measured(r)
    _want_allocations(r)
    for g in sorted(r.groups):
        _follow(r, r.groups[g])
    _note_silent(r)
    hanging = _who_hangs(r)
    _note_suspects(r, hanging)
    slow = straggler.look(r)
    spike = numerics.spike(r.groups, r.observed, r.spec)
    no_way = detect.without_a_way(r.groups, r.observed, spec, memory.lighthouse.opened)
    behind = unsaved.sentence(r.groups, r.draft.checkpoint, r.observed, spec)
    for sentence in (*disks.untold(r.groups, r.observed), *filter(None, (spike, no_way, behind))):
        r.wait(sentence)
    numbers, hang, excused = detect.not_finite(r.observed, r.before), frozenset(hanging.groups), late.excused(r)
    found = {
        g: detect.failure(group, r.observed, spec, r.before, hang, slow, numbers, excused)
        for g, group in r.groups.items()
    }
    failing = {g: failure for g, failure in found.items() if failure is not None}
    breaker.look(r, failing)
    for g in _in_order(r):
        _judge(r, r.groups[g], failing.get(g))
    wind_down(r)
    breaker.over(r)
    leave(r)
    renew(r)
    if r.phase == "running":
        place(r)
    return r.done()


def _in_order(r: Round) -> list[int]:
    """By number; but whose own number was not finite comes first, while all that ended by it still say whose it was."""
    order = sorted(r.groups)
    if any(kind_of(key) == SignKind.NAN for key in r.before.suspects):
        order.sort(key=lambda g: not numerics.said(r.groups[g], r.observed) & numerics.OWN)
    return order


def _note_checkpoint(r: Round) -> None:
    best = r.before.checkpoint
    for group in r.groups.values():
        for rank in detect.ranks_of(group, r.observed):
            mark = rank.checkpoint
            # Only the current generation's word counts: an older one may have thawed in the middle of a write.
            if mark is not None and mark.generation == group.generation and (best is None or mark.step > best.step):
                best = mark
    if best is not None and best != r.before.checkpoint:
        r.draft = replace(r.draft, checkpoint=best)
        r.act("checkpoint", f"checkpoint:{best.step}", f"step {best.step} is complete on disk", group=best.group)


def _note_measured(r: Round) -> None:
    known = remembered(r.before.measured, timeouts.measured(r.observed))
    if known != r.before.measured:
        r.draft = replace(r.draft, measured=known)


def _want_allocations(r: Round) -> None:
    if r.phase != "new" or r.paused:
        return
    wanted = r.spec.allocation.nodes + r.spec.allocation.spares
    asked = sum(1 for a in r.allocations.values() if a.state == "wanted")
    for _ in range(min(NEW_A_ROUND, wanted - asked)):
        r.acquire("the run starts")
    known = len(r.groups)
    for g in range(known, min(known + NEW_A_ROUND, r.spec.groups.count)):
        r.groups[g] = GroupMemory(group=g)
    asked = sum(1 for a in r.allocations.values() if a.state == "wanted")
    if asked >= wanted and len(r.groups) == r.spec.groups.count:
        r.draft = replace(r.draft, phase="running")
    else:
        r.look_again(r.now)


def _note_suspects(r: Round, hanging: Blame) -> None:
    signs = (detect.suspect(g, r.observed) for g in r.groups.values() if g.node and g.phase != "finished")
    suspects = {sign.key: r.before.suspects.get(sign.key, r.now) for sign in signs if sign is not None}
    for since in suspects.values():
        if r.now < since + detect.engine_word_s(r.observed, r.spec):
            r.look_again(since + detect.engine_word_s(r.observed, r.spec))
        elif r.now < since + detect.ENGINE_AWAY_S and (r.observed.engine_listed_at or r.now) < since:
            r.look_again(r.now + 0.25)
    for g in r.groups.values():
        back = detect.back_since(g, r.observed, r.before) if g.incident else None
        if back is not None:
            suspects[Sign(SignKind.BACK, g.node).key] = back
    if hanging.unsure:
        suspects[UNSURE] = r.before.suspects.get(UNSURE, r.now)
    elif hanging.held:
        # since when: whatever was said of it then
        known = (since for key, since in r.before.suspects.items() if kind_of(key) == SignKind.HELD)
        suspects[HELD] = next(known, r.now)
    why = Reason.of(Code.TEXT, text=hanging.held) if HELD in suspects else None
    if why != r.before.held_hang:
        r.draft = replace(r.draft, held_hang=why)
    _note_together(r, hanging, suspects)
    if suspects != r.before.suspects:
        r.draft = replace(r.draft, suspects=suspects)


def _note_together(r: Round, hanging: Blame, suspects: dict[str, float]) -> None:
    """When a rank of every group was last stopped, for as long as that counts."""
    at = r.now if hanging.together else r.before.suspects.get(TOGETHER)
    if at is not None and r.now - at < r.spec.policy.hang.stopped_s:
        suspects[TOGETHER] = at
        if not hanging.together:
            r.look_again(at + r.spec.policy.hang.stopped_s)


def _who_hangs(r: Round) -> Blame:
    since = r.before.suspects.get(UNSURE)
    found = blame(shadow.there(r.groups, r.incidents, r.observed), r.observed, r.spec, r.before)
    if found.behind != r.before.behind:
        r.draft = replace(r.draft, behind=found.behind)
    if found.held:
        until = (r.now if since is None else since) + r.spec.policy.hang.at_least_s
        r.wait(found.held, until=until if found.unsure else None)
    return found


def _note_silent(r: Round) -> None:
    gate = detect.listening(r.observed)
    silent = tuple(
        g.group
        for g in r.groups.values()
        if gate is not None
        and g.phase == "running"
        and gate.hearing.get(g.group) == "silent"
        and gate.admitted.get(g.group) == g.generation
    )
    if silent != r.before.silent and not r.paused:
        r.draft = replace(r.draft, silent=silent)


def _follow(r: Round, group: GroupMemory) -> None:
    """Move a group's phase by what is observed."""
    if r.full(group.group):
        return
    if group.phase == "fencing":
        _follow_fence(r, group)
        return
    if group.phase not in ("starting", "running"):
        return
    ranks = detect.ranks_of(group, r.observed)
    group = repeat.forget(r, group, ranks)
    incident = r.incidents.get(group.incident)
    if incident is not None and incident.state == "acting" and incident.acted is None and ranks:
        incident = replace(incident, acted=r.now)
        r.set_incident(incident)
    if detect.finished(group, r.observed, r.spec.groups.ranks_per_group):
        if handover.ended(r, group):
            return
        _recover(r, incident)
        r.set_group(replace(group, phase="finished", since=r.now, incident=""))
    elif group.phase == "starting":
        if not any(rank.commits > 0 for rank in ranks):
            r.look_again(group.since + r.spec.policy.start_timeout_s + 0.001)
        elif with_the_others(r, group, ranks):
            _joined(r, group, incident)
        else:
            r.set_group(replace(group, phase="running", since=r.now))
    elif _steps_alone(group, incident):
        if with_the_others(r, group, ranks):
            _joined(r, group, incident)
    elif is_rider(incident) and _heard(r, group):
        _recover(r, incident)
        r.set_group(replace(group, incident=""))
    elif group.attempts and not group.incident:
        if r.now - group.since >= r.spec.policy.healthy_after_s:
            r.set_group(replace(group, attempts=0))
        else:
            r.look_again(group.since + r.spec.policy.healthy_after_s)


def with_the_others(r: Round, group: GroupMemory, ranks: tuple[RankView, ...]) -> bool:
    """The group has committed a step with the others: they made it together, it healed from them, or no other group trains."""
    committed = [rank for rank in ranks if rank.commits > 0]
    alone = all(rank.participants == 1 and rank.healed is False for rank in committed)
    return bool(committed) and not (
        alone and any(trains(other, r.incidents) for other in r.groups.values() if other.group != group.group)
    )


def _steps_alone(group: GroupMemory, incident: Incident | None) -> bool:
    """Its new generation has committed steps, none of them with the others."""
    if incident is None or incident.state != "acting" or incident.shadow or group.phase != "running":
        return False
    return incident.generation_before < incident.generation_after == group.generation


def _joined(r: Round, group: GroupMemory, incident: Incident | None) -> None:
    cost.note(r, incident, mended=True)
    _recover(r, incident)
    r.set_group(replace(group, phase="running", since=r.now, incident=""))


def _heard(r: Round, group: GroupMemory) -> bool:
    gate = detect.listening(r.observed)
    return gate is not None and gate.hearing.get(group.group) == "beating"


def _recover(r: Round, incident: Incident | None) -> None:
    if incident is not None:
        r.set_incident(replace(incident, state="recovered", recovered=r.now))


def _follow_fence(r: Round, group: GroupMemory) -> None:
    gate = r.observed.gate
    if gate is not None and gate.admitted.get(group.group, -1) >= group.generation:
        proof = f"the gate admits generation {group.generation} alone"
    elif detect.gone(group.group, group.generation, group.old_node, r.observed):
        proof = f"node {group.old_node} says that its processes are gone"
    else:
        r.wait(f"group {group.group}: its generation on node {group.old_node} is neither gone nor fenced: hold")
        return
    r.set_group(replace(group, phase="placing", since=r.now))
    r.act(
        "fence", f"fence:{group.group}:{group.generation}", proof, group=group.group, generation=group.generation,
        incident=group.incident,
    )  # fmt: skip


def _judge(r: Round, group: GroupMemory, failure: Failure | None) -> None:
    """Open or escalate the incident of a group that shows a failure."""
    if failure is None:
        _say_unknown(r, group)
        if group.incident:
            _close_untouched(r, group)
            _leave_what_failed_its_checks(r, group)
        return
    if r.full(group.group):
        return
    failure = shadow.as_told_first(r, group, detect.with_facts(failure, group, r.observed, r.spec))
    failure = shadow.or_asked_for(r, group, failure)
    ranks = detect.ranks_of(group, r.observed)
    step = max((rank.step for rank in ranks), default=0)
    if r.phase == "stopping":
        _judge_draining(r, group, failure, step)
        return
    known = r.incidents.get(group.incident)
    if failure.kind == Kind.SILENT and known is not None and known.decided is not None:
        if is_rider(known):
            look_at_silence(r, group, known)
        return
    _weigh(r, repeat.remember(r, group, failure, ranks), failure, known, step)


def _weigh(r: Round, group: GroupMemory, failure: Failure, known: Incident | None, step: int) -> None:
    """Whose fault it is, and what is done about it. `known`: the incident that the group has already."""
    failure = repeat.told(group, failure)
    kind, earlier = failure.kind, follows.before(r, group, failure.kind, failure.same)
    failure = follows.told(failure, earlier)
    fault, passed = repeat.programs_fault(r, group, failure), repeat.elsewhere(r, group, failure)
    if earlier is not None and kind == Kind.NUMERICS:
        fault = follows.not_finite(r, group, step, earlier)
    failure = repeat.as_the_programs(failure) if fault else failure
    incident = r.incident_for(group, failure, step)
    group = r.groups[group.group]
    if r.paused:
        r.wait(f"group {group.group}: {say(failure.evidence[0])}; the run is paused, nothing is done")
        return
    if breaker.holds(r, group, incident.kind):
        return  # it was opened, and is over by itself if its node comes back
    in_place = breaker.in_place(r, incident.kind) or away.waited_for(r, group, failure)
    # An incident that was only opened, while the run was paused, has tried nothing yet; nor has one that only left a node.
    tried = known is not None and known.decided is not None and known.kind != Kind.LEAVING
    at_least = min(known.rung, Rung.REALLOCATE) if known is not None and tried else Rung.RIDE_THROUGH
    if tried and incident.kind != Kind.REQUESTED and not in_place:
        cost.note(r, known, mended=False)
    if passed is None and earlier is None:
        passed = in_vain.elsewhere(r, group, failure) or cost.elsewhere(r, group, incident.kind)
    if fault:
        choice = ladder.Choice(Rung.STOP, fault)
    else:
        choice = _choice(r, group, failure, incident, at_least, passed, in_place)
    out = None if fault or choice.free else left_out.why(r, group, failure, choice)
    costs = cost.of(r, group, incident.kind) if choice.rung > Rung.RIDE_THROUGH and not fault else ()
    if shadow.only_observed(r, failure) and choice.rung != Rung.RIDE_THROUGH:
        shadow.observe(r, replace(incident, costs=costs), choice)
    else:
        incident = shadow.ended(r, incident, failure, step)
        follows.remember(r, r.groups[group.group], kind, failure.same, incident.id, step, earlier)
        if out:
            left_out.leave_out(
                r, r.groups[group.group], replace(incident, costs=costs, followed=earlier is not None), out, choice
            )
            return
        apply(r, r.groups[group.group], replace(incident, costs=costs), choice, followed=earlier is not None)


def _choice(
    r: Round,
    group: GroupMemory,
    failure: Failure,
    incident: Incident,
    at_least: Rung,
    passed: Reason | None,
    in_place: Reason | None,
) -> ladder.Choice:
    """The rung. `passed`: why another node is to be tried. `in_place`: why none would cure it."""
    kind, known = incident.kind, r.before.incidents.get(incident.id)
    at_least, passed = (Rung.REPLACE, passed) if passed and at_least < Rung.REPLACE else (at_least, None)
    if kind == Kind.REQUESTED:
        return ladder.Choice(Rung.RESTART, ladder.why_first(kind, r.spec.policy), free=True)
    if failure.blameless:
        why = Reason.of(Code.ANOTHERS_FAULT, evidence=failure.evidence[-1])
        return ladder.Choice(Rung.RESTART, why, free=True)
    if kind == Kind.ALLOCATION_LOST and nobody_left(r):
        return all_lost(r, group)
    if kind in TAKEN and (successor := r.successor(r.placed_by(group))):
        return _succeeded(r, incident, successor)
    if breaker.evicting(r) and kind in breaker.HELD:
        at_least = max(at_least, breaker.passes(r, kind, known))
        return replace(r.choose(kind, group.group, at_least, passed, unpaid=True), free=True)
    choice = r.choose(kind, group.group, at_least, passed)
    if in_place and ladder.first_rung(kind, r.spec.policy) != Rung.STOP:
        return ladder.in_place(choice, in_place)
    return choice


def _leave_what_failed_its_checks(r: Round, group: GroupMemory) -> None:
    """It is to be started again where it was, and that machine has failed its checks since: a rung higher."""
    incident, node = r.incidents.get(group.incident), r.observed.nodes.get(group.node)
    if group.phase != "placing" or incident is None or node is None or not node.failed:
        return
    if r.paused or r.phase != "running" or breaker.tripped(r) or r.full(group.group):
        return  # placing says what is waited for
    seen = Reason.of(Code.TEXT, text=node.failed)
    if seen not in incident.evidence:
        incident = replace(incident, evidence=(*incident.evidence, seen)[-8:])
    given_up, failed = breaker.evicting(r), Reason.of(Code.CHECKS_FAILED, evidence=node.failed)
    choice = r.choose(incident.kind, group.group, Rung.REPLACE, failed, unpaid=given_up)
    choice = replace(choice, free=given_up)
    if choice.rung == Rung.STOP and any(g.phase in ("starting", "running") for g in r.groups.values()):
        r.wait(f"group {group.group}: {node.failed}: nothing is started there until it passes; {say(choice.reason)}")
        return  # its agent checks again
    apply(r, group, replace(incident, costs=cost.of(r, group, incident.kind)), choice)


def _succeeded(r: Round, incident: Incident, successor: str) -> ladder.Choice:
    """Its node was leaving and has gone before the group moved: what rung 3 would ask for is asked for already."""
    passed = range(ladder.first_rung(incident.kind, r.spec.policy), Rung.REALLOCATE)
    considered = tuple(
        Reason.of(Code.ASKED_BEFORE, rung=ladder.name(Rung(rung)), allocation=successor) for rung in passed
    )
    why = Reason.of(Code.SUCCEEDED, kind=incident.kind.value, allocation=successor)
    return ladder.Choice(Rung.REALLOCATE, why, considered, free=True)


def _judge_draining(r: Round, group: GroupMemory, failure: Failure, step: int) -> None:
    """A group that fails while it drains is not started again. A hiccup, or a restart that a person asks for, is no
    failure to drain."""
    if failure.kind == Kind.REQUESTED:
        return
    if failure.kind == Kind.SILENT:
        incident = r.incident_for(group, failure, step)
        look_at_silence(r, group, incident)
        return
    r.set_group(replace(group, phase="finished", since=r.now, incident=""))


def _say_unknown(r: Round, group: GroupMemory) -> None:
    node = r.observed.nodes.get(group.node)
    if group.phase not in ("starting", "running") or (node is not None and node.registered):
        return
    verdict, why = detect.node_verdict(group.node, group, r.observed, r.spec)
    if verdict == Verdict.UNKNOWN:
        r.wait(f"group {group.group}: {say(why)}", until=r.now + 1.0)


def _close_untouched(r: Round, group: GroupMemory) -> None:
    """An incident about which nothing was done, as the run was paused or the breaker held, and whose cause has gone by itself."""
    incident = r.incidents.get(group.incident)
    if incident is None or group.phase not in ("starting", "running"):
        return
    # one that began as a hiccup was decided: to be ridden through
    if incident.decided is not None and (incident.generation_after > incident.generation_before or is_rider(incident)):
        return
    if not detect.suspect(group, r.observed) and not r.full(group.group):
        _recover(r, incident)
        r.set_group(replace(group, incident=""))
