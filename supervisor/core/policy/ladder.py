"""The ladder: at which rung a failure starts, and when it climbs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from supervisor.core.model.kinds import TRAITS, Kind, Rung
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import FirstRungSpec, PolicySpec
from supervisor.core.policy import budgets

FIXED: Mapping[Kind, Rung] = {kind: t.fixed_rung for kind, t in TRAITS.items() if t.fixed_rung is not None}
"""Kinds whose first rung the policy does not set."""

_DEFAULT = FirstRungSpec()


@dataclass(frozen=True, slots=True)
class Choice:
    """A rung, its reason, and a reason for each rung that was passed over."""

    rung: Rung
    reason: Reason
    considered: tuple[Reason, ...] = ()
    free: bool = False
    """True if it draws on no budget, since no group is at fault."""


def first_rung(kind: Kind, policy: PolicySpec) -> Rung:
    """Rung where the ladder begins for a kind."""
    return FIXED[kind] if kind in FIXED else Rung[getattr(policy.first_rung, kind).upper()]


def why_first(kind: Kind, policy: PolicySpec) -> Reason:
    """Reason for that rung."""
    if kind in FIXED or getattr(policy.first_rung, kind) == getattr(_DEFAULT, kind):
        return Reason.of(Code.FIRST_RUNG, kind=kind.value)
    return Reason.of(Code.POLICY_RUNG, kind=kind.value, rung=getattr(policy.first_rung, kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Budgets and nodes that pay for a rung."""

    now: float
    spent: Mapping[str, tuple[float, ...]]
    """As Memory.spent."""
    of_kind: tuple[float, ...] = ()
    """Times when this group's failures of this kind were acted on."""
    spare: bool
    """True if there is a node for it."""


def choose(
    kind: Kind,
    group: int,
    policy: PolicySpec,
    means: Means,
    at_least: Rung = Rung.RIDE_THROUGH,
    passed: Reason | None = None,
) -> Choice:
    """Chooses the cheapest rung that this kind may take and that has budget left.

    `at_least` is the rung below which this incident may not go, and `passed` is the reason (None: it has tried them).
    No rung is skipped without a reason in `considered`.
    """
    first, why = first_rung(kind, policy), why_first(kind, policy)
    budget = policy.budget
    considered = [_passed(Rung(skipped), passed) for skipped in range(first, at_least)]
    rung = max(first, at_least)
    while rung < Rung.STOP:
        if rung == Rung.RIDE_THROUGH:
            return Choice(rung, why, tuple(considered))
        if rung == first and budgets.of_kind_left(means.of_kind, policy, kind, means.now) == 0:
            considered.append(
                Reason.of(
                    Code.KIND_BUDGET_SPENT, rung=name(rung), kind=kind.value, allowed=policy.kind_budget[kind],
                    window_s=budget.window_s,
                )
            )  # fmt: skip
        elif rung == Rung.REPLACE and not means.spare:
            considered.append(Reason.of(Code.NO_SPARE))
        elif budgets.left(means.spent, budget, rung, group, means.now) == 0:
            allowed = budgets.allowed(budget, rung)
            considered.append(Reason.of(Code.BUDGET_SPENT, rung=name(rung), allowed=allowed, window_s=budget.window_s))
        else:
            climbed = Reason.of(Code.CLIMBED, first=why, passed=tuple(considered))
            return Choice(rung, why if rung == first else climbed, tuple(considered))
        rung = Rung(rung + 1)
    reason = why if first == Rung.STOP else Reason.of(Code.NOTHING_LEFT, passed=tuple(considered))
    return Choice(Rung.STOP, reason, tuple(considered))


def in_place(choice: Choice, why: Reason) -> Choice:
    """Returns a free restart in place of a choice, where no node is at fault: `why` is one of ONE_CAUSE."""
    dearer = (Reason.of(Code.NO_NODE_LEFT, rung=name(choice.rung)),) if choice.rung > Rung.RESTART else ()
    return replace(choice, rung=Rung.RESTART, reason=why, considered=(*choice.considered, *dearer), free=True)


def _passed(rung: Rung, why: Reason | None) -> Reason:
    return Reason.of(Code.PASSED, rung=name(rung), why=why) if why else Reason.of(Code.PAST_IT, rung=name(rung))


def name(rung: Rung) -> str:
    """Name of a rung in policies and reasons."""
    return rung.name.lower()
