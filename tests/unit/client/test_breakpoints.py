"""A breakpoint of an earlier start commands no later one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import supervisor.client as everstep
from fault_injection.doubles.memory_store import MemoryStore
from supervisor.client.breakpoints import Breakpoint
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import debugging
from supervisor.shell.inspect.debugging import Reply, Stopped
from supervisor.wire import keys
from supervisor.wire.records import TrainerObserved
from tests.unit.shell.inspect.test_debugging import AT, rank, values


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that a debugger gets, in the place of an agent's."""
    found: list[str] = []

    def tell(store: Any, mirror: Any, at: Stopped, line: str) -> Reply:
        found.append(line)
        return Reply(output="1.5", stopped=True)

    monkeypatch.setattr(debugging, "tell", tell)
    return found


def stopped_at(store: MemoryStore) -> Breakpoint:
    store.commit(values(rank(0, 0, AT)))
    (at,) = debugging.stopped(Mirror(store.list(keys.PREFIX)), "run")
    found: Any = store
    return Breakpoint(found, at)


def test_a_rank_that_stands_takes_commands(lines: list[str]) -> None:
    at = stopped_at(MemoryStore())
    assert (at.command("p loss"), at.stands, lines) == ("1.5", True, ["p loss"])


@pytest.mark.parametrize(
    "now", [replace(rank(0, 0, AT), generation=3), rank(0, 0, None), rank(0, 1, AT)], ids=["again", "on", "other"]
)
def test_a_rank_that_does_not_stand_takes_none(lines: list[str], now: TrainerObserved) -> None:
    store = MemoryStore()
    at = stopped_at(store)
    store.commit(values(now))
    for use in (lambda: at.command("next"), at.resume):
        with pytest.raises(everstep.EverstepError) as error:
            use()
        assert str(error.value) == "rank 0.0 does not stand any more: run.breakpoints() returns those that stand now"
    assert (at.stands, lines) == (False, [])
