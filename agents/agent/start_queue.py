"""Runs pending starts: at most one of a group at a time, tried again after a pause when the shim refuses one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from agents.agent.shim_client import ShimRefused

log = logging.getLogger(__name__)

REFUSED_PAUSE_S = 1.0
"""Seconds until a start that the shim refused (a full disk, no free port) is tried again, so as not to loop."""


class Starts:
    """The pending starts of one node. A key names a generation, and up to its last dot the group or lighthouse."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, tuple[float, str]] = {}

    def begin(self, key: str, work: Coroutine[Any, Any, None], now: float) -> None:
        """Begins a start in the background, unless one of the same group is under way, of whatever generation."""
        refused = self._refused.get(key)
        group = key.rpartition(".")[0]
        busy = any(other.rpartition(".")[0] == group for other in self._busy)
        if busy or (refused is not None and now - refused[0] < REFUSED_PAUSE_S):
            work.close()
            return
        self._busy[key] = asyncio.create_task(self._guarded(key, work))

    def problems(self) -> tuple[str, ...]:
        return tuple(sentence for _, sentence in self._refused.values())

    def cancel(self) -> None:
        for task in self._busy.values():
            task.cancel()

    async def _guarded(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
            self._refused.pop(key, None)
        except (ShimRefused, OSError) as error:
            if key not in self._refused:
                log.warning("cannot start %s: %s; trying again", key, error)
            self._refused[key] = (asyncio.get_running_loop().time(), f"cannot start {key}: {error}")
        finally:
            del self._busy[key]
            self._done()
