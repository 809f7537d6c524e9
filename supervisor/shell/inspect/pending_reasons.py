"""The part of a run's status about groups that wait for nodes, and about problems that are seen but not acted on."""

from __future__ import annotations

from supervisor.core.attribution import circuit_breaker, stragglers
from supervisor.core.evidence import checkpoint_lag, disk_faults, group_failure, nonfinite
from supervisor.core.evidence.hang_attribution import blame
from supervisor.core.model.memory import AllocationMemory, Memory
from supervisor.core.model.observed import Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import RunSpec
from supervisor.core.remediation import suspended_groups
from supervisor.core.remediation.placement import passed_over
from supervisor.core.report.words import say
from supervisor.core.round import observe_mode
from supervisor.core.round.view import RoundView, lack_of_code


def leaving(observed: Observed) -> dict[str, str]:
    """Returns nodes to leave, because the engine will take them away or a person drains their hosts; and why."""
    drained = {host: cordon.drain for host, cordon in observed.cordons.items() if cordon.drain}
    trainers = [n for n in observed.nodes.values() if n.registered and n.role == "trainer"]
    found = {n.name: drained[n.machine] for n in trainers if n.machine in drained}
    found |= {n.name: n.leaving for n in observed.nodes.values() if n.leaving and n.registered}
    return found | {
        node: g.leaving for g in observed.grants.values() if g.leaving and g.state == "granted" for node in g.nodes
    }


def sentences(memory: Memory, observed: Observed) -> tuple[str, ...]:
    """Returns a sentence for each wanted allocation that is pending, refused or late, and one each for the groups without
    a node and for nodes that have not all of the code yet."""
    if memory.phase not in ("new", "running"):
        return ()
    groups = [
        str(g.group)
        for g in memory.groups.values()
        if g.phase in ("unplaced", "placing") and not (g.placed or g.left_out)
    ]
    open_ = [(a, _state(a, observed)) for a in memory.allocations.values() if a.state == "wanted"]
    asked = [_sentence(a, state, memory, observed) for a, state in open_ if state in ("pending", "refused")]
    there = [n for n in observed.nodes.values() if n.registered and n.role == "trainer"]
    if (lack := lack_of_code(observed, there)) is not None:
        asked.append(say(lack))
    if not groups:
        return tuple(asked)
    who = f"{'group' if len(groups) == 1 else 'groups'} {', '.join(groups)} without a node"
    if asked:
        return (f"{who}: waiting for {'the code' if len(asked) == 1 and lack is not None else 'the engine'}", *asked)
    coming = memory.phase == "new" or any(_comes(observed, a.key) for a, state in open_ if state == "granted")
    return (f"{who}: {'waiting for the granted nodes to be ready' if coming else 'not waiting for the engine'}",)


def _comes(observed: Observed, key: str) -> bool:
    """Returns true if no node of a granted allocation is there yet, or one of them is still being checked."""
    there = [node for name in observed.grants[key].nodes if (node := observed.nodes.get(name)) and node.registered]
    return not there or any(node.checking for node in there)


def held(memory: Memory, observed: Observed, spec: RunSpec) -> tuple[Reason, ...]:
    """Returns problems that are left as they are: suspended and slow groups, a risen loss, an unreachable gate, failing
    heals. Also hangs without a culprit, what the breaker holds, missing checkpoints, and nodes that are passed over or
    have unusable disks."""
    if memory.phase != "running":
        return ()
    found = [suspended_groups.about(group) for group in memory.groups.values() if group.left_out]
    found += [slow.reported for slow in stragglers.stragglers(memory.groups, observed, spec)]
    groups = observe_mode.there(memory.groups, memory.incidents, observed)
    hangs = blame(groups, observed, spec, memory).held
    tripped = (
        circuit_breaker.why_it_holds(RoundView(observed, spec, memory)) if memory.breaker_since is not None else None
    )
    spike = nonfinite.spike(memory.groups, observed, spec)
    no_way = group_failure.without_a_way(memory.groups, observed, spec, memory.lighthouse.opened)
    behind = checkpoint_lag.with_reason(memory.groups, memory.checkpoint, observed, spec)
    together = stragglers.together(memory.groups, observed, spec)
    found += filter(None, (together, spike, no_way, hangs, tripped, behind))
    heals = (
        Reason.of(Code.ABOUT_GROUP, group=group.group, why=why)
        for group in groups.values()
        for why in group_failure.heals_failed(group, observed)[:1]
    )
    more = (*disk_faults.untold(memory.groups, observed), *passed_over(RoundView(observed, spec, memory)))
    return (*found, *heals, *more)


def _state(allocation: AllocationMemory, observed: Observed) -> str:
    grant = observed.grants.get(allocation.key)
    return grant.state if grant is not None else "pending"


def _sentence(allocation: AllocationMemory, state: str, memory: Memory, observed: Observed) -> str:
    grant = observed.grants.get(allocation.key)
    word = f": {grant.reason}" if grant is not None and grant.reason else ""
    # A memory's run clock stands still between two decisions, so this is a lower bound.
    ago = f"requested at least {max(0.0, memory.clock - allocation.since):.0f} s ago ({say(allocation.reason)})"
    if state == "refused":
        return f"allocation {allocation.key} refused{word}; {ago}"
    late = "late, the run goes on without it" if allocation.late else "pending"
    return f"allocation {allocation.key} {late}{word}; {ago}"
