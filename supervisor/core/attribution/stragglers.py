"""Detects stragglers: groups that take longer for a step than the others, or all of them longer than they did.

All step together, so their steps take as long as the slowest one's. The time that each takes itself, to compute and for
its data, tells them apart. It is reported first, and acted on only if the policy allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from supervisor.core.attribution import cross_host_recurrence
from supervisor.core.evidence.group_nodes import ranks_answering
from supervisor.core.model.incident import Confidence, Failure
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import GroupMemory, SlowSince
from supervisor.core.model.observed import Observed, RankView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import RunSpec
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView, trains

DIFFERENCE_S = 0.02
"""Seconds below which a factor proves nothing: steps of a few milliseconds differ by noise."""
NAMED = 5
"""Most groups that count as slow, the slowest first: of more than that it is the others that are unusual."""
STEPS = 64
"""Steps before a straggler is acted on: an agent's medians are of that many (agents/health/step_timing.py)."""
ACTS = (Rung.RESTART, Rung.REPLACE)
"""Rungs that a straggler may take: no run is halted, and no group left without a node, because it is slow."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A group that keeps the others waiting."""

    group: int
    generation: int
    step: int
    reported: Reason
    """The wait that reports it."""
    evidence: Reason
    rank: int | None
    """Rank that takes so long; None: the ranks of the group's nodes take alike, as each waits for the others."""
    confidence: Confidence
    sure: bool
    """True if at least three groups were compared, or it is slower than it was itself as well."""
    beyond: float
    """Share of its step, and so of every group's, that an ordinary one would not have taken."""
    for_data: bool
    """True if its data takes the time, not computing."""


def stragglers(groups: Mapping[int, GroupMemory], observed: Observed, spec: RunSpec) -> list[Slow]:
    """Returns the slow groups, the slowest first, NAMED of them at most."""
    taken = _taken(groups, observed)
    if len(taken) < 2:
        return []
    compute, data = (sorted(values) for values in zip(*((r.compute_s, r.data_s) for r in taken.values()), strict=True))
    own = sorted(_own_s(rank) for rank in taken.values())
    found = [g for g, rank in taken.items() if _longer(_own_s(rank), _usual(own, _own_s(rank)), spec)]
    found.sort(key=lambda g: (-_own_s(taken[g]), g))
    return [
        slow if known is not None else _of_all(slow, groups[g])
        for g in found[:NAMED]
        for known in (_waited_for(groups[g], taken[g], observed, spec),)
        for rank in (known or taken[g],)
        for slow in (_slow(
            groups[g], rank, _usual(own, _own_s(rank)), len(taken) - 1, spec,
            for_data=rank.data_s - _usual(data, rank.data_s) > rank.compute_s - _usual(compute, rank.compute_s),
        ),)
    ]  # fmt: skip


def _waited_for(group: GroupMemory, slowest: RankView, observed: Observed, spec: RunSpec) -> RankView | None:
    """Returns the rank for which the others of its group wait. None: those on several nodes take alike. On GPUs their
    waits for each other's shards count as computing, so only a rank that takes longer than all on the other nodes is
    known, or one whose data does."""
    if group.size == 1:
        return slowest
    ranks, slots = _timed(group, observed), spec.groups.slots
    for seconds in (_own_s, _data_s):
        first = max(ranks, key=seconds)
        elsewhere = [seconds(rank) for rank in ranks if rank.rank // slots != first.rank // slots]
        if elsewhere and _longer(seconds(first), max(elsewhere), spec):
            return first
    return None


def together(groups: Mapping[int, GroupMemory], observed: Observed, spec: RunSpec) -> Reason | None:
    """States that most of the groups take longer than they did when their generations began; None: they do not.
    Comparing groups would miss that, and a single group has no other to compare with. The words stay the same while it
    lasts.

    An agent's medians (agents/health/step_timing.py) are of ordinary steps: those with a new quorum, an evaluation, a checkpoint or a
    compile in them do not count. The first STEPS of a generation are all that there is for comparison.
    """
    running = sum(m.phase == "running" for m in groups.values())
    known = {g: rank for g, rank in _taken(groups, observed).items() if _past_s(rank) > 0}
    slow = {g: rank for g, rank in known.items() if _longer(_own_s(rank), _past_s(rank), spec)}
    if 2 * len(slow) <= running:
        return None
    ranks = slow.values()
    past = _middle(map(_past_s, ranks))
    more_data = _middle(r.data_s - r.data_past_s for r in ranks)
    for_data = more_data > _middle(r.compute_s - r.compute_past_s for r in ranks)
    about = {"times": _times(_middle(map(_own_s, ranks)), past), "past_s": past, "for_data": for_data}
    if running == 1:
        return Reason.of(Code.ALONE_SLOWER, group=min(slow), **about)
    return Reason.of(Code.ALL_SLOWER, slow=len(slow), of=running, **about)


def _taken(groups: Mapping[int, GroupMemory], observed: Observed) -> dict[int, RankView]:
    """The slowest rank of each group that runs and has learned its times."""
    return {g: rank for g, m in groups.items() if m.phase == "running" and (rank := _slowest(m, observed))}


def _times(seconds: float, usual: float) -> float:
    """Rounds to halves, so that the words stay the same while it lasts; below one and a half these are too coarse."""
    times = seconds / usual
    return round(2 * times) / 2 if times >= 1.5 else round(times, 1)


def _middle(values: Iterable[float]) -> float:
    """Median; of an even number the lower one."""
    in_order = sorted(values)
    return in_order[(len(in_order) - 1) // 2]


def _usual(in_order: list[float], mine: float) -> float:
    """Median of all; of two groups, the value of the other."""
    return sum(in_order) - mine if len(in_order) == 2 else in_order[(len(in_order) - 1) // 2]


def _of_all(slow: Slow, group: GroupMemory) -> Slow:
    """Returns what was found of a group, whose ranks are all as slow."""
    about = {**slow.reported.about, "rank": None, "node": ", ".join(group.nodes)}
    return replace(slow, rank=None, reported=Reason.of(Code.GROUP_SLOW, **about))


def _slow(group: GroupMemory, rank: RankView, usual: float, others: int, spec: RunSpec, for_data: bool) -> Slow:
    seconds, past = _own_s(rank), _past_s(rank)
    times = _times(seconds, usual)
    slower = past > 0 and _longer(seconds, past, spec)
    return Slow(
        group=group.group,
        generation=group.generation,
        step=rank.step,
        reported=Reason.of(
            Code.GROUP_SLOW, group=group.group, rank=rank.rank, node=group.nodes[rank.rank // spec.groups.slots],
            times=times, for_data=for_data,
        ),
        evidence=Reason.of(
            Code.SLOW, rank=rank.rank, times=times, for_data=for_data, seconds=_shown(seconds),
            compute_s=_shown(rank.compute_s), data_s=_shown(rank.data_s), usual_s=_shown(usual), past_s=_shown(past),
        ),
        rank=rank.rank,
        confidence=Confidence.LIKELY if slower else Confidence.SUSPECTED,
        sure=others >= 2 or slower,
        beyond=max(0.0, 1.0 - usual / seconds),
        for_data=for_data,
    )  # fmt: skip


def _shown(seconds: float) -> float:
    """Rounds as a reason keeps it."""
    return float(f"{seconds:.3g}")


def look(r: Round) -> dict[int, Failure]:
    """Reports those that are slow, and that all are. Returns the failure of the one to act on now, if any."""
    policy, found = r.spec.policy, stragglers(r.groups, r.observed, r.spec)
    for slow in found:
        r.wait(slow.reported)
    if of_all := together(r.groups, r.observed, r.spec):
        r.wait(of_all)
    sure = [slow for slow in found if slow.sure] if policy.first_rung.straggler != "ride_through" else []
    since = {s.group: _since(r, s) for s in sure}
    if since != r.before.slow:
        r.draft = replace(r.draft, slow=since)
    for slow in sure:
        began = since[slow.group]
        if r.now < began.since + policy.straggler_for_s:
            r.look_again(began.since + policy.straggler_for_s)
        elif slow.step >= began.step + STEPS and not _follows(r, r.groups[slow.group], began, slow.rank):
            return _due(r, r.groups[slow.group], slow, began)
    return {}


def _since(r: RoundView, slow: Slow) -> SlowSince:
    """Start of the slow time; that of another generation does not count."""
    known = r.before.slow.get(slow.group)
    if known is not None and known.generation == slow.generation:
        return known
    return SlowSince(generation=slow.generation, since=r.now, step=slow.step)


def _follows(r: Round, group: GroupMemory, since: SlowSince, rank: int | None) -> bool:
    """True if the group was slow on another host too: it is reported, and the next slowest may have its turn."""
    earlier = cross_host_recurrence.before(r, group, Failure(Kind.STRAGGLER, (), rank=rank), at=since.since)
    if group.incident or earlier is None:
        return False
    cross_host_recurrence.acquit(r, group, earlier)
    _not_touched(r, group, Reason.of(Code.SLOW_ELSEWHERE, host=earlier.host, incident=earlier.incident))
    return True


def _not_touched(r: RoundView, group: GroupMemory, *why: Reason) -> None:
    r.wait(Reason.of(Code.NOT_TOUCHED, group=group.group, why=why))


def _due(r: RoundView, group: GroupMemory, slow: Slow, since: SlowSince) -> dict[int, Failure]:
    """Returns the failure to act on, unless something else goes on, or no permitted rung is left."""
    incident = r.incidents.get(group.incident)
    if incident is not None and incident.kind == Kind.STRAGGLER:
        failure = Failure(Kind.STRAGGLER, incident.evidence, rank=incident.rank)  # the same while it lasts
        return {group.group: replace(failure, confidence=incident.confidence, took_s=incident.took_s)}
    others = [g for g in r.groups.values() if g.group != group.group]
    there = [g for g in r.groups.values() if not g.left_out]
    busy = next((g for g in there if r.busy(g) or g.phase not in ("running", "finished")), None)
    if r.phase != "running" or r.handover_at_step is not None or r.must_leave(group):
        return {}
    if busy is not None:
        about = {"other": busy.group, "incident": busy.incident, "phase": busy.phase}
        _not_touched(r, group, Reason.of(Code.ANOTHER_IS_BUSY, **about))
    elif not any(trains(g, r.incidents) for g in others):
        _not_touched(r, group, Reason.of(Code.NONE_TRAINS_BESIDE))
    elif (choice := r.choose(Kind.STRAGGLER, group.group)).rung not in ACTS:
        _not_touched(r, group, *choice.considered)
    else:
        took_s = r.now - since.since
        evidence = (slow.evidence, Reason.of(Code.SLOW_FOR, seconds=round(took_s), steps=slow.step - since.step))
        failure = Failure(Kind.STRAGGLER, evidence, rank=slow.rank, confidence=slow.confidence, took_s=took_s)
        return {group.group: failure}
    return {}


def _longer(seconds: float, usual: float, spec: RunSpec) -> bool:
    return seconds > spec.policy.straggler_factor * usual and seconds - usual > DIFFERENCE_S


def _slowest(group: GroupMemory, observed: Observed) -> RankView | None:
    """The rank that takes longest itself; the last report of a silent node is old."""
    found = None
    for rank in _timed(group, observed):
        if found is None or _own_s(rank) >= _own_s(found):
            found = rank
    return found


def _timed(group: GroupMemory, observed: Observed) -> list[RankView]:
    return [rank for rank in ranks_answering(group, observed) if rank.compute_s > 0 and rank.state == "running"]


def _data_s(rank: RankView) -> float:
    return rank.data_s


def _own_s(rank: RankView) -> float:
    return rank.compute_s + rank.data_s


def _past_s(rank: RankView) -> float:
    return rank.compute_past_s + rank.data_past_s
