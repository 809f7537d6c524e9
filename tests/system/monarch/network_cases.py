"""A mesh whose nodes are machines of their own, run by test_network.py inside a hub's network namespace."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fault_injection.doubles.toys import TOYS
from fault_injection.testbed import netns
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World
from supervisor.shell.dev.etcd_server import start_etcd
from tests.system.monarch.actors import Where
from tests.system.monarch.conftest import held
from tests.system.monarch.needs import SupervisionError
from titan_actor.monarch_trainer import TitanTrainerWrapper, setup_env_for_distributed

NODES = ("host", "n1", "n2")
LOST_WITHIN_S = 15.0
"""Seconds within which a call on a silent node must raise: several times the 4 s that it takes."""


def test_a_silent_node_ends_its_part(tmp_path: Path) -> None:
    """A network that is cut resets no connection: nothing but silence tells that the node is lost."""
    net = netns.entered()
    assert net is not None
    server = start_etcd(tmp_path / "etcd", host=net.hub_address)
    places = dict(zip(NODES, net.nodes, strict=True))
    w = World(tmp_path, server, 2, {"SUPERVISOR_PROGRAMS": json.dumps(TOYS)}, netns.in_plain(tmp_path), places)
    try:
        with held(w) as pool, pool.mesh() as mesh:
            assert [url.rpartition(":")[0] for url in mesh.wait_for_workers()] == ["tls://10.77.0.2", "tls://10.77.0.3"]
            trains(mesh.host_mesh.spawn_procs())
            procs = mesh.host_mesh.spawn_procs()
            where = procs.spawn("where", Where)
            assert len(where.pid.call().get(timeout=60)) == 2
            net.cut(2)
            began = time.monotonic()
            with pytest.raises(SupervisionError, match=r"'hosts': 1/2"):
                where.pid.call().get(timeout=120)
            took_s = time.monotonic() - began
            print(f"a silent node: an exception after {took_s:.1f} s")
            assert took_s < LOST_WITHIN_S
            assert where.slice(hosts=0).pid.call_one().get(timeout=60) > 0
            again = mesh.host_mesh.slice(hosts=0).spawn_procs().spawn("again", Where)
            assert again.pid.call_one().get(timeout=60) > 0
            assert list(eventually(lambda: mesh.lost, 60, "the client learns which node it is")) == ["n2"]
            net.mend(2)
    finally:
        net.mend(2)
        w.close()
        server.stop()


def trains(procs: object) -> None:
    """Trains two ranks of two machines, which meet at the first one's address."""
    setup_env_for_distributed(procs)
    config = {"recipe": "llama3-debug-small", "steps": 3}
    trainers = procs.spawn("trainers", TitanTrainerWrapper, config)  # type: ignore[attr-defined]
    trainers.init.call().get(timeout=120)
    done = [each for _, each in trainers.train.call().get(timeout=120)]
    assert [each["step"] for each in done] == [3, 3]
    assert done[0]["loss"] == done[1]["loss"] < 9
