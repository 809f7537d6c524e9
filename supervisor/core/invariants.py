"""Checks what must hold of a memory, and of a step from one memory to the next. Numbered as in docs/INVARIANTS.md."""

from __future__ import annotations

from collections import Counter

from supervisor.core.evidence.group_failure import gone
from supervisor.core.model.kinds import Rung
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import Observed
from supervisor.core.model.spec import RunSpec
from supervisor.core.policy import budgets
from supervisor.core.policy.cordons import barred


def violations(before: Memory, after: Memory, observed: Observed, spec: RunSpec) -> list[str]:
    """Returns a sentence for each invariant that the step from `before` to `after` breaks; empty if all hold."""
    found = _owners(after) + _budgets(before, after, spec, observed.now) + _seat(before, after, observed)
    found += _handed_over(before, after) + _successors(before, after)
    found += _sizes(after, spec)
    for g, group in after.groups.items():
        old = before.groups.get(g)
        if old is not None and old is not group:
            found += _generation(old, group) + _moved(old, group, observed) + _store(old, group)
            found += _cordoned(old, group, after, observed)
    return found


def _owners(memory: Memory) -> list[str]:
    holders = Counter(node for g in memory.groups.values() if g.phase != "finished" for node in g.nodes)
    return [f"I1: node {node} is held by {n} groups" for node, n in holders.items() if n > 1]


def _sizes(memory: Memory, spec: RunSpec) -> list[str]:
    size = spec.groups.nodes_per_group
    wrong = [group for group in memory.groups.values() if group.size != size and group.phase == "unplaced"]
    return [
        f"I21: group {group.group} must be on {group.size} nodes, and the run's groups on {size}" for group in wrong
    ] + [
        f"I21: group {group.group} starts on {len(group.seats)} of {group.size} nodes"
        for group in memory.groups.values()
        if group.phase == "starting" and len(group.seats) != group.size
    ]


def _budgets(before: Memory, after: Memory, spec: RunSpec, now: float) -> list[str]:
    found = []
    for scope, instants in after.spent.items():
        if instants == before.spent.get(scope):
            continue  # a budget that a person has lowered may be overdrawn already
        rung = Rung.RESTART if scope.startswith("restart:") else Rung[scope.upper()]
        used = len(budgets.within(instants, now, spec.policy.budget.window_s))
        if used > budgets.allowed(spec.policy.budget, rung):
            found.append(f"I2: {scope} was drawn on {used} times within {spec.policy.budget.window_s:g} s")
    return found


def _seat(before: Memory, after: Memory, observed: Observed) -> list[str]:
    old, new = before.lighthouse, after.lighthouse
    if (old.node, old.generation) == (new.node, new.generation):
        return []
    if new.generation < old.generation:
        return [f"I13: the lighthouse went back from generation {old.generation} to {new.generation}"]
    host = observed.nodes.get(old.node)
    ended = host is not None and host.registered and old.generation in host.lighthouses_ended
    if not old.node or not new.node or old.closing or ended:
        return []
    return [f"I13: the lighthouse of generation {old.generation} on {old.node} is replaced before it was closed"]


def _handed_over(before: Memory, after: Memory) -> list[str]:
    if before.handover_at_step is None or after.phase != "running":
        return []
    started = [g for g, group in after.groups.items() if group.phase == "starting" and _is_new(before, group)]
    still = [g for g, group in after.groups.items() if group.phase == "running"]
    if after.handover_at_step is not None:
        return [f"I16: group {g} is started while the others are still being handed over" for g in started]
    return [f"I16: the hand-over ended before group {g} did" for g in still]


def _is_new(before: Memory, group: GroupMemory) -> bool:
    old = before.groups.get(group.group)
    return old is None or (old.phase, old.generation) != ("starting", group.generation)


def _successors(before: Memory, after: Memory) -> list[str]:
    found = []
    for key, old in before.allocations.items():
        new = after.allocations.get(key)
        if old.successor and (new is None or new.successor != old.successor):
            found.append(f"I17: allocation {key} had {old.successor} asked for in its place, and now another")
    return found


def _generation(old: GroupMemory, new: GroupMemory) -> list[str]:
    found = []
    if new.generation < old.generation:
        found.append(f"I3: generation of group {new.group} went back from {old.generation} to {new.generation}")
    both = new.phase == "starting" and old.phase in ("starting", "running")
    if both and new.generation == old.generation and (new.since, new.nodes) != (old.since, old.nodes):
        found.append(f"I4: generation {new.generation} of group {new.group} is started twice")
    return found


def _moved(old: GroupMemory, new: GroupMemory, observed: Observed) -> list[str]:
    left = old.last_seats
    nodes, now = [", ".join(names) for names in ([seat.node for seat in left], new.nodes)]
    # on one node its agent ends the old ranks before it starts new ones; those of other nodes it does not see
    in_place = nodes == now and new.size == 1
    if new.phase != "starting" or old.phase == "starting" or not left or in_place:
        return []
    gate = observed.gate
    fenced = gate is not None and gate.admitted.get(new.group, -1) >= new.generation
    if old.phase == "placing" or fenced or gone(new.group, new.generation, left, observed):
        return []
    return [f"I5: group {new.group} starts on {now} while its old generation on {nodes} may still run"]


def _store(old: GroupMemory, new: GroupMemory) -> list[str]:
    if new.phase == "starting" and old.phase != "starting" and new.store and new.store == old.store:
        return [f"I22: generation {new.generation} of group {new.group} has the store of the last one, {new.store}"]
    return []


def _cordoned(old: GroupMemory, new: GroupMemory, after: Memory, observed: Observed) -> list[str]:
    if new.phase != "starting":
        return []
    found = []
    for seat in new.seats:
        host, view = seat.machine, observed.nodes.get(seat.node)
        if old.holds(seat.node):
            continue
        if why := barred(observed, dict.fromkeys(after.cordons, "by this run")).get(host, ""):
            found.append(f"I20: group {new.group} is placed on {seat.node}, whose host {host} is cordoned: {why}")
        elif view is not None and (view.checking or view.failed or view.unsure):
            why = view.failed or view.unsure or "which is being checked"
            found.append(f"I20: group {new.group} is placed on {seat.node}, {why}")
        elif view is not None and observed.lacks_code(view):
            found.append(f"I20: group {new.group} is placed on {seat.node}, which has not all of its code")
    return found
