"""Reads where a hanging process is, with py-spy: its main thread's Python stack, and which thread holds the
interpreter's lock.

Nothing is asked of the process, which may hold the interpreter's lock or be stopped, and it is not paused.
"""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from supervisor.core.model.stacks import Frame, StackView
from supervisor.wire.aside import Aside

log = logging.getLogger(__name__)

DEADLINE_S = 10.0
GIVEN_UP_S = 12.0
"""Seconds for a reading. py-spy may sleep in the kernel with the process that it reads, where no signal ends it."""
WORKERS = 8
"""About as many as a node has ranks."""
WAITS_AT_MOST = 3
"""Times GIVEN_UP_S for a reading that waits for a worker: those before it may never end."""
TRIES = 3
"""Tries of a reading: a process that moves meanwhile may yield nonsense, and py-spy fails."""
LOOKS_AGAIN, LOOKS_APART_S = 5, 0.1
"""Looks at the lock's holder. A thread that computes in Python is found at one line this often in a row only in a loop
of a few lines. One of five looks alike was taken for a holder in one reading of 300."""
FRAMES = 4
FILE = "hang.json"
"""File in the rank's folder with the stacks of all threads, as py-spy prints them."""


class Stacks:
    """Dumps stacks in threads of its own: py-spy takes from tenths of a second to seconds."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="stacks")
        self._asked: dict[str, tuple[Future[StackView], float]] = {}
        self._begun: set[str] = set()
        self._left = Aside("left stacks")

    def of(self, name: str, pid: int, folder: str) -> StackView | None:
        """Returns `where` of this process; None until it is known. Each process is read once until it is dropped."""
        now = time.monotonic()
        if name not in self._asked:
            asked = self._pool.submit(where, pid, Path(folder), self._left.ask)
            self._asked[name] = (asked, now + WAITS_AT_MOST * GIVEN_UP_S)
        asked, until = self._asked[name]
        if asked.done():
            return asked.result()
        if asked.running() and name not in self._begun:
            self._begun.add(name)
            until = min(until, now + GIVEN_UP_S)
            self._asked[name] = (asked, until)
        return StackView(unknown="py-spy does not end") if now > until else None

    def drop(self, name: str) -> None:
        self._asked.pop(name, None)
        self._begun.discard(name)


def where(pid: int, folder: Path, write: Callable[[Callable[[], None]], object] = lambda work: work()) -> StackView:
    """Returns the main thread's innermost frames and the holder of the interpreter's lock, or why they are not known.
    `write` leaves the whole dump in the folder: a disk that stalls may be why the process hangs."""
    said = ""
    for _ in range(TRIES):
        try:
            dump = _dump(pid)
            write(partial(_leave, dump, folder))
            threads = json.loads(dump)
            found = innermost(threads, pid)
            with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):  # keep what was read
                found = replace(found, held_at=_held_by_another(threads, pid))
            return found
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            said = f"{type(error).__name__}: {error}"[:200]
    log.warning("no stack of process %d: %s", pid, said)
    return StackView(unknown=said)


def threads_of(pid: int) -> list[dict[str, Any]]:
    """Returns all threads of a process as py-spy names them. Raises OSError, ValueError or subprocess.SubprocessError."""
    for left in reversed(range(TRIES)):
        try:
            threads: list[dict[str, Any]] = json.loads(_dump(pid))
            return threads
        except ValueError:
            if not left:
                raise
    raise AssertionError("TRIES is above 0")


def _dump(pid: int) -> bytes:
    """Returns all threads as JSON. Raises ValueError with py-spy's last line, OSError or subprocess.TimeoutExpired."""
    command = [str(Path(sys.executable).with_name("py-spy")), "dump", "--json", "--nonblocking", "--pid", str(pid)]
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise ValueError((done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1])
    return done.stdout


def _held_by_another(threads: list[dict[str, Any]], pid: int) -> tuple[Frame, ...]:
    """Returns the frames of another thread that holds the lock at one place in several looks: any working thread has it
    at times."""
    held = _holder(threads, pid)
    for _ in range(LOOKS_AGAIN if held else 0):
        time.sleep(LOOKS_APART_S)
        if _holder(json.loads(_dump(pid)), pid) != held:
            return ()
    return held


def _holder(threads: list[dict[str, Any]], pid: int) -> tuple[Frame, ...]:
    """Returns the frames of the thread that has the lock; empty if it is the main thread, or none."""
    owner = next((thread for thread in threads if thread.get("owns_gil")), None)
    return () if owner is None or owner["os_thread_id"] == pid else _frames(owner)


def _leave(dump: bytes, folder: Path) -> None:
    try:
        (folder / FILE).write_bytes(dump)
    except OSError as error:  # a full disk may be why the process hangs
        log.warning("the stacks are not left in %s: %s", folder, error)


def innermost(threads: list[dict[str, Any]], pid: int) -> StackView:
    """Returns the innermost frames of the main thread (number: the pid); other threads of a trainer wait for work."""
    main = next((thread for thread in threads if thread.get("os_thread_id") == pid), None)
    if main is None or not main["frames"]:
        return StackView()
    return StackView(frames=_frames(main), holds_lock=bool(main.get("owns_gil")))


def _frames(thread: dict[str, Any]) -> tuple[Frame, ...]:
    newest = thread["frames"][:FRAMES]
    return tuple(Frame(frame["name"], Path(frame["filename"]).name, frame["line"]) for frame in newest)
