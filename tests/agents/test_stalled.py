"""A node whose own file system stalls: neither its agent nor its shim waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.facts.files import DEADLINE_S, EVERY_S
from agents.shim import AGENT_FROZEN_S
from fault_injection.file_system import file_system, missing
from supervisor.ports.store import Store
from supervisor.shell.etcd_server import EtcdServer
from supervisor.wire import keys
from supervisor.wire.records import Health, decode
from tests.agents.nodes import Nodes, desire, rank, running, trainer
from tests.helpers.waiting import eventually
from tests.integration.outage import passes

pytestmark = [pytest.mark.etcd, pytest.mark.skipif(bool(missing()), reason=missing())]

STALLED = {"file_system_stalled", "ranks_unseen"}


def health(store: Store) -> Health | None:
    item = store.get(keys.health("n0"))
    return decode(item.value, Health) if item is not None else None


def kinds(store: Store) -> set[str] | None:
    said = health(store)
    return {fact.kind for fact in said.facts} if said is not None else None


def lease(store: Store) -> int:
    item = store.get(keys.registration("n0"))
    return item.lease if item is not None else 0


def state(store: Store, generation: int) -> str:
    found = rank(store, "n0", generation)
    return found.state if found is not None else ""


def test_its_agent_says_so_and_obeys_all_the_while(etcd_server: EtcdServer, store: Store, tmp_path: Path) -> None:
    with (
        file_system(tmp_path / "home", tmp_path / "behind") as served,
        Nodes(served.folder, etcd_server.endpoint) as nodes,
    ):
        node = nodes.cold("n0")
        desire(store, "n0", trainer())
        pid = running(store, node, generation=1)
        agent, held = node.pid("agent"), lease(store)
        eventually(lambda: STALLED.isdisjoint(kinds(store) or STALLED), 30, "all is well")
        served.stall()
        try:
            told = eventually(
                lambda: (kinds(store) or set()) >= STALLED and health(store), 3 * EVERY_S + DEADLINE_S, "told"
            )
            passes(AGENT_FROZEN_S)
            now = health(store)
            assert now is not None
            assert now.sequence > told.sequence, "and told again"
            assert {fact.kind for fact in now.facts} >= STALLED
            assert held == lease(store) != 0
            assert state(store, 1) == "running", "nothing that is seen says otherwise"
            desire(store, "n0")
            eventually(lambda: state(store, 1) == "exited", 20, "what is to end is ended, and that is told")
            end = rank(store, "n0", 1)
            assert end is not None
            assert end.exit is not None
            assert (end.exit.signal, end.exit.disk) == (15, f"{node.folder} does not answer")
            desire(store, "n0", trainer(generation=2))
            passes(2.0)
            assert state(store, 2) in ("", "starting"), "what is to begin waits for it"
        finally:
            served.answer()
        assert running(store, node, generation=2) != pid
        eventually(lambda: STALLED.isdisjoint(kinds(store) or STALLED), 3 * EVERY_S, "it is over")
        assert (agent, held) == (node.pid("agent"), lease(store))
        events = [line["event"] for line in node.history() if line.get("name", "").startswith("toy.0.1.")]
        assert events == ["spawned", "signalled", "exited"], "what was to be written meanwhile is"
