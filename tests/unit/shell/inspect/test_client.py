"""The requests that a person may still make of a run, by its phase."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.memory import Lighthouse
from supervisor.ports.errors import Fatal
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import client
from supervisor.wire import keys
from supervisor.wire.records import Control, LeaderRecord, RunRecord, decode, encode
from tests.unit.shell.records import MEMORY, mirror_of, registration, run_values


def mirror_at(phase: Any, halt_reason: str = "", host: str = "host", **more: bytes) -> Mirror:
    memory = replace(MEMORY, phase=phase, halt_reason=halt_reason, lighthouse=Lighthouse(node=host, generation=1))
    return mirror_of({**run_values(memory), **more})


def record_of(mirror: Mirror) -> RunRecord:
    return client.choose_run(mirror, "run")


def control(store: MemoryStore) -> Control | None:
    item = store.get(keys.control("run"))
    return decode(item.value, Control) if item is not None else None


@pytest.mark.parametrize("phase", ["finished", "stopped", "halted"])
def test_a_run_that_has_ended_takes_no_wish(phase: Any) -> None:
    mirror = mirror_at(phase)
    with pytest.raises(Fatal, match=f"run run is {phase}: pause does nothing") as error:
        client.refuse_ended(mirror, record_of(mirror), "pause")
    assert ("supervisor resume run --because" in str(error.value)) is (phase != "finished")


@pytest.mark.parametrize("phase", ["new", "running", "stopping", "resuming"])
def test_a_run_that_goes_on_takes_them(phase: Any) -> None:
    mirror = mirror_at(phase)
    client.refuse_ended(mirror, record_of(mirror), "pause")


def test_a_run_whose_memory_cannot_be_read_may_be_paused() -> None:
    mirror = mirror_of({**run_values(), keys.memory("run", "run"): b"{torn"})
    client.refuse_ended(mirror, record_of(mirror), "pause")


def test_a_stop_says_within_which_time_and_whether_anybody_leads() -> None:
    mirror = mirror_at("running")
    said = client.stopping(mirror, record_of(mirror))
    assert "what has not ended in 310 s is terminated, and the run ends within 320 s" in said
    assert "no supervisor leads" in said
    leader = LeaderRecord(host="h", pid=1, home="/h")
    mirror = mirror_at("running", **{keys.LEADER: encode(leader)})
    assert "no supervisor leads" not in client.stopping(mirror, record_of(mirror))


def test_a_run_that_drains_towards_its_halt_is_not_resumed_yet() -> None:
    mirror, store = mirror_at("stopping", "budgets are spent"), MemoryStore()
    with pytest.raises(Fatal, match="run run is still stopping before its halt; repeat this when it is halted"):
        client.resume(store, mirror, record_of(mirror), "mended", True)
    assert control(store) is None
    client.resume(store, mirror, record_of(mirror), "")
    assert control(store) == Control()


def test_a_reason_for_a_run_that_needs_none_is_refused_and_not_dropped() -> None:
    mirror, store = mirror_at("running"), MemoryStore()
    with pytest.raises(Fatal, match=r"run run is neither halted nor paused \(running\): there is nothing to resume"):
        client.resume(store, mirror, record_of(mirror), "mended")
    assert control(store) is None
    paused = mirror_at("running", **{keys.control("run"): encode(Control(paused=True))})
    assert client.resume(store, paused, record_of(paused), "mended") == "run: acting again"


def test_a_run_that_waits_for_a_lost_lighthouse_takes_a_persons_word() -> None:
    lost = Lighthouse(node="host", generation=1, mute_since=5.0)
    mirror = mirror_of(run_values(replace(MEMORY, phase="running", lighthouse=lost)))
    store = MemoryStore()
    with pytest.raises(Fatal, match="nothing to resume"):
        client.resume(store, mirror, record_of(mirror), "the rack is off")
    said = client.resume(store, mirror, record_of(mirror), "the rack is off", they_are_down=True)
    assert "lighthouse on host" in said
    assert control(store) == Control(down=1, because="the rack is off")


def test_a_halted_run_whose_lighthouse_may_still_serve_is_not_resumed() -> None:
    mirror, store = mirror_at("halted", "budgets are spent"), MemoryStore()
    with pytest.raises(
        Fatal, match=r"lighthouse on node host, which is not registered: .*may still train.*--they-are-down"
    ):
        client.resume(store, mirror, record_of(mirror), "mended")
    assert control(store) is None
    client.resume(store, mirror, record_of(mirror), "mended", they_are_down=True)
    assert control(store) == Control(resumes=1, because="mended")


@pytest.mark.parametrize("host", ["host", ""])
def test_a_halted_run_whose_lighthouse_is_heard_or_was_never_placed_is_resumed(host: str) -> None:
    mirror, store = (
        mirror_at("halted", "budgets are spent", host, **registration("host", role="service")),
        MemoryStore(),
    )
    client.resume(store, mirror, record_of(mirror), "mended")
    assert control(store) == Control(resumes=1, because="mended")
    if not host:
        mirror = mirror_at("halted", "budgets are spent", host)
        client.resume(store, mirror, record_of(mirror), "mended")


def test_what_of_a_recipe_has_no_effect_for_one_reason_is_one_sentence() -> None:
    why = "the supervisor writes checkpoints"
    changes = [
        {"key": "checkpoint.folder", "before": "mine", "after": None, "reason": why},
        {"key": "debug.seed", "before": 42, "after": 1234, "reason": "titan.seed"},
        {"key": "checkpoint.async_mode", "before": "async", "after": None, "reason": why},
        {"key": "fault_tolerance.group_size", "before": 3, "after": None, "reason": "[groups]"},
    ]
    assert client._changes(changes) == [
        "the recipe's debug.seed = 42 becomes 1234: titan.seed",
        "the recipe's checkpoint.folder = 'mine', checkpoint.async_mode = 'async' have no effect: " + why,
        "the recipe's fault_tolerance.group_size = 3 has no effect: [groups]",
    ]
