"""A system with a pool of idle nodes, for Monarch meshes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import supervisor.client as everstep
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec, world
from tests.helpers.systems import empty

__all__ = ["empty"]


@contextmanager
def held(w: World, nodes: int = 2) -> Iterator[everstep.Pool]:
    """Starts a supervisor of a system that has nodes, and holds two of them as the pool `lab`."""
    w.supervisor()
    eventually(w.led, 30, "a supervisor leads")
    with everstep.connect(w.etcd.endpoint, home=w.runs, security=w.security or None) as client:
        pool = client.hold(toy_spec(), name="lab", nodes=nodes)
        eventually(lambda: [n.state for n in pool.status().nodes] == ["granted"] * nodes, 60, "its nodes are there")
        yield pool


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, everstep.Pool]]:
    """Two nodes, held by the pool `lab`, for one test after the other of a module."""
    with world(tmp_path_factory.mktemp("lab")) as made, held(made) as pool:
        yield made, pool
