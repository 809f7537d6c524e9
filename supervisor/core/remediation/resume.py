"""Leads a run out of a halt, a stop or a restore: all groups start from the newest checkpoint, in new generations."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.memory import GroupMemory, Lighthouse, Memory
from supervisor.core.model.reason import Code, Reason
from supervisor.core.round.draft import Round

GROUPS_A_ROUND = 40
"""Groups that one round resets: one operation each; a transaction holds 120."""


def fresh_group(group: GroupMemory, now: float, raise_by: int) -> GroupMemory:
    """Returns the group as if it was never placed, at a generation `raise_by` above its last one."""
    return GroupMemory(group=group.group, generation=group.generation + raise_by, since=now)


def fresh_start(memory: Memory, now: float, raise_by: int) -> Memory:
    """Returns a memory to start again from. Budgets are full and no host is cordoned: a person has looked."""
    return replace(
        memory,
        phase="new",
        halt_reason=None,
        stop_at_step=None,
        stop_by=None,
        handover_at_step=None,
        groups={g: fresh_group(group, now, raise_by) for g, group in memory.groups.items()},
        allocations={
            key: replace(a, state="released", since=now) if a.state == "wanted" else a
            for key, a in memory.allocations.items()
        },
        incidents={},
        spent={},
        spent_by_kind={},
        cordons={},
        suspects={},
        held_hang=None,
        silent=(),
        lighthouse=fresh_seat(memory.lighthouse),
    )


def fresh_seat(seat: Lighthouse) -> Lighthouse:
    """Returns an empty seat; the next one's generation and quorum ids go on."""
    return Lighthouse(generation=seat.generation, quorum_ids_above=seat.quorum_ids_above)


def resume(r: Round) -> None:
    """Resumes a halted or stopped run that a person lets go on, in as many rounds as its groups take."""
    control = r.observed.control
    if r.before.phase != "resuming":
        if control.resumes <= r.before.resumes_done:
            return
        r.spent, r.spent_by_kind, r.cordons = {}, {}, {}
        r.draft = replace(
            r.draft,
            phase="resuming",
            halt_reason=None,
            stop_at_step=None,
            stop_by=None,
            handover_at_step=None,
            resumes_done=control.resumes,
            suspects={},
            held_hang=None,
            silent=(),
            lighthouse=fresh_seat(r.before.lighthouse),
        )
        r.act("resume", f"resume:{control.resumes}", Reason.of(Code.PERSON_RESUMES, because=control.because))
    left = [g for g in r.groups.values() if g.phase != "unplaced"]
    for group in left[:GROUPS_A_ROUND]:
        r.set_group(replace(fresh_group(group, r.now, 1), size=r.spec.groups.nodes_per_group))
    if len(left) <= GROUPS_A_ROUND:
        r.draft = replace(r.draft, phase="new")
    r.look_again(r.now)
