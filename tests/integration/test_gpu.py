"""GPUs that fail, with real processes: NVML's Python module is a stand-in in the agents, toys are in the place of trainers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.model import Kind, Rung
from supervisor.wire.records import RunRecord
from tests.helpers.fake_nvml import gpu
from tests.helpers.waiting import eventually
from tests.integration.outage import passes
from tests.integration.test_cli import cli
from tests.integration.world import LEASE_S, World, toy_spec, world

pytestmark = pytest.mark.etcd

STAND_IN = Path(__file__).parents[1] / "helpers" / "nvml"


class Gpus:
    """A GPU on each node, as the agents see them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        for node in ("n1", "n2", "n3", "n4"):
            self.say(node, gpus=[gpu(0)])

    def say(self, node: str, **state: Any) -> None:
        path = self._folder / f"{node}.json"
        known = json.loads(path.read_text()) if path.exists() else {"gpus": [], "events": []}
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(known | state))
        temporary.replace(path)


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", f"{STAND_IN}:{root}")
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "gpus"))
    return Gpus(tmp_path / "gpus")


@pytest.fixture
def toys(gpus: Gpus, tmp_path: Path) -> Iterator[tuple[World, RunRecord]]:
    with world(tmp_path) as w:
        w.supervisor()
        record = w.launch(toy_spec())
        eventually(w.running(record, 1, 1), 60, "both groups run")
        yield w, record
        w.check(record)


def shown(w: World, node: str) -> list[str]:
    done = cli("nodes", "--json", world=w)
    assert done.returncode == 0, done.stderr
    return next(list(n["facts"]) for n in json.loads(done.stdout) if n["node"] == node)


def test_an_xid_79_moves_the_group_to_the_spare(gpus: Gpus, toys: tuple[World, RunRecord]) -> None:
    """And the same node's GPU that stays lost keeps others away from it."""
    w, record = toys
    node = w.status(record).groups[1].node
    passes(2 * LEASE_S)  # the agent has seen that the generation runs
    gpus.say(node, gpus=[gpu(0, lost=True)], events=[[0, 79]])
    eventually(w.running(record, 1, 2), 60, "it runs elsewhere")
    (incident,) = w.incidents(record)
    assert (incident.kind, incident.rung, incident.node, incident.group) == (Kind.GPU, Rung.REPLACE, node, 1)
    assert incident.rank == 0
    assert any(
        "GPU 0 (0000:10:00.0, GPU-0000)" in said and f"on host {node}, rank 0" in said for said in incident.evidence
    )
    assert w.status(record).groups[1].node not in (node, "")
    assert w.status(record).groups[0].generation == 1, "the other trains on"
    explained = cli("explain", incident.id, world=w).stdout
    assert "gpu" in explained
    assert "rung 2 (replace)" in explained


def test_an_xid_13_moves_nobody_and_neither_does_an_old_one(gpus: Gpus, toys: tuple[World, RunRecord]) -> None:
    w, record = toys
    node = w.status(record).groups[1].node
    passes(2 * LEASE_S)
    gpus.say(node, events=[[0, 13], [0, 48]])
    eventually(lambda: sum("Xid" in fact for fact in shown(w, node)) == 2, 30, "both are shown")
    passes(2 * LEASE_S)
    assert w.incidents(record) == []
    # a person's restart: what came before it says nothing of the generation that follows
    assert cli("restart", "1", world=w).returncode == 0
    eventually(w.running(record, 1, 2), 60, "it runs again, in place")
    w.kill_trainer(record, 1)
    eventually(w.running(record, 1, 3), 60, "and again")
    assert [(i.kind, i.rung) for i in w.incidents(record)][-1] == (Kind.CRASH, Rung.RESTART)
    assert w.status(record).groups[1].node == node
    assert any("Xid 48" in fact for fact in shown(w, node)), "it is still told"
