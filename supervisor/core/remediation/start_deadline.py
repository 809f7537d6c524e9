"""Measures how much of a start is the group's own doing. A built group waits in its first quorum while the others are
at something long (an evaluation, a checkpoint, one slow step), or while they are too few to step. They will come, and
starting the group again would not bring them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from supervisor.core.evidence.group_nodes import ranks_of
from supervisor.core.model.memory import GroupMemory, Waited
from supervisor.core.model.observed import Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.round import observe_mode
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView

STEPS_ON = 2
"""Steps of the others without it that show that it does not wait for them: one is in flight as it comes."""

FROM = 0.5
"""Share of the start's timeout after which a start is watched: most are over by then, and nothing is remembered."""

LOOKED_AT = 10
"""Looks within the timeout at whether the others make steps; a part of it in which they do counts whole."""


SHOWN = 8
"""Most groups that a reason names."""


@dataclass(frozen=True, slots=True)
class _Others:
    """The groups that train, or will."""

    step: int
    """Newest step that one of them has reported."""
    awaited: bool
    """True if a training group is in no quorum, or too few wait in one while others are still to come."""


def excused(r: Round) -> Mapping[int, float]:
    """Seconds of each late start in which it waited for others that made no steps."""
    timeout_s = r.spec.policy.start_timeout_s
    late: list[GroupMemory] = []
    for group in r.groups.values():
        if group.phase == "starting" and r.now < (at := group.since + FROM * timeout_s):
            r.look_again(at)
        elif group.phase == "starting":
            late.append(group)
    seconds, found = _weigh(r, late, timeout_s / LOOKED_AT) if late else ({}, {})
    if found != r.before.waited:
        r.draft = replace(r.draft, waited=found)
    return seconds


def _weigh(r: RoundView, late: list[GroupMemory], every_s: float) -> tuple[dict[int, float], dict[int, Waited]]:
    """Returns the seconds that are excused now, and the waits to remember."""
    seconds, found, others = dict[int, float](), dict[int, Waited](), _others(r)
    for group in late:
        seen = r.before.waited.get(group.group)
        if seen is not None and seen.generation != group.generation:
            seen = None
        if seen is not None:
            seconds[group.group] = _excused_s(seen, r.now, others)
        after = _after(group, r, seen, others, every_s)
        if after is not None:
            found[group.group] = after
            r.look_again(r.now + every_s)
    return seconds, found


def _after(group: GroupMemory, r: RoundView, seen: Waited | None, others: _Others, every_s: float) -> Waited | None:
    """The wait of one group to remember from now on."""
    waits = others.awaited and _in_quorum(group, r.observed)
    if seen is None or seen.since is None:
        if not waits:
            return seen
        before_s = seen.excused_s if seen is not None else 0.0
        return Waited(generation=group.generation, step=others.step, since=r.now, excused_s=before_s)
    if not waits:
        return replace(seen, since=None, excused_s=_excused_s(seen, r.now, others))
    if r.now >= seen.since + every_s:
        # kept from now on: as they come to it, they may report steps with it before it reports any
        return replace(seen, step=others.step, since=r.now, excused_s=_excused_s(seen, r.now, others))
    return seen


def _excused_s(seen: Waited, now: float, others: _Others) -> float:
    stand = others.step < seen.step + STEPS_ON
    return seen.excused_s + (now - seen.since if seen.since is not None and stand else 0.0)


def _others(r: RoundView) -> _Others:
    alive = observe_mode.there(r.groups, r.incidents, r.observed)
    running = [g for g in alive.values() if g.phase == "running"]
    step = max((rank.step for g in running for rank in ranks_of(g, r.observed)), default=0)
    apart = any(ranks_of(g, r.observed) and not _in_quorum(g, r.observed) for g in running)
    return _Others(step, apart or _too_few(r, alive))


def _too_few(r: RoundView, alive: Mapping[int, GroupMemory]) -> bool:
    """True if fewer groups wait in a quorum than may step, while one is still to come. It is being started, with a
    timeout of its own; or a node is there for it, or an allocation not refused by the engine."""
    there = [g for g in r.groups.values() if g.phase in ("starting", "running") and _in_quorum(g, r.observed)]
    if not there or len(there) >= r.spec.groups.min_groups:
        return False
    named, brought = {g.group for g in there}, bool(r.next_spare or r.pending())
    to_come = [g for n, g in alive.items() if n not in named and g.phase != "finished" and (g.placed or brought)]
    if to_come:
        groups, more = tuple(g.group for g in there[:SHOWN]), max(0, len(there) - SHOWN)
        needed = r.spec.groups.min_groups
        r.wait(Reason.of(Code.LATE_FOR_OTHERS, groups=groups, more=more, there=len(there), needed=needed))
    return bool(to_come)


def _in_quorum(group: GroupMemory, observed: Observed) -> bool:
    """Returns true if all ranks of the group are in the quorum."""
    ranks = ranks_of(group, observed)
    return bool(ranks) and all(rank.phase == "quorum" for rank in ranks)
