"""Finds the group that hangs. It makes all others wait, so each of them takes too long for a step. The activities of
the ranks tell them apart; where all wait for other groups, their stacks do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from supervisor.core.evidence import disk_faults, gpu_faults, stopped_ranks
from supervisor.core.evidence.group_nodes import all_answer, answering, ranks_answering, ranks_of, views
from supervisor.core.model.incident import Confidence, Failure
from supervisor.core.model.kinds import Kind
from supervisor.core.model.memory import Behind, GroupMemory, Memory
from supervisor.core.model.observed import ACROSS, WAITING, Observed, RankView, StuckView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.signs import Sign, SignKind
from supervisor.core.model.spec import HangSpec, RunSpec
from supervisor.core.model.stacks import Frame, StackView

ALONE = frozenset({"data", "save"})
"""Activities that involve no other rank."""
ITS_OWN = ALONE | {"checkpoint", "evaluate", "compile"}
"""Activities that a rank has completed once it waits for other groups: those still at them do not wait for it."""

STEPS_BEHIND = 2
"""Lead of others that shows that a waiting group does not wait for them: reports lag, and one step is in flight."""

TOLD_S = 10.0
"""Seconds after which all earlier steps are reported, and that a group goes on: twice the 5 s between reports."""

OTHERS_AT_LEAST = 2
"""Ranks of other groups that must wait at one place: of two ranks that differ, either may be the odd one."""

EXPLAINS_NOTHING = frozenset({"clock_unsynchronised"})
"""Facts of a machine that are no reason for a failure. Every other kind of fact counts in `_ill`: a group on such a
machine may be put down to a hang in which all wait."""

UNSEEN = "ranks_unseen"
"""Fact of a machine whose agent cannot read what its ranks do."""

MOST_FRAMES, MOST_CHARACTERS = 8, 200
"""Frames of a stack that evidence names, and characters of a name: a node must not make an incident too large for etcd."""

COLLECTIVES = "distributed_c10d.py"
"""File of torch.distributed's collectives."""

UNSURE = Sign(SignKind.UNSURE).key

TOGETHER = Sign(SignKind.TOGETHER).key
"""Sign whose time is when `Blame.together` was last true."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Findings about a hang of the run."""

    groups: tuple[int, ...] = ()
    """Groups to blame; several may hang, each on its own."""
    held: Reason | None = None
    """Reason why no group is blamed although one hangs; None if one is blamed, or none hangs."""
    unsure: bool = False
    """True if others may hang from the same cause and have not reported it yet: held for that, or for long enough."""
    behind: Mapping[int, Behind] = field(default_factory=dict)
    """Groups that take too long while others are ahead of them. The lead at first sight proves nothing: the others may
    have gained it while the group was stopped, and be busy by themselves since."""
    together: bool = False
    """True if every group hangs by itself, or a rank of each is stopped: one hand did that, and may undo it."""


def blame(
    groups: Mapping[int, GroupMemory],
    observed: Observed,
    spec: RunSpec,
    known: Memory,
) -> Blame:
    """Blames running groups whose own activity makes a step take too long, or of which a rank is stopped. `known`: the
    memory of the round before."""
    if observed.store_stable_s < spec.policy.node_lease_s:
        return Blame()  # reports from before the store was away may be out of date
    # its node's agent has cut it off, so the others train without it, as without one that is not there
    groups = {g: group for g, group in groups.items() if not stopped_ranks.debugged(group, observed)}
    found = _by_their_steps(groups, observed, spec, known.suspects.get(UNSURE), known.behind)
    limit_s = spec.policy.hang.stopped_s
    stopped, together = stopped_ranks.for_long(groups, observed, limit_s), stopped_ranks.together(groups, observed)
    found = replace(found, together=found.together or together)
    # stopped groups go on one after the other, and each node's agent reports it at its next look
    ago_s = observed.now - known.suspects.get(TOGETHER, -math.inf)
    if stopped and (together or ago_s < limit_s):
        return replace(found, groups=(), held=Reason.of(Code.ALL_STOPPED), unsure=False)
    if found.groups and not stopped and ago_s < TOLD_S:
        return replace(found, groups=(), held=Reason.of(Code.HUNG_TOGETHER, groups=found.groups), unsure=False)
    return replace(found, groups=tuple(sorted({*found.groups, *stopped})))


def _by_their_steps(
    groups: Mapping[int, GroupMemory],
    observed: Observed,
    spec: RunSpec,
    unsure_since: float | None,
    behind: Mapping[int, Behind],
) -> Blame:
    running = {g.group: g for g in groups.values() if g.phase == "running"}
    stuck = {g: found for g, group in running.items() if (found := stuck_ranks(group, observed))}
    unseen = tuple(g for g in sorted(running) if g not in stuck and _unseen(running[g], observed))
    if not stuck and not unseen:
        return Blame()
    steps = {g: _step(group, observed) for g, group in running.items()}
    ahead = max((step for g, step in steps.items() if g not in stuck and g not in unseen), default=0)
    waiting = [g for g in sorted(stuck) if steps[g] + STEPS_BEHIND <= ahead and not _by_itself(stuck[g])]
    late = {g: _when_seen(running[g], ahead, stuck[g], observed.now, behind) for g in waiting}
    left = tuple(g for g, seen in late.items() if seen.step + STEPS_BEHIND <= ahead)
    late |= {g: _when_lost(running[g], ahead, observed.now, behind) for g in _without(running, unseen, observed)}
    if not stuck:
        told = Blame(_left_out(running, late, steps, observed, spec))
    else:
        for_s = spec.policy.hang.at_least_s
        phases = {g.phase for g in groups.values() if not g.waits_for_long(observed.now, for_s)}
        told = _blame(_Waits(running, stuck, unseen, steps, left, phases), observed, spec, unsure_since)
    if told.groups and (away := disk_faults.away_for_all(v for g in running.values() for v in views(g, observed))):
        # The others may only have come past it before: one that is started again reads it too.
        told = Blame(held=Reason.of(Code.HANG_OF_SHARED, groups=told.groups, fact=away))
    return replace(told, behind=late)


def _when_lost(group: GroupMemory, ahead: int, now: float, known: Mapping[int, Behind] | None) -> Behind:
    seen = (known or {}).get(group.group)
    if seen is not None and seen.generation == group.generation:
        return seen
    return Behind(generation=group.generation, step=ahead, since=now)


def _without(running: Mapping[int, GroupMemory], unseen: tuple[int, ...], observed: Observed) -> tuple[int, ...]:
    """Returns the one group with unseen ranks, if the others make their steps without it. Their lead proves nothing, as
    its own steps are not reported."""
    others = running.keys() - set(unseen)
    return unseen if len(unseen) == 1 and 0 < _most_together(running, others, observed) <= len(others) else ()


def steps_unseen(group: GroupMemory, groups: Mapping[int, GroupMemory], observed: Observed) -> bool:
    """True if a group with unseen ranks makes steps: more groups made the others' newest step than they number."""
    others = {g: each for g, each in groups.items() if g != group.group and each.phase in ("starting", "running")}
    return _unseen(group, observed) and _most_together(others, others.keys(), observed) > len(others)


def _left_out(
    running: Mapping[int, GroupMemory],
    late: Mapping[int, Behind],
    steps: Mapping[int, int],
    observed: Observed,
    spec: RunSpec,
) -> tuple[int, ...]:
    """Returns the groups without which the others have made steps for as long as a hang takes: one missed quorum is
    none. Another group that made no step meanwhile is in no quorum either. If more take part than made steps, the late
    group may be one of them."""
    found = []
    for g, seen in late.items():
        others = running.keys() - {g}
        going = sum(seen.step + STEPS_BEHIND <= steps[other] for other in others)
        lasts = observed.now - seen.since >= _bound_s(running[g], observed, spec.policy.hang)
        if lasts and _most_together(running, others, observed) <= going:
            found.append(g)
    return tuple(found)


def _bound_s(group: GroupMemory, observed: Observed, limits: HangSpec) -> float:
    """Seconds that a step may take, by what the ranks reported while seen: it may write a checkpoint, or evaluate."""
    seen = [rank.measured for rank in ranks_of(group, observed)]
    usual = max((each.step_s + each.apart_s + each.pause_s for each in seen), default=0.0)
    return min(limits.at_most_s, max(limits.at_least_s, limits.factor * usual))


def _most_together(running: Mapping[int, GroupMemory], groups: Collection[int], observed: Observed) -> int:
    """Number of groups that made the newest step of any of these; 0 if not all have reported it."""
    made_by = [rank.participants for g in sorted(groups) for rank in ranks_of(running[g], observed)]
    return max(made_by, default=0) if all(made_by) else 0


def _when_seen(
    group: GroupMemory, ahead: int, ranks: list[RankView], now: float, known: Mapping[int, Behind] | None
) -> Behind:
    """Notes when the group was left behind, at which step of the others. At first reports may be of earlier steps."""
    seen = (known or {}).get(group.group)
    if seen is None or seen.generation != group.generation:
        waited_s = min(rank.stuck.activity_s for rank in ranks if rank.stuck is not None)
        return Behind(generation=group.generation, step=ahead, since=now - waited_s)
    return replace(seen, step=max(seen.step, ahead)) if now < seen.since + TOLD_S else seen


@dataclass(frozen=True, slots=True)
class _Waits:
    """The groups whose steps take too long, beside the others."""

    running: Mapping[int, GroupMemory]
    stuck: Mapping[int, list[RankView]]
    unseen: tuple[int, ...]
    """Groups whose ranks cannot be seen."""
    steps: Mapping[int, int]
    left: tuple[int, ...]
    """Groups that the others went on without."""
    phases: Set[str]
    """Phases of all groups that others wait for."""


def _blame(waits: _Waits, observed: Observed, spec: RunSpec, unsure_since: float | None) -> Blame:
    own = tuple(sorted(g for g, ranks in waits.stuck.items() if _by_itself(ranks)))
    if own and len(own) == len(waits.running) and len(waits.running) > 1:
        return Blame(held=_shared(waits.stuck), together=True)
    if own:
        return _by_themselves(own, waits, observed, spec, unsure_since)
    return _for_each_other(waits, observed, spec)


def _by_themselves(
    own: tuple[int, ...], waits: _Waits, observed: Observed, spec: RunSpec, unsure_since: float | None
) -> Blame:
    """Blames groups that hang in their own activity. Such a hang stalls all others, or is left behind. Until each of
    them shows one or the other, the cause may be shared."""
    least = min(waits.steps[g] for g in own)
    alive = {g for g, group in waits.running.items() if _runs(group, observed)}
    silent = tuple(g for g in sorted(alive - waits.stuck.keys()) if waits.steps[g] < least + STEPS_BEHIND)
    untold = tuple(g for g in own if _wait_for_one_of_theirs(waits.stuck[g], spec.groups.ranks_per_group))
    waited = unsure_since is not None and observed.now - unsure_since >= spec.policy.hang.at_least_s
    if (not silent and not untold) or waited:
        return Blame(own, unsure=bool(silent or untold))
    code = Code.HANG_OF_OTHERS if silent else Code.HANG_OF_RANKS
    return Blame(held=Reason.of(code, groups=own, others=silent or untold), unsure=True)


def _for_each_other(waits: _Waits, observed: Observed, spec: RunSpec) -> Blame:
    """Blames one of several groups that all wait for others, or holds."""
    running, stuck, phases, left = waits.running, waits.stuck, waits.phases, waits.left
    # a group that does not wait may be what they wait for: it may evaluate, or save
    all_wait = stuck.keys() | set(waits.unseen) == running.keys()
    broken = tuple(sorted(g for g in stuck if gpu_faults.replaces(running[g], observed, spec)))
    if all_wait and broken and len(broken) < len(running):
        return Blame(broken)  # a collective with a failed GPU ends for no one
    if left or not phases <= {"running", "finished"}:
        return Blame(left)  # a group that waits for one that is starting is not to blame
    over = "finished" in phases
    if len(running) < spec.groups.min_groups and not over:
        return Blame(held=Reason.of(Code.TOO_FEW_LEFT, count=len(running)))
    all_told = set(stuck) == set(running) and all(len(ranks) == spec.groups.ranks_per_group for ranks in stuck.values())
    if all_told and (odd := _elsewhere(stuck)):
        return Blame(odd)
    if all_told and (over or len(running) == 1):
        return Blame(tuple(sorted(stuck)))  # there is no other group, now or later, to wait for
    if set(stuck) == set(running) and len(running) > 1 and all(any(map(_own, ranks)) for ranks in stuck.values()):
        # some of their ranks wait in the next quorum for those that hang
        return Blame(held=_shared(stuck), together=True)
    if all_wait and len(ill := _ill(running, observed)) == 1:
        return Blame(ill)
    activities = tuple(sorted({s.activity for ranks in stuck.values() for r in ranks if (s := r.stuck) and s.activity}))
    return Blame(held=Reason.of(Code.ALL_WAIT, groups=tuple(sorted(stuck)), activities=activities))


def _shared(stuck: Mapping[int, list[RankView]]) -> Reason:
    what = {s.activity for ranks in stuck.values() for r in ranks if _own(r) and (s := r.stuck)}
    return Reason.of(Code.ALL_HANG, activities=tuple(sorted(what)))


def _runs(group: GroupMemory, observed: Observed) -> bool:
    """Returns true if the group could report a hang: its nodes answer, and all its processes are there."""
    own = [rank.state for rank in ranks_of(group, observed)] if all_answer(group, observed) else []
    return bool(own) and all(state == "running" for state in own)


def _elsewhere(stuck: Mapping[int, list[RankView]]) -> tuple[int, ...]:
    """Returns the one group with a rank where no rank of another group is, while all others wait where several groups
    do. Such a rank left a collective out. Empty while a stack is unknown. Empty too if that rank waits for others and
    several of those do not wait: then it waits for them."""
    places = {g: [_place(rank) for rank in ranks] for g, ranks in stuck.items()}
    if any(place is None for at in places.values() for place in at):
        return ()
    times = Counter(place for at in places.values() for place in dict.fromkeys(at))
    shared = {place for place, n in times.items() if place is not None and n > 1}
    odd = tuple(g for g, at in places.items() if set(at) - shared)
    others = sum(len(ranks) for g, ranks in stuck.items() if g not in odd)
    if len(odd) != 1 or others < OTHERS_AT_LEAST:
        return ()
    alone = {place.activity for place in places[odd[0]] if place is not None and place not in shared}
    waits_for_them = alone <= WAITING and any(place.activity not in WAITING for place in shared)
    return () if waits_for_them else odd


def _ill(running: Mapping[int, GroupMemory], observed: Observed) -> tuple[int, ...]:
    """Groups whose machine reports a fact that may keep a process from going on. Such a process may wait like the
    others: in a library that cannot write its log, for one."""
    return tuple(
        g for g, group in running.items() if any(set(node.facts) - EXPLAINS_NOTHING for node in views(group, observed))
    )


def _unseen(group: GroupMemory, observed: Observed) -> bool:
    """Returns true if an agent of the group cannot see whether it hangs."""
    return any(UNSEEN in node.facts for node in answering(group, observed))


class _Place(NamedTuple):
    activity: str
    calls: tuple[tuple[str, str], ...] = ()
    holds_lock: bool = False
    held_at: tuple[tuple[str, str], ...] = ()


def _place(rank: RankView) -> _Place | None:
    """Where a rank waits; None if unknown. A stack made unreadable by uninterruptible sleep is a place of its own."""
    stuck = rank.stuck
    if stuck is None or (where := stuck.where) is None:
        return None
    if not where.frames:
        return _Place(stuck.activity) if stuck.process == "uninterruptible" else None
    calls, held_at = (tuple(frame.place for frame in frames) for frames in (where.frames, where.held_at))
    return _Place(stuck.activity, calls, where.holds_lock, held_at)


def failure(group: GroupMemory, observed: Observed) -> Failure:
    """Describes the hang of a group that is at fault, with a reason for each rank that takes too long. Ranks that are
    stopped, or wait for no one, come first. Ranks inside a collective of the group come last: they wait for the others,
    which only their stacks may show. No rank is named if either of two may wait for the other's shard."""
    ranks = sorted(stuck_ranks(group, observed), key=lambda r: (_likely(r), r.rank))
    stuck = [(rank, rank.stuck) for rank in ranks if rank.stuck is not None]
    own = any(_own(rank) for rank in ranks)
    first = _likely(ranks[0]) if ranks else ()
    either = [_likely(rank) for rank in ranks].count(first) > 1 and not (_stands(ranks[0]) or _alone(ranks[0]))
    named = ranks and ((_own(ranks[0]) and not _wait_inside(ranks) and not either) or _left_it_out(ranks))
    return Failure(
        Kind.HANG,
        tuple(_reason(rank, what) for rank, what in stuck) or (Reason.of(Code.STEPS_UNSEEN),),
        rank=ranks[0].rank if named else None,
        confidence=Confidence.LIKELY if own else Confidence.SUSPECTED,
        took_s=max((what.lasted_s or what.bound_s for _, what in stuck), default=0.0),
    )


def _likely(rank: RankView) -> tuple[bool, ...]:
    """Sort key: the smallest marks the rank for which the others of its group most likely wait."""
    return not _stands(rank), not _alone(rank), _in_a_collective(rank), not _own(rank)


def _left_it_out(ranks: list[RankView]) -> bool:
    """Returns true if the first rank is at the commit while others of its group wait for it inside a collective."""
    first = ranks[0].stuck
    return first is not None and first.activity == "commit" and _in_a_collective(ranks[-1])


def stuck_ranks(group: GroupMemory, observed: Observed) -> list[RankView]:
    """Ranks of the group's current generation that take too long; none of a node that does not answer now."""
    return [r for r in ranks_answering(group, observed) if r.stuck is not None and r.state == "running"]


def _by_itself(ranks: list[RankView]) -> bool:
    """Returns true if the group waits for no other. If one of its ranks does, the others may wait for that rank's
    shard, unless they are at something of their own."""
    if any(_stands(r) or _at_its_own(r) for r in ranks):
        return True
    return any(map(_own, ranks)) and not any(r.stuck is not None and r.stuck.activity in ACROSS for r in ranks)


def _at_its_own(rank: RankView) -> bool:
    return rank.stuck is not None and rank.stuck.activity in ITS_OWN and not _in_a_collective(rank)


def _alone(rank: RankView) -> bool:
    return rank.stuck is not None and rank.stuck.activity in ALONE


def _wait_for_one_of_theirs(ranks: list[RankView], of: int) -> bool:
    """Returns true if not all ranks are known to take too long, and those that do wait for another rank of the group.
    Each rank has learned a bound of its own, and that of one that waits may be the shorter."""
    return len(ranks) < of and _wait_inside(ranks)


def _wait_inside(ranks: list[RankView]) -> bool:
    """Returns true if each rank waits for another one of its group; the stacks do not show for which."""
    return all(_in_a_collective(r) and not _stands(r) for r in ranks)


def _own(rank: RankView) -> bool:
    """Returns true if the rank itself hangs. A process that is stopped, or lacks the interpreter's lock, hangs whatever
    it was doing. Nothing is known of a rank that reports no activity."""
    return _stands(rank) or (rank.stuck is not None and rank.stuck.activity not in WAITING | {""})


def _stands(rank: RankView) -> bool:
    where = rank.stuck.where if rank.stuck is not None else None
    return _stopped(rank) or (where is not None and bool(where.held_at))


def _stopped(rank: RankView) -> bool:
    return rank.stuck is not None and rank.stuck.process == "stopped"


def _in_a_collective(rank: RankView) -> bool:
    where = rank.stuck.where if rank.stuck is not None else None
    return where is not None and bool(where.frames) and where.frames[0].file == COLLECTIVES


def _step(group: GroupMemory, observed: Observed) -> int:
    return max((rank.step for rank in ranks_of(group, observed)), default=0)


def _reason(rank: RankView, stuck: StuckView) -> Reason:
    return Reason.of(
        Code.NO_STEP, rank=rank.rank, bound_s=stuck.bound_s, usual_s=stuck.usual_s, activity=stuck.activity,
        activity_s=stuck.activity_s, process=stuck.process, stack=_stack(stuck.where),
    )  # fmt: skip


def _stack(where: StackView | None) -> Reason | str:
    if where is None:
        return ""
    if where.unknown:
        return Reason.of(Code.STACK_UNKNOWN, why=where.unknown[:MOST_CHARACTERS])
    frames, held_at = map(_bounded, (where.frames, where.held_at))
    return Reason.of(Code.STACK, frames=frames, holds_lock=where.holds_lock, held_at=held_at)


def _bounded(frames: tuple[Frame, ...]) -> tuple[tuple[str, str, int], ...]:
    return tuple(
        (frame.function[:MOST_CHARACTERS], frame.file[:MOST_CHARACTERS], frame.line) for frame in frames[:MOST_FRAMES]
    )
