"""Runs work in its own thread, one item after another, so that a stalled file system holds only that thread. Standard
library only: the shim uses it, too."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Aside:
    """A work queue with a daemon thread, which starts with the first item and ends at `end` or with the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._left = 0

    @property
    def left(self) -> int:
        """Number of unfinished items, including the current one."""
        return self._left

    def ask(self, work: Callable[[], T]) -> Future[T]:
        """Queues work and returns at once. An exception of the work is only in the future."""
        future: Future[T] = Future()
        with self._lock:
            self._left += 1
            self._work.put((work, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return future

    def end(self, within_s: float) -> None:
        """Waits until all work is done, at most `within_s`. The thread ends then; nothing may be queued any more."""
        with self._lock:
            self._work.put(None)
            thread = self._thread
        if thread is not None:
            thread.join(within_s)

    async def done(self, work: Callable[[], T]) -> T:
        """Queues work and waits for it."""
        return await asyncio.wrap_future(self.ask(work))

    async def within(self, seconds: float, work: Callable[[], T]) -> T | None:
        """Returns what `done` returns, or None if it is not finished after `seconds`. The work goes on."""
        asked = asyncio.wrap_future(self.ask(work))
        await asyncio.wait({asked}, timeout=seconds)
        return asked.result() if asked.done() else None

    def _run(self) -> None:
        while (asked := self._work.get()) is not None:
            work, future = asked
            wanted, found, wrong = future.set_running_or_notify_cancel(), None, None
            try:
                found = work() if wanted else None
            except Exception as error:  # noqa: BLE001 - it is for whoever asked
                wrong = error
            with self._lock:
                self._left -= 1
            if wrong is not None:
                future.set_exception(wrong)
            elif wanted:
                future.set_result(found)
