"""Locks that allow one `up` in each home."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from supervisor.ports.errors import Fatal
from supervisor.shell.processes import holder

if TYPE_CHECKING:  # what only looks at a home imports no part of `up`
    from supervisor.shell.dev.up_parts import Up

POOL_LOCK = "up.lock"
"""Lock of the `up` with a pool in its home; holds its pid."""

WAIT_FOR_PREDECESSOR_S = 0.5
"""Seconds between checks of a control-plane job if its predecessor on the same host has ended."""


@contextmanager
def alone(started: Up, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock. Of `up`s with a pool, a home has one: another is refused. Of those without, a host has one of
    each name: the next waits for its end, as a successor job does on its predecessor's host. If the waiting job's
    own time limit comes first, it still submits a successor."""
    folder = started.home if started.pool else started.node_folder or started.home
    try:
        folder.mkdir(parents=True, exist_ok=True)
        started.home.mkdir(parents=True, exist_ok=True)
        if started.pool:
            _refuse_anothers(folder)
        path = folder / (POOL_LOCK if started.pool else f"up-{started.name}.lock")
        lock = path.open("a")
    except OSError as error:
        raise Fatal(f"cannot use {folder}: {error.strerror}; give another --home") from error
    with lock:
        if started.pool and not _locked(lock):
            raise Fatal(
                f"another `supervisor up` or `demo` (pid {holder(path) or 'unknown'}) runs in {folder}: `supervisor down` ends it; or give another --home"
            )
        if not started.pool and not _locked(lock):
            say(f"another `supervisor up` carries {started.name} here: waiting for its end")
            while not _locked(lock):
                started.notice.look(say)
                time.sleep(WAIT_FOR_PREDECESSOR_S)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _refuse_anothers(folder: Path) -> None:
    """Refuses another user's folder: we cannot adopt that user's parts, nor could they change our files."""
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        with contextlib.suppress(KeyError):
            raise Fatal(
                f"{folder} belongs to user {pwd.getpwuid(owner).pw_name}: give another --home, or run as that user"
            )
        raise Fatal(f"{folder} belongs to the user with uid {owner}: give another --home, or run as that user")


def _locked(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
