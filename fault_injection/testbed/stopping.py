"""Stops processes (SIGSTOP) and lets them go on."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from fault_injection.testbed.waiting import eventually


def stop(pid: int) -> None:
    """Sends SIGSTOP and waits until all threads have stopped: kill() returns before that. On a busy machine, 9 of 60
    calls made right after it were still answered. A signal of a lower number that comes until then, such as SIGTERM, is
    taken first."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: states(pid) <= {"T"}, 10, f"{pid} has stopped")


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stops the process for as long as the block lasts."""
    try:
        stop(pid)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def states(pid: int) -> set[str]:
    """Returns the states of a process's threads, as in /proc."""
    return {file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")}
