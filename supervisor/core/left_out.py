"""A group that ends in the same way at once after each start, on two hosts, while the others train: no node cures that, so it is left out
and they go on without it, until a person asks for it again."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import away, cost, repeat, shadow
from supervisor.core.ladder import Choice, first_rung
from supervisor.core.model import Failure, GroupMemory, Incident, Rung
from supervisor.core.round import Round


def why(r: Round, group: GroupMemory, failure: Failure, choice: Choice) -> str:
    """Why a group is left out from now on; empty when it is not: something else may mend it, or too few would be left to step.
    `choice`: what would be done else."""
    if not shadow.trains_beside(r, group) or cost.idle_groups(r, group) > 1:
        return ""
    if away.may_pass(failure):
        return away.for_too_long(r, group, failure) or _instead_of_a_halt(r, failure, choice)
    seen = repeat.again(group, failure.kind)
    if seen is None or seen.trained or seen.times < repeat.TRIED or len(seen.hosts) < 2:
        return ""
    return (
        f"it ended in the same way before its first commit {seen.times} times in a row, on {' and '.join(seen.hosts)}, while others train: "
        "no other node cures that"
    )


def _instead_of_a_halt(r: Round, failure: Failure, choice: Choice) -> str:
    """Those that train are not halted for what a store or a network does to some."""
    if choice.rung < Rung.STOP or first_rung(failure.kind, r.spec.policy) == Rung.STOP:
        return ""
    return f"it ended by what nodes share, a network or a store, and {choice.reason}"


def leave_out(r: Round, group: GroupMemory, incident: Incident, reason: str) -> None:
    """Nothing more is started or asked for. Its node is a spare from now on: nothing is wrong with it."""
    kind, policy = incident.kind, r.spec.policy
    passed = range(first_rung(kind, policy), Rung.STOP)
    considered = tuple(f"{Rung(rung).name.lower()}: it would end the same way" for rung in passed)
    choice, after = (
        Choice(Rung.RIDE_THROUGH, f"{reason}; the others go on without it", considered),
        group.generation + 1,
    )
    incident = r.decide_incident(incident, choice, after)
    r.act(
        "ride_through", f"leave_out:{group.group}:{after}", choice.reason, group=group.group, generation=after, node=group.node,
        rung=choice.rung, incident=incident.id,
    )  # fmt: skip
    r.set_group(
        replace(
            group, phase="fencing", node="", host="", old_node=group.node, generation=after, since=r.now, left_out=reason,
        )
    )  # fmt: skip


def sentence(group: GroupMemory) -> str:
    """That it is left out, and what a person can do."""
    again = f"supervisor restart {group.group} tries it once more"
    return f"group {group.group} is left out: {group.left_out}; {again} (incident {group.incident})"


def stays_out(r: Round, group: GroupMemory) -> bool:
    """Whether it is left out still. A person who asks for it has looked: it begins anew."""
    if not group.left_out:
        return False
    asked = r.observed.control.restarts.get(group.group, 0)
    if asked <= r.restarts_done.get(group.group, 0) or r.full(group.group):
        r.wait(sentence(group))
        return True
    r.restarts_done[group.group] = asked
    r.set_group(
        replace(group, left_out="", seen=None, oom_at=None, oom_host="", restarts_here=(), shown=(), attempts=0)
    )
    r.look_again(r.now)
    return True
