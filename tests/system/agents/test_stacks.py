"""The stack of a process that does not answer."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agents.health import stack_dump as stacks_module
from agents.health.stack_dump import FILE, Stacks, innermost, where
from fault_injection.testbed.stopping import stop
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.stacks import Frame, StackView

LATE = StackView(unknown="late")

SLEEPS = "import time\ndef waits():\n    print('here', flush=True)\n    time.sleep(600)\nwaits()\n"
HOLDS = "import ctypes\ndef holds():\n    print('here', flush=True)\n    ctypes.PyDLL(None).sleep(600)\nholds()\n"

A_THREAD_HOLDS = """import ctypes, threading, time
def holds():
    ctypes.PyDLL(None).sleep(600)
def waits(worker):
    print("here", flush=True)
    worker.start()
    worker.join()
waits(threading.Thread(target=holds))
"""
LINES_OF_WORK = 20
"""With five, one reading of 300 found the same line in all of its looks."""
THREADS_WORK = (
    """import threading
def waits(worker):
    worker.start()
    print("here", flush=True)
    worker.join()
def works():
    while True:
"""
    + "        sum(range(100))\n" * LINES_OF_WORK
    + "waits(threading.Thread(target=works))\n"
)


@contextmanager
def running(folder: Path, text: str) -> Iterator[int]:
    program = folder / "program.py"
    program.write_text(text)
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"here\n"
            yield child.pid
        finally:
            child.kill()


@pytest.mark.parametrize("stopped", [False, True])
def test_the_innermost_frames_of_a_live_and_of_a_stopped_process(tmp_path: Path, stopped: bool) -> None:
    with running(tmp_path, SLEEPS) as pid:
        asleep = StackView(frames=(Frame("waits", "program.py", 4), Frame("<module>", "program.py", 5)))
        eventually(lambda: where(pid, tmp_path) == asleep, 30, "it has come to where it waits")
        if stopped:
            stop(pid)
            (tmp_path / FILE).unlink()
            assert where(pid, tmp_path) == asleep
    assert json.loads((tmp_path / FILE).read_text())[0]["os_thread_id"] == pid


def test_a_disk_that_takes_no_dump_costs_the_dump_alone(tmp_path: Path) -> None:
    with running(tmp_path, SLEEPS) as pid:
        asleep = StackView(frames=(Frame("waits", "program.py", 4), Frame("<module>", "program.py", 5)))
        eventually(lambda: where(pid, tmp_path / "missing") == asleep, 30, "it is told all the same")


def test_one_that_holds_the_interpreters_lock_is_named_as_such(tmp_path: Path) -> None:
    with running(tmp_path, HOLDS) as pid:
        calls = Frame("holds", "program.py", 4), Frame("<module>", "program.py", 5)
        holds = StackView(frames=calls, holds_lock=True)
        eventually(lambda: where(pid, tmp_path) == holds, 30)


def test_a_thread_that_holds_the_lock_for_ever_is_named(tmp_path: Path) -> None:
    with running(tmp_path, A_THREAD_HOLDS) as pid:
        found = eventually(lambda: (w := where(pid, tmp_path)).held_at and w, 30)
    assert ("waits", "program.py") in [frame.place for frame in found.frames]
    assert found.held_at[0] == Frame("holds", "program.py", 3)


def test_a_thread_that_works_keeps_the_lock_from_nobody(tmp_path: Path) -> None:
    with running(tmp_path, THREADS_WORK) as pid:
        # What it printed is read before it has the lock again, and so before it has left the line that prints.
        waits = Frame("waits", "program.py", 5)
        eventually(lambda: waits in where(pid, tmp_path).frames, 30, "it has come to where it waits")
        seen = [where(pid, tmp_path) for _ in range(5)]
    assert all(waits in each.frames for each in seen), seen
    assert not any(each.held_at for each in seen), seen


def test_a_process_that_is_gone_has_a_reason_instead(tmp_path: Path) -> None:
    with running(tmp_path, SLEEPS) as pid:
        pass
    found = where(pid, tmp_path)
    assert found == StackView(unknown=found.unknown)
    assert found.unknown


def test_a_py_spy_that_no_signal_ends_is_waited_for_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is in uninterruptible sleep, and so is py-spy. The hang must be reported all the same."""
    ends = threading.Event()
    monkeypatch.setattr(stacks_module, "where", lambda *args: LATE if ends.wait(60) else StackView())
    monkeypatch.setattr(stacks_module, "GIVEN_UP_S", 0.2)
    stacks = Stacks()
    try:
        assert stacks.of("a", 1, str(tmp_path)) is None
        found = eventually(lambda: stacks.of("a", 1, str(tmp_path)), 30)
        assert found == StackView(unknown="py-spy does not end")
    finally:
        ends.set()
    eventually(lambda: stacks.of("a", 1, str(tmp_path)) == LATE, 30, "and told once it ends")


def test_only_the_main_thread_counts() -> None:
    worker = {"os_thread_id": 8, "owns_gil": True, "frames": [{"name": "w", "filename": "/a/w.py", "line": 1}]}
    main = {"os_thread_id": 7, "owns_gil": False, "frames": [{"name": "m", "filename": "/a/m.py", "line": 2}]}
    assert innermost([worker, main], 7) == StackView(frames=(Frame("m", "m.py", 2),))
    assert innermost([worker], 7) == StackView(), "it runs no Python"


def test_it_is_read_once_and_in_a_thread(tmp_path: Path) -> None:
    stacks = Stacks()
    with running(tmp_path, SLEEPS) as pid:
        found = eventually(lambda: stacks.of("a", pid, str(tmp_path)), 30)
    assert stacks.of("a", pid, str(tmp_path)) == found
    stacks.drop("a")
    again = eventually(lambda: stacks.of("a", pid, str(tmp_path)), 30)
    assert again.unknown
