"""Ends a run: its groups drain, what is open is closed, and what it holds is given back, within a stated time."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.evidence import group_failure
from supervisor.core.model.kinds import RunPhase
from supervisor.core.model.measured import Measured
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import RunSpec
from supervisor.core.remediation import handover
from supervisor.core.round import observe_mode
from supervisor.core.round.draft import MAX_GIVEN_BACK, Round
from supervisor.core.round.view import RoundView

DRAIN_STEPS = 4
"""Usual steps that a drain adds to its time: the one in flight, and up to three more until the common last one."""


def drain_s(spec: RunSpec, measured: Measured) -> float:
    """Seconds from the wish to stop until groups that have not ended are ended. They hold a start, with its load, its
    first step and so a checkpoint, and the steps up to the last one."""
    return spec.policy.start_timeout_s + handover.AHEAD_S + DRAIN_STEPS * measured.step_s


def longest_s(spec: RunSpec, measured: Measured) -> float:
    """Seconds within which a led run ends from any state: the drain, and an engine's time to take its nodes back."""
    return drain_s(spec, measured) + group_failure.ENGINE_AWAY_S


def wind_down(r: Round) -> None:
    asked = r.observed.relaunch
    if r.draft.relaunching and (r.observed.control.stop or asked is None):
        r.draft = replace(r.draft, relaunching=False, from_memory=0)  # the later wish holds: the run ends
    # a pool waits for the runs that use it
    if r.phase in ("new", "running") and r.observed.control.stop and not r.observed.users:
        r.draft = replace(r.draft, phase="stopping", stop_at_step=None, stop_by=None, from_memory=0)
        r.act("stop", f"stop:{r.spec.name}", Reason.of(Code.ASKED_FOR))
    elif r.phase in ("new", "running") and asked is not None and not r.paused and not asked.scales:
        # states that no group has trained on since stay where they are
        number = r.draft.from_memory or (asked.number if asked.from_memory else 0)
        r.draft = replace(
            r.draft, phase="stopping", stop_at_step=None, stop_by=None, relaunching=True, from_memory=number
        )
        why = Reason.of(Code.RELAUNCH_ASKED, number=asked.number, because=asked.because)
        r.act("stop", f"stop:{r.spec.name}:{asked.number}", why)
    if r.phase == "stopping":
        _drain(r)
    left = [g for g in r.groups.values() if g.phase != "finished"]
    if len(left) < len(r.groups) and all(
        g.left_out or observe_mode.has_ended(g, r.incidents, r.observed) for g in left
    ):
        # The run has come to its end without them.
        for group in left:
            if not r.full(group.group):
                r.set_group(replace(group, phase="finished", since=r.now, incident=""))
    # a run that was paused before it began has no groups
    if (r.groups or r.phase == "stopping") and all(g.phase == "finished" for g in r.groups.values()):
        _wind_up(r)


def _drain(r: Round) -> None:
    """Ends groups that train after one common step, with those that start beside them, which may be needed for it. The
    others have nothing to save and end at once, as do all when the time is over."""
    if r.draft.stop_at_step is None:
        r.draft = replace(r.draft, stop_at_step=handover.step_ahead(r, handover.AHEAD_S, at_most=20))
    stop_by = r.draft.stop_by
    if stop_by is None:
        stop_by = r.now + drain_s(r.spec, r.before.measured)
        r.draft = replace(r.draft, stop_by=stop_by)
    step = r.draft.stop_at_step
    there = [g for g in r.groups.values() if g.phase != "finished"]
    draining = {
        g.group for g in there if g.phase == "running" or (g.phase == "starting" and observe_mode.trains_beside(r, g))
    }
    for group in there:
        drains = group.group in draining
        if (drains and r.now < stop_by) or r.full(group.group):
            continue
        if drains:
            why = Reason.of(Code.ENDED_LATE, group=group.group, step=step)
            r.act(
                "stop", f"stop:{group.group}:{group.generation}", why, group=group.group, generation=group.generation,
                node=group.first_node, nodes=group.nodes if group.size > 1 else (), incident=group.incident,
            )  # fmt: skip
        r.set_group(replace(group, phase="finished", since=r.now))
    if not all(g.phase == "finished" for g in r.groups.values()):
        r.wait(Reason.of(Code.DRAINING, step=step), until=stop_by)


def _wind_up(r: Round) -> None:
    """Closes what is open once all groups have ended, gives back what we hold, and only then ends the run."""
    halted = r.draft.halt_reason is not None
    end: RunPhase = "finished" if r.phase != "stopping" else "halted" if halted else "stopped"
    open_ = list(r.incidents.values())
    # a run that is relaunched keeps its nodes
    held = [a.key for a in r.allocations.values() if a.state == "wanted" and not r.draft.relaunching]
    most = min(MAX_GIVEN_BACK, max(0, r.room) // 2)
    for incident in open_[:most]:
        r.set_incident(replace(incident, state="halted"))
    for key in held[:most]:
        r.release(key, Reason.of(Code.RUN_ENDS, end=end))
    if len(open_) > most or len(held) > most:
        r.look_again(r.now)
    elif r.draft.relaunching:
        r.draft = replace(r.draft, phase="resuming")
        r.look_again(r.now)
    elif not _still_taking_back(r):
        r.draft = replace(r.draft, phase=end)


def _still_taking_back(r: RoundView) -> bool:
    """Returns true while the engine has not done what was asked of it just now. A person who reads that a run has ended
    may end the supervisors too, and no one would give its nodes back. An engine that is away is not waited for."""
    waiting = []
    for allocation in r.allocations.values():
        grant = r.observed.grants.get(allocation.key)
        taken = grant is not None and grant.state in ("pending", "granted")
        if allocation.state == "released" and taken and r.now < allocation.since + group_failure.ENGINE_AWAY_S:
            waiting.append(allocation)
    for allocation in waiting[:1]:
        until = allocation.since + group_failure.ENGINE_AWAY_S
        r.wait(Reason.of(Code.TAKEN_BACK, count=len(waiting), allocation=allocation.key), until=until)
    return bool(waiting)
