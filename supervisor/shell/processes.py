"""Naming a process for good: a pid is recycled, (pid, start ticks) is not."""

from __future__ import annotations

from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When the process started, in the kernel's ticks since boot; None when it has ended. With the pid, its identity."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # A killed process shows as a zombie as soon as its first thread has ended; while others are still ending it holds its
    # ports and locks (seen: "address already in use" for a server that was just killed).
    ended = fields[0] == "X" or (fields[0] == "Z" and int(fields[17]) <= 1)
    return None if ended else int(fields[19])


def is_running(pid: int, ticks: int) -> bool:
    """Whether this very process runs; a zombie does not."""
    return start_ticks(pid) == ticks
