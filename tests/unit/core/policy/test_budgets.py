"""Windowed budgets."""

from __future__ import annotations

import pytest

from supervisor.core.model.kinds import Rung
from supervisor.core.model.spec import BudgetSpec
from supervisor.core.policy import budgets

BUDGET = BudgetSpec(restart=2, replace=1, reallocate=0, window_s=10.0)


def test_restarts_are_counted_per_group_and_the_rest_per_run() -> None:
    assert budgets.scope(Rung.RESTART, 0) != budgets.scope(Rung.RESTART, 1)
    assert budgets.scope(Rung.REPLACE, 0) == budgets.scope(Rung.REPLACE, 1)
    assert budgets.scope(Rung.REALLOCATE, 0) == budgets.scope(Rung.REALLOCATE, 1)


@pytest.mark.parametrize(("rung", "count"), [(Rung.RESTART, 2), (Rung.REPLACE, 1), (Rung.REALLOCATE, 0)])
def test_a_fresh_budget_is_full(rung: Rung, count: int) -> None:
    assert budgets.left({}, BUDGET, rung, 0, now=5.0) == count


def test_drawing_spends_one_and_leaves_the_input_alone() -> None:
    before: dict[str, tuple[float, ...]] = {}
    after = budgets.draw(before, BUDGET, Rung.RESTART, 0, now=5.0)
    assert before == {}
    assert budgets.left(after, BUDGET, Rung.RESTART, 0, now=5.0) == 1
    assert budgets.left(after, BUDGET, Rung.RESTART, 1, now=5.0) == 2


def test_the_window_forgets_exactly_at_its_end() -> None:
    spent = budgets.draw({}, BUDGET, Rung.REPLACE, 0, now=5.0)
    assert budgets.left(spent, BUDGET, Rung.REPLACE, 0, now=14.999) == 0
    assert budgets.left(spent, BUDGET, Rung.REPLACE, 0, now=15.0) == 1


def test_drawing_drops_what_is_forgotten() -> None:
    spent = {"restart:0": (0.0, 1.0, 9.0)}
    assert budgets.draw(spent, BUDGET, Rung.RESTART, 0, now=12.0) == {"restart:0": (9.0, 12.0)}


def test_a_spent_budget_cannot_be_drawn_on() -> None:
    with pytest.raises(ValueError, match="reallocate"):
        budgets.draw({}, BUDGET, Rung.REALLOCATE, 0, now=0.0)


def test_more_instants_than_allowed_leave_zero_not_less() -> None:
    assert budgets.left({"replace": (1.0, 2.0, 3.0)}, BUDGET, Rung.REPLACE, 0, now=4.0) == 0
