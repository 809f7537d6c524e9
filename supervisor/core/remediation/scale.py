"""Changes the number of groups and nodes of a run while the other groups train.

More nodes are asked for before the next spec is in force, so that a round that is lost asks again. Groups that it has no
more end after one step. Then their nodes, or others that are idle, are given back.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import NextSpec
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import RunSpec
from supervisor.core.remediation import handover, shutdown
from supervisor.core.round import observe_mode
from supervisor.core.round.draft import MAX_GIVEN_BACK, NEW_A_ROUND, Round


def fill(r: Round, spec: RunSpec, why: Reason) -> bool:
    """Asks for the nodes that the run lacks for a spec, as many as a round may. Returns true if it lacks none."""
    lacks = -_too_many(r, spec)
    for _ in range(min(NEW_A_ROUND, lacks)):
        r.acquire(why)
    return lacks <= NEW_A_ROUND


def add_groups(r: Round) -> bool:
    """Adds the groups that the run lacks, as many as a round may. Returns true if it lacks none."""
    above, missing = r.before.generations_above, [g for g in range(r.spec.groups.count) if g not in r.groups]
    for g in missing[:NEW_A_ROUND]:
        generation = above + 1 if above else 0
        r.groups[g] = GroupMemory(group=g, size=r.spec.groups.nodes_per_group, generation=generation)
    return len(missing) <= NEW_A_ROUND


def scale(r: Round) -> None:
    if r.before.phase != "running" or r.paused:
        return
    asked = r.observed.relaunch
    # one that is to end may have done so: it must be forgotten before a spec has a group of its number again
    ending = any(g.group >= r.spec.groups.count for g in r.groups.values())
    if asked is not None and asked.scales and not (ending and r.before.relaunches):
        _take_into_force(r, asked)
    elif r.before.relaunches:
        _end_groups(r)
        _give_back(r)
        if not add_groups(r):
            r.look_again(r.now)


def surplus(r: Round, spec: RunSpec) -> int:
    """Number of allocations that the run has beyond what a spec wants."""
    return max(0, _too_many(r, spec))


def _too_many(r: Round, spec: RunSpec) -> int:
    # one that leaves has its successor in its place
    wanted = sum(a.state == "wanted" and not a.successor for a in r.allocations.values())
    return wanted - spec.allocation.nodes - spec.allocation.spares


def _take_into_force(r: Round, asked: NextSpec) -> None:
    about = {"number": asked.number, "groups": asked.spec.groups.count, "because": asked.because}
    if not r.quiet:
        r.look_again(r.now)
    elif fill(r, asked.spec, Reason.of(Code.SCALED, **about)):
        r.act("scale", f"scale:{asked.number}", Reason.of(Code.SCALED, **about))
        r.draft = replace(r.draft, relaunches=asked.number, surplus=surplus(r, asked.spec))
        r.look_again(r.now)


def _end_groups(r: Round) -> None:
    """Ends the groups that the spec has no more after one step, those that do not train at once. One is forgotten when it
    has ended by itself, or is fenced, which leads it to phase placing (group_phases)."""
    over = [g for g in r.groups.values() if g.group >= r.spec.groups.count]
    if not over:
        if r.draft.stop_at_step is not None:
            r.draft = replace(r.draft, stop_at_step=None, stop_by=None)
        return
    if r.draft.stop_by is None:
        step = handover.step_ahead(r, handover.AHEAD_S, at_most=20)
        stop_by = r.now + shutdown.drain_s(r.spec, r.before.measured)
        r.draft = replace(r.draft, stop_at_step=step, stop_by=stop_by)
    assert r.draft.stop_by is not None
    for group in over:
        if r.full(group.group):
            return
        drains = group.phase == "running" and not observe_mode.has_ended(group, r.incidents, r.observed)
        if group.phase == "finished" or (group.phase in ("unplaced", "placing") and not group.seats):
            _close(r, group)
            r.drop_group(group.group)
        elif group.phase != "fencing" and not (drains and r.now < r.draft.stop_by):
            fence(r, group)
    r.wait(Reason.of(Code.DRAINING, step=r.draft.stop_at_step), until=r.draft.stop_by)


def _close(r: Round, group: GroupMemory) -> None:
    incident = r.incidents.get(group.incident)
    if incident is not None:
        r.set_incident(replace(incident, state="halted"))


def fence(r: Round, group: GroupMemory) -> None:
    """Shuts out a group that does not end by itself: what runs of it may still be in a step."""
    _close(r, group)
    generation = group.generation + 1 if group.phase in ("starting", "running") else group.generation
    left = group.last_seats
    after = replace(group, phase="fencing", since=r.now, generation=generation, seats=(), left=left, incident="")
    r.set_group(after)


def _give_back(r: Round) -> None:
    """Gives back what is idle, as long as there is more than the spec wants and no group lacks a node."""
    if not r.before.surplus or not r.quiet:
        return
    left = min(r.before.surplus, surplus(r, r.spec))
    of_spec = (g for g in r.groups.values() if g.group < r.spec.groups.count and g.phase != "finished")
    lacks = sum(max(0, g.size - len(g.seats)) for g in of_spec)
    held = r.held()
    idle = [a.key for a in r.allocations.values() if a.state == "wanted" and a.key not in held and not a.successor]
    # the newest first: what has not come yet costs nothing
    given = list(reversed(idle))[: max(0, min(left, len(idle) - lacks, MAX_GIVEN_BACK))]
    for key in given:
        r.release(key, Reason.of(Code.SCALED_DOWN))
    if left - len(given) != r.before.surplus:
        r.draft = replace(r.draft, surplus=left - len(given))
