"""Windowed budgets: so many within so long (after Erlang/OTP's restart intensity)."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.core.model import Kind, Rung
from supervisor.core.spec import BudgetSpec, PolicySpec


def scope(rung: Rung, group: int) -> str:
    """Name of the budget that a rung draws on: restarts are counted per group, the rest for the whole run."""
    return f"restart:{group}" if rung == Rung.RESTART else rung.name.lower()


def allowed(budget: BudgetSpec, rung: Rung) -> int:
    """How many times within the window."""
    return {Rung.RESTART: budget.restart, Rung.REPLACE: budget.replace, Rung.REALLOCATE: budget.reallocate}[rung]


def within(instants: tuple[float, ...], now: float, window_s: float) -> tuple[float, ...]:
    """Those instants that are not yet forgotten."""
    return tuple(t for t in instants if now - t < window_s)


def left(spent: Mapping[str, tuple[float, ...]], budget: BudgetSpec, rung: Rung, group: int, now: float) -> int:
    """How many are left; never below 0."""
    used = len(within(spent.get(scope(rung, group), ()), now, budget.window_s))
    return max(0, allowed(budget, rung) - used)


def next_at(spent: Mapping[str, tuple[float, ...]], budget: BudgetSpec, rung: Rung, group: int, now: float) -> float:
    """When the oldest draw is forgotten, and one more is left; `now` if nothing was drawn."""
    used = within(spent.get(scope(rung, group), ()), now, budget.window_s)
    return min(used) + budget.window_s if used else now


def draw(
    spent: Mapping[str, tuple[float, ...]], budget: BudgetSpec, rung: Rung, group: int, now: float
) -> dict[str, tuple[float, ...]]:
    """The budgets after drawing once; instants out of the window are dropped. ValueError when nothing is left."""
    if left(spent, budget, rung, group, now) == 0:
        raise ValueError(f"budget of {scope(rung, group)} is spent")
    name = scope(rung, group)
    return {**spent, name: (*within(spent.get(name, ()), now, budget.window_s), now)}


def kind_scope(kind: Kind, group: int) -> str:
    """Name of a kind's own budget: each group has one."""
    return f"{kind}:{group}"


def of_kind_left(instants: tuple[float, ...], policy: PolicySpec, kind: Kind, now: float) -> int | None:
    """How many a kind's own budget has left, never below 0; None: it has no budget of its own."""
    allowed_ = policy.kind_budget.get(kind)
    return None if allowed_ is None else max(0, allowed_ - len(within(instants, now, policy.budget.window_s)))


def kinds_left(spent: Mapping[str, tuple[float, ...]], policy: PolicySpec, group: int, now: float) -> dict[str, int]:
    """By scope, what a group has left of the kinds that have a budget of their own."""
    scopes = {kind_scope(Kind(kind), group): Kind(kind) for kind in policy.kind_budget}
    return {s: of_kind_left(spent.get(s, ()), policy, kind, now) or 0 for s, kind in scopes.items()}


def draw_of_kind(
    spent: Mapping[str, tuple[float, ...]], policy: PolicySpec, kind: Kind, group: int, now: float
) -> dict[str, tuple[float, ...]]:
    """The kinds' own budgets after one more was acted on. One that is spent takes no more: the rung's own budget pays then."""
    name = kind_scope(kind, group)
    drawn = within(spent.get(name, ()), now, policy.budget.window_s)
    return {**spent, name: (*drawn, now)} if of_kind_left(drawn, policy, kind, now) else dict(spent)
