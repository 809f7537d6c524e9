"""A generation is begun only if it is wanted once its announcement and the node's registration are in etcd."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.agent.desired import Wanted
from agents.agent.main import Agent
from agents.agent.reporter import Callbacks, Reporter
from agents.shim.settings import Settings, parse
from fault_injection.doubles.memory_store import MemoryLease, MemoryStore
from fault_injection.testbed.nodes import RUN, desire, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import PortError, Retryable
from supervisor.ports.store import Expect, Item, Snapshot, Store
from supervisor.shell.dev.etcd_server import EtcdServer
from supervisor.wire import keys
from supervisor.wire.records import NodeDesired, NodeObserved, ProcessRecord, Registration, decode, encode

DESIRED, OBSERVED, REGISTRATION = keys.desired("n0", ""), keys.observed("n0"), keys.registration("n0")
FIRST = trainer(generation=1)
WANTED = Wanted({RUN: NodeDesired(node="n0", trainers=(FIRST,))})
NODE = Registration(node="n0", address="127.0.0.1", role="trainer", allocation="", slots=1, agent_pid=1, version="1")
WITHIN_S = 10.0


class Told(MemoryStore):
    """A store that keeps writes and lists in order; from `fails` on, its `fails`-th call raises Retryable."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self.calls, self.fails = 0, 0

    def _called(self) -> None:
        self.calls += 1
        if self.calls == self.fails:
            raise Retryable("away", after_s=0.01)

    def get(self, key: str) -> Item | None:
        self._called()
        return super().get(key)

    def list(self, prefix: str, *, after: str = "", limit: int = 0) -> Snapshot:
        self._called()
        self.order.append(prefix)
        return super().list(prefix, after=after, limit=limit)

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        self._called()
        self.order.append(key)
        return super().put(key, value, lease)

    def lease(self, ttl_s: int) -> MemoryLease:
        self._called()
        return super().lease(ttl_s)

    def commit(
        self, puts: Mapping[str, bytes], deletes: Sequence[str] = (), expect: Sequence[Expect] = (), lease: int = 0
    ) -> int:
        self._called()
        self.order += puts
        return super().commit(puts, deletes, expect, lease)


@pytest.fixture
def etcd() -> Told:
    made = Told()
    desire(made, "n0", FIRST)
    made.order.clear()
    made.calls = 0
    return made


@pytest.fixture
def answers() -> list[tuple[int, Wanted]]:
    return []


@pytest.fixture
def reporter(tmp_path: Path, answers: list[tuple[int, Wanted]]) -> Reporter:
    return Reporter(NODE, tmp_path, ("h:1",), 5, Callbacks(read=answers.append))


def test_it_is_read_after_the_announcement_and_the_registration_are_written(
    etcd: Told, reporter: Reporter, answers: list[tuple[int, Wanted]]
) -> None:
    ticket = reporter.observed(NodeObserved(node="n0", sequence=0), then_read=True)
    reporter._write(etcd)
    assert etcd.order == [OBSERVED, REGISTRATION, DESIRED]
    assert answers == [(ticket, WANTED)]
    etcd.order.clear()
    reporter.observed(NodeObserved(node="n0", sequence=0))
    reporter._write(etcd)
    assert etcd.order == [OBSERVED], "a report that begins nothing costs no more than its write"
    etcd.expire(1)
    etcd.order.clear()
    ticket = reporter.observed(NodeObserved(node="n0", sequence=0), then_read=True)
    reporter._write(etcd)
    assert etcd.order == [OBSERVED, REGISTRATION, DESIRED], "its lease was lost"
    assert [asked for asked, _ in answers] == [ticket - 2, ticket]


@pytest.mark.parametrize("nth", range(1, 8))
def test_a_failure_in_between_asks_again(
    etcd: Told, reporter: Reporter, answers: list[tuple[int, Wanted]], nth: int
) -> None:
    ticket, etcd.fails = reporter.observed(NodeObserved(node="n0", sequence=0), then_read=True), nth
    with pytest.raises(PortError):
        reporter._write(etcd)
    assert answers == []
    reporter._write(etcd)
    assert answers == [(ticket, WANTED)]
    assert etcd.order == [OBSERVED, REGISTRATION, DESIRED]
    reporter._write(etcd)
    assert len(answers) == 1


def test_how_long_etcd_took_is_told_also_of_what_it_did_not_write(etcd: Told, tmp_path: Path) -> None:
    took: list[float] = []
    reporter = Reporter(NODE, tmp_path, ("h:1",), 5, Callbacks(took=took.append))
    reporter.observed(NodeObserved(node="n0", sequence=0))
    etcd.fails = 3
    with pytest.raises(PortError):
        reporter._write(etcd)
    assert OBSERVED not in etcd.order
    assert len(took) == 1
    reporter._write(etcd)
    assert len(took) == 2


def test_nobody_sleeps_while_it_is_asked_for(
    etcd: Told, reporter: Reporter, answers: list[tuple[int, Wanted]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is written when the read fails."""
    monkeypatch.setattr("supervisor.shell.etcd.threads.connect_patiently", lambda *about: etcd)
    monkeypatch.setattr("agents.agent.reporter.LOOK_S", 1000.0)
    etcd.fails = 7
    ticket = reporter.observed(NodeObserved(node="n0", sequence=0), then_read=True)
    reporter.start()
    try:
        eventually(lambda: answers == [(ticket, WANTED)], WITHIN_S, "it is asked again")
    finally:
        reporter.stop(give_back=False)
        reporter.join(WITHIN_S)


# --- the agent ---


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path, "127.0.0.1:1")


def settings_of(home: Path, endpoint: str) -> Settings:
    made = parse(["--node=n0", f"--home={home}", f"--etcd={endpoint}", "--cold"])
    made.node_folder.mkdir(parents=True)
    return made


class Shim:
    """A shim that starts everything it is asked to."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        self.asked.append(do)
        if do == "forward":
            return {"port": 1}
        record = ProcessRecord(name=fields["name"], pid=1, start_ticks=1, folder=fields["folder"])
        return {"process": json.loads(encode(record))}


def test_it_begins_what_is_wanted_by_an_answer_to_its_own_report_alone(settings: Settings) -> None:
    async def asks() -> None:
        agent = Agent(settings, Shim())  # type: ignore[arg-type]
        agent._on_wanted(WANTED)
        ticket = agent._report(0.0)
        agent._on_read((ticket, WANTED))
        asking = asyncio.create_task(agent._may_begin(FIRST))
        await asyncio.sleep(0)
        agent._on_read((ticket, WANTED))  # of an older report
        await asyncio.sleep(0)
        assert not asking.done()
        agent._on_read((ticket + 1, WANTED))
        assert await asking

    asyncio.run(asks())


def test_what_etcd_wants_no_more_waits_for_the_watch_to_say_so_and_not_for_ever(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asks() -> None:
        agent = Agent(settings, Shim())  # type: ignore[arg-type]
        agent._on_wanted(WANTED)
        asking = asyncio.create_task(agent._may_begin(FIRST))
        await asyncio.sleep(0)
        agent._on_read((1, Wanted()))
        await asyncio.sleep(0)
        assert not asking.done(), "it would be begun, and asked for, again and again"
        agent._on_wanted(Wanted())
        assert not await asyncio.wait_for(asking, WITHIN_S)
        monkeypatch.setattr("agents.agent.main.READ_AGAIN_S", 0.01)
        agent._on_wanted(WANTED)
        asking = asyncio.create_task(agent._may_begin(FIRST))
        await asyncio.sleep(0)
        agent._on_read((2, Wanted()))
        assert not await asyncio.wait_for(asking, WITHIN_S), "the watch says nothing"

    asyncio.run(asks())


def test_it_does_not_wait_for_etcd_when_the_watch_says_that_it_is_wanted_no_more(settings: Settings) -> None:
    async def asks() -> None:
        agent = Agent(settings, Shim())  # type: ignore[arg-type]
        agent._on_wanted(WANTED)
        asking = asyncio.create_task(agent._may_begin(FIRST))
        await asyncio.sleep(0)
        agent._on_wanted(Wanted())
        assert not await asyncio.wait_for(asking, WITHIN_S)

    asyncio.run(asks())


def begins(settings: Settings, store: Store, withdrawn: bool) -> list[str]:
    """Requests that the shim gets from a start that was `withdrawn` while the watch was held back."""

    async def starts() -> list[str]:
        shim, held, runs = Shim(), threading.Event(), threading.Event()
        agent = Agent(settings, shim)  # type: ignore[arg-type]
        changed = agent._desired._changed

        def late(wanted: Wanted) -> None:
            if held.is_set():
                runs.wait(WITHIN_S)
            changed(wanted)

        agent._desired._changed = late
        desire(store, "n0", FIRST)
        agent._reporter.start()
        agent._desired.start()
        try:
            await asyncio.to_thread(eventually, lambda: agent._wanted.has(FIRST), WITHIN_S, "the watch brings it")
            held.set()
            if withdrawn:
                desire(store, "n0")
            await asyncio.wait_for(agent._start(FIRST, (0,)), WITHIN_S)
            assert agent._wanted.has(FIRST), "the watch is late"
        finally:
            runs.set()
            agent._desired.stop()
            agent._reporter.stop(give_back=True)
            for thread in (agent._desired, agent._reporter):
                await asyncio.to_thread(thread.join, WITHIN_S)
        return shim.asked

    asked = asyncio.run(starts())
    item = store.get(OBSERVED)
    assert item is not None
    assert [t.state for t in decode(item.value, NodeObserved).trainers] == ["starting"]  # it was announced first
    return asked


@pytest.mark.parametrize(("withdrawn", "asked"), [(True, []), (False, ["forward", "spawn"])])
def test_what_is_withdrawn_while_the_watch_is_held_back_is_not_begun(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, withdrawn: bool, asked: list[str]
) -> None:
    monkeypatch.setattr("agents.agent.main.READ_AGAIN_S", 0.01)
    store = MemoryStore()
    monkeypatch.setattr("supervisor.shell.etcd.threads.connect_patiently", lambda *about: store)
    monkeypatch.setattr(store, "close", lambda: None)
    assert begins(settings, store, withdrawn) == asked


@pytest.mark.etcd
@pytest.mark.parametrize(("withdrawn", "asked"), [(True, []), (False, ["forward", "spawn"])])
def test_nor_is_it_with_a_real_etcd(
    etcd_server: EtcdServer,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    withdrawn: bool,
    asked: list[str],
) -> None:
    monkeypatch.setattr("agents.agent.main.READ_AGAIN_S", 0.01)
    assert begins(settings_of(tmp_path, etcd_server.endpoint), store, withdrawn) == asked
