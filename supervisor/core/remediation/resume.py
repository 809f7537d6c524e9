"""Leads a run out of a halt, a stop or a restore: all groups start from the newest checkpoint, in new generations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from supervisor.core.model.measured import NOTHING
from supervisor.core.model.memory import GroupMemory, Lighthouse, Memory
from supervisor.core.model.observed import NextSpec
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import RunSpec, TorchFTSpec
from supervisor.core.remediation import scale
from supervisor.core.round.draft import Round

GROUPS_A_ROUND = 40
"""Groups that one round resets: one operation each; a transaction holds 120."""


_FORGOTTEN: Mapping[str, Any] = {
    "halt_reason": None, "stop_at_step": None, "stop_by": None, "relaunching": False, "from_memory": 0, "surplus": 0,
    "handover_at_step": None, "suspects": {}, "held_hang": None, "silent": (),
}  # fmt: skip
"""Fields of Memory about the groups as they were, with their values at a start."""


def fresh_group(group: GroupMemory, now: float, raise_by: int) -> GroupMemory:
    """Returns the group as if it was never placed, at a generation `raise_by` above its last one."""
    return GroupMemory(group=group.group, generation=group.generation + raise_by, since=now)


def fresh_start(memory: Memory, now: float, raise_by: int) -> Memory:
    """Returns a memory to start again from. Budgets are full and no host is cordoned: a person has looked."""
    return replace(
        memory,
        phase="new",
        groups={g: fresh_group(group, now, raise_by) for g, group in memory.groups.items()},
        allocations={
            key: replace(a, state="released", since=now) if a.state == "wanted" else a
            for key, a in memory.allocations.items()
        },
        incidents={},
        spent={},
        spent_by_kind={},
        cordons={},
        lighthouse=fresh_seat(memory.lighthouse),
        **_FORGOTTEN,
    )


def fresh_seat(seat: Lighthouse) -> Lighthouse:
    """Returns an empty seat; the next one's generation and quorum ids go on."""
    return Lighthouse(generation=seat.generation, quorum_ids_above=seat.quorum_ids_above)


def resume(r: Round) -> None:
    """Starts all groups again, in as many rounds as they take: those of a run that had ended, once a person lets it go on,
    or of one that is relaunched, once they have drained."""
    control, asked = r.observed.control, r.observed.relaunch
    ended = r.before.phase != "resuming"
    if ended and control.resumes <= r.before.resumes_done:
        return
    if ended:
        r.cordons = {}
        r.draft = replace(r.draft, resumes_done=control.resumes, lighthouse=fresh_seat(r.before.lighthouse))
        r.act("resume", f"resume:{control.resumes}", Reason.of(Code.PERSON_RESUMES, because=control.because))
    if ended or r.before.relaunching:
        _begin(r)
        if asked is not None:
            _relaunch(r, asked)
            return
    # a spec that was launched has all groups that there are
    count = r.spec.groups.count if r.before.relaunches else len(r.groups)
    again = ("unplaced", "fencing", "placing")
    left = [g for g in r.groups.values() if g.phase not in again or (g.group >= count and g.phase == "unplaced")]
    for group in left[:GROUPS_A_ROUND]:
        if group.group >= count and not (r.draft.lighthouse.node and group.last_seats):
            r.drop_group(group.group)
        else:
            r.set_group(_again(r, group))
    if len(left) <= GROUPS_A_ROUND:
        r.draft = replace(r.draft, phase="new")
    r.look_again(r.now)


def _again(r: Round, group: GroupMemory) -> GroupMemory:
    """Returns a group that starts again. Where a relaunch has ended it, it has its nodes, as after a restart in place: its
    agent ends what is left there first, or on several nodes the gate shuts it out. One that the spec has no more is shut
    out too, and forgotten then (scale)."""
    fresh = replace(fresh_group(group, r.now, 1), size=r.spec.groups.nodes_per_group)
    if not r.draft.lighthouse.node or not group.last_seats:
        return fresh
    if group.placed and group.size == fresh.size and group.group < r.spec.groups.count:
        return replace(fresh, phase="placing" if fresh.size == 1 else "fencing", seats=group.seats, left=group.seats)
    return replace(fresh, phase="fencing", left=group.last_seats)


def _begin(r: Round) -> None:
    """Fills the budgets, and forgets what was noted about the last groups."""
    r.spent, r.spent_by_kind = {}, {}
    r.draft = replace(r.draft, phase="resuming", **_FORGOTTEN)


def _relaunch(r: Round, asked: NextSpec) -> None:
    """Puts the next spec into force: the groups are made by it from the next round on. What was measured of the last one
    says nothing of it. The lighthouse stays, unless it needs other settings, which one reads at its start."""
    step = r.draft.checkpoint.step if r.draft.checkpoint is not None else None
    why = Reason.of(Code.RELAUNCHED, number=asked.number, step=step)
    kept = r.before.from_memory
    if kept:
        why = Reason.of(Code.AND, reason=why, note=Reason.of(Code.STATE_IN_MEMORY, number=kept))
    r.act("relaunch", f"relaunch:{asked.number}", why)
    seat = r.draft.lighthouse
    if seat.node and not seat.closing and _of_lighthouse(asked.spec) != _of_lighthouse(r.spec):
        why = Reason.of(Code.RELAUNCH_ASKED, number=asked.number, because=asked.because)
        key = f"close_lighthouse:{seat.generation}"
        r.act("close_lighthouse", key, why, node=seat.node, generation=seat.generation)
        seat = replace(seat, closing=True, address="", cut_since=None)
    r.draft = replace(
        r.draft, relaunches=asked.number, from_memory=kept,
        surplus=scale.surplus(r, asked.spec), lighthouse=seat, measured=NOTHING,
        slow={}, behind={}, waited={},
    )  # fmt: skip
    r.look_again(r.now)


def _of_lighthouse(spec: RunSpec) -> tuple[int, TorchFTSpec]:
    return spec.groups.min_groups, spec.torchft
