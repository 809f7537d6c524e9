"""Reads the kernel's log, where that is allowed, in one call that never waits."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable

TAIL_BYTES = 256 * 1024
EARLY_S = 2.0
"""Seconds by which the log's clock and that of /proc/PID/stat may differ, unless the machine was suspended."""

_READ_ALL = 3
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
_LINE = re.compile(r"^(?:<\d+>)?\[\s*(?P<at>\d+\.\d+)\](?:\[[^\]]*\])? (?P<text>.*)$")
_libc = ctypes.CDLL(None, use_errno=True)


def tail(size: int = TAIL_BYTES) -> str:
    """Returns the log's last `size` bytes; empty where this user may not read it, or the system has none."""
    if not hasattr(_libc, "klogctl"):
        return ""
    buffer = ctypes.create_string_buffer(size)
    read = _libc.klogctl(_READ_ALL, buffer, size)
    return buffer.raw[:read].decode(errors="replace") if read > 0 else ""


class Follower:
    """Reads new lines of the log in calls that never wait. Lines that are there at the first call are left out."""

    def __init__(self, read: Callable[[], str] = tail) -> None:
        self._read = read
        self._newest: tuple[float, str] | None = None

    def new(self) -> list[str]:
        """Returns the lines since the last call, without their times."""
        lines = [
            (float(parts["at"]), parts["text"]) for line in self._read().splitlines() if (parts := _LINE.match(line))
        ]
        newest = self._newest
        if lines:
            self._newest = lines[-1]
        if newest is None:
            self._newest = self._newest or (-1.0, "")
            return []
        known = next((place for place in range(len(lines), 0, -1) if lines[place - 1] == newest), 0)
        return [text for at, text in lines[known:] if at >= newest[0]]


def killed_for_memory(pid: int, start_ticks: int) -> str:
    """Returns the line about the kernel killing this process for memory; empty when there is none to be read."""
    if not _numbers_are_ours():
        return ""
    return find_kill(tail(), pid, start_ticks / os.sysconf("SC_CLK_TCK"))


def find_kill(log: str, pid: int, since_s: float) -> str:
    """Returns the newest line of such a kill that is not older than the process, without its time."""
    killed = re.compile(rf"\bKilled process {pid} \(|^oom-kill:.*\bpid={pid}\b")
    for line in reversed(log.splitlines()):
        parts = _LINE.match(line)
        if parts and float(parts["at"]) >= since_s - EARLY_S and killed.search(parts["text"]):
            return parts["text"].strip()
    return ""


def _numbers_are_ours() -> bool:
    """Returns true if pids here are those of the log, which uses the machine's: a container's namespace has others."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False
