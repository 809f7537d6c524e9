"""One seed: faults first, and nothing may go wrong; then they are healed, and every group must train again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fault_injection import checkers, history
from fault_injection.sim import faults
from fault_injection.sim.faults import Fault
from fault_injection.sim.leaders import Said
from fault_injection.sim.world import World, spec
from supervisor.core.model import Kind

RECOVERY_BOUND_S = 300.0
"""From the end of all faults until every group commits: seven times the model's longest timeout (allocation_timeout_s)."""
LEFT_OVER_S = 60.0
"""After it, until nothing may be left over: an allocation is waited for once more (allocation_timeout_s), then given back."""
ENDED = ("halted", "stopped", "finished")
KINDS_OF = {
    "crash": {Kind.CRASH},
    "error": {Kind.ERROR},
    "node_lost": {Kind.NODE_LOST, Kind.ALLOCATION_LOST},  # whoever says it first, its lease or the scheduler
    "allocation_taken": {Kind.ALLOCATION_LOST},
}
"""Faults that are one group's, and what a supervisor that sees clearly calls them."""
HARMLESS = ("agent_killed", "watch_late", "watch_reset", "engine_pending", "engine_away", "leader_killed",
            "leader_killed_deciding", "leader_killed_committed", "leader_frozen", "answer_lost", "etcd_away")  # fmt: skip
"""What takes nothing from training: no incident may come of it."""


CLOSER_HERE = "steps_not_lost"
"""A step that one group alone had, and that is trained again when that group is frozen, is lost to this checker. The model knows who
could have stepped (Checks._lost)."""


@dataclass(frozen=True)
class Result:
    """What became of one seed."""

    seed: int
    nodes: int
    plan: tuple[Fault, ...]
    broken: tuple[str, ...]
    digest: str
    recovered_s: float | None
    """From the end of the faults until every group committed, virtual. None: budgets were tight and the run halted."""
    hit: tuple[str, ...]
    """Faults that found somebody."""
    lasted_s: float
    """Virtual time, all in all."""


def is_tight(seed: int) -> bool:
    """Every fourth seed has budgets that are soon spent: there the run may halt."""
    return seed % 4 == 3


def run(seed: int, nodes: int, plan: Sequence[Fault] | None = None) -> Result:
    """Play one seed, or another plan with that seed's chance."""
    chosen = tuple(faults.plan(seed) if plan is None else plan)
    world = World(spec(nodes, is_tight(seed)), seed)
    hit: list[str] = []
    began = world.clock.now
    for fault in chosen:

        def strike(fault: Fault = fault) -> None:
            if faults.inject(world, fault):
                hit.append(fault.kind)

        world.clock.after(fault.at, strike)

    def broken() -> bool:
        return bool(world.checks.broken)

    with _listening(world):
        end = max((fault.at + fault.seconds for fault in chosen), default=0.0)
        world.clock.run_until(began + end, broken)
        recovered_s = None if broken() else _recover(world, is_tight(seed))
        if not broken():
            _incidents(world, chosen, hit)
        if not broken():
            _history(world)
    return Result(
        seed, nodes, chosen, tuple(world.checks.broken), world.checks.digest, recovered_s, tuple(hit),
        world.clock.now - began,
    )  # fmt: skip


def _recover(world: World, tight: bool) -> float | None:
    """Heal, and demand progress."""
    faults.heal(world)
    healed, checks, seen = world.clock.now, world.checks, -1

    def settled() -> bool:
        nonlocal seen
        if checks.broken:
            return True
        before, seen = seen, checks.changes  # nobody gets well but by a step or a decision
        return seen != before and (world.healthy() or checks.memory.phase in ENDED)

    world.clock.run_until(healed + RECOVERY_BOUND_S, settled)
    if checks.broken:
        return None
    if not world.healthy():
        if not (tight and checks.memory.phase == "halted" and checks.memory.halt_reason):
            checks.broke(
                f"progress: not every group trains {RECOVERY_BOUND_S:g} s after the last fault: {state(world)}"
            )
        return None
    recovered_s = world.clock.now - healed
    world.clock.run_until(world.clock.now + LEFT_OVER_S, lambda: bool(checks.broken) or not checks.left_over())
    if left := checks.left_over():
        checks.broke(left)
    return recovered_s


def _incidents(world: World, plan: Sequence[Fault], hit: Sequence[str]) -> None:
    """One incident per fault and of its kind, where a plan leaves no doubt which it is; none where nothing failed. All of it
    once everybody trains."""
    found = [(i.kind, i.group) for i in world.checks.incidents.values()]
    kinds = {fault.kind for fault in plan}
    trained_at = world.training.all_at  # before, a group may still be placed on a node that is lost already
    in_time = trained_at is not None and all(f.at > trained_at for f in plan)
    if kinds <= set(HARMLESS) and in_time and found:
        world.checks.broke(f"incidents: {found}, and nothing of training had failed: {[f.kind for f in plan]}")
    if in_time and len(plan) == 1 and len(hit) == 1 and hit[0] in KINDS_OF:
        right = [i for i in found if i[0] in KINDS_OF[hit[0]]]
        if [g for _, g in right] != world.victims or len(found) != len(right):
            world.checks.broke(f"incidents: {found} for one {hit[0]} of groups {world.victims}")


def _history(world: World) -> None:
    """The checkers that read what a real run leaves, over what this one would have left."""
    for verdict in checkers.check(recorded(world)):
        silent = verdict.answer == "unknown" and not world.training.newest  # nobody ever trained
        if verdict.answer != "pass" and not silent and verdict.checker != CLOSER_HERE:
            world.checks.broke(f"{verdict.checker}: {verdict.answer}: {'; '.join(verdict.sentences[:2])}")


def recorded(world: World) -> history.History:
    """What the files of the same run would say in the real world."""
    steps = [
        history.Steps(group, generation, 0, node, tuple(rows))
        for (group, generation, node), rows in world.training.rows.items()
    ]
    return history.of_lines(world.spec.name, world.journal, sorted(world.shims.items()), steps)


def state(world: World) -> str:
    """For a failure's message."""
    memory = world.checks.memory
    open_ = {
        g: f"{m.phase} gen {m.generation} on {m.node or '-'} (old {m.old_node or '-'})"
        for g, m in memory.groups.items()
        if m.phase != "running" or m.incident
    }
    leader = next((s for s in world.supervisors if s.leads), None)
    waits = leader.decided[1].waits if leader is not None and leader.decided is not None else ()
    return f"{memory.phase} {memory.halt_reason}; groups {open_}; incidents {list(memory.incidents)}; waits {waits[:5]}"


@contextmanager
def _listening(world: World) -> Iterator[None]:
    """What the program logs goes to the checks alone."""
    logs = [logging.getLogger(name) for name in ("supervisor", "agents")]
    before = [(log.propagate, log.level) for log in logs]
    handler = Said(world)
    for log in logs:
        log.addHandler(handler)
        log.propagate = False
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, (propagate, level) in zip(logs, before, strict=True):
            log.removeHandler(handler)
            log.propagate, log.level = propagate, level
