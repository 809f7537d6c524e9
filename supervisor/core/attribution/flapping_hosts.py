"""Detects flapping hosts: frequent restarts, too slow to spend a budget, and much oftener than on other hosts."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.reason import Code, Reason
from supervisor.core.policy.cordons import OF_THE_PROGRAM, REPEATED_S
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView

WINDOWS = 2
"""Windows' budgets of restarts within a day that are no chance. Llama 3's 16,384 GPUs had 419 unplanned interruptions
in 54 days: a host of eight one in 264 days."""
KEPT = 32
"""Restarts that are kept. A budget of which twice is more is never reached by this rule."""
OTHERS_ALIKE = 2
"""Restarts of another group from which on no single host is at fault."""


def remember(r: RoundView, group: GroupMemory, kind: Kind) -> GroupMemory:
    """Notes that the group is started again in place."""
    if kind == Kind.REQUESTED or kind in OF_THE_PROGRAM or _unknown(group):
        return group
    host = r.its_host(group)
    before = group.restarts_here if group.restarts_host == host else ()
    return replace(group, restarts_here=(*before, r.now)[-KEPT:], restarts_host=host)


def here(r: RoundView, group: GroupMemory, kind: Kind) -> Reason | None:
    """Explains why the group leaves its host: many failures there within a day. None: few, or others have them too."""
    host = r.its_host(group)
    times = _lately(r, group)
    if (
        kind in OF_THE_PROGRAM
        or _unknown(group)
        or group.restarts_host != host
        or times < WINDOWS * r.spec.policy.budget.restart
    ):
        return None
    others = (g for g in r.groups.values() if g.group != group.group and g.restarts_host != host)
    if any(_lately(r, g) >= OTHERS_ALIKE for g in others):
        return None
    return Reason.of(Code.OFTEN_HERE, times=times, host=host)


def hold(r: Round, group: GroupMemory, incident: Incident) -> None:
    """Cordons a flapping host on which the group is started once more, for want of a spare. No other group comes, and
    what befalls another run there within a day bars the host for all."""
    host, leaves = r.its_host(group), r.is_leaving(group)
    if not (incident.followed or leaves or host in r.cordons) and here(r, group, incident.kind):
        r.cordon(host, group.failed_node, incident)


def freed(r: Round, host: str) -> None:
    """Forgets the restarts on a host that a person or a passed check has freed: they are not held against it again."""
    for group in r.groups.values():
        if group.restarts_host == host and group.restarts_here:
            r.groups[group.group] = replace(group, restarts_here=())


def _unknown(group: GroupMemory) -> bool:
    """Returns true if it is not known at which of its several nodes the group has failed."""
    return group.size > 1 and not group.at_fault


def _lately(r: RoundView, group: GroupMemory) -> int:
    return sum(r.now - at <= REPEATED_S for at in group.restarts_here)
