"""Judges numbers that are not finite: the model's fault if every group computed one, suspect hardware if one group did.

The mean over the groups is not finite for all of them at once, so all end at the same step with the same error. The
loss of each before it was averaged tells them apart. A finite loss far above the last ones is attributed in the same
way, and only reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from supervisor.core.evidence.group_nodes import ranks_of
from supervisor.core.model.incident import Confidence, Failure
from supervisor.core.model.kinds import Is, Kind, that_are
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import Observed, RankView, SpikeView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import RunSpec

OWN = frozenset({"own", "group"})
"""Words of a group whose own number it was. Its first rank to end may alone report it: the others end with it."""

BY_WORD = that_are(Is.BY_WORD)

NAMED = 5
"""Most groups that a reason names."""


@dataclass(frozen=True, slots=True)
class Told:
    """Reports of all groups, put together once a round: one number ends all of them."""

    own: frozenset[int]
    """Groups whose own number it was."""
    finite: tuple[int, ...]
    """Groups whose own number was finite."""
    mended: Mapping[int, float]
    """Groups whose own number it was, and about which something is done -> since when."""


def told(memory: Memory, observed: Observed) -> Told:
    words = {group.group: said(group, observed) for group in speaking(memory, observed)}
    mended = {i.group: i.opened for i in memory.incidents.values() if i.kind in BY_WORD}
    finite = tuple(g for g, mine in words.items() if not mine & OWN and "peers" in mine)
    return Told(frozenset(g for g, mine in words.items() if mine & OWN), finite, mended)


def speaking(memory: Memory, observed: Observed) -> list[GroupMemory]:
    """Groups of which ended ranks report such a number, by their own number."""
    there = {node.name for node in observed.nodes.values() for rank in node.ranks if rank.numerics}
    groups = [group for group in memory.groups.values() if not there.isdisjoint(group.nodes)] if there else []
    return sorted((group for group in groups if said(group, observed)), key=lambda group: group.group)


def judged(failure: Failure, group: GroupMemory, by_all: Told, observed: Observed) -> Failure:
    """Judges an ended group, if a number that is not finite was the cause and others report whose it was."""
    mine = said(group, observed)
    if failure.kind != Kind.ERROR or not mine:
        return failure
    failure = replace(failure, causes=(Kind.NUMERICS,))
    few = len(by_all.own) == 1 or len(by_all.own) < len(by_all.finite)
    if mine & OWN and by_all.finite and few:
        its_own = _of_groups(Code.OWN_NUMBERS, by_all.finite)
        same = f"{failure.same} (its own)" if failure.same else ""
        # what several ranks have of their own they may have in common: none of them is known to have spoilt it
        own = [rank.rank for rank in _ended(group, observed) if rank.numerics == "own"]
        return replace(
            failure, kind=Kind.NUMERICS, evidence=(*failure.evidence, its_own), same=same,
            rank=own[0] if len(own) == 1 else None, confidence=Confidence.LIKELY,
        )  # fmt: skip
    if mine & OWN and by_all.finite:
        of_many = _of_groups(Code.NUMBERS_OF_MANY, sorted(by_all.own))
        return replace(failure, evidence=(*failure.evidence, of_many), of_the_model=of_many)
    # A round changes a limited number of groups: one whose own it was may be mended already, and no longer reports it.
    spoilt = sorted(by_all.own | {g for g, at in by_all.mended.items() if g != group.group and group.since <= at})
    if mine == {"peers"} and spoilt:
        others = _of_groups(Code.OTHERS_NUMBERS, spoilt)
        return replace(failure, evidence=(*failure.evidence, others), same="", blameless=True)
    return failure


def _of_groups(code: Code, groups: Sequence[int]) -> Reason:
    return Reason.of(code, groups=tuple(groups[:NAMED]), more=max(0, len(groups) - NAMED))


def said(group: GroupMemory, observed: Observed) -> set[str]:
    """Words of its ended ranks: own, group, peers, parameters; empty if no such number ended them."""
    return {rank.numerics for rank in _ended(group, observed)}


def _ended(group: GroupMemory, observed: Observed) -> list[RankView]:
    return [rank for rank in ranks_of(group, observed) if rank.numerics and rank.state == "exited"]


def spike(groups: Mapping[int, GroupMemory], observed: Observed, spec: RunSpec) -> Reason | None:
    """Describes the newest step whose loss was far above the last ones, and whose it was. None if there is none, or
    until every group has reported that it is past it."""
    factor = spec.policy.loss_spike_factor
    ranks = [rank for g in groups.values() if g.phase == "running" for rank in ranks_of(g, observed)]
    found: dict[int, dict[int, SpikeView]] = {}
    steps: dict[int, int] = {}
    for rank in ranks:
        steps[rank.group] = max(rank.step, steps.get(rank.group, 0))
        told = rank.spike
        if told is not None and max(told.spreads, told.own_spreads) >= factor:
            known = found.setdefault(told.step, {}).setdefault(rank.group, told)
            if told.own_spreads > known.own_spreads:
                found[told.step][rank.group] = told
    step = max(found, default=0)
    if not found or min(steps.values()) < step:
        return None
    return _spike(step, found[step], len(steps), factor)


def _spike(step: int, told: Mapping[int, SpikeView], groups: int, factor: float) -> Reason:
    own = {g: s for g, s in sorted(told.items()) if s.own_spreads >= factor}
    if own and (2 * len(own) < groups or len(own) == 1 < groups):
        one = max(own.values(), key=lambda s: s.own_spreads)
        return Reason.of(
            Code.SPIKE_OF_OWN, step=step, groups=tuple(own), loss=one.own, usual=one.own_usual, spreads=one.own_spreads
        )
    one = max(told.values(), key=lambda s: s.spreads)
    return Reason.of(
        Code.SPIKE_OF_ALL, step=step, loss=one.loss, usual=one.usual, spreads=one.spreads, own=len(own), of=groups
    )
