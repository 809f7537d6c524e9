"""A person relaunches and scales a run among the faults of a seed: nothing goes wrong, and at the end every group trains by
the newest spec. Its time bounds are not judged: no fault has one while the groups end and start again."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fault_injection.sim import faults
from fault_injection.sim.faults import TRAINED_S, is_tight
from fault_injection.sim.run import _recover, listening, state
from fault_injection.sim.store import SimStore
from fault_injection.sim.world import World, spec
from supervisor.core.model.spec import RunSpec
from supervisor.core.remediation.restore import ENDED
from supervisor.ports.errors import Retryable
from supervisor.wire import keys
from supervisor.wire.records import Relaunch, RunRecord, decode, encode

NODES, WISHES, SEEDS = 12, 4, 60


def wish(world: World, dice: random.Random) -> None:
    """Asks for another number of groups, or another program. Not while groups start: they end at once then, and a first
    step that no one knows of yet is lost."""
    if any(group.phase == "starting" for group in world.checks.memory.groups.values()):
        world.clock.after(5.0, lambda: wish(world, dice))
        return
    item = world.etcd.items[keys.spec(world.spec.name)]
    record = decode(item.value, RunRecord)
    asked = world.etcd.items.get(keys.next_spec(record.spec.name))
    number = max(record.number, decode(asked.value, Relaunch).number if asked is not None else 0) + 1
    after = _other(record.spec, dice)
    same_groups = after.groups == record.spec.groups
    kept = same_groups and dice.random() < 0.5
    value = encode(Relaunch(number=number, spec=after, because="", asked_unix_s=0.0, from_memory=kept))
    try:
        SimStore(world.etcd, f"person-{number}").put(keys.next_spec(record.spec.name), value)
    except Retryable:
        world.clock.after(1.0, lambda: wish(world, dice))


def _other(now: RunSpec, dice: random.Random) -> RunSpec:
    if dice.random() < 0.5:
        return replace(now, titan=replace(now.titan, seed=now.titan.seed + 1))
    count = max(2, now.groups.count + dice.choice((-3, -1, 1, 3)))
    nodes = now.allocation.nodes + count - now.groups.count
    return replace(
        now, groups=replace(now.groups, count=count), allocation=replace(now.allocation, nodes=max(count, nodes))
    )


def in_force(world: World) -> None:
    """Takes over what is in force, by which the world tells if all is well."""
    world.spec = decode(world.etcd.items[keys.spec(world.spec.name)].value, RunRecord).spec


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < 3 else [pytest.mark.long]) for seed in range(SEEDS)]
)
def test_wishes_among_faults(seed: int) -> None:
    plan, dice = faults.plan(seed), random.Random(seed)
    world = World(spec(NODES), seed)
    began, end = world.clock.now, max(fault.at + fault.seconds for fault in plan)
    for fault in plan:
        world.clock.after(fault.at, lambda fault=fault: faults.inject(world, fault))
    for number in range(WISHES):
        world.clock.after(TRAINED_S + (number + dice.random() / 2) * end / WISHES, lambda: wish(world, dice))
    with listening(world):
        world.clock.run_until(began + end + 2 * TRAINED_S, lambda: bool(world.checks.broken))
        assert not world.checks.broken, world.checks.broken
        world.clock.run_until(world.clock.now + 120.0, lambda: _all_granted(world))
        in_force(world)
        _recover(world, is_tight(seed))
    assert not world.checks.broken, state(world)
    assert world.checks.memory.relaunches == WISHES + 1 or world.checks.memory.phase in ENDED, state(world)


def _all_granted(world: World) -> bool:
    asked = world.etcd.items[keys.next_spec(world.spec.name)]
    record = decode(world.etcd.items[keys.spec(world.spec.name)].value, RunRecord)
    return bool(world.checks.broken) or record.number == decode(asked.value, Relaunch).number
