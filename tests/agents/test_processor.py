"""Whether a process is kept from its work by others that have its processor: with real ones, on one processor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from agents import process
from agents.processor import LOOK_S, ProcessorUse
from tests.helpers.waiting import eventually

LOOP = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
THREAD = "import os, threading\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\ndef loop():\n while True: pass\nthreading.Thread(target=loop).start()"

pytestmark = pytest.mark.skipif(not process.waited_s(os.getpid()), reason="this kernel counts no run delays")


@pytest.fixture
def begun() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def child(stack: ExitStack, program: str) -> int:
    running = subprocess.Popen([sys.executable, "-c", program])
    stack.callback(running.wait)
    stack.callback(running.kill)
    return running.pid


@pytest.mark.parametrize("program", [LOOP, THREAD])
def test_one_of_many_on_one_processor_is_starved(begun: ExitStack, program: str) -> None:
    pids = [child(begun, program), *(child(begun, LOOP) for _ in range(5))]
    use = ProcessorUse()
    said: list[float] = []

    def starved() -> bool:
        said.append(use.look(time.monotonic(), pids[0]))
        return said[-1] > LOOK_S / 2

    eventually(starved, 30, "five of six parts of the time others have its processor")
    assert all(seconds <= 30 for seconds in said)


def test_one_that_sleeps_is_not(begun: ExitStack) -> None:
    pid = child(begun, "import time; time.sleep(600)")
    use, began = ProcessorUse(), time.monotonic()
    assert use.look(began, pid) == 0.0
    assert use.look(began + 3 * LOOK_S, pid) == 0.0, "six seconds in which it did not want one"


def test_one_that_has_gone_is_not(begun: ExitStack) -> None:
    use = ProcessorUse()
    assert use.look(0.0, 2**22 + 1) == 0.0
    assert use.look(10.0, 2**22 + 1) == 0.0
