"""In the simulator, as with TorchFT: a step in which a member is lost is made again by the others."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from fault_injection.sim import faults
from fault_injection.sim.faults import Fault
from fault_injection.sim.pace import pace
from fault_injection.sim.world import World, spec


@pytest.mark.parametrize(("kind", "seconds", "least", "most"), [("crash", 0.0, 2.0, 2.0), ("freeze", 30.0, 2.0, 3.1)])
def test_the_others_stand_still_for_one_step_more(kind: str, seconds: float, least: float, most: float) -> None:
    """Steps take a second: one is lost. A frozen member's heartbeat is missed for a further second, at any point."""
    world = World(spec(4), 1, replace(pace(), gate_tick_s=0.02, heal_s=(0.0, 0.0)))
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    began = world.clock.now
    assert faults.inject(world, Fault(began, kind, 0, seconds))
    world.clock.run_until(began + 12.0)
    of = [[row["t"] for row in rows if row["t"] > began - 2.0] for rows in world.training.rows.values()]
    stalls = [round(max(b - a for a, b in pairwise(at)), 3) for at in of if len(at) > 2 and at[0] <= began]
    assert least <= min(stalls) <= most
