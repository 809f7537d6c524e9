"""Reduces the evidence on each rank to one letter: a page shows ten thousand of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.core.attribution.stragglers import stragglers
from supervisor.core.evidence import stopped_ranks
from supervisor.core.evidence.group_failure import node_verdict, verdict_on
from supervisor.core.evidence.group_nodes import ranks_of
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import Observed, RankView, Verdict
from supervisor.core.model.spec import RunSpec
from supervisor.core.report.words import say

LETTERS: Mapping[str, str] = {
    "e": "ended",
    "h": "healthy",
    "w": "waiting",
    "t": "starting",
    "b": "debugged",
    "s": "slow",
    "u": "unknown",
    "g": "hung",
    "d": "dead",
}
"""The best first: a group is what its worst rank is. waiting (for a node, or for a group in the debugger), starting,
debugged and ended (runs no more) are not verdicts, but mean that there is nothing to judge."""

_WORST = {letter: place for place, letter in enumerate(LETTERS)}

TRAINS = ("h", "s")
"""Letters of ranks that commit steps."""


@dataclass(frozen=True, kw_only=True)
class GroupVerdict:
    """The verdict on one group. `ranks` has a letter for each rank."""

    ranks: str
    why: str
    """A sentence if it is not healthy; empty if there is nothing to say."""

    @property
    def worst(self) -> str:
        return max(self.ranks, key=_WORST.__getitem__)


def of_groups(groups: Mapping[int, GroupMemory], observed: Observed, spec: RunSpec) -> dict[int, GroupVerdict]:
    """Returns the verdict on every group of the run, including those never placed."""
    slow = {s.group: s for s in stragglers(groups, observed, spec)}
    found = {}
    for number in range(spec.groups.count):
        group = groups.get(number)
        verdict = _of_group(group, observed, spec) if group is not None else _all(spec, "w", "it has no node yet")
        lags = slow.get(number)
        if lags is not None and verdict.worst == "h":
            ranks = "".join("s" if lags.rank in (None, rank) else each for rank, each in enumerate(verdict.ranks))
            verdict = GroupVerdict(ranks=ranks, why=say(lags.reported))
        found[number] = verdict
    return found


def _all(spec: RunSpec, letter: str, why: str) -> GroupVerdict:
    return GroupVerdict(ranks=letter * spec.groups.ranks_per_group, why=why)


def _of_group(group: GroupMemory, observed: Observed, spec: RunSpec) -> GroupVerdict:
    if group.phase == "finished":
        return _all(spec, "e", "")
    if group.phase not in ("starting", "running"):
        return _all(spec, "d" if group.incident else "w", say(group.left_out) or _WAITS_FOR[group.phase])
    verdict, why = verdict_on(group, observed, spec)
    stands = stopped_ranks.debugged(group, observed)
    if verdict != Verdict.HEALTHY and not stands:
        seats = [node_verdict(node, group, observed, spec)[0] for node in group.nodes]
        return GroupVerdict(ranks="".join(_OF_NODE[each] * spec.groups.slots for each in seats), why=say(why))
    known = {rank.rank: rank for rank in ranks_of(group, observed)}
    said = [_of_rank(group, known.get(rank)) for rank in range(spec.groups.ranks_per_group)]
    hearing = observed.gate.hearing.get(group.group) if observed.gate is not None else None
    if hearing == "silent" and group.phase == "running" and not stands:
        said = [("u", "the gate no longer hears it") if letter == "h" else (letter, why) for letter, why in said]
    worst = max(said, key=lambda one: _WORST[one[0]])
    return GroupVerdict(ranks="".join(letter for letter, _ in said), why=worst[1])


_OF_NODE = {Verdict.DEAD: "d", Verdict.UNKNOWN: "u", Verdict.HEALTHY: "w"}
"""Letters of the ranks of a node, while another of its group is away: they wait for it."""

_WAITS_FOR = {
    "unplaced": "it has no node yet",
    "placing": "the supervisor looks for a node",
    "fencing": "its old generation must be known to have ended, or be fenced, before it may start again",
}


def _of_rank(group: GroupMemory, rank: RankView | None) -> tuple[str, str]:
    if rank is None:
        return ("t", f"generation {group.generation} is being started") if group.phase == "starting" else ("u", _UNTOLD)
    if rank.state == "exited":
        if rank.exit_code == 0:
            return "e", ""
        how = f"signal {rank.signal}" if rank.signal is not None else f"exit code {rank.exit_code}"
        return "d", f"rank {rank.rank} ended ({how}){': ' + rank.error if rank.error else ''}"
    if rank.debugging:
        return "b", f"a person has rank {rank.rank} in the debugger"
    if rank.phase == "waiting":
        return "w", "it waits: a person has another group in the debugger"
    if rank.stuck is not None:
        doing = f", in {rank.stuck.activity}" if rank.stuck.activity else ""
        return (
            "g",
            f"rank {rank.rank} exceeds the {rank.stuck.bound_s:.0f} s allowed for its step{doing}",
        )
    if group.phase == "starting":
        return "t", f"generation {group.generation} is starting ({rank.phase}): it has committed no step yet"
    return "h", ""


_UNTOLD = "its node does not report it"
