"""GPUs that fail, with real processes: the agents have a stand-in for NVML's Python module, toys stand for trainers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.doubles.gpus import FOLDER, Gpus
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, World, toy_spec, world
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code
from supervisor.wire import keys
from supervisor.wire.records import Health, RunRecord
from tests.helpers.reasons import texts, values
from tests.system.integration.outage import passes
from tests.system.integration.test_cli import cli

pytestmark = pytest.mark.etcd

STAND_IN = Path(__file__).parents[2] / "helpers" / "nvml"


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    root = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", f"{STAND_IN}:{root}")
    monkeypatch.setenv(FOLDER, str(tmp_path / "gpus"))
    return Gpus(tmp_path / "gpus", ["n1", "n2", "n3", "n4"])


@pytest.fixture
def toys(gpus: Gpus, tmp_path: Path) -> Iterator[tuple[World, RunRecord]]:
    with world(tmp_path) as w:
        w.supervisor()
        record = w.launch(toy_spec())
        eventually(w.running(record, 1, 1), 60, "both groups run")
        yield w, record
        w.check(record)


@pytest.mark.long
def test_an_xid_79_moves_the_group_to_the_spare(gpus: Gpus, toys: tuple[World, RunRecord]) -> None:
    """The same node's GPU stays lost, and keeps other groups away from it."""
    w, record = toys
    node = w.status(record).groups[1].node
    passes(2 * LEASE_S)  # the agent has seen that the generation runs
    gpus.say(node, xid=79, lost=True)
    eventually(w.running(record, 1, 2), 60, "it runs elsewhere")
    (incident,) = w.incidents(record)
    assert (incident.kind, incident.rung, incident.node, incident.group) == (Kind.GPU, Rung.REPLACE, node, 1)
    assert incident.rank == 0
    of_gpus = values(incident.evidence, Code.ON_ITS_GPU)
    assert any("GPU 0 (0000:10:00.0, GPU-0000)" in gpu["fact"] for gpu in of_gpus)
    assert {(gpu["host"], gpu["rank"]) for gpu in of_gpus} == {(node, 0)}
    assert w.status(record).groups[1].node not in (node, "")
    assert w.status(record).groups[0].generation == 1, "the other trains on"
    assert "GPU 0 (0000:10:00.0, GPU-0000)" in cli("nodes", "--json", world=w).stdout
    explained = cli("explain", incident.id, world=w)
    assert explained.returncode == 0, explained.stdout + explained.stderr
    for part in ("gpu", "rung 2 (replace)", "Asked again today, with what was seen then: the same answer"):
        assert part in explained.stdout


def xids(w: World, node: str) -> dict[int, tuple[str, ...] | None]:
    """Xid -> the generations that ran when it came."""
    health = w.mirror().record(keys.health(node), Health)
    return {fact.xid: fact.during for fact in health.facts if fact.xid} if health is not None else {}


@pytest.mark.long
def test_an_xid_13_moves_nobody_and_one_that_needs_a_reset_only_who_failed_by_it(
    gpus: Gpus, toys: tuple[World, RunRecord]
) -> None:
    w, record = toys
    node = w.status(record).groups[1].node
    passes(2 * LEASE_S)
    gpus.say(node, xid=13)
    gpus.say(node, xid=48)
    eventually(lambda: xids(w, node) == {13: ("toy.1.1",), 48: ("toy.1.1",)}, 30, "both are told")
    passes(2 * LEASE_S)
    assert w.incidents(record) == []
    # a person's restart: what came before it does not concern the generation that follows
    assert cli("restart", "1", world=w).returncode == 0
    eventually(w.running(record, 1, 2), 60, "it runs again, in place")
    w.kill_trainer(record, 1)
    eventually(w.running(record, 1, 3), 60, "and again")
    assert [(i.kind, i.rung) for i in w.incidents(record)][-1] == (Kind.CRASH, Rung.RESTART)
    assert w.status(record).groups[1].node == node
    assert xids(w, node)[48] == ("toy.1.1",), "it is still told"

    passes(2 * LEASE_S)
    gpus.say(node, xid=119)
    eventually(lambda: xids(w, node).get(119) == ("toy.1.3",), 30, "another one, of its own")
    w.kill_trainer(record, 1)
    eventually(w.running(record, 1, 4), 60, "it runs elsewhere")
    newest = w.incidents(record)[-1]
    assert (newest.kind, newest.rung, newest.rank) == (Kind.GPU, Rung.REPLACE, 0)
    assert "Xid 48" not in texts(*newest.evidence)
    assert w.status(record).groups[1].node != node
