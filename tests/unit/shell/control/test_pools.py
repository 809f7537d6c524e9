"""Records of pools and of runs on them, as the leader reads and writes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.memory import GroupMemory, Lighthouse, Memory
from supervisor.core.model.seats import Seat
from supervisor.ports.errors import Fenced
from supervisor.ports.store import MAX_OPERATIONS, Changes
from supervisor.shell.control import observe, pools, projection
from supervisor.shell.control.loop import Loop, Machine
from supervisor.shell.control.pools import PoolDriver
from supervisor.shell.metrics.telemetry import Telemetry
from supervisor.shell.service import Drivers
from supervisor.wire import keys
from supervisor.wire.records import (
    Control,
    Cordon,
    LighthouseDesired,
    NodeCheck,
    NodeDesired,
    NodeObserved,
    RunRecord,
    encode,
)
from tests.helpers.reasons import text
from tests.unit.shell.pools import (
    POOL,
    RUN,
    Leads,
    granted,
    lab,
    launched,
    lent,
    mirror,
    node,
    placed,
    runs_there,
    store_of,
    turn,
    wants,
)
from tests.unit.shell.records import registration

TWO = {**launched(RUN, placed()), **wants("toy", 1), **wants("toy", 2)}


def nodes_of(store: Any, run: str = "toy") -> list[str]:
    return [name for grant in granted(store, run).values() if grant.state == "granted" for name in grant.nodes]


def test_a_run_on_a_pool_is_granted_its_nodes_and_the_engine_is_asked_for_none() -> None:
    store = store_of(lab(), TWO)
    turn(store)
    assert nodes_of(store) == ["n1", "n2"]
    one = granted(store, "toy")["toy-a1"]
    assert (one.engine_id, one.through) == ("lab/lab-a1", "lab-a1")
    commits = len(store.commits)
    turn(store)
    assert len(store.commits) == commits, "nothing is written again"


def test_a_settled_pool_is_compared_again_once_a_record_of_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(lab(), TWO)
    seen, driver, compared = mirror(store), PoolDriver(store), []
    real = pools._changed

    def compare(*given: Any) -> Any:
        compared.append(given)
        return real(*given)

    monkeypatch.setattr(pools, "_changed", compare)

    def turns(number: int) -> int:
        before = len(compared)
        for _ in range(number):
            driver.offer(seen, observe.runs(seen), Leads(store))  # type: ignore[arg-type]
        return len(compared) - before

    assert turns(5) == 2, "one that lends, and one that finds nothing to do"
    for news in (
        wants("toy", 2, state="released"),
        node(1, leaving="its time limit"),
        node(1, state="gone"),
        {keys.memory("lab", "run"): encode(Memory(phase="stopping"))},
        {keys.control("lab"): encode(Control(resumes=1))},
        {keys.memory("lab", "run"): encode(Memory(phase="running"))},
        launched(replace(RUN, name="other"), placed()),
    ):
        seen.apply(Changes(store.commit(news), tuple(store.get(key) for key in news)))  # type: ignore[arg-type]
        assert turns(5) in (1, 2), news
    assert granted(store, "toy")["toy-a1"].state == "gone"
    for number in (1, 2, 3):
        news = wants("other", number)
        seen.apply(Changes(store.commit(news), tuple(store.get(key) for key in news)))  # type: ignore[arg-type]
    assert turns(5) == 5, "while a run waits, its nodes matter too"


def test_two_runs_share_its_nodes_and_the_last_one_waits() -> None:
    other = replace(RUN, name="other")
    store = store_of(lab(), TWO, launched(other, placed()), wants("other", 1, since=2.0), wants("other", 2, since=2.0))
    turn(store)
    assert (nodes_of(store), nodes_of(store, "other")) == (["n1", "n2"], ["n3"])
    assert granted(store, "other")["other-a2"].reason == (
        "pool lab has no free node for it (nodes: 3; run other has 1, run toy has 2)"
    )


@pytest.mark.parametrize(
    "held",
    [
        {keys.cordon("n1"): encode(Cordon(host="n1", why="fan", by="me", at_unix_s=0.0))},
        node(1, leaving="its time limit"),
        node(1, state="gone"),
        wants("lab", 1, state="released"),
        wants("lab", 1, leaving_since=5.0),
        registration("n1", allocation="lab-a9"),
        registration("n1", allocation="lab-a1", role="service"),
        runs_there(1, "old"),
        {keys.desired("n1", "old"): encode(NodeDesired(node="n1", lighthouses=(_ := LighthouseDesired(
            run="old", generation=1, groups=1, min_groups=1, torchft=RUN.torchft
        ),)))},
        {keys.observed("n1"): encode(NodeObserved(node="n1", sequence=1, leaving="SIGUSR1"))},
        {keys.check("n1"): encode(NodeCheck(node="n1", host="n1", state="unknown", why="asked", began=1))},
    ],
    ids=lambda held: next(iter(held)),
)  # fmt: skip
def test_a_node_that_is_of_no_use_or_not_empty_is_not_lent(held: dict[str, bytes]) -> None:
    store = store_of(lab(), held, TWO)
    turn(store)
    assert nodes_of(store) == ["n2", "n3"]


def test_a_node_is_lent_once_its_agent_says_that_the_last_run_has_ended_there() -> None:
    store = store_of(lab(), runs_there(1, "old"), runs_there(2, "old"), runs_there(3, "old", "exited"), TWO)
    turn(store)
    assert nodes_of(store) == ["n3"]
    store.commit(runs_there(1, "old", "exited"))
    turn(store)
    assert nodes_of(store) == ["n3", "n1"]


def test_a_silent_node_is_not_lent() -> None:
    store = store_of(lab(), TWO)
    store.commit({}, deletes=[keys.registration("n1")])
    turn(store)
    assert nodes_of(store) == ["n2", "n3"]


def test_a_host_that_the_pool_bars_is_not_lent() -> None:
    store = store_of(lab(Memory(phase="running", cordons={"n2": text("it failed")})), TWO)
    turn(store)
    assert nodes_of(store) == ["n1", "n3"]


def test_nothing_is_lent_while_a_grant_cannot_be_read_and_what_is_lent_stays() -> None:
    other = launched(replace(RUN, name="other"), placed())
    store = store_of(
        lab(), TWO, lent("toy", 1, 3), other, {keys.grant("other", "other-a1"): b"{torn"}, wants("other", 1)
    )
    turn(store)
    assert nodes_of(store) == ["n3"]
    assert granted(store, "toy")["toy-a2"].state == "pending"
    assert mirror(store).items[keys.grant("other", "other-a1")].value == b"{torn"


def test_the_nodes_of_a_run_whose_spec_cannot_be_read_are_still_lent() -> None:
    torn = {keys.spec("other"): b"{torn", **wants("other", 1), **lent("other", 1, 1)}
    before = {**wants("toy", 9, state="released"), **lent("toy", 9, 1, state="gone")}
    store = store_of(lab(), torn, TWO, before)
    turn(store)
    assert nodes_of(store) == ["n2", "n3"]
    seen = mirror(store)
    runs = observe.runs(seen)
    assert pools.users(seen, "lab", runs, pools.lent(seen, "lab", runs)) == ("other", "toy")


def test_a_pool_that_ends_lends_nothing_and_one_that_is_resumed_does_later() -> None:
    store = store_of(lab(Memory(phase="stopped")), TWO, {keys.control("lab"): encode(Control(resumes=1))})
    turn(store)
    assert granted(store, "toy")["toy-a1"].state == "granted", "it is about to go on"
    store = store_of(lab(Memory(phase="stopped")), TWO)
    turn(store)
    assert (granted(store, "toy")["toy-a1"].state, granted(store, "toy")["toy-a1"].reason) == (
        "refused",
        "pool lab has ended",
    )


def test_a_pool_that_has_no_memory_yet_is_waited_for() -> None:
    store = store_of(launched(POOL), TWO)
    turn(store)
    assert granted(store, "toy")["toy-a1"].state == "pending"


def test_a_leader_whose_term_is_over_lends_nothing() -> None:
    store = store_of(lab(), TWO)
    seen, term = mirror(store), Leads(store)
    term.epoch = 0
    with pytest.raises(Fenced):
        PoolDriver(store).offer(seen, observe.runs(seen), term)  # type: ignore[arg-type]
    assert granted(store, "toy") == {}


def test_many_grants_are_written_in_several_transactions_those_taken_back_first() -> None:
    number = range(1, 201)
    pool = replace(POOL, allocation=replace(POOL.allocation, nodes=200))
    held = {k: v for n in number for k, v in node(n).items()}
    old = {k: v for n in number for k, v in {**wants("old", n, state="released"), **lent("old", n, n)}.items()}
    new = {k: v for n in number for k, v in wants("toy", n).items()}
    store = store_of(
        launched(pool, placed()), held, launched(replace(RUN, name="old"), placed()), old, launched(RUN, placed()), new
    )
    before = len(store.commits)
    turn(store)
    assert len(nodes_of(store)) == 200
    assert nodes_of(store, "old") == []
    wrote = [key for puts in store.commits[before:] for key in puts]
    assert [len(puts) for puts in store.commits[before:]] == [MAX_OPERATIONS] * 3 + [400 - 3 * MAX_OPERATIONS]
    assert ["/old/" in key for key in wrote] == [True] * 200 + [False] * 200


# --- what a run and a pool see ---


def test_a_lent_node_is_shown_under_the_runs_allocation() -> None:
    store = store_of(lab(), TWO, lent("toy", 1, 1))
    seen = mirror(store)
    observed = observe.observed(seen, "toy", observe.memory(seen, "toy"), 1.0, 1.0)
    assert (observed.nodes["n1"].registered, observed.nodes["n1"].allocation) == (True, "toy-a1")
    assert (observed.lent, observed.users) == ({}, ())


@pytest.mark.parametrize(("said", "registered", "shown"), [("toy-a1", False, "toy-a1"), ("lab-a9", True, "lab-a9")])
def test_a_node_that_registers_under_another_key_is_not_the_lent_one(said: str, registered: bool, shown: str) -> None:
    store = store_of(lab(), TWO, lent("toy", 1, 1), registration("n1", allocation=said))
    seen = mirror(store)
    view = observe.observed(seen, "toy", observe.memory(seen, "toy"), 1.0, 1.0).nodes["n1"]
    assert (view.registered, view.allocation) == (registered, shown)


def test_a_seat_on_a_lent_node_has_the_agent_compare_the_pools_key() -> None:
    seat = Seat("n1", "n1", "toy-a1", "lab-a1")
    memory = placed(GroupMemory(group=0, generation=1, seats=(seat,), phase="starting"))
    assert projection.desired(RUN, "/runs/toy", memory)["n1"].trainers[0].allocation == "lab-a1"


def test_nothing_runs_for_a_pool_though_an_older_leader_gave_it_a_lighthouse() -> None:
    memory = replace(placed(), lighthouse=Lighthouse(node="host", generation=1))
    assert projection.desired(POOL, "/runs/lab", memory) == {}
    assert projection.desired(RUN, "/runs/toy", memory).keys() == {"host"}


def test_a_pool_sees_who_uses_it() -> None:
    idle = launched(replace(RUN, name="idle"), placed())
    over = launched(replace(RUN, name="over"), Memory(phase="stopped"))
    store = store_of(lab(), TWO, lent("toy", 1, 2), idle, over)
    seen = mirror(store)
    observed = observe.observed(seen, "lab", observe.memory(seen, "lab"), 1.0, 1.0)
    assert (observed.lent, observed.users) == ({"lab-a2": "toy"}, ("idle", "toy"))
    assert observe.granted(seen) == {"n1", "n2", "n3"}, "nodes of a pool get certificates, and are scraped"


def test_a_run_that_has_ended_uses_a_pool_until_its_nodes_are_taken_back() -> None:
    ended = launched(RUN, Memory(phase="stopped"))
    store = store_of(lab(), ended, lent("toy", 1, 1), wants("toy", 1, state="released"))
    seen = mirror(store)
    assert observe.observed(seen, "lab", observe.memory(seen, "lab"), 1.0, 1.0).users == ("toy",)
    now = turn(store)
    assert observe.observed(now, "lab", observe.memory(now, "lab"), 1.0, 1.0).users == ()


def test_the_engine_of_a_run_on_a_pool_is_the_pools() -> None:
    on_slurm = replace(POOL, allocation=replace(POOL.allocation, engine="slurm"))
    seen = mirror(store_of(launched(on_slurm), TWO))
    assert observe.engine_of(seen, RUN) == "slurm"
    assert observe.engine_of(seen, replace(RUN, allocation=replace(RUN.allocation, pool=""))) == "pool"


# --- the leader's loop ---


def led(store: MemoryStore, clock: Callable[[], float]) -> Loop:
    drivers = Drivers((), PoolDriver(store))
    return Loop(store, Leads(store), drivers, Telemetry(), machine=Machine(monotonic=clock))  # type: ignore[arg-type]


def test_an_idle_pool_is_warned_of_once_an_hour_by_one_leader_after_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, now = store_of(lab()), [0.0]
    record = RunRecord(spec=POOL, run_dir=str(tmp_path), launched_unix_s=1.0)
    store.put(keys.spec("lab"), encode(record))

    def turns(seconds: float) -> list[str]:
        """Leads for so long, from another leader on, a turn a minute."""
        caplog.clear()
        loop = led(store, lambda: now[0])
        for _ in range(int(seconds / 60)):
            loop.step()
            now[0] += 60.0
        exported = generate_latest(loop._telemetry.metrics.registry).decode().splitlines()
        about = {line.partition("{")[0] for line in exported if 'run="lab"' in line}
        assert {name for name in about if not name.startswith("supervisor_commit_")} == {"supervisor_undecided"}
        return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]

    said = "lab: no run has used pool lab for {}: give its nodes back with supervisor release lab"
    assert turns(2 * 3600 + 120) == [said.format("1 h"), said.format("2 h")]
    assert turns(1800) == [said.format("2 h")], "a leader that follows goes on with the clock"
    assert turns(2400) == [said.format("2 h"), said.format("3 h")]


def test_a_run_on_a_pool_starts_in_one_leaders_turns_and_the_pool_notes_that_it_is_used(tmp_path: Path) -> None:
    store = store_of(lab(), registration("host", role="service"))
    for spec in (POOL, RUN):
        store.put(
            keys.spec(spec.name), encode(RunRecord(spec=spec, run_dir=str(tmp_path / spec.name), launched_unix_s=1.0))
        )
    loop = led(store, time.monotonic)
    for _ in range(3):
        loop.step()
    assert nodes_of(store) == ["n1", "n2"]
    memory = observe.memory(mirror(store), "lab")
    assert (memory.idle_since, memory.lighthouse.node) == (None, "")
    assert sorted(memory.allocations) == ["lab-a1", "lab-a2", "lab-a3"]
