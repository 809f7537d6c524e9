"""Detects ranks that the kernel shows as stopped: a fact, unlike a step that takes long."""

from __future__ import annotations

import os
from collections.abc import Hashable

from agents.shim import process
from agents.shim.active_clock import Still

BY_A_SIGNAL = "is stopped by a signal"
MAIN_THREAD_ENDED = "has lost its main thread, while others of its threads live on"


class Stopped:
    """Follows one rank, look by look. Any run between two looks (a tracer's, a throttle's) begins a new stop."""

    def __init__(self) -> None:
        self._still = Still()
        self.why = ""
        """End of a sentence on why it cannot run; empty: it may run, or has ended."""
        self.for_s = 0.0

    def look(self, pid: int, awake: float) -> None:
        """Takes the newest state. `awake`: a clock that counts only while the agent looks, because a freeze of the
        whole node freezes the agent too."""
        self.why, ran = state(pid)
        still_s = self._still.look((self.why, ran), awake)
        self.for_s = still_s if self.why else 0.0


def state(pid: int) -> tuple[str, Hashable]:
    """Returns why a process cannot run (empty: it may), and how often its main thread gave up a processor."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            text = file.read().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return "", None
    found = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    ran = (found.get("voluntary_ctxt_switches"), found.get("nonvoluntary_ctxt_switches"))
    match found.get("State", "")[:1]:
        case "T":
            return BY_A_SIGNAL, ran
        case "t":
            return f"is held by process {found.get('TracerPid', '0')}, which traces it", ran
        case "Z" if _lives_on(pid):
            return MAIN_THREAD_ENDED, ran
    return "", None


def _lives_on(pid: int) -> bool:
    """Returns true if a thread sleeps. None does in a process that is ending, which may take seconds too."""
    try:
        threads = [process.stat_of(int(thread), of=pid) for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return False
    return any(stat is not None and stat.state == "S" for stat in threads)
