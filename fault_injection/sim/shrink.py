"""Finds the fewest faults of a plan that still break the same thing (ddmin, Zeller and Hildebrandt 2002)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fault_injection.sim.faults import Fault
from fault_injection.sim.run import Result, run


def ddmin(plan: Sequence[Fault], fails: Callable[[Sequence[Fault]], bool]) -> list[Fault]:
    """Returns a part of `plan` that fails, and that fails no more without any single fault. `plan` itself must fail."""
    left, parts = list(plan), 2
    while len(left) > 1:
        size = -(-len(left) // parts)
        rests = [left[:at] + left[at + size :] for at in range(0, len(left), size)]
        smaller = next((rest for rest in rests if fails(rest)), None)
        if smaller is not None:
            left, parts = smaller, max(parts - 1, 2)
        elif parts >= len(left):
            break
        else:
            parts = min(len(left), 2 * parts)
    return [] if len(left) == 1 and fails([]) else left


def shrunk(result: Result) -> Result:
    """Returns the shortest plan for the same kind of violation, with the chance of the same seed."""
    kind = family(result)
    found = {result.plan: result}

    def fails(plan: Sequence[Fault]) -> bool:
        again = found[tuple(plan)] = run(result.seed, result.nodes, plan, result.nodes_per_group)
        return family(again) == kind

    return found[tuple(ddmin(result.plan, fails))]


def family(result: Result) -> str:
    """Returns the kind of the first violation; empty: there is none."""
    return result.broken[0].split(": ")[1] if result.broken else ""
