"""The parts of `up`: adopted or started, and started again for as long as it takes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Fatal
from supervisor.shell.dev import parts
from supervisor.shell.dev.parts import Part, Process, adopted, spawned

SLEEP = ["-c", "import time; time.sleep(600)"]


class Clock:
    """time.monotonic, moved by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(parts.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Fake:
    """A process that a part has started."""

    alive = True

    def stop(self, patience_s: float) -> None:
        self.alive = False


def part(*starts: Fake | Exception) -> Part:
    """A part with these results of its starts, the last one again and again."""
    left = list(starts)

    def start() -> Fake:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        found.alive = True
        return found

    made = Part("the thing", start, lambda: Path("thing.log"))
    made.begin()
    return made


def test_a_part_that_ends_is_started_again_at_once_and_never_given_up(clock: Clock) -> None:
    fake = Fake()
    made = part(fake)
    assert made.mend() == ""
    starts = []
    for _ in range(6000):
        fake.alive = False
        made.mend()
        if fake.alive:
            starts.append(clock.now)
        clock.now += 0.1
    assert starts[0] == 1000.0
    pauses = [round(b - a) for a, b in itertools.pairwise(starts)]
    assert pauses[:5] == [1, 2, 4, 8, 15], "a part that ends again and again is not started all the time"
    assert set(pauses[5:]) == {15}, "and never left alone"


def test_the_same_news_is_told_once_until_the_part_was_well(clock: Clock) -> None:
    fake = Fake()
    made = part(fake)
    told = []
    for _ in range(100):
        fake.alive = False
        told.append(made.mend())
        clock.now += 1.0
    assert [sentence for sentence in told if sentence] == ["the thing ended: thing.log; started again"]
    fake.alive = True
    clock.now += parts.STEADY_S + 1
    assert made.mend() == ""
    fake.alive = False
    assert made.mend() == "the thing ended: thing.log; started again"


def test_what_keeps_it_from_starting_is_told_and_it_is_tried_again(clock: Clock) -> None:
    fake = Fake()
    made = part(fake, Fatal("the disk is full"), fake)
    fake.alive = False
    assert made.mend() == "the thing ended: thing.log; it cannot be started now, and is tried again: the disk is full"
    assert made.mend() == "", "not before its pause is over"
    clock.now += 1.0
    assert made.mend() == "the thing ended: thing.log; started again"
    assert made.ended == ""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Process]:
    process = spawned(SLEEP, tmp_path / "log" / "thing.log", f"{tmp_path}:host:thing")
    yield process
    process.stop(5.0)


def test_a_process_is_found_by_its_mark_and_by_nothing_else(tmp_path: Path, child: Process) -> None:
    found = eventually(lambda: adopted(f"{tmp_path}:host:thing"), 10, "it is found")
    assert (found.pid, found.ticks) == (child.pid, child.ticks)
    assert adopted(f"{tmp_path}:host:thin") is None
    assert os.getsid(child.pid) == child.pid, "Ctrl-C and a closed terminal do not reach it"
    found.stop(5.0)
    assert not found.alive
    assert child.child is not None
    child.child.wait(5)
    assert child.ended_with == " by signal 15"
    assert adopted(f"{tmp_path}:host:thing") is None


def test_a_frozen_process_is_ended_too(child: Process) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    child.stop(5.0)
    assert not child.alive


def test_a_recycled_pid_is_not_the_process() -> None:
    with subprocess.Popen([sys.executable, *SLEEP]) as other:
        try:
            impostor = Process(other.pid, 12345)
            assert not impostor.alive
            impostor.stop(0.1)
            assert other.poll() is None, "nothing is signalled that is not meant"
        finally:
            other.kill()
