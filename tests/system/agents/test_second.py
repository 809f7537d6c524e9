"""Two agents of one name: the second one detects the other and reports it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.agent import reporter as module
from agents.agent.reporter import Callbacks, Reporter
from fault_injection.doubles.memory_store import MemoryStore
from supervisor.ports.errors import Fenced
from supervisor.wire import keys
from supervisor.wire.records import NodeObserved, Registration, SecondAgent, decode

LEASE_S = 5


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module.time, "monotonic", found.monotonic)
    return found


def agent(folder: Path, pid: int, said: list[str]) -> Reporter:
    folder.mkdir()
    registration = Registration(
        node="n0", address="10.0.0.1", role="trainer", allocation="", slots=1, agent_pid=pid, version="1"
    )
    made = Reporter(registration, folder, ("h:1",), LEASE_S, Callbacks(second=said.append))
    made.observed(NodeObserved(node="n0", sequence=0))
    return made


def waits(second: Reporter, store: MemoryStore) -> None:
    with pytest.raises(Fenced, match="another agent is registered as node n0"):
        second._write(store)


def test_it_is_said_once_the_first_has_renewed_its_lease_and_over_when_that_has_gone(
    tmp_path: Path, clock: Clock
) -> None:
    store, said = MemoryStore(), []
    agent(tmp_path / "one", 1, [])._write(store)
    second = agent(tmp_path / "two", 2, said)
    waits(second, store)
    clock.now += LEASE_S
    waits(second, store)
    assert (said, store.get(keys.second("n0"))) == ([], None), "the first may have died a moment ago"
    for _ in range(3):
        clock.now += LEASE_S
        waits(second, store)
    (sentence,) = said
    assert sentence.startswith("another agent (pid 1, at 10.0.0.1) is registered as node n0, and lives")
    item = store.get(keys.second("n0"))
    assert item is not None
    assert item.lease, "it goes with the second"
    assert decode(item.value, SecondAgent).folder == str(tmp_path / "two")
    store.expire(1)
    second._write(store)
    assert store.get(keys.second("n0")) is None
    assert decode(store.get(keys.registration("n0")).value, Registration).agent_pid == 2  # type: ignore[union-attr]


def test_another_first_is_waited_for_as_long(tmp_path: Path, clock: Clock) -> None:
    """Agents of one name that come and go are not two at once."""
    store, said = MemoryStore(), []
    second = agent(tmp_path / "two", 2, said)
    for number in range(4):
        agent(tmp_path / f"one-{number}", 10 + number, [])._write(store)
        waits(second, store)
        clock.now += 1.9 * LEASE_S
        waits(second, store)
        held = store.get(keys.registration("n0"))
        assert held is not None
        store.expire(held.lease)
    assert (said, store.get(keys.second("n0"))) == ([], None)
