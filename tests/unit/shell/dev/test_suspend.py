"""Runs when `up` ends, and when it is started again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.spec import AllocationSpec
from supervisor.shell.dev import suspend
from supervisor.wire import keys
from supervisor.wire.records import Control, RunRecord, decode, encode
from tests.unit.shell.records import MEMORY, SPEC, run_values

RUNS = Path("/home/me/runs")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspend, "LOOK_S", 0.0)


def store_at(phase: Any, engine: Any = "local", run_dir: Path = RUNS / "run", **control: Any) -> MemoryStore:
    spec = replace(SPEC, allocation=AllocationSpec(engine=engine))
    record = RunRecord(spec=spec, run_dir=str(run_dir), launched_unix_s=1.0)
    store = MemoryStore()
    for key, value in run_values(replace(MEMORY, phase=phase)).items():
        store.put(key, value)
    store.put(keys.spec("run"), encode(record))
    store.put(keys.control("run"), encode(Control(**control)))
    return store


def becomes(store: MemoryStore, phase: Any) -> Callable[[], None]:
    def tend() -> None:
        store.put(keys.memory("run", "run"), run_values(replace(MEMORY, phase=phase))[keys.memory("run", "run")])

    return tend


def control(store: MemoryStore) -> Control:
    item = store.get(keys.control("run"))
    assert item is not None
    return decode(item.value, Control)


def test_a_live_run_is_stopped_and_waited_for() -> None:
    store, said = store_at("running", paused=True), []
    suspend.suspend(store, RUNS, said.append, becomes(store, "stopped"))
    assert control(store) == Control(stop=True, suspended=True)
    assert said == [
        "run run was paused; the pause ends when it goes on",
        "stopping run: a last checkpoint first, for at most 60 s; Ctrl-C again ends all at once",
        "run run is stopped, its checkpoint of step 50 is complete; `supervisor up` goes on with it",
    ]


def test_one_that_does_not_stop_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    store, said, now = store_at("running"), [], iter(range(1000))
    monkeypatch.setattr(suspend.time, "monotonic", lambda: float(next(now)))
    suspend.suspend(store, RUNS, said.append, lambda: None)
    assert said[-1] == "run did not stop in time: ended now; `supervisor up` goes on from the newest checkpoint"
    assert next(now) < 2 * suspend.STOP_WITHIN_S


@pytest.mark.parametrize(
    "store",
    [store_at("finished"), store_at("halted"), store_at("running", engine="slurm"), store_at("running", run_dir=Path("/x/run"))],
    ids=["finished", "halted", "slurm", "another home"],
)  # fmt: skip
def test_what_does_not_end_with_up_is_left_alone(store: MemoryStore) -> None:
    suspend.suspend(store, RUNS, pytest.fail, lambda: None)
    assert control(store) == Control()


def test_the_next_up_lets_it_go_on_once_it_has_stopped() -> None:
    store = store_at("stopping", stop=True, suspended=True, resumes=3)
    assert suspend.going_on(store, RUNS) == [
        "run run was stopped with `up`, and goes on: its checkpoint of step 50 is complete"
    ]
    assert suspend.resume(store, RUNS), "it still stops: ask again"
    assert control(store).stop
    becomes(store, "stopped")()
    assert not suspend.resume(store, RUNS)
    assert control(store) == Control(resumes=4, because=suspend.AGAIN)
    suspend.resume(store, RUNS)
    assert control(store).resumes == 4, "once"


def test_a_run_that_a_person_stopped_stays_stopped() -> None:
    store = store_at("stopped", stop=True)
    assert not suspend.resume(store, RUNS)
    assert suspend.going_on(store, RUNS) == []
    assert control(store) == Control(stop=True)


def test_a_persons_stop_is_not_taken_back() -> None:
    """It was still draining when `up` was ended."""
    store, said = store_at("stopping", stop=True), []
    assert suspend.going_on(store, RUNS) == ["run run is being stopped, as a person asked"]
    suspend.suspend(store, RUNS, said.append, becomes(store, "stopped"))
    assert control(store) == Control(stop=True)
    assert said[-1] == "run run is stopped, its checkpoint of step 50 is complete"
    assert not suspend.resume(store, RUNS)
    assert control(store) == Control(stop=True)


@pytest.mark.parametrize("phase", ["finished", "halted"])
def test_a_run_that_came_to_its_end_meanwhile_is_for_a_person(phase: str) -> None:
    store, said = store_at("running"), []
    suspend.suspend(store, RUNS, said.append, becomes(store, phase))
    assert said[-1] == f"run run is {phase}, its checkpoint of step 50 is complete"
    assert suspend.going_on(store, RUNS) == []
    assert not suspend.resume(store, RUNS)
    assert control(store) == Control(stop=True)
