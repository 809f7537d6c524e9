"""The ladder: which rung a failure starts at, and when it climbs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.core import budget as budgets
from supervisor.core.model import Kind, Rung
from supervisor.core.spec import BudgetSpec

FIRST_RUNG: Mapping[Kind, Rung] = {
    Kind.SILENT: Rung.RIDE_THROUGH,
    Kind.CRASH: Rung.RESTART,
    Kind.OOM: Rung.RESTART,
    Kind.ERROR: Rung.RESTART,
    Kind.PEERS_GONE: Rung.RESTART,
    Kind.START_TIMEOUT: Rung.RESTART,
    Kind.STALLED: Rung.RESTART,
    Kind.HANG: Rung.RESTART,
    Kind.NUMERICS: Rung.REPLACE,
    Kind.GPU: Rung.REPLACE,
    Kind.REQUESTED: Rung.RESTART,
    Kind.NODE_LOST: Rung.REPLACE,
    Kind.ALLOCATION_LOST: Rung.REALLOCATE,
    Kind.LEAVING: Rung.REPLACE,
    Kind.SAME_ERROR: Rung.STOP,
}

WHY_FIRST: Mapping[Kind, str] = {
    Kind.SILENT: "the quorum goes on without it, and its node still lives",
    Kind.CRASH: "a process ended and its node lives: starting it again there is the cheapest cure",
    Kind.OOM: "its node lives; with the same memory it may end the same way, and then another node is tried",
    Kind.ERROR: "a process ended and its node lives: starting it again there is the cheapest cure",
    Kind.PEERS_GONE: "it found no peer to heal from: started again, it resumes from the newest checkpoint",
    Kind.START_TIMEOUT: "it never committed: one more start may, and is the cheapest thing to try",
    Kind.STALLED: "its node lives, and it has been silent for longer than a hiccup lasts",
    Kind.NUMERICS: "its numbers were not finite while the others' were: its hardware is suspect",
    Kind.GPU: "its GPU needs a reset or a hand before it can be used again",
    Kind.HANG: "its node lives: starting its processes again is the cheapest thing that ends a hang",
    Kind.REQUESTED: "a person asked for it",
    Kind.NODE_LOST: "its node is gone, nothing can be started there",
    Kind.ALLOCATION_LOST: "the engine took its allocation away",
    Kind.LEAVING: "its node is about to be taken away: it is left before",
    Kind.SAME_ERROR: "the same error comes back wherever it is started: starting it again would end the same way",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A rung, why, and each rung that was passed over with the reason."""

    rung: Rung
    reason: str
    considered: tuple[str, ...]
    free: bool = False
    """Draws on no budget: nobody's failure."""


def choose(
    kind: Kind,
    group: int,
    *,
    spent: Mapping[str, tuple[float, ...]],
    budget: BudgetSpec,
    now: float,
    spare: bool,
    at_least: Rung = Rung.RIDE_THROUGH,
    passed: str = "",
) -> Choice:
    """The cheapest rung that this kind may take and that has budget left.

    `at_least` is the rung below which this incident may not go, and `passed` is why (it has tried). A rung is never
    skipped without a sentence in `considered`.
    """
    first = FIRST_RUNG[kind]
    considered: list[str] = []
    why = passed or "this incident is past it"
    considered += [f"{Rung(skipped).name.lower()}: {why}" for skipped in range(first, at_least)]
    rung = max(first, at_least)
    while rung < Rung.STOP:
        if rung == Rung.RIDE_THROUGH:
            return Choice(rung, WHY_FIRST[kind], tuple(considered))
        if rung == Rung.REPLACE and not spare:
            considered.append("replace: no healthy spare node")
        elif budgets.left(spent, budget, rung, group, now) == 0:
            considered.append(
                f"{rung.name.lower()}: budget spent ({budgets.allowed(budget, rung)} within {budget.window_s:g} s)"
            )
        else:
            reason = WHY_FIRST[kind] if rung == first else f"{WHY_FIRST[kind]}; {'; '.join(considered)}"
            return Choice(rung, reason, tuple(considered))
        rung = Rung(rung + 1)
    reason = WHY_FIRST[kind] if first == Rung.STOP else f"nothing cheaper is left: {'; '.join(considered)}"
    return Choice(Rung.STOP, reason, tuple(considered))
