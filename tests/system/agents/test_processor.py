"""Detection of a process that others keep from its processor: with real processes, on one processor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from agents.health.cpu_state import COUNTS, LOOK_S, ProcessorUse
from agents.shim import process
from fault_injection.testbed.waiting import eventually

LOOP = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
THREADS = """import os, threading
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def loop():
    while True: pass
for _ in range(5): threading.Thread(target=loop).start()
threading.Lock().acquire(); threading.Event().wait()"""
"""Its main thread waits, and threads of its own keep the processor busy."""

pytestmark = pytest.mark.skipif(process.waited_s(os.getpid()) is None, reason="this kernel counts no run delays")


@pytest.fixture
def begun() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def child(stack: ExitStack, program: str) -> int:
    running = subprocess.Popen([sys.executable, "-c", program])
    stack.callback(running.wait)
    stack.callback(running.kill)
    return running.pid


def test_one_of_many_on_one_processor_is_starved(begun: ExitStack) -> None:
    pids = [child(begun, LOOP) for _ in range(6)]
    use, last = ProcessorUse(), time.monotonic()
    use.look(last, pids[0])

    def starved() -> bool:
        nonlocal last
        now = time.monotonic()
        if now - last < LOOK_S:
            return False
        passed_s, last = now - last, now
        seconds = use.look(now, pids[0])
        assert seconds <= (1 - COUNTS) * passed_s
        return seconds > passed_s / 2

    eventually(starved, 30, "five of six parts of the time others have its processor")


def test_what_its_own_threads_take_is_not_others(begun: ExitStack) -> None:
    pid = child(begun, THREADS)
    eventually(lambda: len(os.listdir(f"/proc/{pid}/task")) == 6, 10, "its threads")
    use, began = ProcessorUse(), time.monotonic()
    use.look(began, pid)
    eventually(lambda: time.monotonic() - began > LOOK_S, 10)
    assert use.look(time.monotonic(), pid) == 0.0


def test_one_that_sleeps_is_not(begun: ExitStack) -> None:
    pid = child(begun, "import time; time.sleep(600)")
    use, began = ProcessorUse(), time.monotonic()
    assert use.look(began, pid) == 0.0
    assert use.look(began + 3 * LOOK_S, pid) == 0.0, "six seconds in which it did not want one"


def test_one_that_has_gone_is_not(begun: ExitStack) -> None:
    use = ProcessorUse()
    assert use.look(0.0, 2**22 + 1) == 0.0
    assert use.look(10.0, 2**22 + 1) == 0.0
