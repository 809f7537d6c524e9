"""The only wait of the tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_EVERY_S = 0.02


def eventually(predicate: Callable[[], T | None], deadline_s: float, message: str = "") -> T:
    """Asks `predicate` every 20 ms until it returns something true, and returns that. Raises AssertionError after
    `deadline_s` seconds."""
    end = time.monotonic() + deadline_s
    while True:
        # the clock is read first: a predicate that took long still counts with its answer
        late = time.monotonic() >= end
        answer = predicate()
        if answer:
            return answer
        if late:
            raise AssertionError(f"not within {deadline_s:g} s: {message or predicate} (last answer {answer!r})")
        time.sleep(_EVERY_S)
