"""All that others reach is at IPv6: etcd, agents, gate, the toys' managers and stores. Gloo takes the first address of its
interface, and the forwarder listens at 127.0.0.1."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import TORCHFT, World, toy_spec
from supervisor.core.model.spec import TitanSpec
from supervisor.shell.dev.etcd_server import start_etcd
from supervisor.shell.inspect import status
from supervisor.wire import keys
from supervisor.wire.records import GateObserved, RunRecord

HERE = "::1"
NODES = ("n1", "n2", "n3")


def together(w: World, record: RunRecord, generation: int) -> bool:
    """True if group 1 has committed a step in that generation with the other group."""
    return any(
        line["participants"] == 2
        for steps in w.history(record).steps
        if (steps.group, steps.generation) == (1, generation)
        for line in steps.committed()
    )


@pytest.mark.etcd
@pytest.mark.long
def test_a_killed_trainer_and_a_lost_node_come_back(tmp_path: Path) -> None:
    server = start_etcd(tmp_path / "etcd", host=HERE)
    try:
        environment = {"SUPERVISOR_PROGRAMS": json.dumps(TOYS)}
        places = dict.fromkeys((*NODES, "host"), ("", HERE))
        w = World(tmp_path, server, len(NODES), environment, places=places)
        try:
            w.supervisor()
            spec = toy_spec()
            titan = TitanSpec(steps=spec.titan.steps, overrides={"toy.mode": "torchft"})
            record = w.launch(replace(spec, titan=titan, torchft=TORCHFT))
            eventually(lambda: together(w, record, 1), 60, "both groups step together")
            w.kill_trainer(record, 1)
            eventually(lambda: together(w, record, 2), 60, "it is back")
            lost = w.status(record).groups[1].node
            w.kill_node(lost)
            eventually(lambda: together(w, record, 3), 90, "it is back on the spare")
            assert w.status(record).groups[1].node != lost
            gate = w.mirror().record(keys.gate("host", "toy"), GateObserved)
            assert gate is not None
            assert gate.address.rpartition(":")[0] == HERE
            assert {n.address for n in status.node_status(w.mirror()) if n.alive} == {HERE}
            w.check(record)
        finally:
            w.close()
    finally:
        server.stop()
