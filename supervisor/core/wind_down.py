"""The end of a run: its groups drain, what is open is closed, and what it holds is given back."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import detect, handover, shadow
from supervisor.core.model import GroupMemory
from supervisor.core.round import MAX_GIVEN_BACK, Round


def wind_down(r: Round) -> None:
    if r.phase in ("new", "running") and r.observed.control.stop:
        r.rest["phase"] = "stopping"
        r.act("stop", f"stop:{r.spec.name}", "a person asked for it")
    if r.phase == "stopping" and r.before.stop_at_step is None:
        r.rest["stop_at_step"] = handover.step_ahead(r, handover.AHEAD_S, at_most=20)
    if r.phase == "stopping":
        for group in list(r.groups.values()):
            if (group.phase in ("unplaced", "placing", "fencing") or _starts_in_vain(r, group)) and not r.full(
                group.group
            ):
                r.set_group(replace(group, phase="finished", since=r.now))
        if not all(g.phase == "finished" for g in r.groups.values()):
            r.wait(f"draining: the groups end after step {r.rest.get('stop_at_step', r.before.stop_at_step)}")
    left = [g for g in r.groups.values() if g.phase != "finished"]
    if len(left) < len(r.groups) and all(g.left_out or shadow.has_ended(g, r.incidents, r.observed) for g in left):
        # The run has come to its end without them.
        for group in left:
            if not r.full(group.group):
                r.set_group(replace(group, phase="finished", since=r.now, incident=""))
    if r.groups and all(g.phase == "finished" for g in r.groups.values()):
        _wind_up(r)


def _starts_in_vain(r: Round, group: GroupMemory) -> bool:
    """Whether it is being started in a run that halts, and nobody trains that it could heal from: it has no step to save, and may
    take all its time to start only to end as the others did."""
    halted = bool(r.rest.get("halt_reason", r.before.halt_reason))
    return halted and group.phase == "starting" and not shadow.trains_beside(r, group)


def _wind_up(r: Round) -> None:
    """All groups have ended: close what is open, give back what we hold, and only then end the run."""
    halted = bool(r.rest.get("halt_reason", r.before.halt_reason))
    end = "finished" if r.phase != "stopping" else "halted" if halted else "stopped"
    open_ = list(r.incidents.values())
    held = [a.key for a in r.allocations.values() if a.state == "wanted"]
    for incident in open_[:MAX_GIVEN_BACK]:
        r.set_incident(replace(incident, state="halted"))
    for key in held[:MAX_GIVEN_BACK]:
        r.release(key, f"the run is {end}")
    if len(open_) > MAX_GIVEN_BACK or len(held) > MAX_GIVEN_BACK:
        r.look_again(r.now)
    elif not _still_taking_back(r):
        r.rest["phase"] = end


def _still_taking_back(r: Round) -> bool:
    """Whether the engine has not yet done what was asked of it just now: who reads that a run has ended may end the supervisors
    too, and nobody would give its nodes back. An engine that is away is not waited for."""
    waiting = []
    for allocation in r.allocations.values():
        grant = r.observed.grants.get(allocation.key)
        taken = grant is not None and grant.state in ("pending", "granted")
        if allocation.state == "released" and taken and r.now < allocation.since + detect.ENGINE_AWAY_S:
            waiting.append(allocation)
    for allocation in waiting[:1]:
        until = allocation.since + detect.ENGINE_AWAY_S
        r.wait(f"the engine takes back {len(waiting)} allocations, {allocation.key} first", until=until)
    return bool(waiting)
