"""Where a process is that hangs: the Python stack of its main thread, read from outside by py-spy.

Nothing is asked of the process, which may hold the interpreter's lock or be stopped, and it is not paused.
"""

from __future__ import annotations

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

from supervisor.wire.aside import Aside

log = logging.getLogger(__name__)

DEADLINE_S = 10.0
GIVEN_UP_S = 12.0
"""py-spy itself may sleep in the kernel, with the process that it reads, where no signal ends it."""
TRIES = 3
"""A process that moves while it is read may give nonsense, and py-spy fails."""
FRAMES = 4
FILE = "hang.json"
"""In the rank's folder: the stacks of all threads, as py-spy prints them."""


class Stacks:
    """Dumps in a thread of its own: py-spy takes from tenths of a second to seconds."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="stacks")
        self._asked: dict[str, tuple[Future[str], float]] = {}
        self._left = Aside("left stacks")

    def of(self, name: str, pid: int, folder: str) -> str:
        """What `where` says of this process; empty until it is known. Asked once until it is dropped."""
        if name not in self._asked:
            asked = self._pool.submit(where, pid, Path(folder), self._left.ask)
            self._asked[name] = (asked, time.monotonic() + GIVEN_UP_S)
        asked, until = self._asked[name]
        if asked.done():
            return asked.result()
        return "its stack is not known (py-spy does not end)" if time.monotonic() > until else ""

    def drop(self, name: str) -> None:
        self._asked.pop(name, None)


def where(pid: int, folder: Path, write: Callable[[Callable[[], None]], object] = lambda work: work()) -> str:
    """The innermost frames of the main thread, and whether it holds the interpreter's lock; or why that is not known. The
    whole dump is left in the folder, by `write`: a disk that stalls may be why it hangs."""
    command = [str(Path(sys.executable).with_name("py-spy")), "dump", "--json", "--nonblocking", "--pid", str(pid)]
    said = ""
    for _ in range(TRIES):
        try:
            done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False)
            if done.returncode == 0:
                write(partial(_leave, done.stdout, folder))
                return innermost(json.loads(done.stdout), pid)
            said = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1][:200]
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            said = f"{type(error).__name__}: {error}"[:200]
    log.warning("no stack of process %d: %s", pid, said)
    return f"its stack is not known ({said})"


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
    frames = [f"{frame['name']} ({Path(frame['filename']).name}:{frame['line']})" for frame in main["frames"][:FRAMES]]
    owner = next((thread for thread in threads if thread.get("owns_gil")), None)
    lock = ", holding the interpreter's lock" if owner is main else ""
    return f"in {' < '.join(frames)}{lock}"
