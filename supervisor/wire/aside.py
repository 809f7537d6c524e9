"""Work in a thread of its own, one thing after the other: a file system that stalls holds that thread alone. Standard library
only: the shim uses it, too."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Aside:
    """The thread is begun with the first work, and ends with the process, whatever it does then, or at `end`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._left = 0

    @property
    def left(self) -> int:
        """How much is not done yet, with what is being done now."""
        return self._left

    def ask(self, work: Callable[[], T]) -> Future[T]:
        """Have it done after all that was asked before. Returns at once; what it raises is in the future alone."""
        future: Future[T] = Future()
        with self._lock:
            self._left += 1
            self._work.put((work, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return future

    def end(self, within_s: float) -> None:
        """Wait until all that was asked is done, so long at most. The thread ends then; nothing may be asked any more."""
        with self._lock:
            self._work.put(None)
            thread = self._thread
        if thread is not None:
            thread.join(within_s)

    async def done(self, work: Callable[[], T]) -> T:
        """As `ask`, and wait for it."""
        return await asyncio.wrap_future(self.ask(work))

    async def within(self, seconds: float, work: Callable[[], T]) -> T | None:
        """As `done`; None when it has not come to an end by then. It is not given up."""
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
