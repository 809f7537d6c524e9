"""Many nodes lost at once: the breaker holds, instead of giving them all up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.model.kinds import Kind
from supervisor.core.model.observed import GpuFact
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import BreakerSpec, BudgetSpec
from tests.unit.core.world import World


def world(groups: int = 12, spares: int = 2, **breaker: float) -> World:
    w = World(groups=groups, spares=spares).bring_up()
    w.spec = replace(w.spec, policy=replace(w.spec.policy, breaker=BreakerSpec(**breaker)))  # type: ignore[arg-type]
    return w


def lose(w: World, *groups: int) -> list[str]:
    """Silences these groups' nodes, until the engine has had time to report if it took them."""
    nodes = [w.group(g).first_node for g in groups]
    for group, node in zip(groups, nodes, strict=True):
        w.hear(group, "silent")
        w.nodes[node] = replace(w.nodes[node], registered=False)
    w.round()
    w.round(1.0)
    return nodes


def come_back(w: World, groups: range, nodes: list[str]) -> None:
    for group, node in zip(groups, nodes, strict=True):
        w.hear(group, "beating")
        w.nodes[node] = replace(w.nodes[node], registered=True)
    w.round(1.0)


def generations(w: World) -> set[int]:
    return {g.generation for g in w.memory.groups.values()}


def test_nodes_that_come_back_before_the_gate_hears_them_are_not_restarted() -> None:
    """After a long outage their agents are there a moment before the gate hears any group again: no group was silent
    for long on a live node. Else all would be started again at once, from disk."""
    w = world()
    lose(w, 0, 1, 2, 3, 4)
    w.round(10 * w.spec.policy.silent_timeout_s)
    for group in range(5):
        node = w.group(group).first_node
        w.nodes[node] = replace(w.nodes[node], registered=True)
    w.round()
    w.round(1.0)
    assert generations(w) == {1}
    for group in range(5):
        w.hear(group, "beating")
    w.round()
    assert generations(w) == {1}
    assert w.memory.incidents == {}
    assert w.memory.suspects == {}


def test_one_that_comes_back_and_stays_silent_is_restarted_after_its_time() -> None:
    w = world()
    nodes = lose(w, 0, 1, 2, 3, 4)
    w.round(10 * w.spec.policy.silent_timeout_s)
    w.nodes[nodes[0]] = replace(w.nodes[nodes[0]], registered=True)
    come_back(w, range(1, 5), nodes[1:])
    back = w.now
    w.round()
    assert w.last.look_again_at is not None
    assert back < w.last.look_again_at <= back + w.spec.policy.silent_timeout_s + 0.1
    w.round(w.spec.policy.silent_timeout_s - 1.0)
    assert w.group(0).generation == 1
    w.round(1.1)
    assert (w.incidents[w.group(0).incident].kind, w.group(0).generation) == (Kind.STALLED, 2)


def test_five_of_twelve_at_once_are_held_and_come_back() -> None:
    w = world()
    nodes = lose(w, 0, 1, 2, 3, 4)
    assert w.memory.breaker_since is not None
    assert w.waiting(Code.NODES_OF_MANY) == [{"run": "run", "lost": 5, "of": 12, "window_s": 60.0}]
    for _ in range(20):
        w.round(30.0)
    assert generations(w) == {1}
    assert w.memory.cordons == {}
    come_back(w, range(5), nodes)
    assert w.memory.breaker_since is None
    for _ in range(3):
        w.round(1.0)
    assert w.memory.incidents == {}
    assert {i.state for i in w.incidents.values()} == {"recovered"}
    assert generations(w) == {1}


@pytest.mark.parametrize(("groups", "lost"), [(12, 4), (60, 12)])
def test_fewer_than_five_or_no_more_than_a_fifth_are_given_up(groups: int, lost: int) -> None:
    w = world(groups, spares=lost)
    w.spec = replace(w.spec, policy=replace(w.spec.policy, budget=BudgetSpec(replace=lost)))
    lose(w, *range(lost))
    for _ in range(5):
        w.round(1.0)
    assert w.memory.breaker_since is None
    assert w.memory.cordons


@pytest.mark.parametrize("at_once", [True, False])
def test_more_than_the_budgets_can_pay_for_are_held_and_halt_nothing(at_once: bool) -> None:
    """A switch takes 10 of 64 nodes, less than a fifth: 4 replacements and 3 allocations would be spent, then a
    halt."""
    w = world(64, spares=2)
    for part in [range(10)] if at_once else [range(n, n + 1) for n in range(10)]:
        lose(w, *part)
    for _ in range(5):
        w.round(10.0 if at_once else 1.0)
    assert w.memory.breaker_since is not None
    assert w.memory.phase == "running"
    assert len(w.memory.cordons) <= (0 if at_once else 7)


def test_gpus_that_are_lost_everywhere_at_once_are_held() -> None:
    """The cause is a driver, or its upgrade, and not the GPUs themselves."""
    w = world(8)
    for group in range(8):
        lost = GpuFact(kind="gpu_lost", evidence="GPU 0 is lost")
        w.nodes[w.group(group).first_node] = replace(w.nodes[w.group(group).first_node], gpus=(lost,))
    for _ in range(3):
        w.round(1.0)
    assert w.memory.breaker_since is not None
    assert generations(w) == {1}
    assert w.memory.cordons == {}
    for group in range(8):
        w.nodes[w.group(group).first_node] = replace(w.nodes[w.group(group).first_node], gpus=())
    w.round(1.0)
    assert w.memory.breaker_since is None


def test_those_that_were_given_up_a_moment_before_count() -> None:
    w = world()
    lose(w, 0, 1)
    w.round(1.0)
    assert len(w.memory.cordons) == 2
    lose(w, 2, 3, 4)
    assert w.memory.breaker_since is not None
    assert len(w.memory.cordons) == 2
    w.round(61.0)
    assert w.memory.breaker_since is None, "three within the window are not many"
    w.round(1.0)
    assert len(w.memory.cordons) > 2


def test_a_person_has_them_given_up_at_no_budget() -> None:
    w = world(spares=6)
    lose(w, 0, 1, 2, 3, 4)
    w.control = replace(w.control, evictions=1, because="the rack burnt")
    assert Reason.of(Code.PERSON_SAYS, because="the rack burnt") in [action.reason for action in w.round(1.0).actions]
    w.round(1.0)
    assert w.memory.breaker_since is None
    assert [w.group(g).generation for g in range(12)] == [2] * 5 + [1] * 7
    assert w.memory.spent == {}
    w.round(120.0)
    lose(w, 5, 6, 7, 8, 9)
    assert w.memory.breaker_since is not None, "his word was for those"


def test_what_the_engine_says_it_took_is_no_guess() -> None:
    w = world()
    for group in range(6):
        key = w.group(group).last_seats[0].allocation
        w.grants[key] = replace(w.grants[key], state="gone")
    lose(w, *range(6))
    assert w.memory.breaker_since is None
    assert {i.kind for i in w.incidents.values()} == {Kind.ALLOCATION_LOST}


def test_a_crash_is_mended_while_it_holds() -> None:
    w = world()
    lose(w, 0, 1, 2, 3, 4)
    w.crash(7)
    w.round(1.0)
    assert w.group(7).generation == 2


def test_the_others_rest_when_the_breaker_goes() -> None:
    """Some come back: the rest are few, and are given up."""
    w = world()
    nodes = lose(w, 0, 1, 2, 3, 4)
    come_back(w, range(3), nodes[:3])
    w.round(1.0)
    w.round(1.0)
    assert [w.group(g).generation for g in range(5)] == [1, 1, 1, 2, 2]


@pytest.mark.parametrize(("groups", "spares", "lost"), [(4, 0, 4), (4, 1, 4), (3, 0, 3)])
def test_what_cannot_be_paid_for_is_held_also_below_the_number_that_is_many(
    groups: int, spares: int, lost: int
) -> None:
    """Three of four would be given up, and the run halted for the fourth, eight seconds before the switch is back."""
    w = World(groups=groups, spares=spares, budget={"reallocate": lost - 1 - min(spares, lost)}).bring_up()
    nodes = lose(w, *range(lost))
    for _ in range(8):
        w.round(1.0)
    assert (w.memory.phase, w.memory.cordons, w.suspicions) == ("running", {}, [])
    assert w.waiting(Code.NODES_OF_MANY) == [{"run": "run", "lost": lost, "of": groups, "window_s": 60.0}]
    come_back(w, range(lost), nodes)
    w.round(1.0)
    assert (generations(w), w.memory.breaker_since) == ({1}, None)


def test_where_others_train_on_each_is_mended_as_ever() -> None:
    w = World(groups=20, spares=2, budget={"reallocate": 0}).bring_up()
    lose(w, 0, 1, 2)
    for _ in range(3):
        w.round(1.0)
    assert w.memory.breaker_since is None
    assert [w.group(g).generation for g in range(3)] == [2] * 3
    assert len(w.memory.cordons) == 3


def test_late_starts_are_paid_for_by_their_own_budgets() -> None:
    w = World(groups=100, spares=1, start_timeout_s=60.0).bring_up()
    for group in range(5):
        w.crash(group, step=50, commits=5)
    w.round(1.0)
    w.round(1.0)
    for group in range(5):
        w.start_again(group)
    w.round(61.0)
    w.round(1.0)
    assert w.memory.breaker_since is None
    assert [w.group(g).generation for g in range(5)] == [3] * 5


def test_what_can_be_paid_for_is_replaced_where_so_few_are_no_share() -> None:
    w = World(groups=4, spares=1).bring_up()
    lose(w, 0, 1, 2, 3)
    assert w.memory.breaker_since is None
    assert len(w.memory.cordons) == 4


def test_one_alone_that_cannot_be_paid_for_is_not_held() -> None:
    w = World(groups=4, spares=0, budget={"reallocate": 0}).bring_up()
    lose(w, 2)
    assert w.memory.breaker_since is None
    assert w.group(2).left_out
