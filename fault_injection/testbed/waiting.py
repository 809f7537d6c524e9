"""Waits until something is so: the only wait of tests and benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_EVERY_S, _SELDOM_S = 0.02, 0.5
_SHARE = 10
"""A slow predicate, such as one that reads all of etcd, takes at most 1/_SHARE of the time: the system needs the processor."""
_WORK = range(1_000_000)
_USUALLY_S = 0.025
"""Seconds that the counting takes where nothing else runs, on a processor of 2026."""
_MOST = 4.0


def slowness() -> float:
    """Returns the factor, from 1 to 4, by which this machine is slower than usual now: it is slow, or others use it too."""
    began = time.monotonic()
    for _ in _WORK:
        pass
    return min(_MOST, max(1.0, (time.monotonic() - began) / _USUALLY_S))


def eventually(predicate: Callable[[], T | None], deadline_s: float, message: str = "") -> T:
    """Asks `predicate` every 20 ms, or less often where it takes long, until it returns something true, and returns
    that. Raises AssertionError after `deadline_s` seconds, times the machine's slowness by then. A deadline detects
    what never comes; how soon it comes is for benchmarks to measure."""
    began, allowed_s = time.monotonic(), deadline_s
    while True:
        # the clock is read first: a predicate that took long still counts with its answer
        asked = time.monotonic()
        late = asked >= began + allowed_s
        answer = predicate()
        if answer:
            return answer
        if late:
            slow = slowness()
            if deadline_s * slow <= allowed_s:
                raise AssertionError(f"not within {allowed_s:g} s: {message or predicate} (last answer {answer!r})")
            allowed_s = deadline_s * slow
        time.sleep(max(_EVERY_S, min(_SELDOM_S, (_SHARE - 1) * (time.monotonic() - asked))))
