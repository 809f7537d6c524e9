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
OTHERS_ALIKE = 2
"""Restarts of another group from which on no single host is at fault."""


def remember(group: GroupMemory, kind: Kind) -> GroupMemory:
    """Notes that the group is started again in place after its newest failure. Restarts on another host before it are
    forgotten."""
    if kind in OF_THE_PROGRAM or _unknown(group):
        return group
    *before, newest = group.failures
    here = [replace(f, restarted=f.restarted and f.host == newest.host) for f in before]
    return replace(group, failures=(*here, replace(newest, restarted=True)))


def here(r: RoundView, group: GroupMemory, kind: Kind) -> Reason | None:
    """Explains why the group leaves its host: many failures there within a day. None: few, or others have them too."""
    host = r.its_host(group)
    times = _lately(r, group).count(host)
    if kind in OF_THE_PROGRAM or _unknown(group) or times < WINDOWS * r.spec.policy.budget.restart:
        return None
    others = (_lately(r, g) for g in r.groups.values() if g.group != group.group)
    if any(len(hosts) - hosts.count(host) >= OTHERS_ALIKE for hosts in others):
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
        if any(f.restarted and f.host == host for f in group.failures):
            left = tuple(replace(f, restarted=f.restarted and f.host != host) for f in group.failures)
            r.groups[group.group] = replace(group, failures=left)


def _unknown(group: GroupMemory) -> bool:
    """Returns true if it is not known at which of its several nodes the group has failed."""
    return group.size > 1 and not group.at_fault


def _lately(r: RoundView, group: GroupMemory) -> list[str]:
    """Hosts of its restarts in place within a day, each as often as it had one."""
    return [f.host for f in group.failures if f.restarted and r.now - f.at <= REPEATED_S]
