"""The kernel's log, where it may be read: in one call that never waits."""

from __future__ import annotations

import ctypes
import os
import re

TAIL_BYTES = 256 * 1024
EARLY_S = 2.0
"""The log's clock and that of /proc/PID/stat differ by less, unless the machine was suspended."""

_READ_ALL = 3
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
_LINE = re.compile(r"^(?:<\d+>)?\[\s*(?P<at>\d+\.\d+)\](?:\[[^\]]*\])? (?P<text>.*)$")
_libc = ctypes.CDLL(None, use_errno=True)


def tail(size: int = TAIL_BYTES) -> str:
    """Its last `size` bytes; empty where this user may not read it, or the system has none."""
    if not hasattr(_libc, "klogctl"):
        return ""
    buffer = ctypes.create_string_buffer(size)
    read = _libc.klogctl(_READ_ALL, buffer, size)
    return buffer.raw[:read].decode(errors="replace") if read > 0 else ""


def killed_for_memory(pid: int, start_ticks: int) -> str:
    """The line that says that the kernel killed this process for memory; empty when there is none to be read."""
    if not _numbers_are_ours():
        return ""
    return find_kill(tail(), pid, start_ticks / os.sysconf("SC_CLK_TCK"))


def find_kill(log: str, pid: int, since_s: float) -> str:
    """The newest line of such a kill that is not older than the process, without its time."""
    killed = re.compile(rf"\bKilled process {pid} \(|^oom-kill:.*\bpid={pid}\b")
    for line in reversed(log.splitlines()):
        parts = _LINE.match(line)
        if parts and float(parts["at"]) >= since_s - EARLY_S and killed.search(parts["text"]):
            return parts["text"].strip()
    return ""


def _numbers_are_ours() -> bool:
    """The log names processes by their number on the machine: in a container's namespace it is another one's."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False
