"""Classifies a process by the kernel's numbers: stopped, stuck in the kernel, burning a processor, or asleep."""

from __future__ import annotations

from typing import Literal

from agents.shim import process

LOOK_S = 2.0
"""Seconds over which a share of a processor is measured: the kernel counts in hundredths of a second."""
BUSY = 0.5
"""Share of one processor: a trainer that waits for a peer or a disk uses a few hundredths."""
STARVED = 0.5
"""Share of the time above which a process that was ready to run without a processor counts as starved. With a processor
for each task it is a few hundredths."""
COUNTS = 0.25
"""Share of such a time that counts all the same, so that one that waits for a processor forever is found, if late."""

State = Literal["", "stopped", "uninterruptible", "busy", "sleeping"]


class ProcessorUse:
    """One process's use of processors over the last few seconds."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None
        self._share = 0.0
        self._slept = False
        """True if it was in uninterruptible sleep at the last look, and had computed nothing since the one before."""
        self._waited: float | None = None

    def look(self, now: float, pid: int) -> float:
        """Returns the seconds since the last reading in which its main thread was starved. Call it at every look; it
        reads /proc only every LOOK_S seconds. The main thread is the one whose activity is reported."""
        if self._before is not None and now - self._before[0] < LOOK_S:
            return 0.0
        used = process.processor_s(pid)
        if used is None:
            return 0.0
        before_s, before = self._waited, self._before
        self._waited = process.waited_s(pid)
        if self._before is not None:
            self._share = (used - self._before[1]) / (now - self._before[0])
            stat = process.stat_of(pid)
            self._slept = stat is not None and stat.state == "D" and used == self._before[1]
        self._before = now, used
        if before is None or before_s is None or self._waited is None:
            return 0.0
        passed_s, starved_s = now - before[0], self._waited - before_s
        return min(starved_s, (1 - COUNTS) * passed_s) if starved_s > STARVED * passed_s else 0.0

    def state(self, pid: int) -> State:
        """Returns the state now; empty when there is no such process."""
        stat = process.stat_of(pid)
        if stat is None:
            return ""
        if stat.state in "Tt":
            return "stopped"
        # a reader of a slow disk is in this state too, but computes in between
        if stat.state == "D" and self._slept:
            return "uninterruptible"
        # on an overloaded machine an endless loop gets little of a processor, and waits for it
        return "busy" if stat.state == "R" or self._share >= BUSY else "sleeping"
