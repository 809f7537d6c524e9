"""The loop against a store in memory: its writes, and when it must not write."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.decide import decide
from supervisor.core.model.decision import Action, Decision
from supervisor.core.model.incident import Suspicion
from supervisor.core.model.kinds import Kind
from supervisor.core.model.memory import AllocationMemory, Memory
from supervisor.core.model.observed import Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import RunSpec
from supervisor.core.report.durations import wall_clock
from supervisor.ports.errors import Retryable
from supervisor.ports.store import MAX_OPERATIONS
from supervisor.shell.control import decision_inputs, loop, observe, projection
from supervisor.shell.control.build_info import program
from supervisor.shell.control.engine_driver import EngineDriver
from supervisor.shell.control.journal import read
from supervisor.shell.control.loop import Loop, Machine
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import client, removal
from supervisor.shell.metrics.telemetry import Telemetry
from supervisor.wire import keys
from supervisor.wire.records import (
    Account,
    Digest,
    EpochsBefore,
    Health,
    LeaderRecord,
    NodeDesired,
    NodeObserved,
    Progress,
    Restoring,
    RunRecord,
    TrainerObserved,
    decode,
    encode,
)
from tests.helpers.reasons import STARTS, text
from tests.unit.shell.records import INCIDENT, MEMORY, SPEC, Term, registration


class Engine:
    name = "none"

    def list(self) -> list[Any]:
        return []


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return launched(tmp_path)


def launched(tmp_path: Path) -> MemoryStore:
    """The store of a run that trains."""
    store = MemoryStore()
    store.put(keys.spec("run"), encode(RunRecord(spec=SPEC, run_dir=str(tmp_path), launched_unix_s=0.0)))
    for key, value in projection.memory_records(SPEC, MEMORY, ()).items():
        store.put(key, value)
    return store


def _loop(store: MemoryStore, monotonic: Callable[[], float] = time.monotonic) -> Loop:
    machine = Machine(monotonic=monotonic)
    return Loop(store, Term(store), EngineDriver(store, Engine()), Telemetry(), machine=machine)  # type: ignore[arg-type]


def _observed(node: str, state: Any = "running", run: str = "run") -> bytes:
    trainer = TrainerObserved(run=run, group=0, generation=1, rank=0, pid=5, state=state)
    return encode(NodeObserved(node=node, sequence=1, trainers=(trainer,)))


def test_a_node_that_runs_something_and_was_never_told_is_told_that_nothing_is_wanted(store: MemoryStore) -> None:
    store.put(keys.observed("late"), _observed("late"))
    store.put(keys.observed("ended"), _observed("ended", state="exited"))
    store.put(keys.observed("other"), _observed("other", run="other"))
    _loop(store).step()
    item = store.get(keys.desired("late", "run"))
    assert item is not None
    assert decode(item.value, NodeDesired) == NodeDesired(node="late")
    assert store.get(keys.desired("ended", "run")) is None
    assert store.get(keys.desired("other", "run")) is None


def test_a_run_of_a_removed_runs_name_has_a_journal_and_metrics_of_its_own(store: MemoryStore, tmp_path: Path) -> None:
    """The leader sees both changes in one turn: by the name alone it would take the new run for the old one."""
    leads = _loop(store)
    leads.step()
    first = tmp_path / "journal.jsonl"
    before = first.read_bytes()
    assert before
    leads._telemetry.metrics.gauge("supervisor_checkpoint_step", run="run").set(7)
    removal.remove(_ended(store), "run", with_files=False)
    store.put(keys.LEADER, encode(LeaderRecord(host="h", pid=1, home="")))
    record = client.launch(store, SPEC, tmp_path / "again")
    leads.step()
    assert first.read_bytes() == before
    events = list(read(Path(record.run_dir) / "journal.jsonl"))
    assert events[0]["event"] == "term"
    assert {g["generation"] for line in events for g in line.get("groups", {}).values()} == {3}
    assert b"supervisor_checkpoint_step{" not in generate_latest(leads._telemetry.metrics.registry)


def _ended(store: MemoryStore) -> MemoryStore:
    """Lets the run end, by another leader's hand."""
    memory = observe.memory(Mirror(store.list(keys.PREFIX)), "run")
    store.put(
        keys.memory("run", "run"), encode(replace(memory, phase="halted", groups={}, allocations={}, incidents={}))
    )
    return store


def test_after_an_upgrade_only_what_changes_is_written_however_much_lacks_a_new_field(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(key: str) -> bytes:
        body = json.loads(encode(AllocationMemory(key=key, state="released", since=1.0, reason=STARTS)))
        del body["unheard"]
        return json.dumps(body, separators=(",", ":")).encode()

    def look(observed: Observed, spec: RunSpec, memory: Memory) -> Decision:
        known = memory.allocations
        again = known | {"run-a7": replace(known["run-a7"], late=True)}
        return Decision(memory=replace(memory, decisions=memory.decisions + 1, allocations=again))

    for number in range(2 * MAX_OPERATIONS):
        store.put(keys.allocation("run", f"run-a{number}"), older(f"run-a{number}"))
    monkeypatch.setattr(loop, "decide", look)
    _loop(store).step()
    written = [key for key in store.commits[-1] if key.startswith(keys.allocation("run", ""))]
    assert written == [keys.allocation("run", "run-a7")]


def test_all_nodes_are_told_in_the_turn_that_decides(store: MemoryStore) -> None:
    """Some of 800 nodes heard of a new gate after eight turns, when their groups were taken for stalled."""
    nodes = {f"n{number}" for number in range(2 * MAX_OPERATIONS + 5)}
    for node in nodes:
        store.put(keys.observed(node), _observed(node))
    before = len(store.commits)
    _loop(store).step()
    made = [puts for puts in store.commits[before:] if any(key.startswith(keys.DESIRED) for key in puts)]
    assert nodes <= {key.split("/")[4] for puts in made for key in puts if key.startswith(keys.DESIRED)}
    assert len(made) == 3
    assert all(len(puts) <= MAX_OPERATIONS for puts in made)


def test_a_decision_that_no_transaction_holds_stops_its_own_run_alone(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(
        keys.spec("other"),
        encode(RunRecord(spec=replace(SPEC, name="other"), run_dir=str(tmp_path), launched_unix_s=1.0)),
    )
    many = {
        f"run-a{n}": AllocationMemory(key=f"run-a{n}", state="wanted", since=0.0, reason=STARTS)
        for n in range(MAX_OPERATIONS + 1)
    }

    def too_many(observed: Observed, spec: RunSpec, memory: Memory) -> Decision:
        allocations = many if spec.name == "run" else {}
        return Decision(memory=replace(memory, decisions=memory.decisions + 1, allocations=allocations))

    monkeypatch.setattr(loop, "decide", too_many)
    telemetry = Telemetry()
    turned = Loop(store, Term(store), EngineDriver(store, Engine()), telemetry)  # type: ignore[arg-type]
    before = len(store.commits)
    for _ in range(2):
        turned.step()
    undecided = telemetry.metrics.registry.get_sample_value
    assert [undecided("supervisor_undecided", {"run": run}) for run in ("run", "other")] == [1.0, 0.0]
    store.put(keys.memory("other", "run"), b"{")
    turned.step()
    assert undecided("supervisor_undecided", {"run": "other"}) == 1.0
    written = {key for puts in store.commits[before:] for key in puts}
    assert keys.memory("other", "run") in written
    assert keys.memory("run", "run") not in written
    assert [r.getMessage() for r in caplog.records if "refusing a decision of" in r.getMessage()] == [
        f"run run: refusing a decision of {MAX_OPERATIONS + 2} records: a transaction holds {MAX_OPERATIONS}"
    ]


def test_the_epoch_goes_on_where_the_restored_etcds_ended(store: MemoryStore) -> None:
    store.put(keys.EPOCHS_BEFORE, encode(EpochsBefore(count=1000)))
    loop = _loop(store)
    leader = store.get(keys.LEADER)
    assert leader is not None
    assert loop.epoch == 1000 + leader.create_revision


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (keys.control("run"), b'{"$kind":"Control","$version":2}'),
        (keys.memory("other", "run"), b'{"$kind":"Memory","$version":99}'),
        (keys.RESTORING, encode(Restoring(file="f", host="h", pid=1))),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_nothing_is_written_on_a_state_that_is_newer_or_half_restored(
    key: str, value: bytes, late: bool, store: MemoryStore
) -> None:
    loop = None
    if late:
        loop = _loop(store)
        loop.step()
    store.put(key, value)
    loop = loop or _loop(store)
    store.put(keys.observed("late"), _observed("late"))  # else there would be nothing to write
    before = len(store.commits)
    loop.step()
    assert loop.stands_down
    assert len(store.commits) == before


def test_the_core_is_told_how_long_the_engine_takes_for_a_word(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Observed] = []

    def look(observed: Observed, spec: RunSpec, memory: Memory) -> Decision:
        seen.append(observed)
        return decide(observed, spec, memory)

    monkeypatch.setattr(loop, "decide", look)
    monkeypatch.setattr(Engine, "name", SPEC.allocation.engine)
    monkeypatch.setattr(Engine, "poll_s", 3.0, raising=False)
    _loop(store).step()
    assert [o.engine_word_s for o in seen] == [pytest.approx(6.0, abs=0.2)]


def crashed(store: MemoryStore, monkeypatch: pytest.MonkeyPatch, number: int = 5) -> Decision:
    """Makes the loop's next decision start a group for an incident."""
    start = Action(
        verb="start", key="start:1:3", reason=text("it ended"), group=1, generation=3, node="n1", incident="i1"
    )
    after = replace(MEMORY, decisions=number)
    decision = Decision(memory=after, actions=(start,), incidents=(replace(INCIDENT, state="recovered"),))
    monkeypatch.setattr(loop, "decide", lambda *_: decision)
    return decision


def test_what_was_decided_on_is_kept_and_its_digest_is_written_with_the_memory(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(store, monkeypatch)
    leader = _loop(store)
    leader.step()
    puts = store.commits[-1]
    assert {keys.memory("run", "run"), keys.decision("run", 5)} <= set(puts)
    digest = decode(puts[keys.decision("run", 5)], Digest)
    assert (digest.decision, digest.epoch, digest.program) == (5, leader.epoch, program())
    assert (digest.actions, digest.incidents) == (("start:1:3",), ("i1",))
    kept = decision_inputs.find(tmp_path, {digest.input})[digest.input]
    assert isinstance(kept, decision_inputs.Kept)
    assert kept.given.memory == replace(MEMORY, incidents={})  # as the store of this test holds it
    intent = next(line for line in read(tmp_path / "journal.jsonl") if line["entry"] == "intent")
    assert (intent["input"], intent["policy"]) == (digest.input, 0)


@pytest.mark.parametrize("actions", [(), (Action(verb="checkpoint", key="checkpoint:50", reason=text("complete")),)])
def test_a_round_that_does_nothing_or_what_a_healthy_run_does_keeps_nothing(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actions: tuple[Action, ...]
) -> None:
    decision = Decision(memory=replace(MEMORY, decisions=5), actions=actions, waits=(Reason.of(Code.SEAT_NOT_UP),))
    monkeypatch.setattr(loop, "decide", lambda *_: decision)
    _loop(store).step()
    assert store.get(keys.decision("run", 5)) is None
    assert not (tmp_path / decision_inputs.NAMES[0]).exists()
    assert "input" not in list(read(tmp_path / "journal.jsonl"))[-2]


def test_the_places_of_the_digests_are_used_again(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    crashed(store, monkeypatch, number=5 + projection.DIGESTS)
    _loop(store).step()
    item = store.get(keys.decision("run", 5))
    assert item is not None
    assert decode(item.value, Digest).decision == 5 + projection.DIGESTS


def test_a_decision_whose_fate_is_not_known_is_kept_too(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(store, monkeypatch)
    leader = _loop(store)

    def away(*_: object, **__: object) -> int:
        raise Retryable("the store is away", after_s=0.01)

    monkeypatch.setattr(store, "commit", away)
    leader.step()
    intent = next(line for line in read(tmp_path / "journal.jsonl") if line["entry"] == "intent")
    assert isinstance(decision_inputs.find(tmp_path, {intent["input"]})[intent["input"]], decision_inputs.Kept)


def test_that_the_store_was_away_is_journaled_when_it_goes_and_when_it_comes(
    store: MemoryStore, tmp_path: Path
) -> None:
    leader = _loop(store)
    leader.step()
    store.put(keys.observed("late"), _observed("late"))
    store.fail_next(1)
    for _ in range(3):
        leader.step()
    told = [line["up"] for line in read(tmp_path / "journal.jsonl") if line.get("event") == "store"]
    assert told == [False, True]


def test_what_is_held_against_a_host_no_more_is_deleted_with_the_memory_that_says_so(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only that incident's record is deleted, and no delete is sent for a record that does not exist."""
    for incident in ("i1", "i2"):
        found = Suspicion(host="h1", run="run", incident=incident, kind=Kind.CRASH, at=1.0)
        for key, value in projection.suspicion_records([found]).items():
            store.put(key, value)

    def acquit(observed: Observed, spec: RunSpec, memory: Memory) -> Decision:
        after = replace(memory, decisions=memory.decisions + 1)
        return Decision(memory=after, acquitted=(("h1", "i1"), ("h2", "i1")))

    monkeypatch.setattr(loop, "decide", acquit)
    _loop(store).step()
    assert [item.key for item in store.list(keys.CORDONS).items] == [keys.suspicion("h1", "run", "i2")]
    puts = store.commits[-1]
    assert keys.memory("run", "run") in str(puts)


def test_where_the_time_went_is_told_over_all_terms(store: MemoryStore) -> None:
    """Group 0 trains, group 1 waits to be fenced. The account is written with each change, else once in ACCOUNT_S."""
    at = [0.0]

    def told() -> float:
        item = store.get(keys.account("run"))
        return decode(item.value, Account).seconds["place"] if item is not None else 0.0

    first = _loop(store, lambda: at[0])
    first.step()
    assert told() == 0, "nothing has passed yet"
    at[0] += 9.0
    first.step()
    assert told() == pytest.approx(9.0), "group 0 is given up now: a change"
    first.step()
    at[0] += loop.ACCOUNT_S - 1
    first.step()
    assert told() == pytest.approx(9.0), "a quiet run is not told with every look"
    at[0] += 1
    first.step()
    total = told()
    assert total > 9.0 + loop.ACCOUNT_S - 1
    writes = len(store.commits)
    first.step()
    assert len(store.commits) == writes
    store.commit({}, [keys.LEADER])
    second = _loop(store, lambda: at[0])
    second.step()
    at[0] += loop.ACCOUNT_S
    second.step()
    assert told() >= total + loop.ACCOUNT_S, "the terms before it count"


def test_a_term_goes_on_from_the_newest_step_of_the_terms_before(store: MemoryStore) -> None:
    store.put(keys.account("run"), encode(Account(step=160)))
    telemetry = Telemetry()
    Loop(store, Term(store), EngineDriver(store, Engine()), telemetry).step()  # type: ignore[arg-type]
    assert telemetry.accounts("run").step == 160


def test_when_each_term_was_is_told_over_all_terms(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new leader goes back to an instant of the run clock. With this it can be shown as the wall clock of then, as in
    the journal."""
    at = [0.0]
    monkeypatch.setattr(time, "time", lambda: 5000.0 + at[0])

    def step(leader: Loop, after: float) -> None:
        at[0] += after
        leader.step()

    first = _loop(store, lambda: at[0])
    step(first, 0.0)
    step(first, 9.0)
    item = store.get(keys.memory("run", "run"))
    assert item is not None
    written = decode(item.value, Memory).clock
    store.commit({}, [keys.LEADER])
    at[0] += 26.0
    began = at[0]
    second = _loop(store, lambda: at[0])
    step(second, loop.ACCOUNT_S)
    account = store.get(keys.account("run"))
    assert account is not None
    found = decode(account.value, Account)
    (one, offset), (two, later) = found.clocks
    assert (one, two) == (MEMORY.clock, written)
    assert offset == pytest.approx(5000.0 - MEMORY.clock)
    assert later == pytest.approx(5000.0 + began - written)
    assert found.stood == ((written, pytest.approx(began - (written - MEMORY.clock))),), "since the newest memory"
    intents = [line for line in read(tmp_path / "journal.jsonl") if line.get("entry") == "intent"]
    assert all(line["t"] - line["now"] == pytest.approx(offset, abs=0.01) for line in intents if line["now"] <= written)


@pytest.mark.parametrize("ahead_s", [0.0, 3600.0, -3600.0])
def test_the_run_clock_goes_on_from_the_account_whatever_a_leaders_wall_clock(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """The first leader's wall clock is `ahead_s` off the nodes', the second one's is not. No one led for 26 s."""
    at, wall = [0.0], [5000.0 + ahead_s]
    monkeypatch.setattr(time, "time", lambda: wall[0] + at[0])

    def step(leader: Loop, after: float) -> Account:
        at[0] += after
        health = {
            "sequence": int(at[0]),
            "warm": "off",
            "disk_free_bytes": 0,
            "memory_available_bytes": 0,
            "load_1m": 0.0,
        }
        store.put(keys.health("n1"), encode(Health(node="n1", unix_s=5000.0 + at[0], **health)))  # type: ignore[arg-type]
        leader.step()
        item = store.get(keys.account("run"))
        return decode(item.value, Account) if item is not None else Account()

    for key, value in registration("n1").items():
        store.put(key, value)
    first = _loop(store, lambda: at[0])
    before = step(first, 0.0)
    while before.ran_s < loop.ACCOUNT_S:
        before = step(first, 5.0)
    assert before.off_s == ahead_s
    assert before.began_unix_s == pytest.approx(5000.0 + ahead_s, abs=0.01), "by the clock of who led"
    told = [line["account"] for line in read(tmp_path / "journal.jsonl") if line.get("event") == "account"]
    assert told[-1] == json.loads(json.dumps(asdict(before))), "the journal has what etcd has"
    store.commit({}, [keys.LEADER])
    wall[0] = 5000.0
    at[0] += 26.0
    second = _loop(store, lambda: at[0])
    assert second.now() == before.clock
    after = step(second, 0.0)
    while after.clock <= before.clock:
        after = step(second, 5.0)
    assert after.stood[-1] == (before.clock, pytest.approx(26.0, abs=0.1)), "no hour more or less"
    assert after.ran_s == pytest.approx(at[0], abs=0.1), "without a leader it has lasted too"
    assert after.began_unix_s == before.began_unix_s
    whole = sum(after.seconds.values()) - sum(before.seconds.values())
    assert 0.0 < whole <= len(MEMORY.groups) * (after.ran_s - before.ran_s) + 0.01


def test_a_clock_that_is_set_within_a_term_is_told_from_then_on(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ntp sets it, for example. Earlier events keep the clock of then, as in the journal; durations do not change."""
    at, ahead = [0.0], [5000.0]
    monkeypatch.setattr(time, "time", lambda: ahead[0] + at[0])

    def monotonic() -> float:
        at[0] += 0.001  # a look takes some time
        return at[0]

    leader = _loop(store, monotonic)

    def step(after: float, forward: float) -> Account:
        at[0] += after
        ahead[0] += forward
        leader.step()
        item = store.get(keys.account("run"))
        return decode(item.value, Account) if item is not None else Account()

    step(0.0, 0.0)
    step(3.0, loop.SET_S / 2)
    found = step(6.0, 3600.0)
    (begin, offset), (since, later) = found.clocks
    assert (begin, since, found.stood) == (MEMORY.clock, pytest.approx(MEMORY.clock + 9.0, abs=0.1), ())
    assert later - offset == pytest.approx(3600.0 + loop.SET_S / 2, abs=0.1)
    intents = [line for line in read(tmp_path / "journal.jsonl") if line.get("entry") == "intent"]
    told = [wall_clock(line["now"], found.clocks) for line in intents]
    assert told == [pytest.approx(line["t"], abs=loop.SET_S) for line in intents]
    for _ in range(2 * loop.TERMS):
        found = step(loop.ACCOUNT_S, 2.0)
    assert (len(found.clocks), found.clocks[0][0]) == (loop.TERMS, MEMORY.clock)


def test_no_event_is_later_than_now_where_a_term_is_slow_to_begin(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = [0.0]

    def slow(mirror: Mirror) -> Any:
        at[0] += 0.4
        return readable(mirror)

    readable = observe.readable
    monkeypatch.setattr(time, "time", lambda: 5000.0 + at[0])
    monkeypatch.setattr(observe, "readable", slow)
    leader = _loop(store, lambda: at[0])
    for _ in range(2):
        leader.step()
        at[0] += loop.ACCOUNT_S
    item = store.get(keys.account("run"))
    assert item is not None
    assert wall_clock(leader.now(), decode(item.value, Account).clocks) == pytest.approx(time.time(), abs=0.001)


def test_each_turn_says_for_how_long_nothing_was_heard(store: MemoryStore) -> None:
    telemetry = Telemetry()
    leader = Loop(store, Term(store), EngineDriver(store, Engine()), telemetry)  # type: ignore[arg-type]

    def silent_s() -> float:
        told = telemetry.metrics.registry.get_sample_value("supervisor_loop_silent_seconds")
        assert told is not None
        return told

    telemetry.leading(1)
    leader.step()
    assert silent_s() < loop.SILENCE_S
    began = time.monotonic()
    store.away = True
    leader.step()
    assert 0 < silent_s() <= time.monotonic() - began


def test_the_share_that_trained_is_told_since_the_launch(store: MemoryStore) -> None:
    """The metric shows it like the page: a new leader does not start it again."""
    at, telemetry = [0.0], Telemetry()
    store.put(keys.account("run"), encode(Account(step=160, seconds={"productive": 900.0, "place": 90.0})))
    term = Loop(store, Term(store), EngineDriver(store, Engine()), telemetry, machine=Machine(monotonic=lambda: at[0]))  # type: ignore[arg-type]

    def told() -> float | None:
        return telemetry.metrics.registry.get_sample_value("supervisor_ettr_ratio", {"run": "run"})

    term.step()
    assert told() == pytest.approx(900.0 / 990.0), "from the first look on"
    for _ in range(3):
        at[0] += loop.ACCOUNT_S
        term.step()
    item = store.get(keys.account("run"))
    assert item is not None
    seconds = decode(item.value, Account).seconds
    assert sum(seconds.values()) > 990.0
    assert told() == pytest.approx(seconds["productive"] / sum(seconds.values()), abs=1e-4)


def test_when_the_last_step_was_outlives_the_trainers(store: MemoryStore) -> None:
    at = [0.0]
    term = _loop(store, lambda: at[0])

    def account(*trainers: TrainerObserved) -> float:
        node = NodeObserved(node="n1", sequence=int(at[0]) + 1, trainers=trainers)
        store.put(keys.observed("n1"), encode(node))
        at[0] += loop.ACCOUNT_S
        term.step()
        item = store.get(keys.account("run"))
        return decode(item.value, Account).stepped_unix_s if item is not None else -1.0

    about: dict[str, Any] = {"run": "run", "group": 0, "generation": 1, "rank": 0, "pid": 1}
    progress = Progress(**about, sequence=1, phase="step", step=3, commits=3, stepped_unix_s=700.0)
    account()
    assert account(TrainerObserved(**about, state="running", progress=progress)) == 700.0
    assert account() == 700.0


@pytest.mark.parametrize(("takes_s", "gathers"), [(0.1, True), (0.005, False)])
def test_after_a_turn_that_took_long_the_changes_of_a_while_are_decided_together(
    store: MemoryStore, takes_s: float, gathers: bool
) -> None:
    spent = [0.0]

    def processor() -> float:
        spent[0] += takes_s
        return spent[0]

    machine = Machine(processor=processor)
    leads = Loop(store, Term(store), EngineDriver(store, Engine()), Telemetry(), machine=machine)  # type: ignore[arg-type]
    leads.step()
    store.put(
        keys.health("n1"),
        encode(Health(node="n1", sequence=1, warm="off", disk_free_bytes=1, memory_available_bytes=1, load_1m=0.0)),
    )
    later = threading.Timer(0.1, lambda: store.put(keys.observed("late"), _observed("late")))
    later.start()
    leads.step()
    assert (store.get(keys.desired("late", "run")) is not None) is gathers
    later.join()
