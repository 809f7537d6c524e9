"""The mark that whatever a process of ours starts carries on: which process that is. Standard library only: the shim uses it."""

from __future__ import annotations

import ctypes

STARTED_BY = "SUPERVISOR_STARTED_BY"
"""Environment variable with the name of the process (RUN.GROUP.GENERATION.RANK) that all of its descendants come from."""

ROOM = 128
BLANK = " " * ROOM
"""For who is to be marked later: as long as any mark, as the kernel shows the environment in the place where it was at first."""


def put(name: str) -> None:
    """Mark this process, which was forked and not executed: in `os.environ` alone neither the kernel nor a fork would show it."""
    getenv = ctypes.CDLL(None).getenv
    getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_void_p
    at = getenv(STARTED_BY.encode())
    if at and len(ctypes.string_at(at)) == ROOM:
        ctypes.memmove(at, _padded(name), ROOM)


def of(pid: int) -> str:
    """Whose mark a process carries; empty: none, it cleared its environment, or it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read().split(b"\0")
    except OSError:
        return ""
    start = f"{STARTED_BY}=".encode()
    found = next((entry[len(start) :] for entry in environment if entry.startswith(start)), b"")
    return found.decode(errors="replace").strip()


def mark(name: str) -> str:
    """The value of the variable."""
    return _padded(name).decode()


def _padded(name: str) -> bytes:
    return name.encode()[:ROOM].ljust(ROOM)
