"""Splits the seconds of a step attempt into data, quorum, heal, compile and commit; compute is the rest.

With async quorum, the quorum and the transfer of a heal run in a thread of TorchFT's beside the forward pass. Only the
main thread's waiting time counts, and the part of it that the transfer covers is heal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Interval = tuple[float, float]


class Seconds:
    """Collects one attempt's intervals. `begin` starts the next attempt."""

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._waits: list[Interval] = []
        self._transfers: list[Interval] = []
        self._depth, self._open = 0, 0
        self._waited_s = 0.0
        self.begin()

    def begin(self) -> None:
        """Forgets the last attempt."""
        self._parts = {"data": 0.0, "quorum": 0.0, "commit": 0.0, "heal": 0.0, "compile": 0.0}
        self._waits, self._transfers = [], []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts this block, less the parts inside it. For the main thread, or one that it waits for."""
        before, start = sum(self._parts.values()), time.perf_counter()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            inside = sum(self._parts.values()) - before
            self._parts[name] += time.perf_counter() - start - inside

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts a wait for the quorum in the main thread. Nested waits count once."""
        start = time.perf_counter()
        self._depth += 1
        try:
            with self.part("quorum"):
                yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._waits.append((start, time.perf_counter()))

    @contextmanager
    def for_peers(self) -> Iterator[None]:
        """Counts the main thread's wait for peers in a collective, unless it is inside another one or a part."""
        start, counts = time.perf_counter(), self._open == 0
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if counts:
                self._waited_s += time.perf_counter() - start

    def take_waited(self) -> float:
        """Returns the seconds since the last call that were waits for peers: neither computing nor a part of its own.
        Those between two attempts belong to the second one, as its duration has them."""
        waited, self._waited_s = self._waited_s, 0.0
        return waited

    def transfer(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a call that moves heal state, for any thread."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._transfers.append((start, time.perf_counter()))

        return timed

    @property
    def last_transfer_s(self) -> float:
        """Seconds of the attempt's newest transfer of heal state; 0 without one."""
        return self._transfers[-1][1] - self._transfers[-1][0] if self._transfers else 0.0

    def total(self) -> dict[str, float]:
        """Returns the attempt's parts in seconds."""
        moved = min(self._parts["quorum"], _overlap(self._waits, self._transfers))
        return {**self._parts, "quorum": self._parts["quorum"] - moved, "heal": self._parts["heal"] + moved}


def _overlap(left: list[Interval], right: list[Interval]) -> float:
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in left for b in right)
