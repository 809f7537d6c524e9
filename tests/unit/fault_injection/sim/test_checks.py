"""Cases that the simulator's own checks leave to the plan. tests/system/sim has a planted bug for each family of checks."""

from __future__ import annotations

import pytest

from fault_injection.sim import checks, faults
from fault_injection.sim.faults import Fault
from fault_injection.sim.nodes import Trainer
from fault_injection.sim.run import run
from fault_injection.sim.world import World, spec
from supervisor.wire.records import CheckpointMark

FAR = 999
"""The step of a checkpoint that no other process knows of."""


def test_what_the_last_group_had_goes_with_an_allocation_that_is_taken() -> None:
    assert run(14, 2, [Fault(99.26, "allocation_taken", 36404, 6.6)]).broken == ()


@pytest.mark.parametrize("tight", [True, False])
def test_as_many_allocations_are_to_be_held_as_at_the_launch_unless_the_rest_of_the_budget_is_for_groups(
    tight: bool,
) -> None:
    world = World(spec(4, tight), 1)
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    with_group = {seat.allocation for g in world.checks.memory.groups.values() for seat in g.last_seats}
    (spare,) = world.engine.held.keys() - with_group
    world.engine.end(spare, "preempted")
    told = "kept: 3 allocations are held or asked for, and the run was launched with 4"
    assert world.checks.left_over() == ("" if tight else told)
    world.clock.wait(world.spec.policy.allocation_timeout_s)
    assert world.checks.left_over() == ""


@pytest.mark.parametrize("lives", [True, False])
def test_a_checkpoint_counts_by_the_word_of_a_generation_that_is_not_replaced_before_it_is_known(lives: bool) -> None:
    world = World(spec(4), 1)
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    one, other = _trainers(world)[:2]
    world.checks.told(one, CheckpointMark(step=FAR, path="far", group=one.group, generation=one.generation))
    if not lives:
        one.end(signal=9)
    world.clock.wait(checks.KNOWN_S + 5.0)
    for trainer in (other, _trainers(world)[0]):
        trainer.end(signal=9)
        world.clock.wait(10.0)
    assert any(f"step {FAR} was complete for long" in sentence for sentence in world.checks.broken) == lives


def _trainers(world: World) -> list[Trainer]:
    return [t for node in world.nodes.values() for t in node.living()]


def test_a_spare_that_is_cut_off_from_etcd_is_none() -> None:
    world = World(spec(8), 1)
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    world.clock.wait(2 * checks.KNOWN_S)
    (spare,) = world.checks._free(world.checks.memory, world.clock.now)
    assert spare.name not in {group.first_node for group in world.checks.memory.groups.values()}
    spare.etcd_linked = False
    world.connect()
    assert world.checks._free(world.checks.memory, world.clock.now) == []
    assert faults.inject(world, Fault(0.0, "node_lost", 0, 1.0))
    world.clock.wait(20.0)
    assert not world.checks.broken
