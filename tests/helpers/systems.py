"""Fixtures: whole systems of toys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec, world
from supervisor.wire.records import RunRecord


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[World]:
    """A system with a supervisor and no run."""
    with world(tmp_path) as made:
        made.supervisor()
        yield made


@pytest.fixture
def toy_run(empty: World) -> Iterator[tuple[World, RunRecord]]:
    """Two groups of toys that run, and one spare. The history checkers run after every test."""
    record = empty.launch(toy_spec())
    eventually(empty.running(record, 1, 1), 60, "both groups run")
    yield empty, record
    empty.check(record)
