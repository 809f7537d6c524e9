"""The ladder: first rungs, climbing, and a sentence for each rung that is passed over."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.ladder import FIXED, WHY_FIRST, Choice, choose, first_rung
from supervisor.core.model import Kind, Rung
from supervisor.core.spec import BudgetSpec, FirstRungSpec, PolicySpec
from tests.unit.core.world import World

BUDGET = BudgetSpec(restart=1, replace=1, reallocate=1, window_s=100.0)
POLICY = PolicySpec(budget=BUDGET)


def pick(
    kind: Kind,
    *,
    spent: tuple[str, ...] = (),
    spare: bool = True,
    at_least: Rung = Rung.RIDE_THROUGH,
    of_kind: tuple[float, ...] = (),
    policy: PolicySpec = POLICY,
) -> Choice:
    drawn = dict.fromkeys(spent, (0.0,))
    return choose(kind, 0, policy, spent=drawn, of_kind=of_kind, now=1.0, spare=spare, at_least=at_least)


def test_every_kind_has_a_first_rung_and_a_reason() -> None:
    assert set(Kind) == set(WHY_FIRST)
    assert {first_rung(kind, POLICY) for kind in Kind} == set(Rung)


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
    assert choice.rung >= max(first_rung(kind, POLICY), at_least)
    for passed in range(first_rung(kind, POLICY), choice.rung):
        name = Rung(passed).name.lower()
        assert any(s.startswith(f"{name}: ") for s in choice.considered), f"{name} is passed over without a word"


def test_the_same_error_never_looks_at_budgets() -> None:
    assert pick(Kind.SAME_ERROR, spent=("restart:0", "replace", "reallocate"), spare=False).considered == ()


def test_the_policy_says_where_a_kind_begins() -> None:
    policy = replace(POLICY, first_rung=FirstRungSpec(crash="replace", node_lost="stop"))
    assert pick(Kind.CRASH, policy=policy) == Choice(Rung.REPLACE, "policy.first_rung.crash is replace", ())
    assert pick(Kind.OOM, policy=policy).rung == Rung.RESTART
    assert pick(Kind.NODE_LOST, policy=policy) == Choice(Rung.STOP, "policy.first_rung.node_lost is stop", ())
    climbs = pick(Kind.CRASH, policy=policy, spare=False)
    assert climbs.reason == "policy.first_rung.crash is replace; replace: no healthy spare node"


def test_a_kind_may_have_a_budget_of_its_own() -> None:
    policy = replace(POLICY, kind_budget={"crash": 2})
    assert pick(Kind.CRASH, policy=policy, of_kind=(0.0,)).rung == Rung.RESTART
    spent = pick(Kind.CRASH, policy=policy, of_kind=(0.0, 0.5))
    assert (spent.rung, spent.considered) == (Rung.REPLACE, ("restart: budget of crash spent (2 within 100 s)",))
    assert pick(Kind.CRASH, policy=policy, of_kind=(-99.5, 0.5)).rung == Rung.RESTART, "one is forgotten"
    assert pick(Kind.ERROR, policy=policy, of_kind=(0.0, 0.5)).rung == Rung.RESTART


def possible(kind: Kind) -> tuple[str, ...]:
    return get_args(get_type_hints(FirstRungSpec)[kind.value])


@given(st.data())
def test_whatever_the_policy_no_rung_is_skipped_without_a_sentence(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([kind for kind in Kind if kind not in FIXED]))
    rung = data.draw(st.sampled_from(possible(kind)))
    policy = replace(POLICY, first_rung=FirstRungSpec(**{kind.value: rung}))  # type: ignore[arg-type]
    policy = replace(policy, kind_budget=data.draw(st.dictionaries(st.just(kind.value), st.integers(1, 3))))
    choice = pick(
        kind,
        policy=policy,
        spent=data.draw(st.sets(st.sampled_from(["restart:0", "replace", "reallocate"])).map(tuple)),
        of_kind=tuple(data.draw(st.lists(st.floats(-200.0, 1.0), max_size=4))),
        spare=data.draw(st.booleans()),
        at_least=data.draw(st.sampled_from([r for r in Rung if r < Rung.STOP])),
    )
    names = [sentence.split(":", 1)[0] for sentence in choice.considered]
    assert names == [Rung(r).name.lower() for r in range(Rung[rung.upper()], choice.rung)]
    assert choice.reason


def test_a_kinds_budget_and_pause_are_the_groups_own() -> None:
    w = World(
        groups=2, spares=3, kind_budget={"crash": 1}, kind_backoff_s={"crash": 7.0}, backoff_first_s=2.0
    ).bring_up()
    w.crash(0)
    w.round(1.0)
    assert (w.incident.rung, w.group(0).not_before) == (Rung.RESTART, w.now)
    w.recover(0)
    w.crash(0)
    w.round(1.0)
    assert w.incident.rung == Rung.REPLACE
    assert "restart: budget of crash spent (1 within 3600 s)" in w.incident.considered
    assert w.group(0).not_before == w.now + 7.0, "the second in a row"
    w.crash(1)
    w.round(1.0)
    assert w.incident.rung == Rung.RESTART, "each group has its own"
    w.recover(0)
    w.round(1.0 + w.spec.policy.budget.window_s)
    w.crash(0)
    w.round(1.0)
    assert w.incident.rung == Rung.RESTART, "it is forgotten"
