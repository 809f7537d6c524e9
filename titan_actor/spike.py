"""A committed loss that is far above the ones before it. Reported: whether it matters is judged elsewhere."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

from supervisor.wire.records import LossSpike

KEPT = 64
"""Committed steps that a loss is compared with, and for so many more it is told."""
LEARNED_AT_LEAST = 20
TOLD = 5.0
"""Times the spread (median absolute deviation): below it is noise. Three standard deviations of a normal distribution are 4.4."""
LEAST_SPREAD = 0.005
"""Of the usual loss: what comes out nearly the same every time has no spread to speak of."""


class Spikes:
    """One rank's process; a new generation learns anew."""

    def __init__(self) -> None:
        self._mean: deque[float] = deque(maxlen=KEPT)
        self._own: deque[float] = deque(maxlen=KEPT)
        self.newest: LossSpike | None = None
        """The largest of the last KEPT steps."""

    def note(self, step: int, mean: float, own: float) -> None:
        """A step that was committed: the mean over the groups, and this rank's own loss before that."""
        if not (math.isfinite(mean) and math.isfinite(own)):
            return  # a rank that heals takes part with zeros, whatever its own loss is
        known = self.newest
        if known is not None and step > known.step + KEPT:
            self.newest = known = None
        (usual, spreads), (own_usual, own_spreads) = _beyond(self._mean, mean), _beyond(self._own, own)
        self._mean.append(mean)
        self._own.append(own)
        found = LossSpike(
            step=step, loss=mean, usual=usual, spreads=spreads, own=own, own_usual=own_usual, own_spreads=own_spreads
        )
        if _size(found) > (_size(known) if known is not None else (0.0, 0.0)):
            self.newest = found


def _size(spike: LossSpike) -> tuple[float, float]:
    """By the mean first: it is the same in all groups, so that they name the same step."""
    return (spike.spreads if spike.spreads >= TOLD else 0.0, spike.own_spreads if spike.own_spreads >= TOLD else 0.0)


def _beyond(past: Sequence[float], loss: float) -> tuple[float, float]:
    """What is usual, and by how many times its spread a loss is above it; (0, 0) when too little is known."""
    if len(past) < LEARNED_AT_LEAST:
        return 0.0, 0.0
    usual = median(past)
    spread = max(median(abs(one - usual) for one in past), LEAST_SPREAD * abs(usual), 1e-9)
    return round(usual, 4), round(max(0.0, loss - usual) / spread, 1)
