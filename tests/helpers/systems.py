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


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, RunRecord]]:
    """As `toy_run`, for one test after the other of a module. The history checkers run after the last."""
    with world(tmp_path_factory.mktemp("one")) as made:
        made.supervisor()
        record = made.launch(toy_spec())
        eventually(made.running(record, 1, 1), 60, "both groups run")
        yield made, record
        made.check(record)
