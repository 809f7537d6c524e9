"""Detects a committed loss that is far above the ones before it. Other parts judge whether it matters."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

from supervisor.core.model.observed import SpikeView

KEPT = 64
"""Committed steps with which a loss is compared, and for which a spike is reported."""
LEARNED_AT_LEAST = 20
TOLD = 5.0
"""Spreads (median absolute deviations) below which it is noise; three standard deviations of a normal one are 4.4."""
LEAST_SPREAD = 0.005
"""Least spread, as a share of the usual loss: a loss that hardly varies has almost no spread."""


class Spikes:
    """Follows one rank's process; a new generation starts without history."""

    def __init__(self) -> None:
        self._mean: deque[float] = deque(maxlen=KEPT)
        self._own: deque[float] = deque(maxlen=KEPT)
        self.newest: SpikeView | None = None
        """Largest spike of the last KEPT steps."""

    def note(self, step: int, mean: float, own: float) -> None:
        """Takes in a committed step: the mean loss over the groups, and this rank's own loss before averaging."""
        if not (math.isfinite(mean) and math.isfinite(own)):
            return  # a rank that heals takes part with zeros, whatever its own loss is
        known = self.newest
        if known is not None and step > known.step + KEPT:
            self.newest = known = None
        (usual, spreads), (own_usual, own_spreads) = _beyond(self._mean, mean), _beyond(self._own, own)
        self._mean.append(mean)
        self._own.append(own)
        found = SpikeView(
            step=step, loss=mean, usual=usual, spreads=spreads, own=own, own_usual=own_usual, own_spreads=own_spreads
        )
        if _size(found) > (_size(known) if known is not None else (0.0, 0.0)):
            self.newest = found


def _size(spike: SpikeView) -> tuple[float, float]:
    """Returns the sort key of a spike: first by the mean, with which all groups name the same step."""
    return (spike.spreads if spike.spreads >= TOLD else 0.0, spike.own_spreads if spike.own_spreads >= TOLD else 0.0)


def _beyond(past: Sequence[float], loss: float) -> tuple[float, float]:
    """Returns the usual loss, and by how many spreads a loss is above it; (0, 0) when too little is known."""
    if len(past) < LEARNED_AT_LEAST:
        return 0.0, 0.0
    usual = median(past)
    spread = max(median(abs(one - usual) for one in past), LEAST_SPREAD * abs(usual), 1e-9)
    return round(usual, 4), round(max(0.0, loss - usual) / spread, 1)
