"""The engine driver against a store in memory and an engine that remembers what it was asked."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import pytest

from supervisor.core.model import AllocationMemory, Grant
from supervisor.ports.engine import Request
from supervisor.ports.errors import Fenced
from supervisor.ports.store import Expect
from supervisor.shell.engine_driver import EngineDriver
from supervisor.shell.mirror import Mirror
from supervisor.wire import keys
from supervisor.wire.records import RunRecord, decode, encode
from tests.helpers.memory_store import MemoryStore
from tests.unit.shell.records import SPEC

KEY = "run-a1"
OURS = Grant(key=KEY, state="granted", nodes=("n1",), engine_id="ours:1")
THEIRS = replace(OURS, engine_id="theirs:1")


class Term:
    lapsed = False

    def __init__(self, store: MemoryStore) -> None:
        self.epoch = store.put(keys.LEADER, b"{}")

    def expect(self) -> Expect:
        return Expect(keys.LEADER, create_revision=self.epoch)


class Engine:
    name = "fake"

    def __init__(self, has: Iterable[Grant] = (), gives: bool = True) -> None:
        self.has = {g.key: g for g in has}
        self.gives = gives
        self.acquired: list[str] = []
        self.released: list[str] = []

    def acquire(self, request: Request) -> None:
        self.acquired.append(request.key)
        if self.gives:
            self.has[request.key] = replace(OURS, key=request.key)

    def release(self, key: str) -> None:
        self.released.append(key)
        self.has.pop(key, None)

    def list(self) -> list[Grant]:
        return list(self.has.values())

    def knows(self, grant: Grant) -> bool:
        return grant.engine_id in ("", "ours:1")


def store_with(told: Grant | None, state: Literal["wanted", "released"] = "wanted") -> MemoryStore:
    store = MemoryStore()
    store.put(keys.spec("run"), encode(RunRecord(spec=SPEC, run_dir="/runs/run", launched_unix_s=0.0)))
    allocation = AllocationMemory(key=KEY, state=state, since=1.0, reason="the run starts")
    store.put(keys.allocation("run", KEY), encode(allocation))
    if told is not None:
        store.put(keys.grant("run", KEY), encode(told))
    return store


def drive(store: MemoryStore, engine: Engine, turns: int = 3) -> Grant | None:
    """What etcd holds of the allocation after some turns of a new leader."""
    term = Term(store)
    driver = EngineDriver(store, engine)
    for _ in range(turns):
        driver.offer(Mirror(store.list(keys.PREFIX)), term)  # type: ignore[arg-type]
        assert driver._wanted is not None
        driver.turn(driver._wanted)
    store.commit({}, deletes=[keys.LEADER])
    item = store.get(keys.grant("run", KEY))
    return decode(item.value, Grant) if item is not None else None


def test_what_is_wanted_is_asked_for_once_and_written() -> None:
    engine = Engine()
    assert drive(store_with(None), engine) == OURS
    assert engine.acquired == [KEY]


def test_what_the_engine_would_know_and_does_not_is_gone() -> None:
    engine = Engine()
    found = drive(store_with(OURS), engine)
    assert found is not None
    assert (found.state, found.nodes, found.reason) == ("gone", ("n1",), "the engine knows it no more")
    assert engine.acquired == []


@pytest.mark.parametrize("told", [THEIRS, replace(THEIRS, state="pending", nodes=()), replace(THEIRS, state="gone")])
def test_what_the_engine_cannot_know_stays_as_it_is(told: Grant) -> None:
    engine, store = Engine(), store_with(told)
    before = store.get(keys.grant("run", KEY))
    assert drive(store, engine) == told
    assert store.get(keys.grant("run", KEY)) == before, "it is not even written again"
    assert (engine.acquired, engine.released) == ([], [])


def test_anothers_allocation_is_not_given_back_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    engine, store = Engine(), store_with(THEIRS, "released")
    with caplog.at_level(logging.WARNING):
        assert drive(store, engine) == THEIRS
    assert engine.released == []
    assert [KEY in r.message for r in caplog.records] == [True]


def test_whose_it_is_gives_it_back() -> None:
    engine = Engine(has=[OURS])
    found = drive(store_with(OURS, "released"), engine)
    assert engine.released == [KEY]
    assert found is not None
    assert (found.state, found.reason) == ("gone", "given back")


def test_an_engine_that_takes_nothing_on_leaves_it_to_the_next_leaders() -> None:
    store = store_with(None)
    assert drive(store, Engine(gives=False)) == Grant(key=KEY, state="pending")
    engine = Engine()
    assert drive(store, engine) == OURS
    assert engine.acquired == [KEY]


def test_a_leader_of_before_writes_nothing() -> None:
    store = store_with(None)
    driver = EngineDriver(store, Engine())
    driver.offer(Mirror(store.list(keys.PREFIX)), Term(store))  # type: ignore[arg-type]
    store.commit({}, deletes=[keys.LEADER])
    Term(store)
    assert driver._wanted is not None
    with pytest.raises(Fenced):
        driver.turn(driver._wanted)
    assert store.get(keys.grant("run", KEY)) is None
