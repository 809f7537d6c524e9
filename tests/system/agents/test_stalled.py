"""A node whose own file system stalls: neither its agent nor its shim waits for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agents.agent.file_poller import ANSWERS_WITHIN_S
from agents.agent.main import Agent
from agents.health.facts.files import DEADLINE_S, EVERY_S
from agents.shim.main import AGENT_FROZEN_S, Shim
from agents.shim.process_table import Child
from agents.shim.settings import Settings, parse
from fault_injection.testbed.nodes import Nodes, desire, rank, running, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.ports.store import Store
from supervisor.shell.dev.etcd_server import EtcdServer
from supervisor.wire import keys
from supervisor.wire.records import ExitObserved, Health, NodeObserved, ProcessRecord, decode
from tests.helpers.file_system import FileSystem, file_system, missing
from tests.system.integration.outage import passes

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

STALLED = {"file_system_stalled", "ranks_unseen"}


NAME = "toy.0.1.0"


WRITES = """
import os, sys
while True:
    with open(sys.argv[1] + "/new", "w") as file:
        file.write("x" * 400)
    os.replace(sys.argv[1] + "/new", sys.argv[1] + "/file")
"""


def test_who_waits_for_a_stalled_file_system_can_be_ended(tmp_path: Path) -> None:
    """The process is killable wherever the stall caught it. One that writes all the time was held in every second stall
    when the server could stop anywhere."""
    with file_system(tmp_path / "home", tmp_path / "behind") as served:
        for _ in range(10):
            writer = subprocess.Popen([sys.executable, "-c", WRITES, str(served.folder)])
            try:
                eventually((served.folder / "file").exists, 10, "it writes")
                served.stall()
                time.sleep(0.1)
                assert writer.poll() is None
                writer.terminate()
                assert writer.wait(5) == -signal.SIGTERM
            finally:
                served.answer()
                writer.kill()
                writer.wait()
            (served.folder / "file").unlink()


def settings_of(home: Path) -> Settings:
    made = parse(["--node=n0", f"--home={home}", "--etcd=127.0.0.1:1", "--cold"])
    (made.node_folder / "ranks" / NAME).mkdir(parents=True)
    return made


def record_of(settings: Settings) -> ProcessRecord:
    folder = settings.node_folder / "ranks" / NAME
    return ProcessRecord(name=NAME, pid=os.getpid(), start_ticks=1, folder=str(folder))


def test_a_turn_of_the_agent_goes_on_without_its_files(tmp_path: Path) -> None:
    async def turns(served: FileSystem) -> None:
        settings = settings_of(served.folder)
        agent = Agent(settings, None)  # type: ignore[arg-type]
        record = record_of(settings)
        agent._view.put(record)
        looks = agent._looks
        assert await looks.look(100.0) is not None
        served.stall()
        began = time.monotonic()
        assert await looks.look(101.0) is None
        for turn in range(100):
            assert await looks.look(101.0 + turn / 10) is None
        assert looks.stalled
        assert time.monotonic() - began < 3 * ANSWERS_WITHIN_S, "it waits once, not at each turn"
        assert looks.facts(101.0 + DEADLINE_S - 0.1) == ()
        (fact,) = looks.facts(101.0 + DEADLINE_S)
        assert (fact.kind, fact.subject) == ("ranks_unseen", str(settings.node_folder))
        await agent._ended(replace(record, exited=True, signal=9, told="it hangs"))
        (end,) = [trainer.exit for trainer in agent._view.observed().trainers]
        assert end is not None
        assert (end.signal, end.told, end.disk) == (9, "it hangs", f"{settings.node_folder} does not answer")
        served.answer()
        asked = time.monotonic()
        while await looks.look(200.0) is None:
            assert time.monotonic() - asked < 10.0
            await asyncio.sleep(0.01)
        assert not looks.stalled
        assert looks.facts(200.0) == ()

    with file_system(tmp_path / "home", tmp_path / "behind") as served:
        asyncio.run(turns(served))


def test_the_shim_tells_ends_and_starts_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def stalls(served: FileSystem) -> None:
        settings = settings_of(served.folder)
        shim = Shim(settings)
        shim._table.put(Child(NAME, 2**22 + 1, 8, str(served.folder)))
        await shim._records.done(lambda: None)
        served.stall()
        began = time.monotonic()
        shim._ended(2**22 + 1, 8, None, 9)
        request = {"name": "toy.0.2.0", "folder": str(settings.node_folder / "ranks" / "toy.0.2.0"), "env": {}}
        request |= {"argv": ["/bin/true"], "log": f"{request['folder']}/output.log"}
        spawning = asyncio.create_task(shim._spawn_once(request))
        await asyncio.wait({spawning}, timeout=1.0)
        assert not spawning.done()
        assert time.monotonic() - began < 3.0
        listed = (await shim._do({"do": "list"}))["processes"]
        assert [(each["name"], each["signal"]) for each in listed] == [(NAME, 9)]
        served.answer()
        child = await spawning
        os.waitpid(child.pid, 0)
        await shim._records.done(lambda: None)
        lines = [json.loads(line) for line in (settings.node_folder / "shim.jsonl").read_text().splitlines()]
        assert [line["event"] for line in lines] == ["exited", "spawned"]
        written = decode((settings.node_folder / "processes" / f"{NAME}.json").read_bytes(), ProcessRecord)
        assert (written.exited, written.signal) == (True, 9)

    with file_system(tmp_path / "home", tmp_path / "behind") as served:
        asyncio.run(stalls(served))


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


def end_of_what_is_not_wanted(store: Store) -> ExitObserved:
    """The exit of generation 1. It is reported once, for an ended and unwanted process is forgotten soon."""
    key = keys.observed("n0")
    watch = store.watch(key, store.list(key).revision)

    def told() -> ExitObserved | None:
        changes = watch.poll(0.1)
        views = [decode(item.value, NodeObserved) for item in changes.puts] if changes is not None else []
        return next((t.exit for view in views for t in view.trainers if t.generation == 1 and t.exit), None)

    try:
        desire(store, "n0")
        return eventually(told, 20, "what is to end is ended, and that is told")
    finally:
        watch.close()


@pytest.mark.long
@pytest.mark.etcd
def test_its_agent_says_so_and_obeys_all_the_while(etcd_server: EtcdServer, store: Store, tmp_path: Path) -> None:
    with (
        file_system(tmp_path / "home", tmp_path / "behind") as served,
        Nodes(served.folder, etcd_server.endpoint) as nodes,
    ):
        node = nodes.cold("n0", "--lease-s=10")  # it must be kept on a machine that may be busy for seconds
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
            end = end_of_what_is_not_wanted(store)
            assert (end.signal, end.disk) == (15, f"{node.folder} does not answer")
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
