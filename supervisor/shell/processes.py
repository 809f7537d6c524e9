"""Naming a process for good: a pid is recycled, (pid, start ticks) is not."""

from __future__ import annotations

from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat (clock ticks since boot), or None when there is no such process."""
    found = _stat(pid)
    return found[1] if found is not None else None


def is_running(pid: int, ticks: int) -> bool:
    """Whether this very process runs; a zombie does not."""
    found = _stat(pid)
    return found is not None and found[1] == ticks and found[0] not in "ZX"


def _stat(pid: int) -> tuple[str, int] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rsplit(")", 1)[1].split()
    return fields[0], int(fields[19])
