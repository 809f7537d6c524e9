"""Marks all descendants of a process of ours with its name. Standard library only: the shim uses it."""

from __future__ import annotations

import ctypes

from supervisor.wire import environment

STARTED_BY = "SUPERVISOR_STARTED_BY"
"""Environment variable with the name of the ancestor process (RUN.GROUP.GENERATION.RANK)."""

ROOM = 128
BLANK = " " * ROOM
"""Placeholder as long as any mark: the kernel shows the environment only in its first place, which `put` overwrites."""


def put(name: str) -> None:
    """Marks this process, a fork without exec. `os.environ` alone would show neither to the kernel nor in a fork."""
    getenv = ctypes.CDLL(None).getenv
    getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_void_p
    at = getenv(STARTED_BY.encode())
    if at and len(ctypes.string_at(at)) == ROOM:
        ctypes.memmove(at, _padded(name), ROOM)


def of(pid: int) -> str:
    """Returns the mark of a process; empty if it has none, cleared its environment, or is not readable."""
    try:
        return environment.of_process(pid).get(STARTED_BY, "").strip()
    except OSError:
        return ""


def mark(name: str) -> str:
    """Returns the value of the variable."""
    return _padded(name).decode()


def _padded(name: str) -> bytes:
    return name.encode()[:ROOM].ljust(ROOM)
