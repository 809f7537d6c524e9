"""Collects facts about this machine that training may suffer from. A source is a function that returns what holds now.
Another source (DCGM, NVSentinel) is one more module, and one more entry in the agent's list."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from supervisor.wire.records import Fact

log = logging.getLogger(__name__)

Source = Callable[[], Sequence[Fact]]
"""A source returns within about a second; what may hang runs in its own thread."""

LOOK_S = 5.0


class Facts(threading.Thread):
    """Asks all sources every few seconds. A source that raises is logged once, and the others go on."""

    def __init__(self, sources: Sequence[Source], changed: Callable[[tuple[Fact, ...]], None]) -> None:
        """`changed` is called in this thread with all facts whenever they change."""
        super().__init__(name="facts", daemon=True)
        self._sources = sources
        self._changed = changed
        self._wake = threading.Event()
        self._stopped = False
        self._broken: set[int] = set()

    def run(self) -> None:
        told: tuple[Fact, ...] = ()
        while True:
            self._wake.clear()
            if self._stopped:
                return
            found = self.look()
            if found != told:
                told = found
                self._changed(found)
            self._wake.wait(LOOK_S)

    def look(self) -> tuple[Fact, ...]:
        """Returns all facts that hold now, in a fixed order."""
        found: list[Fact] = []
        for number, source in enumerate(self._sources):
            try:
                found += source()
                self._broken.discard(number)
            except (OSError, ValueError) as error:
                if number not in self._broken:
                    log.warning("a source of facts failed: %s: %s", type(error).__name__, error)
                self._broken.add(number)
        return tuple(sorted(found, key=lambda fact: (fact.kind, fact.subject)))

    def soon(self) -> None:
        """Asks all sources again now, because one has news. From any thread."""
        self._wake.set()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
