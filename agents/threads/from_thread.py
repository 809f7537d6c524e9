"""Hands a thread's results to an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def from_thread(loop: asyncio.AbstractEventLoop, callback: Callable[[T], None]) -> Callable[[T], None]:
    """Returns a function for any thread that has the loop call `callback`. It does nothing once the loop is closed."""

    def call(value: T) -> None:
        try:
            loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            pass  # this process is ending

    return call
