"""Plays one seed: faults, in which nothing may go wrong; then they are healed, and every group must train again."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fault_injection.sim import faults
from fault_injection.sim.bounds import RECOVERY_BOUND_S, SEEN_S
from fault_injection.sim.faults import Fault, is_tight
from fault_injection.sim.judge import Asked, Struck, judge
from fault_injection.sim.leaders import Said
from fault_injection.sim.world import World, spec
from supervisor.core.model.reason import Code, Reason
from supervisor.core.remediation.restore import ENDED
from supervisor.core.report.words import said, say

LEFT_OVER_S = 60.0
"""Seconds after it until nothing may be left over: one more wait for an allocation (allocation_timeout_s)."""
NAMED = 5
"""Groups that are not well and that a failure names: of five hundred no one reads more."""
ROOT = Path(__file__).parents[2]
THE_PROGRAM = ("supervisor", "agents")
"""Folders of the program under test."""


@dataclass(frozen=True)
class Result:
    """The outcome of one seed."""

    seed: int
    nodes: int
    nodes_per_group: int
    plan: tuple[Fault, ...]
    broken: tuple[str, ...]
    digest: str
    recovered_s: float | None
    """Virtual seconds from the faults' end until every group committed, at least SEEN_S. None: the run halted, its
    budgets being tight."""
    hit: tuple[str, ...]
    """Faults that found a victim."""
    lasted_s: float
    """Virtual time of the whole seed."""
    asked: Asked


def run(seed: int, nodes: int, plan: Sequence[Fault] | None = None, nodes_per_group: int = 1) -> Result:
    """Plays one seed, or another plan with that seed's chance."""
    chosen = tuple(faults.plan(seed) if plan is None else plan)
    world = World(spec(nodes, is_tight(seed), nodes_per_group), seed)
    hit: list[str] = []
    struck = Struck(world)
    began = world.clock.now
    for fault in chosen:

        def strike(fault: Fault = fault) -> None:
            if struck.add(fault, faults.inject):
                hit.append(fault.kind)

        world.clock.after(fault.at, strike)
    struck.look()

    def broken() -> bool:
        return bool(world.checks.broken)

    recovered_s, asked = None, Asked()
    with listening(world), _whatever_is_raised(world):
        end = max((fault.at + fault.seconds for fault in chosen), default=0.0)
        world.clock.run_until(began + end, broken)
        recovered_s = None if broken() else _recover(world, is_tight(seed))
        if not broken():
            asked = judge(world, struck, world.clock.now if recovered_s is not None else None)
    return Result(
        seed, nodes, nodes_per_group, chosen, tuple(world.checks.broken), world.checks.digest, recovered_s, tuple(hit),
        world.clock.now - began, asked,
    )  # fmt: skip


def _recover(world: World, tight: bool) -> float | None:
    """Heals, and demands progress once the last fault shows: right after a node is lost, all still seems well."""
    faults.heal(world)
    healed, checks, seen = world.clock.now, world.checks, -1

    world.clock.run_until(healed + SEEN_S, lambda: bool(checks.broken))

    def settled() -> bool:
        nonlocal seen
        if checks.broken:
            return True
        before, seen = seen, checks.changes  # a run only gets well by a step or a decision
        return seen != before and (world.healthy() or checks.memory.phase in ENDED)

    world.clock.run_until(healed + RECOVERY_BOUND_S, settled)
    if checks.broken:
        return None
    spent = tight and checks.memory.phase == "halted" and _nothing_was_left(checks.memory.halt_reason)
    if not world.healthy() and not spent:
        checks.broke(f"progress: not every group trains {RECOVERY_BOUND_S:g} s after the last fault: {state(world)}")
        return None
    recovered_s = world.clock.now - healed if world.healthy() else None
    world.clock.run_until(world.clock.now + LEFT_OVER_S, lambda: bool(checks.broken) or not checks.left_over())
    if left := checks.left_over():
        checks.broke(left)
    return recovered_s


def _nothing_was_left(halt: Reason | None) -> bool:
    why = halt.about.get("reason") if halt is not None else None
    return isinstance(why, Reason) and why.code == Code.NOTHING_LEFT


def state(world: World) -> str:
    """Describes the world for a failure's message."""
    memory = world.checks.memory
    open_ = {
        g: f"{m.phase} gen {m.generation} on {', '.join(m.nodes) or '-'} (before {m.last_node or '-'})"
        for g, m in memory.groups.items()
        if m.phase != "running" or m.incident
    }
    some = dict(list(open_.items())[:NAMED])
    rest = f" and {len(open_) - len(some)} more" if len(open_) > len(some) else ""
    leader = next((s for s in world.supervisors if s.leads), None)
    waits = said(leader.decided[1].waits) if leader is not None and leader.decided is not None else ()
    return (
        f"{memory.phase} {say(memory.halt_reason)}; groups {some}{rest}; incidents {list(memory.incidents)[:NAMED]}; "
        f"waits {waits[:5]}"
    )


@contextmanager
def _whatever_is_raised(world: World) -> Iterator[None]:
    """Turns an error of the program under test into a violation, with its seed and its faults."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 -- whatever the program raises is to be told
        frames = [(Path(f.filename), f.lineno) for f in traceback.extract_tb(error.__traceback__)]
        ours = [(p.relative_to(ROOT), n) for p, n in frames if p.is_relative_to(ROOT)]
        path, line = next((f for f in reversed(ours) if f[0].parts[0] in THE_PROGRAM), ours[-1])
        world.checks.broke(f"crash: {type(error).__name__}: {error} at {path}:{line}")


@contextmanager
def listening(world: World) -> Iterator[None]:
    """Sends what the program logs to the checks alone."""
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
