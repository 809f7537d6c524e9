"""Windowed budgets: so many within so long (after Erlang/OTP's restart intensity)."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.core.model import Rung
from supervisor.core.spec import BudgetSpec


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
