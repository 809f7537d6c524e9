"""The parts of `up`: each is adopted or started, and restarted for as long as `up` runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from supervisor.ports.errors import PortError
from supervisor.shell.processes import Process, with_environment
from supervisor.wire import environment
from supervisor.wire.programs import PART
from supervisor.wire.security import SecurityError

STEADY_S = 60.0
"""Seconds after which a running part counts as well: its next end is its first."""

LONGEST_PAUSE_S = 15.0
"""Longest pause between two starts of a part that ends again and again. Its obstacle may vanish at any time."""


class Running(Protocol):
    """A process, or the like, that a part has started."""

    @property
    def alive(self) -> bool: ...

    def stop(self, patience_s: float) -> None: ...


@dataclass
class Part:
    """One part of `up`. If it ends, it is restarted at once; if it ends again and again, with growing pauses."""

    name: str
    start: Callable[[], Running]
    """Adopts or starts it. Raises PortError, SecurityError or OSError."""
    log: Callable[[], Path]
    patience_s: float = 10.0
    """Seconds from TERM to KILL when it is ended."""
    running: Running | None = None
    _since: float = field(default_factory=time.monotonic)
    _pause_s: float = 0.0
    _not_before: float = 0.0
    _sentence: str = ""

    @property
    def ended(self) -> str:
        """A sentence if it has ended or could not be started; empty while it runs."""
        if self.running is None:
            return f"{self.name} does not run"
        if self.running.alive:
            return ""
        how = self.running.ended_with if isinstance(self.running, Process) else ""
        return f"{self.name} ended{how}: {self.log()}"

    def begin(self) -> None:
        """Adopts or starts it. Raises as `start`."""
        self.running = self.start()
        self._since = time.monotonic()

    def mend(self) -> str:
        """Restarts it if it has ended and its pause is over. Returns a sentence if there is news."""
        ended, now = self.ended, time.monotonic()
        if not ended:
            if self._pause_s and now - self._since > STEADY_S:
                self._pause_s = 0.0
            return ""
        if now < self._not_before:
            return ""
        self._pause_s = min(LONGEST_PAUSE_S, max(1.0, 2 * self._pause_s))
        self._not_before = now + self._pause_s
        try:
            self.begin()
            return self._news(f"{ended}; started again")
        except (PortError, SecurityError, OSError) as error:
            return self._news(f"{ended}; it cannot be started now, and is tried again: {error}")

    def _news(self, sentence: str) -> str:
        """Returns the sentence, unless it repeats the last one and the part was not well in between."""
        news = "" if sentence == self._sentence and self._pause_s > 1.0 else sentence
        self._sentence = sentence
        return news

    def stop(self) -> list[str]:
        """Ends it. Returns its name if it did not end."""
        if self.running is None:
            return []
        self.running.stop(self.patience_s)
        return [self.name] if self.running.alive else []


def adopted(mark: str) -> Process | None:
    """Returns the process that an earlier `up` started under this mark, if it still runs."""
    return next(with_environment(PART, mark), None)


def spawned(arguments: list[str], log: Path, mark: str) -> Process:
    """Starts a process in its own session, which outlives us. Raises OSError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return Process.of(
            subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={**environment.decided(os.environ), PART: mark},
            )
        )
