"""The ladder: first rungs, climbing, and a sentence for each rung that is passed over."""

from __future__ import annotations

import pytest

from supervisor.core.ladder import FIRST_RUNG, WHY_FIRST, Choice, choose
from supervisor.core.model import Kind, Rung
from supervisor.core.spec import BudgetSpec

BUDGET = BudgetSpec(restart=1, replace=1, reallocate=1, window_s=100.0)


def pick(kind: Kind, *, spent: tuple[str, ...] = (), spare: bool = True, at_least: Rung = Rung.RIDE_THROUGH) -> Choice:
    return choose(kind, 0, spent=dict.fromkeys(spent, (0.0,)), budget=BUDGET, now=1.0, spare=spare, at_least=at_least)


def test_every_kind_has_a_first_rung_and_a_reason() -> None:
    assert set(FIRST_RUNG) == set(Kind) == set(WHY_FIRST)


@pytest.mark.parametrize(
    ("kind", "rung"),
    [
        (Kind.SILENT, Rung.RIDE_THROUGH),
        (Kind.CRASH, Rung.RESTART),
        (Kind.OOM, Rung.RESTART),
        (Kind.ERROR, Rung.RESTART),
        (Kind.PEERS_GONE, Rung.RESTART),
        (Kind.START_TIMEOUT, Rung.RESTART),
        (Kind.STALLED, Rung.RESTART),
        (Kind.REQUESTED, Rung.RESTART),
        (Kind.NODE_LOST, Rung.REPLACE),
        (Kind.ALLOCATION_LOST, Rung.REALLOCATE),
        (Kind.LEAVING, Rung.REPLACE),
        (Kind.SAME_ERROR, Rung.STOP),
    ],
)
def test_the_kind_picks_the_first_rung(kind: Kind, rung: Rung) -> None:
    choice = pick(kind)
    assert choice == Choice(rung, WHY_FIRST[kind], ())


@pytest.mark.parametrize(
    ("spent", "spare", "rung", "considered"),
    [
        ((), True, Rung.RESTART, ()),
        (("restart:0",), True, Rung.REPLACE, ("restart: budget spent (1 within 100 s)",)),
        (
            ("restart:0",),
            False,
            Rung.REALLOCATE,
            ("restart: budget spent (1 within 100 s)", "replace: no healthy spare node"),
        ),
        (
            ("restart:0", "replace"),
            True,
            Rung.REALLOCATE,
            ("restart: budget spent (1 within 100 s)", "replace: budget spent (1 within 100 s)"),
        ),
        (
            ("restart:0", "replace", "reallocate"),
            True,
            Rung.STOP,
            (
                "restart: budget spent (1 within 100 s)",
                "replace: budget spent (1 within 100 s)",
                "reallocate: budget spent (1 within 100 s)",
            ),
        ),
        (("restart:1",), True, Rung.RESTART, ()),
    ],
)
def test_a_crash_climbs(spent: tuple[str, ...], spare: bool, rung: Rung, considered: tuple[str, ...]) -> None:
    choice = pick(Kind.CRASH, spent=spent, spare=spare)
    assert (choice.rung, choice.considered) == (rung, considered)
    for sentence in considered:
        assert sentence in choice.reason


@pytest.mark.parametrize(
    ("kind", "at_least"),
    [(kind, at_least) for kind in Kind for at_least in (Rung.RESTART, Rung.REPLACE, Rung.REALLOCATE)],
)
def test_a_rung_is_never_skipped_without_a_sentence(kind: Kind, at_least: Rung) -> None:
    """Also those that this incident has tried before."""
    choice = pick(kind, at_least=at_least, spent=("replace",))
    assert choice.rung >= max(FIRST_RUNG[kind], at_least)
    for passed in range(FIRST_RUNG[kind], choice.rung):
        name = Rung(passed).name.lower()
        assert any(s.startswith(f"{name}: ") for s in choice.considered), f"{name} is passed over without a word"


def test_the_same_error_never_looks_at_budgets() -> None:
    assert pick(Kind.SAME_ERROR, spent=("restart:0", "replace", "reallocate"), spare=False).considered == ()
