"""The ladder: which rung a failure starts at, and when it climbs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from supervisor.core import budget as budgets
from supervisor.core.model import Kind, Rung
from supervisor.core.spec import FirstRungSpec, PolicySpec

FIXED: Mapping[Kind, Rung] = {
    Kind.SILENT: Rung.RIDE_THROUGH,
    Kind.REQUESTED: Rung.RESTART,
    Kind.LEAVING: Rung.REPLACE,
    Kind.SAME_ERROR: Rung.STOP,
}
"""Kinds whose rung is not for the policy to say."""

WHY_FIRST: Mapping[Kind, str] = {
    Kind.SILENT: "the quorum goes on without it, and its node still lives",
    Kind.REQUESTED: "a person asked for it",
    Kind.LEAVING: "its node is about to be taken away: it is left before",
    Kind.SAME_ERROR: "the same error comes back wherever it is started: starting it again would end the same way",
    **{Kind(field.name): field.metadata["reason"] for field in fields(FirstRungSpec)},
}
"""Of the default rungs."""

ANOTHERS_FAULT = "another group is the cause"
"""Begins the reason why a group is started again at no budget."""

ONE_CAUSE = "one cause, not its node's: started again where it was, at no budget"
"""As ANOTHERS_FAULT: what is away comes back, and another node would not cure it."""

NOTHING_LEFT = "nothing cheaper is left"
"""Begins the reason of a halt to which budgets have led, and no policy."""

_DEFAULT = FirstRungSpec()


@dataclass(frozen=True, slots=True)
class Choice:
    """A rung, why, and each rung that was passed over with the reason."""

    rung: Rung
    reason: str
    considered: tuple[str, ...]
    free: bool = False
    """Draws on no budget: nobody's failure."""


def first_rung(kind: Kind, policy: PolicySpec) -> Rung:
    """Where the ladder begins."""
    return FIXED[kind] if kind in FIXED else Rung[getattr(policy.first_rung, kind).upper()]


def why_first(kind: Kind, policy: PolicySpec) -> str:
    """The reason for that rung."""
    if kind in FIXED or getattr(policy.first_rung, kind) == getattr(_DEFAULT, kind):
        return WHY_FIRST[kind]
    return f"policy.first_rung.{kind} is {getattr(policy.first_rung, kind)}"


def choose(
    kind: Kind,
    group: int,
    policy: PolicySpec,
    *,
    spent: Mapping[str, tuple[float, ...]],
    now: float,
    spare: bool,
    of_kind: tuple[float, ...] = (),
    at_least: Rung = Rung.RIDE_THROUGH,
    passed: str = "",
) -> Choice:
    """The cheapest rung that this kind may take and that has budget left.

    `of_kind`: when this group's failures of this kind were acted on. `at_least` is the rung below which this incident may
    not go, and `passed` is why (it has tried). A rung is never skipped without a sentence in `considered`.
    """
    first, why = first_rung(kind, policy), why_first(kind, policy)
    budget = policy.budget
    considered: list[str] = []
    considered += [
        f"{_name(Rung(skipped))}: {passed or 'this incident is past it'}" for skipped in range(first, at_least)
    ]
    rung = max(first, at_least)
    while rung < Rung.STOP:
        if rung == Rung.RIDE_THROUGH:
            return Choice(rung, why, tuple(considered))
        if rung == first and budgets.of_kind_left(of_kind, policy, kind, now) == 0:
            limit = f"{policy.kind_budget[kind]} within {budget.window_s:g} s"
            considered.append(f"{_name(rung)}: budget of {kind} spent ({limit})")
        elif rung == Rung.REPLACE and not spare:
            considered.append("replace: no healthy spare node")
        elif budgets.left(spent, budget, rung, group, now) == 0:
            considered.append(
                f"{_name(rung)}: budget spent ({budgets.allowed(budget, rung)} within {budget.window_s:g} s)"
            )
        else:
            return Choice(rung, why if rung == first else f"{why}; {'; '.join(considered)}", tuple(considered))
        rung = Rung(rung + 1)
    reason = why if first == Rung.STOP else f"{NOTHING_LEFT}: {'; '.join(considered)}"
    return Choice(Rung.STOP, reason, tuple(considered))


def in_place(choice: Choice, why: str) -> Choice:
    """What is done instead of a choice where no node is at fault. `why` begins with ONE_CAUSE."""
    dearer = (f"{_name(choice.rung)}: nobody leaves its node for that",) if choice.rung > Rung.RESTART else ()
    return replace(choice, rung=Rung.RESTART, reason=why, considered=(*choice.considered, *dearer), free=True)


def _name(rung: Rung) -> str:
    return rung.name.lower()
