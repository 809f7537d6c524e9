"""Where a process is that hangs: the Python stack of its main thread, and who has the interpreter's lock, read from outside by py-spy.

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
from functools import partial
from pathlib import Path
from typing import Any

from supervisor.core.blame import LOCKED_BY_ANOTHER
from supervisor.wire.aside import Aside

log = logging.getLogger(__name__)

DEADLINE_S = 10.0
GIVEN_UP_S = 12.0
"""py-spy itself may sleep in the kernel, with the process that it reads, where no signal ends it."""
WORKERS = 8
"""As many as a node has ranks, as a rule."""
WAITS_AT_MOST = 3
"""So many times that, with the wait for a worker: those before it may never end."""
TRIES = 3
"""A process that moves while it is read may give nonsense, and py-spy fails."""
LOOKS_AGAIN, LOOKS_APART_S = 5, 0.1
"""A thread that computes in Python is found at the same line now and then, so often in a row only in a loop of a few lines: one of
five was taken for a holder in one reading of 300."""
FRAMES = 4
FILE = "hang.json"
"""In the rank's folder: the stacks of all threads, as py-spy prints them."""


class Stacks:
    """Dumps in a thread of its own: py-spy takes from tenths of a second to seconds."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="stacks")
        self._asked: dict[str, tuple[Future[str], float]] = {}
        self._begun: set[str] = set()
        self._left = Aside("left stacks")

    def of(self, name: str, pid: int, folder: str) -> str:
        """What `where` says of this process; empty until it is known. Asked once until it is dropped."""
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
        return "its stack is not known (py-spy does not end)" if now > until else ""

    def drop(self, name: str) -> None:
        self._asked.pop(name, None)
        self._begun.discard(name)


def where(pid: int, folder: Path, write: Callable[[Callable[[], None]], object] = lambda work: work()) -> str:
    """The innermost frames of the main thread, and who holds the interpreter's lock; or why that is not known. The whole dump is
    left in the folder, by `write`: a disk that stalls may be why it hangs."""
    said = ""
    for _ in range(TRIES):
        try:
            dump = _dump(pid)
            write(partial(_leave, dump, folder))
            threads = json.loads(dump)
            found = innermost(threads, pid)
            with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):  # what was read is kept
                found += _held_by_another(threads, pid)
            return found
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            said = f"{type(error).__name__}: {error}"[:200]
    log.warning("no stack of process %d: %s", pid, said)
    return f"its stack is not known ({said})"


def _dump(pid: int) -> bytes:
    """All threads as JSON. Raises ValueError with py-spy's last line, OSError or subprocess.TimeoutExpired."""
    command = [str(Path(sys.executable).with_name("py-spy")), "dump", "--json", "--nonblocking", "--pid", str(pid)]
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise ValueError((done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1])
    return done.stdout


def _held_by_another(threads: list[dict[str, Any]], pid: int) -> str:
    """Which other thread holds the lock, at the same place in each of some looks: any thread that works has it now and then."""
    held = _holder(threads, pid)
    for _ in range(LOOKS_AGAIN if held else 0):
        time.sleep(LOOKS_APART_S)
        if _holder(json.loads(_dump(pid)), pid) != held:
            return ""
    return f"; {LOCKED_BY_ANOTHER}, {held}" if held else ""


def _holder(threads: list[dict[str, Any]], pid: int) -> str:
    """Where the thread is that has the lock; empty if it is the main thread, or none."""
    owner = next((thread for thread in threads if thread.get("owns_gil")), None)
    return "" if owner is None or owner["os_thread_id"] == pid or not owner["frames"] else _frames(owner)


def _leave(dump: bytes, folder: Path) -> None:
    try:
        (folder / FILE).write_bytes(dump)
    except OSError as error:  # a full disk may be why it hangs
        log.warning("the stacks are not left in %s: %s", folder, error)


def innermost(threads: list[dict[str, Any]], pid: int) -> str:
    """Of the main thread, whose number is the process's; other threads of a trainer wait for work."""
    main = next((thread for thread in threads if thread.get("os_thread_id") == pid), None)
    if main is None or not main["frames"]:
        return "its main thread runs no Python"
    lock = ", holding the interpreter's lock" if main.get("owns_gil") else ""
    return f"{_frames(main)}{lock}"


def _frames(thread: dict[str, Any]) -> str:
    at = [f"{frame['name']} ({Path(frame['filename']).name}:{frame['line']})" for frame in thread["frames"][:FRAMES]]
    return f"in {' < '.join(at)}"
