"""The engine driver against a store in memory and an engine that remembers its requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Literal

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.memory import AllocationMemory, Memory
from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import AllocationSpec, GroupsSpec, SlurmSpec
from supervisor.ports.engine import Request, RequestDeferred, RequestRefused
from supervisor.ports.errors import Fatal, Fenced, Retryable
from supervisor.shell.control import engine_driver
from supervisor.shell.control.engine_driver import BACKOFF_MAX_S, FATAL_PAUSE_S, EngineDriver
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import RecordError, RunRecord, decode, encode
from tests.helpers.reasons import STARTS, text
from tests.unit.shell.records import SPEC, Term

KEY = "run-a1"
OURS = Grant(key=KEY, state="granted", nodes=("n1",), engine_id="ours:1")
THEIRS = replace(OURS, engine_id="theirs:1")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_driver, "REFUSED_PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(engine_driver, "FORGET_AFTER_S", 0.0)


class Engine:
    poll_s = 0.01

    def __init__(self, has: Iterable[Grant] = (), gives: bool = True, name: str = "local") -> None:
        self.name = name
        self.has = {g.key: g for g in has}
        self.gives = gives
        self.acquired: list[str] = []
        self.released: list[str] = []
        self.replaced: list[tuple[str, str, str]] = []
        self.requests: list[Request] = []
        self.lists = 0
        self.fails: list[Exception] = []
        self.holds: set[str] = set()

    def acquire(self, request: Request) -> None:
        self.acquired.append(request.key)
        self.requests.append(request)
        if self.fails:
            raise self.fails.pop(0)
        if self.gives:
            self.has[request.key] = replace(OURS, key=request.key)

    def release(self, key: str) -> None:
        self.released.append(key)
        if key in self.holds:
            raise Fatal("it is not yours")
        self.has.pop(key, None)

    def replace(self, key: str, request: Request, because: str) -> None:
        self.replaced.append((key, request.key, because))
        self.has[request.key] = replace(OURS, key=request.key)

    def events(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    def list(self) -> list[Grant]:
        self.lists += 1
        return list(self.has.values())

    def knows(self, grant: Grant) -> bool:
        return grant.engine_id in ("", "ours:1")


def store_with(told: Grant | None, state: Literal["wanted", "released"] = "wanted") -> MemoryStore:
    store = MemoryStore()
    store.put(keys.spec("run"), encode(RunRecord(spec=SPEC, run_dir="/runs/run", launched_unix_s=0.0)))
    allocation = AllocationMemory(key=KEY, state=state, since=1.0, reason=STARTS)
    store.put(keys.allocation("run", KEY), encode(allocation))
    if told is not None:
        store.put(keys.grant("run", KEY), encode(told))
    return store


def drive(store: MemoryStore, engine: Engine, turns: int = 3) -> Grant | None:
    """The grant in etcd after some turns of a new leader."""
    term = Term(store)
    driver = EngineDriver(store, engine)
    for _ in range(turns):
        driver.offer(Mirror(store.list(keys.PREFIX)), term)  # type: ignore[arg-type]
        assert driver._wanted is not None
        driver.turn(driver._wanted)
    store.commit({}, deletes=[keys.LEADER])
    item = store.get(keys.grant("run", KEY))
    with suppress(RecordError):
        return decode(item.value, Grant) if item is not None else None
    return None


def test_what_is_wanted_is_asked_for_once_and_written() -> None:
    engine = Engine()
    assert drive(store_with(None), engine) == OURS
    assert engine.acquired == [KEY]


def test_an_engine_that_says_what_it_said_is_asked_once_a_turn_until_something_changes() -> None:
    store, engine = store_with(None), Engine()
    driver, term = EngineDriver(store, engine), Term(store)

    def turn() -> int:
        before = engine.lists
        driver.offer(Mirror(store.list(keys.PREFIX)), term)  # type: ignore[arg-type]
        assert driver._wanted is not None
        driver.turn(driver._wanted)
        return engine.lists - before

    def told() -> Grant:
        item = store.get(keys.grant("run", KEY))
        assert item is not None
        return decode(item.value, Grant)

    assert [turn() for _ in range(4)] == [2, 2, 1, 1]
    revision = store.list(keys.PREFIX).revision
    assert (turn(), store.list(keys.PREFIX).revision) == (1, revision)
    engine.has[KEY] = replace(OURS, leaving="its time limit is near")
    assert (turn(), told().leaving) == (2, "its time limit is near")
    assert [turn() for _ in range(2)] == [2, 1]
    store.put(keys.grant("run", KEY), encode(replace(OURS, reason="somebody else wrote this")))
    assert (turn(), told().reason) == (2, "")
    del engine.has[KEY]
    assert (turn(), told().state) == (2, "gone")
    assert turn() == 2, "what the engine does not know is looked at each time"
    other = AllocationMemory(key="run-a2", state="wanted", since=1.0, reason=STARTS)
    store.put(keys.allocation("run", "run-a2"), encode(other))
    turn()
    assert engine.acquired == [KEY, "run-a2"]


@pytest.mark.parametrize("torn", [b"", b"{torn", encode(RunRecord(spec=SPEC, run_dir="/", launched_unix_s=0.0))])
def test_a_grant_that_cannot_be_read_is_not_asked_for_again_and_stops_no_other(torn: bytes) -> None:
    store, engine = store_with(None), Engine()
    store.put(keys.grant("run", KEY), torn)
    other = AllocationMemory(key="run-a2", state="wanted", since=1.0, reason=STARTS)
    store.put(keys.allocation("run", "run-a2"), encode(other))
    assert drive(store, engine) is None
    assert engine.acquired == ["run-a2"]
    engine.has[KEY] = OURS
    assert drive(store, engine) == OURS


def test_its_word_takes_as_long_as_the_engine_is_asked_slowly() -> None:
    engine = Engine()
    driver = EngineDriver(MemoryStore(), engine)
    engine.poll_s = 1.5
    assert driver.word_s("local") == pytest.approx(3.0 + engine_driver.WRITE_S)
    assert driver.word_s("slurm") == 0.0


def test_a_list_counts_once_all_that_it_says_has_reached_the_loop() -> None:
    """An allocation that the engine took away must not look granted: a node gone with its allocation did not fail."""
    store, engine, clock = store_with(OURS), Engine([OURS]), [1.0]
    term, driver = Term(store), EngineDriver(store, engine, lambda: clock[0])

    def offer(mirror: Mirror) -> float | None:
        driver.offer(mirror, term)  # type: ignore[arg-type]
        return driver.listed_at("local")

    def turned_at(now: float) -> None:
        clock[0] = now
        turn(driver)

    assert offer(Mirror(store.list(keys.PREFIX))) is None
    turned_at(2.0)
    before = Mirror(store.list(keys.PREFIX))
    assert offer(before) == 2.0
    engine.has[KEY] = replace(OURS, state="gone")
    turned_at(3.0)
    assert written(store).state == "gone"
    assert offer(before) == 2.0, "the loop has not heard of it yet"
    assert offer(Mirror(store.list(keys.PREFIX))) == 3.0
    turned_at(4.0)
    assert offer(Mirror(store.list(keys.PREFIX))) == 4.0, "nothing new was to be written"


def test_what_the_engine_would_know_and_does_not_is_gone() -> None:
    engine = Engine()
    found = drive(store_with(OURS), engine)
    assert found is not None
    assert (found.state, found.nodes, found.reason) == ("gone", ("n1",), "the engine no longer knows it")
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
    assert abouts(caplog) == [{"run": "run"}]


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


def driver_of(store: MemoryStore, engine: Engine) -> EngineDriver:
    """A driver with the leader's newest view."""
    driver = EngineDriver(store, engine)
    driver.offer(Mirror(store.list(keys.PREFIX)), Term(store))  # type: ignore[arg-type]
    return driver


def written(store: MemoryStore, key: str = KEY) -> Grant:
    item = store.get(keys.grant("run", key))
    assert item is not None
    return decode(item.value, Grant)


def turn(driver: EngineDriver) -> float:
    assert driver._wanted is not None
    return driver.attempt()


def test_the_engine_gets_what_the_run_file_says() -> None:
    engine = Engine()
    drive(store_with(None), engine)
    (request,) = engine.requests
    assert request.spec == SPEC.allocation


@pytest.mark.parametrize("told", [None, OURS])
def test_another_engines_runs_are_not_touched_and_the_engine_is_not_asked(told: Grant | None) -> None:
    engine, store = Engine(name="slurm"), store_with(told)
    assert drive(store, engine) == told
    assert (engine.lists, engine.acquired, engine.released) == (0, [], [])


def want_another(store: MemoryStore, driver: EngineDriver) -> None:
    """Adds a wish for `run-a2`."""
    wanted = AllocationMemory(key="run-a2", state="wanted", since=1.0, reason=text("a node is lost"))
    store.put(keys.allocation("run", "run-a2"), encode(wanted))
    driver.offer(Mirror(store.list(keys.PREFIX)), driver._wanted.term)  # type: ignore[union-attr]


def test_an_engine_of_which_all_was_given_back_is_asked_no_more() -> None:
    engine, store = Engine(has=[OURS]), store_with(OURS, "released")
    driver = driver_of(store, engine)
    turn(driver)
    asked = engine.lists
    for _ in range(3):
        turn(driver)
    assert (engine.lists, engine.released) == (asked, [KEY])
    want_another(store, driver)
    turn(driver)
    assert engine.acquired == ["run-a2"]


def test_one_that_is_still_there_after_its_release_is_released_again() -> None:
    engine, store = Engine(has=[OURS]), store_with(OURS, "released")
    driver = driver_of(store, engine)
    engine.release = lambda key: engine.released.append(key)  # type: ignore[method-assign]
    for _ in range(3):
        turn(driver)
    assert engine.released == [KEY] * 3


def abouts(caplog: pytest.LogCaptureFixture) -> list[object]:
    """Subjects of the log's lines, as fields of JSON lines."""
    return [getattr(r, "about", None) for r in caplog.records]


def test_a_refusal_is_written_and_not_asked_again_whoever_leads(caplog: pytest.LogCaptureFixture) -> None:
    first, store = Engine(), store_with(None)
    first.fails = [RequestRefused("there is no partition nope") for _ in range(5)]
    refused = Grant(key=KEY, state="refused", reason="there is no partition nope")
    assert drive(store, first, turns=6) == refused
    assert first.acquired == [KEY] * 3
    assert abouts(caplog) == [{"run": "run"}] * 3
    second = Engine()
    assert drive(store, second) == refused
    assert second.acquired == []


def test_an_engine_that_takes_no_more_for_now_is_asked_for_one_of_the_run_at_a_time() -> None:
    now, store, engine = 0.0, store_with(None), Engine()
    driver = driver_of(store, engine)
    driver._monotonic = lambda: now
    want_another(store, driver)
    engine.fails = [RequestDeferred("not submitted yet: too many jobs", after_s=15.0)]
    assert [turn(driver) for _ in range(3)] == [0.0] * 3
    assert engine.acquired == [KEY]
    assert written(store) == Grant(key=KEY, state="pending", reason="not submitted yet: too many jobs")
    now = 15.0
    turn(driver)
    assert engine.acquired == [KEY, KEY, "run-a2"]
    assert written(store) == OURS


def test_a_refusal_is_final_only_after_its_pauses_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_driver, "REFUSED_PAUSES_S", (3600.0, 3600.0))
    engine, store = Engine(), store_with(None)
    engine.fails = [RequestRefused("too busy")]
    driver = driver_of(store, engine)
    assert [turn(driver) for _ in range(3)] == [0.0] * 3
    assert engine.acquired == [KEY]
    assert written(store) == Grant(key=KEY, state="pending", reason="refused, and requested again: too busy")
    want_another(store, driver)
    turn(driver)
    assert engine.acquired == [KEY, "run-a2"]
    assert written(store, "run-a2").state == "granted"


def test_an_engine_that_was_busy_for_a_while_is_asked_again() -> None:
    engine = Engine()
    engine.fails = [RequestRefused("too busy"), RequestRefused("too busy")]
    assert drive(store_with(None), engine) == OURS
    assert engine.acquired == [KEY] * 3


def test_what_was_taken_on_all_the_same_is_no_refusal() -> None:
    """The list shows an allocation that was refused for good: it must be accepted, for it costs someone."""
    engine, store = Engine(), store_with(None)
    engine.fails = [RequestRefused("too busy") for _ in range(3)]
    driver = driver_of(store, engine)
    for _ in range(3):
        turn(driver)
    assert written(store).state == "refused"
    engine.has[KEY] = OURS
    turn(driver)
    assert written(store) == OURS
    engine.has = {}
    turn(driver)
    assert written(store).state == "gone"


def test_what_the_engine_took_and_cannot_fulfil_is_refused_at_once_with_the_words_that_explain_it() -> None:
    engine, store = Engine(), store_with(None)

    def acquire(request: Request) -> None:
        engine.has[KEY] = Grant(key=KEY, state="refused", engine_id="ours:1", reason="BadConstraints")
        raise RequestRefused("constraint = gold: no node has it")

    engine.acquire = acquire  # type: ignore[method-assign]
    assert drive(store, engine, turns=1) == Grant(key=KEY, state="refused", reason="constraint = gold: no node has it")


def test_an_engine_that_cannot_be_asked_refuses_nothing() -> None:
    engine, store = Engine(), store_with(None)
    engine.fails = [Fatal("squeue: Socket timed out")]
    driver = driver_of(store, engine)
    assert turn(driver) == FATAL_PAUSE_S
    assert store.get(keys.grant("run", KEY)) is None
    assert turn(driver) == 0.0
    assert written(store) == OURS


def test_a_mistake_of_ours_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    engine, store = Engine(), store_with(None)
    engine.fails = [ValueError("invalid literal for int()")]
    driver = driver_of(store, engine)
    with caplog.at_level(logging.ERROR):
        assert turn(driver) == FATAL_PAUSE_S
    assert "engine local" in caplog.records[0].getMessage()
    assert turn(driver) == 0.0
    assert written(store) == OURS


def test_one_that_appears_after_it_was_given_back_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_driver, "FORGET_AFTER_S", 3600.0)
    monkeypatch.setattr(engine_driver, "FORGET_LOOK_S", 0.0)
    engine, store = Engine(), store_with(Grant(key=KEY, state="pending"), "released")
    driver = driver_of(store, engine)
    for _ in range(3):
        turn(driver)
    assert written(store).state == "gone"
    engine.has = {KEY: OURS}  # the answer was lost, and the engine comes to it now
    turn(driver)
    assert (engine.has, engine.released) == ({}, [KEY])
    looked = engine.lists
    monkeypatch.setattr(engine_driver, "FORGET_LOOK_S", 1800.0)
    for _ in range(3):
        turn(driver)
    assert engine.lists == looked, "it is looked for slowly"


def test_one_that_was_granted_and_waits_again_is_gone_and_given_back() -> None:
    engine, store = (
        Engine(has=[Grant(key=KEY, state="pending", engine_id="ours:1", reason="Priority")]),
        store_with(OURS),
    )
    found = drive(store, engine)
    assert engine.released == [KEY]
    assert found == replace(OURS, state="gone", reason="it was granted and is pending again (Priority): released")
    assert engine.acquired == []
    engine.has = {KEY: Grant(key=KEY, state="pending", engine_id="ours:1")}
    assert drive(store, engine) == found
    assert engine.released == [KEY, KEY]


def test_in_the_place_of_a_suspect_one_is_a_replace() -> None:
    engine, store = Engine(), store_with(None)
    suspect = AllocationMemory(key=KEY, state="wanted", since=1.0, reason=text("n1 lost its disk"), instead_of="run-a0")
    store.put(keys.allocation("run", KEY), encode(suspect))
    assert drive(store, engine) == OURS
    assert (engine.replaced, engine.acquired) == ([("run-a0", KEY, "n1 lost its disk")], [])


def test_one_that_is_not_taken_back_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    engine, store = Engine(has=[OURS]), store_with(OURS, "released")
    engine.holds = {KEY}
    wanted = AllocationMemory(key="run-a2", state="wanted", since=1.0, reason=text("a node is lost"))
    store.put(keys.allocation("run", "run-a2"), encode(wanted))
    assert drive(store, engine) == OURS
    assert engine.acquired == ["run-a2"]
    assert any("it is not yours" in r.message for r in caplog.records)
    assert {"run": "run"} in abouts(caplog)


def test_an_engine_that_is_away_is_left_alone_ever_longer_and_served_when_it_is_back() -> None:
    engine, store = Engine(), store_with(None)
    engine.fails = [Retryable("nobody answers", after_s=1.0) for _ in range(8)]
    driver = driver_of(store, engine)
    pauses = [turn(driver) for _ in range(8)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (1.0, BACKOFF_MAX_S)
    assert turn(driver) == 0.0
    assert engine.has == {KEY: OURS}


def test_the_pause_starts_anew_after_a_success() -> None:
    engine, store = Engine(), store_with(None)
    engine.fails = [Retryable("nobody answers", after_s=1.0) for _ in range(4)]
    driver = driver_of(store, engine)
    while turn(driver):
        pass
    engine.list = raising(Retryable("away again", after_s=1.0))  # type: ignore[method-assign]
    assert turn(driver) == 1.0


def raising(error: Exception) -> Callable[[], list[Grant]]:
    def fail() -> list[Grant]:
        raise error

    return fail


def test_an_engine_that_calls_is_looked_at_at_once() -> None:
    engine = Engine()
    engine.poll_s = 3600.0
    driver = driver_of(store_with(None), engine)
    driver.start()
    try:
        eventually(lambda: engine.acquired == [KEY], 10, "what is wanted is asked for at once")
        asked = engine.lists
        engine.changed()
        eventually(lambda: engine.lists > asked, 10, "it calls")
    finally:
        driver.stop()


@pytest.mark.parametrize("seed", range(20))
def test_a_driver_that_keeps_what_was_settled_does_what_one_does_that_compares_all_each_turn(seed: int) -> None:
    """One of two drivers that go through the same is made to forget before every turn."""
    chance, clock = Random(seed), [0.0]
    stores = [store_with(OURS if seed % 2 else None) for _ in range(2)]
    engines = [Engine([OURS] if seed % 3 else []) for _ in range(2)]
    terms = [Term(store) for store in stores]
    drivers = [EngineDriver(*each, monotonic=lambda: clock[0]) for each in zip(stores, engines, strict=True)]

    def turned(which: int, anew: bool, lost: int) -> tuple[object, ...]:
        driver, store, engine = drivers[which], stores[which], engines[which]
        if anew or driver._wanted is None:
            driver.offer(Mirror(store.list(keys.PREFIX)), terms[which])  # type: ignore[arg-type]
        if which:
            driver._settled = None
        assert driver._wanted is not None
        store.fail_next(lost, applied=clock[0] % 2 > 1)
        try:
            driver.turn(driver._wanted)
            said = ""
        except (Retryable, Fatal) as error:
            said = str(error)
        store._failures.clear()
        asked = (engine.acquired, engine.released, engine.replaced, engine.has)
        return said, asked, driver.listed_at("local"), store.list(keys.PREFIX)

    for _ in range(40):
        clock[0] += chance.choice([0.1, 8.0, 20.0])
        step, key = chance.randrange(12), f"run-a{chance.randrange(1, 4)}"
        state = chance.choice(["pending", "granted", "granted", "gone", "refused"])
        grant = Grant(
            key=key,
            state=state,  # type: ignore[arg-type]
            nodes=("n1",),
            engine_id=chance.choice(["", "ours:1", "theirs:1"]),
            reason=chance.choice(["", "because"]),
        )
        wanted = AllocationMemory(key=key, state=chance.choice(["wanted", "released"]), since=1.0, reason=STARTS)
        for store, engine in zip(stores, engines, strict=True):
            match step:
                case 0:
                    engine.has[key] = grant
                case 1:
                    engine.has.pop(key, None)
                case 2:
                    store.put(keys.allocation("run", key), encode(wanted))
                case 3:
                    store.put(keys.grant("run", key), encode(grant))
                case 4:
                    store.commit({}, [keys.grant("run", key)])
                case 5:
                    engine.fails.append(RequestRefused("no such partition"))
                case 6:
                    engine.holds ^= {key}
                case 7:
                    engine.has = dict(reversed(engine.has.items()))
        for _ in range(chance.randrange(1, 4)):
            anew, lost = chance.random() < 0.7, int(chance.random() < 0.1)
            assert turned(0, anew, lost) == turned(1, anew, lost)


def test_the_nodes_of_a_group_are_asked_for_together_once_all_of_them_are_wanted() -> None:
    store, engine = MemoryStore(), Engine(name="slurm")
    allocation = AllocationSpec(engine="slurm", nodes=4, spares=1, slurm=SlurmSpec(shape="job_per_group"))
    spec = replace(SPEC, groups=GroupsSpec(ranks_per_group=2, nodes_per_group=2), allocation=allocation)
    store.put(keys.spec("run"), encode(RunRecord(spec=spec, run_dir="/runs/run", launched_unix_s=0.0)))
    store.put(keys.memory("run", "run"), encode(Memory(phase="new")))
    driver, term = EngineDriver(store, engine), Term(store)

    def asked(*numbers: int) -> list[tuple[str, tuple[str, ...]]]:
        for n in numbers:
            wanted = AllocationMemory(key=f"run-a{n}", state="wanted", since=1.0, reason=STARTS)
            store.put(keys.allocation("run", wanted.key), encode(wanted))
        driver.offer(Mirror(store.list(keys.PREFIX)), term)  # type: ignore[arg-type]
        assert driver._wanted is not None
        before = len(engine.requests)
        driver.turn(driver._wanted)
        return [(r.key, r.together) for r in engine.requests[before:]]

    first, second = ("run-a1", "run-a2"), ("run-a3", "run-a4")
    assert asked(1, 2, 3) == [(key, first) for key in first]
    assert asked(4, 5) == [*((key, second) for key in second), ("run-a5", ())]
    assert asked() == []
