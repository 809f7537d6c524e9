"""Who hangs. One that hangs makes all others wait, so each of them takes too long for a step: what it does tells them apart,
and where that is a wait for all of them, their stacks do."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from supervisor.core import disks, gpu, stops
from supervisor.core.model import Behind, Confidence, Failure, GroupMemory, Kind, Memory, Observed, RankView, StuckView
from supervisor.core.reason import Code, Reason
from supervisor.core.signs import Sign, SignKind
from supervisor.core.spec import HangSpec, RunSpec

ACROSS = frozenset({"quorum", "collective", "heal"})
"""What waits for other groups."""
WAITING = ACROSS | {"commit"}
"""What waits for other ranks. In all else a rank waits for nobody, or, unseen, for the shards of its own group."""

ALONE = frozenset({"data", "save"})
"""What a rank does without any other."""
ITS_OWN = ALONE | {"checkpoint", "evaluate", "compile"}
"""What a rank that is still at it waits for in vain from nobody who has come as far as a wait for other groups: that one is through
with it."""

STEPS_BEHIND = 2
"""One that waits while others are so far ahead does not wait for them: steps are reported at different times, and one is
in flight."""

NONE_ENDED = "it is a cause that they share, so none is ended"

TOLD_S = 10.0
"""A node tells its steps every 5 s: by twice that all that were made before are told, and that a group goes on."""

OTHERS_AT_LEAST = 2
"""So many ranks of other groups must wait at one place: of two that differ either may be the odd one."""

EXPLAINS_NOTHING = frozenset({"clock_unsynchronised"})
"""Facts of a machine that are no reason for a failure."""

UNSEEN = "ranks_unseen"
"""The fact of a machine whose agent cannot read what its ranks do."""

COLLECTIVES = "(distributed_c10d.py:"
"""File of torch.distributed's collectives, as an innermost frame names it."""

LOCKED_BY_ANOTHER = "another thread holds the interpreter's lock"
"""Words of a stack whose main thread can go on nowhere: it is no wait for others, whatever it was about to do."""

_LINE = re.compile(r":\d+\)")

UNSURE = Sign(SignKind.UNSURE).key

TOGETHER = Sign(SignKind.TOGETHER).key
"""As `Blame.together`, when that was last so."""


@dataclass(frozen=True, slots=True)
class Blame:
    """What is known of a hang of the run."""

    groups: tuple[int, ...] = ()
    """Whose fault it is; several hang on their own."""
    held: str = ""
    """Why nobody is blamed though somebody hangs; empty: somebody is, or nobody hangs."""
    unsure: bool = False
    """Others may hang of the same cause and have not said so yet: held because of that, or held for long enough."""
    behind: Mapping[int, Behind] = field(default_factory=dict)
    """Groups that take too long while others are ahead of them. How far those had come before says nothing: they may have passed
    it while it was stopped, and be busy by themselves since."""
    together: bool = False
    """Every group hangs by itself, or a rank of each is stopped: one hand did that, and may undo it."""


def blame(
    groups: Mapping[int, GroupMemory],
    observed: Observed,
    spec: RunSpec,
    known: Memory,
) -> Blame:
    """Of the groups that run, those by whose own doing a step takes too long, or of which a rank is stopped. `known`: what was
    noted the last time."""
    if observed.store_stable_s < spec.policy.node_lease_s:
        return Blame()  # what was reported before the store was away may be over
    found = _by_their_steps(groups, observed, spec, known.suspects.get(UNSURE), known.behind)
    limit_s = spec.policy.hang.stopped_s
    stopped, together = stops.for_long(groups, observed, limit_s), stops.together(groups, observed)
    found = replace(found, together=found.together or together)
    # they go on one after the other, and each node's agent tells it at its next look
    ago_s = observed.now - known.suspects.get(TOGETHER, -math.inf)
    if stopped and (together or ago_s < limit_s):
        return replace(found, groups=(), held=f"{stops.SHARED}: {NONE_ENDED}", unsure=False)
    if found.groups and not stopped and ago_s < TOLD_S:
        return replace(found, groups=(), held=f"{_hang(found.groups)}, as all groups did a moment ago", unsure=False)
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
    if told.groups and (away := disks.away_for_all(observed.nodes.get(g.node) for g in running.values())):
        # The others may only have come past it before: one that is started again reads it too.
        told = Blame(held=f"{_hang(told.groups)}; the nodes of all groups say: {away}: {NONE_ENDED}")
    return replace(told, behind=late)


def _when_lost(group: GroupMemory, ahead: int, now: float, known: Mapping[int, Behind] | None) -> Behind:
    seen = (known or {}).get(group.group)
    if seen is not None and seen.generation == group.generation:
        return seen
    return Behind(generation=group.generation, step=ahead, since=now)


def _without(running: Mapping[int, GroupMemory], unseen: tuple[int, ...], observed: Observed) -> tuple[int, ...]:
    """The one group whose ranks cannot be seen, while the others make their steps without it. That they are ahead of it says
    nothing: its own steps are not told."""
    others = running.keys() - set(unseen)
    return unseen if len(unseen) == 1 and 0 < _most_together(running, others, observed) <= len(others) else ()


def steps_unseen(group: GroupMemory, groups: Mapping[int, GroupMemory], observed: Observed) -> bool:
    """Whether a group whose ranks cannot be seen makes steps all the same: the others make theirs with more than they are."""
    others = {g: each for g, each in groups.items() if g != group.group and each.phase in ("starting", "running")}
    return _unseen(group, observed) and _most_together(others, others.keys(), observed) > len(others)


def _left_out(
    running: Mapping[int, GroupMemory],
    late: Mapping[int, Behind],
    steps: Mapping[int, int],
    observed: Observed,
    spec: RunSpec,
) -> tuple[int, ...]:
    """Without whom the others have made steps all the while for as long as a hang takes: one quorum that it missed is none. Of the
    others who has made none meanwhile is in no quorum either: then those that do may step with it."""
    found = []
    for g, seen in late.items():
        others = running.keys() - {g}
        going = sum(seen.step + STEPS_BEHIND <= steps[other] for other in others)
        lasts = observed.now - seen.since >= _bound_s(running[g], observed, spec.policy.hang)
        if lasts and _most_together(running, others, observed) <= going:
            found.append(g)
    return tuple(found)


def _bound_s(group: GroupMemory, observed: Observed, limits: HangSpec) -> float:
    """How long a step of it may take, by what its ranks had told while they were seen: it may be at a checkpoint, or evaluate."""
    seen = [rank.measured for rank in _ranks(group, observed)]
    usual = max((each.step_s + each.apart_s + each.pause_s for each in seen), default=0.0)
    return min(limits.at_most_s, max(limits.at_least_s, limits.factor * usual))


def _most_together(running: Mapping[int, GroupMemory], groups: Collection[int], observed: Observed) -> int:
    """How many groups made the newest step of any of these; 0: not all have told."""
    made_by = [rank.participants for g in sorted(groups) for rank in _ranks(running[g], observed)]
    return max(made_by, default=0) if all(made_by) else 0


def _when_seen(
    group: GroupMemory, ahead: int, ranks: list[RankView], now: float, known: Mapping[int, Behind] | None
) -> Behind:
    """What is told in the first seconds of its wait may be of steps that were made before."""
    seen = (known or {}).get(group.group)
    if seen is None or seen.generation != group.generation:
        waited_s = min(rank.stuck.activity_s for rank in ranks if rank.stuck is not None)
        return Behind(generation=group.generation, step=ahead, since=now - waited_s)
    return replace(seen, step=max(seen.step, ahead)) if now < seen.since + TOLD_S else seen


@dataclass(frozen=True, slots=True)
class _Waits:
    """Groups whose steps take too long, beside the others."""

    running: Mapping[int, GroupMemory]
    stuck: Mapping[int, list[RankView]]
    unseen: tuple[int, ...]
    """Groups whose ranks cannot be seen."""
    steps: Mapping[int, int]
    left: tuple[int, ...]
    """Groups that the others went on without."""
    phases: Set[str]
    """Phases of all groups that anyone waits for."""


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
    """Blames groups that hang in their own doing. A hang stalls all others, or is left behind: until each of them shows one or the
    other, the cause may be shared."""
    least = min(waits.steps[g] for g in own)
    alive = {g for g, group in waits.running.items() if _runs(group, observed)}
    silent = [g for g in sorted(alive - waits.stuck.keys()) if waits.steps[g] < least + STEPS_BEHIND]
    untold = [g for g in own if _wait_for_one_of_theirs(waits.stuck[g], spec.groups.ranks_per_group)]
    waited = unsure_since is not None and observed.now - unsure_since >= spec.policy.hang.at_least_s
    if (not silent and not untold) or waited:
        return Blame(own, unsure=bool(silent or untold))
    others = f"whether {_listed(silent)} does too" if silent else f"for which rank of {_listed(untold)} the others wait"
    return Blame(held=f"{_hang(own)}; not known yet {others}", unsure=True)


def _for_each_other(waits: _Waits, observed: Observed, spec: RunSpec) -> Blame:
    """Blames one of the groups that all wait for others, or holds."""
    running, stuck, phases, left = waits.running, waits.stuck, waits.phases, waits.left
    # a group that does not wait may be what they wait for: it may evaluate, or save
    all_wait = stuck.keys() | set(waits.unseen) == running.keys()
    broken = tuple(sorted(g for g in stuck if gpu.replaces(running[g], observed, spec)))
    if all_wait and broken and len(broken) < len(running):
        return Blame(broken)  # a collective with a GPU that has failed ends for nobody
    if left or not phases <= {"running", "finished"}:
        return Blame(left)  # who waits for one that is being started is to blame for nothing
    over = "finished" in phases
    if len(running) < spec.groups.min_groups and not over:
        return Blame(
            held=f"{len(running)} groups are left, too few to step: they wait for one that has ended and is left so"
        )
    all_told = set(stuck) == set(running) and all(len(ranks) == spec.groups.ranks_per_group for ranks in stuck.values())
    if all_told and (odd := _elsewhere(stuck)):
        return Blame(odd)
    if all_told and (over or len(running) == 1):
        return Blame(tuple(sorted(stuck)))  # nobody is there, or comes, whom they could wait for
    if set(stuck) == set(running) and len(running) > 1 and all(any(map(_own, ranks)) for ranks in stuck.values()):
        # some of their ranks wait in the next quorum for those that hang
        return Blame(held=_shared(stuck), together=True)
    if all_wait and len(ill := _ill(running, observed)) == 1:
        return Blame(ill)
    names = ", ".join(map(str, sorted(stuck)))
    said = sorted({s.activity for ranks in stuck.values() for r in ranks if (s := r.stuck) and s.activity})
    where = f" in {' and '.join(said)}" if said else ""
    return Blame(held=f"groups {names} wait{where} for longer than a step may take: not known for whom")


def _shared(stuck: Mapping[int, list[RankView]]) -> str:
    what = sorted({s.activity for ranks in stuck.values() for r in ranks if _own(r) and (s := r.stuck)})
    return f"every group hangs, in {' and '.join(what)}: {NONE_ENDED}"


def _runs(group: GroupMemory, observed: Observed) -> bool:
    """Whether it could say that it hangs: its node answers, and all its processes are there."""
    node = observed.nodes.get(group.node)
    ranks = node.ranks if node is not None and node.registered else ()
    own = [r.state for r in ranks if (r.group, r.generation) == (group.group, group.generation)]
    return bool(own) and all(state == "running" for state in own)


def _listed(groups: Collection[int]) -> str:
    return f"group{'s' if len(groups) > 1 else ''} {', '.join(map(str, groups))}"


def _hang(groups: Collection[int]) -> str:
    return f"{_listed(groups)} hang{'' if len(groups) > 1 else 's'}"


def _elsewhere(stuck: Mapping[int, list[RankView]]) -> tuple[int, ...]:
    """The one group of which a rank is where no rank of another group is, while those wait only where ranks of several groups do: as
    one is that left a collective out. Empty while a stack is not known; and where it waits for others and several of those do not:
    then it is for these."""
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
    """Groups on whose machine something holds that may keep a process from going on: a library that cannot write its log, for
    one, may wait like the others."""
    nodes = {g: observed.nodes.get(group.node) for g, group in running.items()}
    return tuple(g for g, node in nodes.items() if node is not None and set(node.facts) - EXPLAINS_NOTHING)


def _unseen(group: GroupMemory, observed: Observed) -> bool:
    """Whether its agent cannot say that it hangs."""
    node = observed.nodes.get(group.node)
    return node is not None and node.registered and UNSEEN in node.facts


class _Place(NamedTuple):
    activity: str
    where: str
    """By its stack, without line numbers: a loop that waits is seen at any of its lines."""


def _place(rank: RankView) -> _Place | None:
    """Where it waits; None: not known. That a stack cannot be read since the process is in uninterruptible sleep is a place of its own."""
    stuck = rank.stuck
    if stuck is None:
        return None
    if not stuck.stack.startswith("in "):
        asleep = stuck.stack and stuck.process == "uninterruptible"
        return _Place(stuck.activity, stuck.process) if asleep else None
    return _Place(stuck.activity, _LINE.sub(")", stuck.stack))


def failure(group: GroupMemory, observed: Observed) -> Failure:
    """The hang of a group that is to blame, with a reason for each rank that takes too long, the ones that are stopped or wait
    for nobody first, and those inside a collective of the group, which may be seen by their stacks alone, last: they wait for the
    others. Of two of which either may wait for the other's shard none is named."""
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
    """How likely it is the one for which the others of its group wait: the smallest is."""
    return not _stands(rank), not _alone(rank), _in_a_collective(rank), not _own(rank)


def _left_it_out(ranks: list[RankView]) -> bool:
    """Whether the first is at the commit while others of its group are inside a collective: they wait for it there."""
    first = ranks[0].stuck
    return first is not None and first.activity == "commit" and _in_a_collective(ranks[-1])


def stuck_ranks(group: GroupMemory, observed: Observed) -> list[RankView]:
    """Of the group's current generation; a node that does not answer says nothing of now."""
    node = observed.nodes.get(group.node)
    if node is None or not node.registered:
        return []
    return [
        rank
        for rank in node.ranks
        if rank.stuck is not None
        and rank.group == group.group
        and rank.generation == group.generation
        and rank.state == "running"
    ]


def _by_itself(ranks: list[RankView]) -> bool:
    """Whether a group waits for no other. Where one of its ranks does, the others may wait for that one's shard, unless they are at
    something of their own."""
    if any(_stands(r) or _at_its_own(r) for r in ranks):
        return True
    return any(map(_own, ranks)) and not any(r.stuck is not None and r.stuck.activity in ACROSS for r in ranks)


def _at_its_own(rank: RankView) -> bool:
    return rank.stuck is not None and rank.stuck.activity in ITS_OWN and not _in_a_collective(rank)


def _alone(rank: RankView) -> bool:
    return rank.stuck is not None and rank.stuck.activity in ALONE


def _wait_for_one_of_theirs(ranks: list[RankView], of: int) -> bool:
    """Whether all that is known of a group's hang is who waits for another of its ranks: each has learned a bound of its own, and
    that of one that waits may be the shorter."""
    return len(ranks) < of and _wait_inside(ranks)


def _wait_inside(ranks: list[RankView]) -> bool:
    """Whether each waits for another of its group: which one for which is not seen."""
    return all(_in_a_collective(r) and not _stands(r) for r in ranks)


def _own(rank: RankView) -> bool:
    """A stopped process hangs wherever it was stopped, and so does one without the interpreter's lock. Of one that does not say what
    it does nothing is known."""
    return _stands(rank) or (rank.stuck is not None and rank.stuck.activity not in WAITING | {""})


def _stands(rank: RankView) -> bool:
    return _stopped(rank) or (rank.stuck is not None and LOCKED_BY_ANOTHER in rank.stuck.stack)


def _stopped(rank: RankView) -> bool:
    return rank.stuck is not None and rank.stuck.process == "stopped"


def _in_a_collective(rank: RankView) -> bool:
    return rank.stuck is not None and COLLECTIVES in rank.stuck.stack.partition(" < ")[0]


def _step(group: GroupMemory, observed: Observed) -> int:
    return max((rank.step for rank in _ranks(group, observed)), default=0)


def _ranks(group: GroupMemory, observed: Observed) -> list[RankView]:
    """Of its current generation."""
    node = observed.nodes.get(group.node)
    ranks = node.ranks if node is not None else ()
    return [rank for rank in ranks if (rank.group, rank.generation) == (group.group, group.generation)]


def _reason(rank: RankView, stuck: StuckView) -> Reason:
    return Reason.of(
        Code.NO_STEP, rank=rank.rank, bound_s=stuck.bound_s, usual_s=stuck.usual_s, activity=stuck.activity,
        activity_s=stuck.activity_s, process=stuck.process, stack=stuck.stack,
    )  # fmt: skip
