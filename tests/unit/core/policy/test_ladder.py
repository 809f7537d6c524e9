"""The ladder: first rungs, climbing, and a sentence for each rung that is passed over."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import BudgetSpec, FirstRungSpec, PolicySpec
from supervisor.core.policy.ladder import FIXED, Choice, Means, choose, first_rung
from tests.helpers.reasons import codes, passed, spent
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
    means = Means(now=1.0, spent=drawn, of_kind=of_kind, spare=spare)
    return choose(kind, 0, policy, means, at_least)


def test_every_kind_has_a_first_rung() -> None:
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
        (Kind.DEBUGGER, Rung.RESTART),
        (Kind.REQUESTED, Rung.RESTART),
        (Kind.NODE_LOST, Rung.REPLACE),
        (Kind.ALLOCATION_LOST, Rung.REALLOCATE),
        (Kind.LEAVING, Rung.REPLACE),
        (Kind.SAME_ERROR, Rung.STOP),
    ],
)
def test_the_kind_picks_the_first_rung(kind: Kind, rung: Rung) -> None:
    choice = pick(kind)
    assert choice == Choice(rung, Reason.of(Code.FIRST_RUNG, kind=kind.value))


@pytest.mark.parametrize(
    ("spent", "spare", "rung", "considered"),
    [
        ((), True, Rung.RESTART, ()),
        (("restart:0",), True, Rung.REPLACE, (spent("restart", 1, 100.0),)),
        (
            ("restart:0",),
            False,
            Rung.REALLOCATE,
            (spent("restart", 1, 100.0), Reason.of(Code.NO_SPARE)),
        ),
        (
            ("restart:0", "replace"),
            True,
            Rung.REALLOCATE,
            (spent("restart", 1, 100.0), spent("replace", 1, 100.0)),
        ),
        (
            ("restart:0", "replace", "reallocate"),
            True,
            Rung.STOP,
            (
                spent("restart", 1, 100.0),
                spent("replace", 1, 100.0),
                spent("reallocate", 1, 100.0),
            ),
        ),
        (("restart:1",), True, Rung.RESTART, ()),
    ],
)
def test_a_crash_climbs(spent: tuple[str, ...], spare: bool, rung: Rung, considered: tuple[Reason, ...]) -> None:
    choice = pick(Kind.CRASH, spent=spent, spare=spare)
    assert (choice.rung, choice.considered) == (rung, considered)
    assert codes(*considered) <= codes(choice.reason)


@pytest.mark.parametrize(
    ("kind", "at_least"),
    [(kind, at_least) for kind in Kind for at_least in (Rung.RESTART, Rung.REPLACE, Rung.REALLOCATE)],
)
def test_a_rung_is_never_skipped_without_a_reason(kind: Kind, at_least: Rung) -> None:
    """Rungs that this incident has tried before have a reason too."""
    choice = pick(kind, at_least=at_least, spent=("replace",))
    assert choice.rung >= max(first_rung(kind, POLICY), at_least)
    assert passed(choice.considered) == [Rung(r).name.lower() for r in range(first_rung(kind, POLICY), choice.rung)]


def test_the_same_error_never_looks_at_budgets() -> None:
    assert pick(Kind.SAME_ERROR, spent=("restart:0", "replace", "reallocate"), spare=False).considered == ()


def by_policy(kind: str, rung: str) -> Reason:
    return Reason.of(Code.POLICY_RUNG, kind=kind, rung=rung)


def test_the_policy_says_where_a_kind_begins() -> None:
    policy = replace(POLICY, first_rung=FirstRungSpec(crash="replace", node_lost="stop"))
    assert pick(Kind.CRASH, policy=policy) == Choice(Rung.REPLACE, by_policy("crash", "replace"))
    assert pick(Kind.OOM, policy=policy).rung == Rung.RESTART
    assert pick(Kind.NODE_LOST, policy=policy) == Choice(Rung.STOP, by_policy("node_lost", "stop"))
    climbs = pick(Kind.CRASH, policy=policy, spare=False)
    no_spare = Reason.of(Code.NO_SPARE)
    assert climbs.reason == Reason.of(Code.CLIMBED, first=by_policy("crash", "replace"), passed=(no_spare,))


def of_kind(allowed: int, window_s: float) -> Reason:
    return Reason.of(Code.KIND_BUDGET_SPENT, rung="restart", kind="crash", allowed=allowed, window_s=window_s)


def test_a_kind_may_have_a_budget_of_its_own() -> None:
    policy = replace(POLICY, kind_budget={"crash": 2})
    assert pick(Kind.CRASH, policy=policy, of_kind=(0.0,)).rung == Rung.RESTART
    climbs = pick(Kind.CRASH, policy=policy, of_kind=(0.0, 0.5))
    assert (climbs.rung, climbs.considered) == (Rung.REPLACE, (of_kind(2, 100.0),))
    assert pick(Kind.CRASH, policy=policy, of_kind=(-99.5, 0.5)).rung == Rung.RESTART, "one is forgotten"
    assert pick(Kind.ERROR, policy=policy, of_kind=(0.0, 0.5)).rung == Rung.RESTART


def possible(kind: Kind) -> tuple[str, ...]:
    return get_args(get_type_hints(FirstRungSpec)[kind.value])


@given(st.data())
def test_whatever_the_policy_no_rung_is_skipped_without_a_reason(data: st.DataObject) -> None:
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
    assert passed(choice.considered) == [Rung(r).name.lower() for r in range(Rung[rung.upper()], choice.rung)]
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
    assert of_kind(1, 3600.0) in w.incident.considered
    assert w.group(0).not_before == w.now + 7.0, "the second in a row"
    w.crash(1)
    w.round(1.0)
    assert w.incident.rung == Rung.RESTART, "each group has its own"
    w.recover(0)
    w.round(1.0 + w.spec.policy.budget.window_s)
    w.crash(0)
    w.round(1.0)
    assert w.incident.rung == Rung.RESTART, "it is forgotten"
