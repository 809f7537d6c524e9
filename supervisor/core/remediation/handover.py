"""Hands all groups over at once from leaving nodes to the next ones. They end after one step with a checkpoint, and
start again from it. This serves when no group stays to heal from (ADR 8)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from supervisor.core.evidence import group_nodes
from supervisor.core.model import engines
from supervisor.core.model.incident import Failure
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.policy.ladder import Choice
from supervisor.core.round import observe_mode
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView

AHEAD_S = 10.0
"""Seconds until the common last step: progress may be 5 s old, and an agent hears of it within a second or two."""


EARLY_S = 60.0
"""Seconds of a warning that are not counted on, or a fifth of a short one: Slurm checks limits once a minute."""

SAVING_S = 30.0
"""Seconds for the checkpoint of the last step, or an eighth of a short warning."""


def step_ahead(r: RoundView, margin_s: float, at_most: float = math.inf) -> int:
    """Returns a step that no group has passed, `margin_s` away at the measured pace, so that all can end at it."""
    ranks = [rank for group in r.groups.values() for rank in group_nodes.ranks_of(group, r.observed)]
    newest = max((rank.step for rank in ranks), default=0)
    pace = max((rank.step_s for rank in ranks), default=0.0)
    return newest + int(min(at_most, 2 + math.ceil(margin_s / pace) if pace > 0 else 2))


def consider(r: Round, words: Mapping[str, str]) -> None:
    """Begins the handover if all groups run out of time, or if the only group can go at once."""
    there = [g for g in r.groups.values() if g.seats and g.phase in ("starting", "running", "placing")]
    running = [g for g in there if g.phase == "running" and not observe_mode.has_ended(g, r.incidents, r.observed)]
    if not running or any(not r.word_on(g, words) for g in running):
        return
    why = r.word_on(running[0], words)
    if any(not r.word_on(g, words) for g in there):
        _not_without_an_heir(r, running, why)
        return
    spares = r.spares()
    alone = all(g.left_out for g in r.groups.values() if g.group != running[0].group)
    leaves = r.seats_to_leave(running[0])
    if alone and len(spares) >= len(leaves) and not r.busy(running[0]):
        _begin(r, Reason.of(Code.LEAVES_ALONE, node=leaves[0].node, why=why))
        return
    if max(notice_s(r, g) for g in there) == math.inf:
        return  # a node that is only drained has no deadline
    if not _due(r, running, 1 / 2):
        return
    if any(
        g.phase in ("unplaced", "fencing", "placing", "starting") and not g.left_out and len(spares) >= _lacks(g)
        for g in r.groups.values()
    ):  # fmt: skip
        # One of those takes a spare, and the next can heal from it.
        _not_without_an_heir(r, running, why)
        return
    _begin(r, _with_long_steps(r, Reason.of(Code.ALL_LEAVE, why=why)))


def _lacks(group: GroupMemory) -> int:
    """Number of spares with which the group may start. The nodes that it keeps while it waits for others are spares."""
    kept = 0 if group.phase == "placing" and not group.placed else len(group.seats)
    return max(1, group.size - kept)


def _not_without_an_heir(r: Round, running: list[GroupMemory], why: str) -> None:
    """Begins the handover, if a group on a node that stays may not have healed before the last other is ended."""
    if max(notice_s(r, g) for g in running) == math.inf or not _due(r, running, 3 / 4):
        return
    _begin(r, _with_long_steps(r, Reason.of(Code.TRAINING_LEAVE, why=why)))


def notice_s(r: RoundView, group: GroupMemory) -> float:
    """Seconds from the notice that a node of it is leaving until the group is ended; inf if the notice sets no end."""
    return min((_seat_notice_s(r, seat, bool(group.seats)) for seat in group.last_seats), default=math.inf)


def _seat_notice_s(r: RoundView, seat: Seat, placed: bool) -> float:
    node, grant = r.observed.nodes.get(seat.node), r.observed.grants.get(r.given_by(seat))
    if grant is not None and grant.state == "granted" and grant.leaves_in_s:
        return grant.leaves_in_s
    return engines.warning_s(r.spec.allocation) if placed and node is not None and node.leaving else math.inf


def _warning_s(r: RoundView) -> float:
    """Shortest warning of any group's node, in seconds."""
    shortest = min((notice_s(r, g) for g in r.groups.values()), default=math.inf)
    return shortest if shortest < math.inf else engines.warning_s(r.spec.allocation)


def _due(r: RoundView, running: list[GroupMemory], part: float) -> bool:
    """Returns true if that part of the warning is over, or what is left is only enough for the last steps."""
    warn_s = _warning_s(r)
    since = min(a.leaving_since or r.now for g in running for a in r.allocations_of(g))
    due = since + max(0.0, min(part * warn_s, _usable_s(r) - _steps(r) * _pace(r)))
    if r.now < due:
        r.look_again(due)
    return r.now >= due


def _usable_s(r: RoundView) -> float:
    """Seconds of the warning that can be spent on the way to the last step."""
    warn_s = _warning_s(r)
    return warn_s - min(EARLY_S, warn_s / 5) - min(SAVING_S, warn_s / 8)


def _with_long_steps(r: RoundView, why: Reason) -> Reason:
    """Adds to a reason that a step takes too long for the warning, if it does."""
    pace = _pace(r)
    if pace <= _usable_s(r):
        return why
    return Reason.of(Code.AND, reason=why, note=Reason.of(Code.STEP_TOO_LONG, step_s=pace, warning_s=_warning_s(r)))


def _pace(r: RoundView) -> float:
    """Seconds that a step of the slowest group takes."""
    return max(
        (rank.step_s for group in r.groups.values() for rank in group_nodes.ranks_of(group, r.observed)), default=0.0
    )


def _steps(r: RoundView) -> int:
    """Steps from the newest known one to the last. The way takes no more than an eighth of the warning, unless steps
    are long. One step is under way, and may be over before every agent has heard of the last."""
    pace, margin_s = _pace(r), min(AHEAD_S, _warning_s(r) / 8)
    return 2 if pace >= margin_s or pace <= 0 else 2 + math.ceil(margin_s / pace)


def _begin(r: Round, why: Reason) -> None:
    step = step_ahead(r, 0.0) - 2 + _steps(r)
    r.draft = replace(r.draft, handover_at_step=step, handover_since=r.now)
    r.act("hand_over", f"hand_over:{r.before.decisions}", Reason.of(Code.HANDS_OVER, why=why, step=step))
    go_on(r)


def go_on(r: Round) -> None:
    """Goes on until every group has ended: only then may the first start again, so that all start from one checkpoint.

    A group that only starts has nothing to save and ends at once. One that has not ended within the time of a start is
    ended.
    """
    step = r.handover_at_step
    late = r.now >= r.draft.handover_since + r.spec.policy.start_timeout_s
    for group in list(r.groups.values()):
        slow = group.phase == "running" and (late or observe_mode.has_ended(group, r.incidents, r.observed))
        on_leaving = group.phase == "placing" and bool(r.must_leave(group))
        if not (slow or on_leaving or group.phase == "starting"):
            continue
        if r.full(group.group):
            return
        why = Reason.of(Code.NOT_ENDED_IN_TIME if slow else Code.ALL_HANDED_OVER, step=step)
        off(r, group, why)
        after = r.groups[group.group]
        r.act(
            "move", f"move:{group.group}:{after.generation}:{r.before.decisions}", why,
            group=group.group, generation=after.generation, node=r.seats_to_leave(group)[0].node, incident=after.incident,
        )  # fmt: skip
    waited_for = ("starting", "running") if late else ("starting", "running", "fencing")
    still = tuple(g.group for g in r.groups.values() if g.phase in waited_for)
    if still:
        until = None if late else r.draft.handover_since + r.spec.policy.start_timeout_s
        r.wait(Reason.of(Code.HANDING_OVER, step=step, still=still), until=until)
        return
    mark = r.draft.checkpoint
    r.draft = replace(r.draft, handover_at_step=None)
    ended = Reason.of(Code.ALL_ENDED, step=mark.step if mark is not None else None)
    r.act("hand_over", f"handed_over:{r.before.decisions}", ended)


def ended(r: Round, group: GroupMemory) -> bool:
    """Returns true if a group that ended cleanly did so for the handover; it is then taken off its node."""
    step = max((rank.step for rank in group_nodes.ranks_of(group, r.observed)), default=0)
    if r.handover_at_step is None or step >= r.spec.titan.steps:
        return False
    node = r.seats_to_leave(group)[0].node
    off(r, group, Reason.of(Code.HANDED_OVER, step=step, node=node, why=r.must_leave(group)))
    return True


def off(r: Round, group: GroupMemory, why: Reason, leaves: tuple[Seat, ...] = ()) -> None:
    """Takes a group off its nodes that must be left (or `leaves`), or off all: the next generation starts elsewhere, once
    this one is proved gone.

    An incident with a decision goes on. Otherwise a new reason states why the group moves, also for an incident that
    was only opened while the run was paused. An incident that is only observed ends here.
    """
    step = max((rank.step for rank in group_nodes.ranks_of(group, r.observed)), default=0)
    after = group.generation + 1 if group.phase in ("starting", "running") else group.generation
    known = r.incidents.get(group.incident)
    if known is not None and known.shadow:
        group, known = observe_mode.close(r, known), None
    if known is None or known.decided is None:
        leaving = tuple(node for node in group.nodes if r.leaving(node))
        incident = r.incident_for(group, Failure(Kind.LEAVING, (why,), nodes=leaving), step)
        incident = r.decide_incident(incident, Choice(Rung.REPLACE, Reason.of(Code.LEFT_BEFORE, why=why)), after)
    else:
        note = Reason.of(Code.MOVED, why=why)
        passed = known.rung < Rung.REPLACE and note not in known.considered
        considered = (*known.considered, note) if passed else known.considered
        incident = replace(known, generation_after=after, considered=considered)
        r.set_incident(incident)
    leaves = leaves or r.seats_to_leave(group)
    r.set_group(
        replace(
            group,
            generation=after,
            phase="fencing",
            since=r.now,
            seats=tuple(seat for seat in group.seats if seat not in leaves),
            left=group.seats,
            incident=incident.id,
        )
    )
