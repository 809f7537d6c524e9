"""A clock that is moved escalates nothing: no machine's clock is compared with another's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agents.facts import host
from fault_injection import clocks
from supervisor.core.model import Kind, Rung
from supervisor.ports.errors import Fatal
from supervisor.shell import journal
from supervisor.wire import keys
from supervisor.wire.records import Health
from tests.helpers.waiting import eventually
from tests.integration.outage import passes
from tests.integration.world import LEASE_S, toy_spec, world

pytestmark = pytest.mark.etcd

HOUR_S = 3600


def libfaketime() -> str:
    try:
        return clocks.library()
    except Fatal as error:
        pytest.skip(f"NO MOVED CLOCK WAS TESTED: {error}")


def test_a_clock_that_jumps_hours_ahead_and_back_escalates_nothing(tmp_path: Path) -> None:
    """The supervisor's and the nodes' clock; etcd's stays. The idle toys count their steps by that clock, so the history
    checkers, which read times, have nothing to say here."""
    clock = tmp_path / "clock"

    def move(by: str) -> None:
        scratch = clock.with_suffix(".new")
        scratch.write_text(by)
        scratch.replace(clock)

    def facts(node: str) -> set[str]:
        health = w.mirror().record(keys.health(node), Health)
        return {fact.kind for fact in health.facts} if health is not None else set()

    move("+0")
    with world(tmp_path) as w:
        w.supervisor(
            LD_PRELOAD=libfaketime(),
            FAKETIME_TIMESTAMP_FILE=str(clock),
            FAKETIME_NO_CACHE="1",
            FAKETIME_DONT_FAKE_MONOTONIC="1",
        )
        record = w.launch(toy_spec())
        eventually(w.running(record, 1, 1), 60, "both groups run")
        for by in ("+3h", "-5h", "+40d"):
            move(by)
            passes(2 * LEASE_S)
            assert w.incidents(record) == []
            assert w.running(record, 1, 1)()
        node = w.status(record).groups[1].node
        eventually(
            lambda: facts(node) == {fact.kind for fact in host.clock()}, 30, "what the kernel says of its clock is told"
        )
        w.kill_trainer(record, 1)
        eventually(w.running(record, 1, 2), 60, "a real failure is mended as ever")
        (incident,) = w.incidents(record)
        assert (incident.kind, incident.group, incident.rung) == (Kind.CRASH, 1, Rung.RESTART)
        times = [line["t"] for line in journal.read(Path(record.run_dir) / "journal.jsonl")]
        assert times[-1] > time.time() + 39 * 24 * HOUR_S, "the clock was really moved"
