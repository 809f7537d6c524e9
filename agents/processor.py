"""What the kernel says a process does: stopped, stuck in the kernel, burning a processor, or asleep."""

from __future__ import annotations

from typing import Literal

from agents import process

LOOK_S = 2.0
"""A share of a processor is told over this long: the kernel counts in hundredths of a second."""
BUSY = 0.5
"""Of one processor: a trainer that waits for a peer or a disk uses a few hundredths."""
STARVED = 0.5
"""Of the time: whoever could run and had no processor for more of it was kept from its work. On a machine that has as many processors as it
has to do it is a few hundredths."""
COUNTS = 0.25
"""Of such a time so much counts all the same: one that waits for a processor for ever is found, if late."""

State = Literal["", "stopped", "uninterruptible", "busy", "sleeping"]


class ProcessorUse:
    """One process's use of processors, over the last few seconds."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None
        self._share = 0.0
        self._slept = False
        """It was in uninterruptible sleep at the last look, and had computed nothing since the one before."""
        self._waited: float | None = None

    def look(self, now: float, pid: int) -> float:
        """To be called at every look; reads /proc only every LOOK_S seconds. Returns the seconds since then in which its main
        thread, whose activity is told, was starved."""
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
        """Now; empty when there is no such process."""
        stat = process.stat_of(pid)
        if stat is None:
            return ""
        if stat.state in "Tt":
            return "stopped"
        # whoever reads from a slow disk is in it too, but computes in between
        if stat.state == "D" and self._slept:
            return "uninterruptible"
        # on a machine with too much to do a loop that never ends gets little of a processor, and waits for it
        return "busy" if stat.state == "R" or self._share >= BUSY else "sleeping"
