"""In the simulator: heartbeats and requests to etcd that are lost or late."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fault_injection.sim import faults
from fault_injection.sim.clock import Clock
from fault_injection.sim.faults import Fault
from fault_injection.sim.store import PATIENCE_S, Etcd, SimStore
from fault_injection.sim.world import World, spec
from supervisor.ports.errors import Retryable

NODES = 4


@pytest.fixture
def world() -> World:
    world = World(spec(NODES), 1)
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    return world


def heard(world: World, group: int) -> Callable[[], str]:
    """The gate's current verdict on a group."""
    return lambda: world.gates[0].state.hearing(group, world.clock.now)


def test_whose_heartbeats_are_lost_is_silent_and_heals_when_they_come_again(world: World) -> None:
    node = next(node for node in world.nodes.values() if node.trainers)
    (trainer,) = node.trainers.values()
    node.beats_lost = 1.0
    says = heard(world, trainer.group)
    world.clock.run_until(world.clock.now + 5.0, lambda: says() == "silent")
    at, newest = trainer.step, world.training.newest
    world.clock.wait(3.0)
    assert trainer.step == at
    assert world.training.newest > newest, "the others go on"
    node.beats_lost = 0.0
    world.clock.run_until(world.clock.now + 10.0, lambda: trainer.step > at)
    assert trainer.step == world.training.newest
    assert rows_healed(world, trainer.group)


def rows_healed(world: World, group: int) -> bool:
    return any(row["healed"] for key, rows in world.training.rows.items() if key[0] == group for row in rows)


def test_heartbeats_that_are_all_as_late_leave_one_gap_and_then_come(world: World) -> None:
    node = next(node for node in world.nodes.values() if node.trainers)
    (trainer,) = node.trainers.values()
    says = heard(world, trainer.group)
    node.beats_late = (3.0, 3.0)
    world.clock.run_until(world.clock.now + 2.5, lambda: says() == "silent")
    assert says() == "silent"
    world.clock.wait(3.0)
    for _ in range(10):
        world.clock.wait(0.5)
        assert says() == "beating"
    trainer.end(signal=9)
    world.clock.wait(0.9)
    assert says() == "beating", "that it has ended is as late"


@pytest.mark.parametrize("kind", ["beats_lost", "beats_late"])
def test_the_faults_of_heartbeats_make_somebody_silent_and_end(world: World, kind: str) -> None:
    whose = [bool(node.trainers) for node in world.nodes.values()].index(True)
    much = (n for n in range(whose, 999, NODES) if random.Random(n).random() > 0.8)  # a strong fault
    assert faults.inject(world, Fault(0.0, kind, next(much), 20.0))
    node = next(node for node in world.nodes.values() if node.is_hard_to_hear)
    (trainer,) = node.trainers.values()
    says = heard(world, trainer.group)
    world.clock.run_until(world.clock.now + 19.0, lambda: says() == "silent")
    assert says() == "silent"
    world.clock.wait(20.0)
    assert not node.is_hard_to_hear
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    assert world.healthy()
    assert not world.checks.broken


def test_a_request_that_is_lost_is_not_done_and_one_whose_answer_is_lost_is() -> None:
    clock = Clock()
    store = SimStore(Etcd(clock), "one")
    store.lost = 1.0
    with pytest.raises(Retryable, match="the request is lost"):
        store.put("a", b"1")
    assert clock.now == PATIENCE_S
    store.lost = 0.5
    said = set()
    for number in range(200):
        key, seen = f"k{number}", ""
        try:
            store.put(key, b"1")
        except Retryable as error:
            seen = str(error)
        said.add((seen, key in store.etcd.items))
    assert said == {("", True), ("the request is lost", False), ("the answer is lost", True)}


def test_a_request_that_is_late_is_done_when_it_comes() -> None:
    clock = Clock()
    etcd = Etcd(clock)
    store, other = SimStore(etcd, "one"), SimStore(etcd, "other")
    store.late_s = (1.5, 1.5)
    clock.after(1.0, lambda: other.put("a", b"2") and None)
    store.put("a", b"1")
    assert clock.now == 3.0, "the answer is as late"
    assert etcd.items["a"].value == b"1"
    assert store.get("a") is not None
    assert clock.now == 4.5


@pytest.mark.parametrize("kind", ["calls_lost", "calls_late"])
@pytest.mark.parametrize(("target", "leader"), [(3, True), (4, False)])
def test_the_faults_of_requests_hit_an_agent_or_whoever_leads(
    world: World, kind: str, target: int, leader: bool
) -> None:
    assert faults.inject(world, Fault(0.0, kind, target, 10.0))
    (hit,) = [client for client in world.etcd.clients if client.lost or client.late_s[1]]
    assert (hit.name in {s.store.name for s in world.supervisors}) == leader
    assert leader or hit.name in world.nodes
    world.clock.wait(10.0)
    assert (hit.lost, hit.late_s[1]) == (0.0, 0.0)
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    assert world.healthy()
    assert not world.checks.broken


def test_an_agent_whose_every_request_is_lost_tells_nothing_and_tells_it_when_they_come_again(world: World) -> None:
    node = next(node for node in world.nodes.values() if node.trainers)
    (trainer,) = node.trainers.values()
    node.client.lost = 1.0
    trainer.end(signal=9)
    world.clock.wait(10.0)
    assert not world.checks.memory.incidents
    node.client.lost = 0.0
    world.clock.run_until(world.clock.now + 10.0, lambda: bool(world.checks.memory.incidents))
    assert world.checks.memory.incidents
