"""The simulator heals as TorchFT does: which group heals, how long that takes all, and a loss in the middle of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fault_injection.sim import faults
from fault_injection.sim.faults import Fault
from fault_injection.sim.nodes import Trainer
from fault_injection.sim.pace import pace
from fault_injection.sim.training import Step
from fault_injection.sim.world import World, spec
from supervisor.wire.records import PEERS_GONE

NODES, HEAL_S = 4, 2.0


@pytest.fixture
def world() -> World:
    """A world of three groups that train, in which a heal takes two seconds."""
    world = World(spec(NODES), 1, replace(pace(), heal_s=(HEAL_S, HEAL_S)))
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    return world


def until_it_heals(world: World) -> tuple[Trainer, Trainer]:
    """The trainer that heals next, and its source."""
    world.clock.run_until(world.clock.now + 30.0, lambda: bool(world.training.healing))
    (pair,) = world.training.healing
    return pair


def rows(world: World, trainer: Trainer) -> list[dict[str, object]]:
    return world.training.rows.get((trainer.group, trainer.generation, trainer.rank, trainer.node.name), [])


def test_the_step_in_which_one_heals_takes_all_its_members_longer(world: World) -> None:
    assert faults.inject(world, Fault(0.0, "crash", 0, 0.0))
    healer, source = until_it_heals(world)
    world.clock.run_until(world.clock.now + 10.0)
    first = rows(world, healer)[0]
    assert first["healed"]
    (same,) = [row for row in rows(world, source) if row["step"] == first["step"]]
    assert not same["healed"]
    for row in (first, same):
        assert float(str(row["t"])) - float(str(row["start"])) == pytest.approx(world.pace.step_s + HEAL_S)


@pytest.mark.parametrize("lost", ["source", "healer"])
def test_who_is_lost_in_the_middle_of_a_heal_takes_that_step_along(world: World, lost: str) -> None:
    assert faults.inject(world, Fault(0.0, "crash", 0, 0.0))
    healer, source = until_it_heals(world)
    newest = world.training.newest
    world.clock.wait(HEAL_S / 2)
    (healer if lost == "healer" else source).end(signal=9)
    world.clock.wait(HEAL_S / 2 + world.pace.step_s)
    assert world.training.newest == newest, "that step is not committed"
    if lost == "source":
        again, other = until_it_heals(world)
        assert (again, other != source) == (healer, True), "it heals anew, from another"
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    assert world.healthy()


def test_who_heals_from_the_only_peer_and_loses_it_ends_itself() -> None:
    """It does as the real one, at step 0 where others had trained (titan_actor/replica.py, PeersGone)."""
    world = World(spec(3), 1, replace(pace(), heal_s=(HEAL_S, HEAL_S)))  # two groups
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    assert faults.inject(world, Fault(0.0, "crash", 0, 0.0))
    healer, source = until_it_heals(world)
    source.end(signal=9)
    world.clock.run_until(world.clock.now + 30.0, lambda: healer.ended is not None)
    assert healer.exit_code == PEERS_GONE
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    assert world.healthy()
    assert not world.checks.broken


def test_two_that_are_to_heal_and_meet_nobody_else_end_both(world: World) -> None:
    """They do not train on from the checkpoint together: only a group that resumes from disk may."""
    one, two, last = (t for node in world.nodes.values() for t in node.trainers.values())
    for trainer in (one, two):
        trainer.end(signal=9)
    world.clock.run_until(world.clock.now + 30.0, lambda: len(newcomers(world)) == 2)
    healers = newcomers(world)
    world.training._begin(world.gates[0], healers)
    assert [t.exit_code for t in healers] == [PEERS_GONE, PEERS_GONE]
    assert last.ended is None


def newcomers(world: World) -> list[Trainer]:
    """Trainers that must heal from peers, and have not yet."""
    running = [t for t in world.trainers() if t.lives and not t.commits]
    return [t for t in running if t.desired.resume == "peers"]


def test_the_source_of_a_heal_is_killed_in_the_middle_of_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert faults.inject(world, Fault(0.0, "heal_source_killed", 0, 30.0))
    ((crashed, _),) = world.victims
    healer, source = until_it_heals(world)
    assert healer.group == crashed
    world.clock.wait(HEAL_S)
    assert (source.signal, [group for group, _ in world.victims]) == (9, [crashed, source.group])
    begun: list[Step] = []
    world.training.on_heal = begun.append
    world.clock.run_until(world.clock.now + 30.0, lambda: bool(begun))
    assert begun[0].heals[0][0] is healer
    assert faults.inject(world, Fault(0.0, "heal_source_killed", 0, 1.0)), "who heals already is not waited for"
    assert world.victims[-1][0] == begun[0].heals[0][1].group


def test_a_newcomer_is_in_the_step_after_the_one_that_is_under_way(world: World) -> None:
    assert faults.inject(world, Fault(0.0, "crash", 0, 0.0))
    healer, source = until_it_heals(world)
    (before,) = [row for row in rows(world, source) if row["t"] == world.clock.now]
    assert before["participants"] == 2
    assert healer.built_at < world.clock.now


@pytest.mark.parametrize(("join_ms", "waits"), [(400, False), (60_000, True)])
def test_for_one_that_counts_as_alive_and_does_not_come_the_quorum_waits_as_long_as_is_configured(
    join_ms: int, waits: bool
) -> None:
    """torchft's lighthouse goes on after join_timeout_ms with more than half."""
    of_run = spec(NODES)
    torchft = replace(of_run.torchft, join_timeout_ms=join_ms, heartbeat_timeout_ms=30_000)
    world = World(replace(of_run, torchft=torchft), 1)
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    assert faults.inject(world, Fault(0.0, "freeze", 0, 20.0))
    newest = world.training.newest
    world.clock.wait(10.0)
    assert (world.training.newest == newest) == waits
