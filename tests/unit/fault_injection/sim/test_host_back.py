"""A service host of the simulator that comes back while etcd is away."""

from __future__ import annotations

import pytest

from fault_injection.sim import run
from fault_injection.sim.faults import Fault


@pytest.mark.parametrize("host", [0, 1])
def test_its_agent_finds_etcd_once_that_is_back(host: int) -> None:
    """It then reports that its lighthouse has ended, so that another is begun (seed 876 of 500 nodes)."""
    off = Fault(5.0, "host_off", host, 17.0)
    assert run.run(1, 4, [off, Fault(21.5, "etcd_away", 0, 5.0)]).broken == ()
