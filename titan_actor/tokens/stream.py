"""The arithmetic of the stream of samples (ADR 26): which windows of a store a rank draws for a step.

Pure: a function of the seed, of how many samples were committed before, and of the quorum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from titan_actor.tokens.permutation import MASK, mix, permute

Batch = Literal["constant", "shrinks"]
"""Size of a step that fewer groups than planned take part in: the same, or smaller."""


@dataclass(frozen=True)
class Order:
    """The order of a store's windows: each epoch has all of them once, in a permutation of its own."""

    seed: int
    windows: int

    def window(self, position: int) -> int:
        """Returns the window at a position of the stream, counted from 0 over all epochs."""
        epoch, index = divmod(position, self.windows)
        return permute(index, self.windows, mix(mix(self.seed & MASK) ^ epoch))


@dataclass(frozen=True)
class Shape:
    """Causes of a step's size, beside the groups that take part in it."""

    ranks: int
    """Ranks of a group that read data of their own."""
    local: int
    """Samples of such a rank in a round (TorchTitan's local_batch_size)."""
    accumulation: int = 1
    """Rounds of a group in a step, with all groups there."""
    batch: Batch = "constant"
    most: int = 0
    """Most rounds of a group in a constant step; 0: no limit."""

    @property
    def round(self) -> int:
        """Samples of a round: all ranks of one group."""
        return self.ranks * self.local

    def whole(self, planned: int, participants: int) -> int:
        """Returns the rounds of a whole step: those planned, or more if more groups than planned take part, since each
        needs one of its own."""
        return max(planned, participants * (self.accumulation if self.batch == "shrinks" else 1))

    def rounds(self, planned: int, participants: int) -> int:
        """Returns the rounds of a step."""
        most = self.accumulation if self.batch == "shrinks" else self.most
        whole = self.whole(planned, participants)
        return min(whole, participants * most) if most else whole

    def samples(self, planned: int, participants: int) -> int:
        """Returns the samples of a step, by which a commit moves the stream on."""
        return self.rounds(planned, participants) * self.round


def share(rounds: int, place: int, participants: int) -> range:
    """Returns the rounds of one participant of a step: those of all follow each other without a gap, and the first
    `rounds` mod `participants` take one more."""
    each, more = divmod(rounds, participants)
    first = place * each + min(place, more)
    return range(first, first + each + (place < more))


def positions(committed: int, shape: Shape, rounds: range, rank: int) -> list[int]:
    """Returns the positions that a rank draws in its group's rounds of the step that follows `committed` samples."""
    starts = [committed + number * shape.round + rank * shape.local for number in rounds]
    return [position for start in starts for position in range(start, start + shape.local)]
