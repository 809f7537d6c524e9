"""The supervisor's whole brain: one pure function.

`decide(observed, spec, memory)` reads one etcd revision and returns what to remember, what was done and why, what it
waits for, and when to look again. It never asks for the time, never blocks, and gives the same answer for the same
input. The records in etcd are a projection of the memory that it returns.

A round goes through `STAGES`, in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from supervisor.core.attribution import circuit_breaker, flapping_hosts, stragglers
from supervisor.core.evidence import (
    checkpoint_lag,
    disk_faults,
    group_failure,
    group_nodes,
    nonfinite,
    stopped_ranks,
)
from supervisor.core.evidence.hang_attribution import TOGETHER, TOLD_S, UNSURE, Blame, blame
from supervisor.core.model.decision import Decision
from supervisor.core.model.incident import Failure
from supervisor.core.model.measured import remembered
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.signs import HELD, Sign, SignKind, kind_of
from supervisor.core.model.spec import RunSpec
from supervisor.core.policy import cordons
from supervisor.core.remediation import start_deadline
from supervisor.core.remediation.drain import leave
from supervisor.core.remediation.group_phases import follow
from supervisor.core.remediation.hold import hold
from supervisor.core.remediation.judge import judge
from supervisor.core.remediation.lighthouse import seat_lighthouse
from supervisor.core.remediation.placement import place
from supervisor.core.remediation.resume import resume
from supervisor.core.remediation.scale import add_groups, fill, scale
from supervisor.core.remediation.shutdown import wind_down
from supervisor.core.remediation.spare_pool import renew
from supervisor.core.round import observe_mode
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView
from supervisor.core.timeouts import solver


@dataclass(slots=True)
class Found:
    """Values that the stages of one round pass on."""

    hanging: Blame = field(default_factory=Blame)
    slow: dict[int, Failure] = field(default_factory=dict)
    failing: dict[int, Failure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a round."""

    name: str
    run: Callable[[Round, Found], None]
    writes: frozenset[str]
    """Fields of Memory that the stage may change. A test holds all decisions of the corpus against them."""
    why_here: str


# each calls by name, so that a test may replace the function
STAGES: tuple[Stage, ...] = (
    Stage(
        "lighthouse",
        lambda r, _: seat_lighthouse(r),
        frozenset({"lighthouse", "downs_done"}),
        "nothing starts without its address, which the stages after it read",
    ),
    Stage(
        "freed hosts",
        lambda r, _: _free_hosts(r),
        frozenset({"cordons", "groups"}),
        "a host that is free again may take a group in this round",
    ),
    Stage(
        "checkpoint",
        lambda r, _: _note_checkpoint(r),
        frozenset({"checkpoint"}),
        "what starts in this round starts from the newest one, and an ended generation's is still counted",
    ),
    Stage(
        "measured",
        lambda r, _: _note_measured(r),
        frozenset({"measured"}),
        "what was measured is kept before a group of it is changed",
    ),
    Stage(
        "begin",
        lambda r, _: _want_allocations(r),
        frozenset({"allocations", "groups", "phase"}),
        "a new run has its groups and allocations before anything is placed",
    ),
    Stage(
        "scale",
        lambda r, _: scale(r),
        frozenset(
            {
                "groups",
                "allocations",
                "incidents",
                "relaunches",
                "generations_above",
                "surplus",
                "stop_at_step",
                "stop_by",
            }
        ),
        "groups that are added are placed in this round, and those that end are judged no more",
    ),
    Stage(
        "follow",
        lambda r, _: _follow_all(r),
        frozenset({"groups", "incidents", "incidents_seen", "tried", "from_memory"}),
        "phases are those of now before anything is judged",
    ),
    Stage(
        "silent",
        lambda r, _: _note_silent(r),
        frozenset({"silent", "debugged"}),
        "by the phases of now",
    ),
    Stage(
        "hang",
        lambda r, found: _note_hang(r, found),
        frozenset({"behind", "suspects", "held_hang"}),
        "all groups are compared before one of them is judged",
    ),
    Stage(
        "slow",
        lambda r, found: _note_slow(r, found),
        frozenset({"slow", "groups", "cordons"}),
        "compares all groups as well; one that was slow on two hosts clears the first",
    ),
    Stage(
        "failing",
        lambda r, found: _find_failures(r, found),
        frozenset({"waited"}),
        "with every sign of this round noted",
    ),
    Stage(
        "breaker",
        lambda r, found: circuit_breaker.look(r, found.failing),
        frozenset({"breaker_since", "breaker_ended", "evict_until", "evictions_done"}),
        "counts all that fail before anything is done about one",
    ),
    Stage(
        "judge",
        lambda r, found: _judge_all(r, found),
        frozenset(
            {
                "groups",
                "incidents",
                "incidents_seen",
                "allocations",
                "cordons",
                "spent",
                "spent_by_kind",
                "restarts_done",
                "tried",
                "all_lost_at",
                "phase",
                "halt_reason",
                "from_memory",
            }
        ),
        "what is done about each, by what it holds",
    ),
    Stage(
        "wind down",
        lambda r, _: wind_down(r),
        frozenset(
            {"groups", "incidents", "allocations", "phase", "stop_at_step", "stop_by", "relaunching", "from_memory"}
        ),
        "a halt that was just decided begins to drain in this round",
    ),
    Stage(
        "breaker over",
        lambda r, _: circuit_breaker.over(r),
        frozenset({"breaker_since"}),
        "a run that ends holds nothing",
    ),
    Stage(
        "leave",
        lambda r, _: leave(r),
        frozenset(
            {
                "groups",
                "incidents",
                "incidents_seen",
                "allocations",
                "spent",
                "handover_at_step",
                "handover_since",
            }
        ),
        "failures come first: nodes are left only in a round that changes nothing else",
    ),
    Stage(
        "renew",
        lambda r, _: renew(r),
        frozenset({"allocations", "spent"}),
        "spares that are of no use are replaced before groups ask for them",
    ),
    Stage(
        "place",
        lambda r, _: _place(r),
        frozenset(
            {
                "groups",
                "incidents",
                "incidents_seen",
                "allocations",
                "spent",
                "restarts_done",
                "tried",
                "checkpoint",
                "resumed",
                "phase",
                "halt_reason",
                "from_memory",
            }
        ),
        "last: every stage before it may have freed a node, or asked for one",
    ),
)

_OF_POOLS = ("freed hosts", "begin", "wind down", "leave", "renew")

POOL_STAGES: tuple[Stage, ...] = (
    Stage(
        "hold",
        lambda r, _: hold(r),
        frozenset({"held_since", "idle_since", "phase"}),
        "a pool that ends asks for nothing any more in this round",
    ),
    *(stage for stage in STAGES if stage.name in _OF_POOLS),
)
"""The round of a pool, which has no groups: it keeps as many nodes as it was asked for, until it ends."""


def decide(observed: Observed, spec: RunSpec, memory: Memory) -> Decision:
    """Runs one round. Pure: same input, same output."""
    r = Round(observed, spec, memory)
    if memory.phase in ("halted", "stopped", "resuming") or (memory.phase == "finished" and observed.relaunch):
        resume(r)
    elif memory.phase != "finished":
        found = Found()
        for stage in POOL_STAGES if spec.is_pool else STAGES:
            stage.run(r, found)
    return r.done()


def _free_hosts(r: Round) -> None:
    for host in cordons.freed(r.observed, r.before.cordons):
        r.uncordon(host)
        flapping_hosts.freed(r, host)


def _follow_all(r: Round) -> None:
    for g in sorted(r.groups):
        follow(r, r.groups[g])
    if r.draft.from_memory and r.phase != "stopping" and any(g.phase == "running" for g in r.groups.values()):
        r.draft = replace(r.draft, from_memory=0)  # its state is in training now, and what is left elsewhere is old


def _note_hang(r: Round, found: Found) -> None:
    found.hanging = _who_hangs(r)
    _note_suspects(r, found.hanging)


def _note_slow(r: Round, found: Found) -> None:
    found.slow = stragglers.look(r)


def _find_failures(r: Round, found: Found) -> None:
    """Finds the groups that fail, and adds the waits about which nothing is done."""
    spike = nonfinite.spike(r.groups, r.observed, r.spec)
    no_way = group_failure.without_a_way(r.groups, r.observed, r.spec, r.before.lighthouse.opened)
    behind = checkpoint_lag.behind(r.groups, r.draft.checkpoint, r.observed, r.spec)
    for why in (*disk_faults.untold(r.groups, r.observed), *filter(None, (spike, no_way, behind))):
        r.wait(why)
    compared = group_failure.Compared(
        frozenset(found.hanging.groups),
        found.slow,
        group_failure.not_finite(r.observed, r.before),
        start_deadline.excused(r),
    )
    for g, group in r.groups.items():
        failure = group_failure.failure(group, r.observed, r.spec, r.before, compared)
        if failure is not None:
            found.failing[g] = failure


def _judge_all(r: Round, found: Found) -> None:
    for g in _in_order(r):
        judge(r, r.groups[g], found.failing.get(g))


def _place(r: Round) -> None:
    if r.phase == "running":
        place(r)


def _in_order(r: RoundView) -> list[int]:
    """Orders groups by number, after those whose own was not finite, while the others still report whose it was."""
    order = sorted(r.groups)
    if any(kind_of(key) == SignKind.NAN for key in r.before.suspects):
        order.sort(key=lambda g: not nonfinite.said(r.groups[g], r.observed) & nonfinite.OWN)
    return order


UNREPORTED_S = 10.0
"""Seconds of steps that a group may have made since its last report: twice the agents' default between two."""


def _note_checkpoint(r: Round) -> None:
    best = r.before.checkpoint
    for group in r.groups.values():
        for rank in group_nodes.ranks_of(group, r.observed):
            mark = rank.checkpoint
            # Only the current generation counts: an older one may have thawed in the middle of a write.
            own = mark is not None and (mark.group, mark.generation) == (group.group, group.generation)
            if mark is not None and own and (best is None or mark.step > best.step) and _borne_out(r, group, mark.step):
                best = mark
    if best is not None and best != r.before.checkpoint:
        r.draft = replace(r.draft, checkpoint=best)
        r.act("checkpoint", f"checkpoint:{best.step}", Reason.of(Code.SAVED, step=best.step), group=best.group)


def _borne_out(r: Round, group: GroupMemory, step: int) -> bool:
    """Returns false for a checkpoint that no other group bears out: those that the gate hears commit together, so it is
    ahead of what the others reported last by what they made since, and an interval at most. A forged one would hide the
    real ones."""
    heard = r.observed.gate.hearing if r.observed.gate is not None else {}
    others = (g for g in r.groups.values() if g is not group and heard.get(g.group) == "beating")
    # one that waits while the others go on, or whose agent is cut off, does not show what they committed
    shown = (other for other in others if other.group not in r.before.behind)
    ranks = (rank for other in shown for rank in group_nodes.ranks_answering(other, r.observed) if rank.commits)
    newest = max((rank.step + UNREPORTED_S / (rank.step_s or UNREPORTED_S) for rank in ranks), default=step)
    return step <= newest + r.spec.titan.checkpoint_interval_steps


def _note_measured(r: Round) -> None:
    known = remembered(r.before.measured, solver.measured(r.observed))
    if known != r.before.measured:
        r.draft = replace(r.draft, measured=known)


def _want_allocations(r: Round) -> None:
    if r.phase != "new" or r.paused:
        return
    filled, added = fill(r, r.spec, Reason.of(Code.RUN_STARTS)), add_groups(r)
    if filled and added:
        r.draft = replace(r.draft, phase="running")
    else:
        r.look_again(r.now)


def _note_suspects(r: Round, hanging: Blame) -> None:
    signs = (group_failure.suspect(g, r.observed) for g in r.groups.values() if g.seats and g.phase != "finished")
    suspects = {sign.key: r.before.suspects.get(sign.key, r.now) for sign in signs if sign is not None}
    for key, since in suspects.items():
        if kind_of(key) == SignKind.PEER and r.now < (
            until := since + r.spec.policy.node_lease_s + group_failure.LAPSE_S
        ):
            r.look_again(until)
        elif r.now < since + group_failure.engine_word_s(r.observed, r.spec):
            r.look_again(since + group_failure.engine_word_s(r.observed, r.spec))
        elif r.now < since + group_failure.ENGINE_AWAY_S and (r.observed.engine_listed_at or r.now) < since:
            r.look_again(r.now + 0.25)
    for g in r.groups.values():
        back = group_failure.back_since(g, r.observed, r.before) if g.incident else None
        if back is not None:
            suspects |= {Sign(SignKind.BACK, node).key: back for node in g.nodes}
    if hanging.unsure:
        suspects[UNSURE] = r.before.suspects.get(UNSURE, r.now)
    elif hanging.held:
        # the time of the first hold stays, whatever its sentence was then
        known = (since for key, since in r.before.suspects.items() if kind_of(key) == SignKind.HELD)
        suspects[HELD] = next(known, r.now)
    why = hanging.held if HELD in suspects else None
    if why != r.before.held_hang:
        r.draft = replace(r.draft, held_hang=why)
    _note_together(r, hanging, suspects)
    if suspects != r.before.suspects:
        r.draft = replace(r.draft, suspects=suspects)


def _note_together(r: RoundView, hanging: Blame, suspects: dict[str, float]) -> None:
    """Keeps the time when one hand last held up all groups, for as long as that counts."""
    at = r.now if hanging.together else r.before.suspects.get(TOGETHER)
    if at is None:
        return
    later = [end for counts_s in (r.spec.policy.hang.stopped_s, TOLD_S) if r.now < (end := at + counts_s)]
    if later:
        suspects[TOGETHER] = at
        if not hanging.together:
            r.look_again(min(later))


def _who_hangs(r: Round) -> Blame:
    since = r.before.suspects.get(UNSURE)
    found = blame(observe_mode.there(r.groups, r.incidents, r.observed), r.observed, r.spec, r.before)
    if found.behind != r.before.behind:
        r.draft = replace(r.draft, behind=found.behind)
    if found.held:
        until = (r.now if since is None else since) + r.spec.policy.hang.at_least_s
        r.wait(found.held, until=until if found.unsure else None)
    return found


def _note_silent(r: Round) -> None:
    gate = group_failure.listening(r.observed)
    silent = tuple(
        g.group
        for g in r.groups.values()
        if gate is not None
        and g.phase in ("starting", "running")  # the others wait in a collective for one that heals as it starts, too
        and gate.hearing.get(g.group) == "silent"
        and gate.admitted.get(g.group) == g.generation
    )
    if silent != r.before.silent and not r.paused:
        r.draft = replace(r.draft, silent=silent)
    waits = r.spec.policy.at_breakpoint == "wait"
    debugged = tuple(g.group for g in r.groups.values() if waits and stopped_ranks.debugged(g, r.observed))
    if debugged != r.before.debugged:
        r.draft = replace(r.draft, debugged=debugged)
