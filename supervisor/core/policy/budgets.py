"""Windowed budgets: at most N draws within a window (after Erlang/OTP's restart intensity)."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.spec import BudgetSpec, PolicySpec


def scope(rung: Rung, group: int) -> str:
    """Name of the budget that a rung draws on: restarts are counted per group, the rest for the whole run."""
    return f"restart:{group}" if rung == Rung.RESTART else rung.name.lower()


def allowed(budget: BudgetSpec, rung: Rung) -> int:
    """Number of draws allowed within the window."""
    return {Rung.RESTART: budget.restart, Rung.REPLACE: budget.replace, Rung.REALLOCATE: budget.reallocate}[rung]


def within(instants: tuple[float, ...], now: float, window_s: float) -> tuple[float, ...]:
    """Returns the instants that lie within the window."""
    return tuple(t for t in instants if now - t < window_s)


def left(spent: Mapping[str, tuple[float, ...]], budget: BudgetSpec, rung: Rung, group: int, now: float) -> int:
    """Number of draws left; never below 0."""
    used = len(within(spent.get(scope(rung, group), ()), now, budget.window_s))
    return max(0, allowed(budget, rung) - used)


def next_at(spent: Mapping[str, tuple[float, ...]], budget: BudgetSpec, rung: Rung, group: int, now: float) -> float:
    """Time when the oldest draw leaves the window, and one more is left; `now` if nothing was drawn."""
    used = within(spent.get(scope(rung, group), ()), now, budget.window_s)
    return min(used) + budget.window_s if used else now


def draw(
    spent: Mapping[str, tuple[float, ...]], budget: BudgetSpec, rung: Rung, group: int, now: float
) -> dict[str, tuple[float, ...]]:
    """Returns the budgets after one draw, without draws that left the window. ValueError when nothing is left."""
    if left(spent, budget, rung, group, now) == 0:
        raise ValueError(f"budget of {scope(rung, group)} is spent")
    name = scope(rung, group)
    return {**spent, name: (*within(spent.get(name, ()), now, budget.window_s), now)}


def kind_scope(kind: Kind, group: int) -> str:
    """Name of a kind's own budget; each group has one."""
    return f"{kind}:{group}"


def of_kind_left(instants: tuple[float, ...], policy: PolicySpec, kind: Kind, now: float) -> int | None:
    """Number of draws that a kind's own budget has left, never below 0; None if the kind has none."""
    allowed_ = policy.kind_budget.get(kind)
    return None if allowed_ is None else max(0, allowed_ - len(within(instants, now, policy.budget.window_s)))


def kinds_left(spent: Mapping[str, tuple[float, ...]], policy: PolicySpec, group: int, now: float) -> dict[str, int]:
    """Draws that a group has left, by scope, for the kinds that have a budget of their own."""
    scopes = {kind_scope(Kind(kind), group): Kind(kind) for kind in policy.kind_budget}
    return {s: of_kind_left(spent.get(s, ()), policy, kind, now) or 0 for s, kind in scopes.items()}


def draw_of_kind(
    spent: Mapping[str, tuple[float, ...]], policy: PolicySpec, kind: Kind, group: int, now: float
) -> dict[str, tuple[float, ...]]:
    """Returns the kinds' own budgets after one draw. A spent one takes no more: the rung's own budget pays then."""
    name = kind_scope(kind, group)
    drawn = within(spent.get(name, ()), now, policy.budget.window_s)
    return {**spent, name: (*drawn, now)} if of_kind_left(drawn, policy, kind, now) else dict(spent)
