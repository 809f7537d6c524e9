"""One warm process for the session: its forks start ten times as fast as programs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_trainers.titan.groups import Gate, Groups, Lighthouse, Warm

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    # forked trainers become our children, as they become the shim's: only a parent reads an exit status
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = Warm()
    yield process
    assert process.close() == 0, "it ends with its channel"
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def lighthouse() -> Iterator[Lighthouse]:
    server = Lighthouse()
    yield server
    server.close()


@pytest.fixture
def gate(lighthouse: Lighthouse) -> Iterator[Gate]:
    server = Gate(lighthouse)
    yield server
    server.close()


@pytest.fixture
def groups(tmp_path: Path, warm: Warm, lighthouse: Lighthouse) -> Iterator[Groups]:
    started = Groups(tmp_path, warm, lighthouse)
    yield started
    started.close()
