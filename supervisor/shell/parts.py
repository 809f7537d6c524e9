"""The parts of `up`: each is adopted or started, and started again for as long as `up` runs."""

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
"""A part that ran for this long counts as well again: its next end is its first."""

LONGEST_PAUSE_S = 15.0
"""Between two starts of a part that ends again and again. What keeps it from running may be over at any time."""


class Running(Protocol):
    """What a part has started."""

    @property
    def alive(self) -> bool: ...

    def stop(self, patience_s: float) -> None: ...


@dataclass
class Part:
    """One part. It is started again at once when it ends, and with growing pauses when it ends again and again."""

    name: str
    start: Callable[[], Running]
    """Adopts or starts it. Raises PortError, SecurityError or OSError."""
    log: Callable[[], Path]
    patience_s: float = 10.0
    """From TERM to KILL at its end."""
    running: Running | None = None
    _since: float = field(default_factory=time.monotonic)
    _pause_s: float = 0.0
    _not_before: float = 0.0
    _sentence: str = ""

    @property
    def ended(self) -> str:
        """A sentence when it has ended, or could not be started; empty while it runs."""
        if self.running is None:
            return f"{self.name} does not run"
        if self.running.alive:
            return ""
        how = self.running.ended_with if isinstance(self.running, Process) else ""
        return f"{self.name} ended{how}: {self.log()}"

    def begin(self) -> None:
        """Adopt or start it. Raises as `start`."""
        self.running = self.start()
        self._since = time.monotonic()

    def mend(self) -> str:
        """Start it again if it has ended and its pause is over. Returns a sentence when there is news."""
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
        """The sentence, unless it was the last one too and the part has not been well in between."""
        news = "" if sentence == self._sentence and self._pause_s > 1.0 else sentence
        self._sentence = sentence
        return news

    def stop(self) -> list[str]:
        """End it. Returns its name if it would not end."""
        if self.running is None:
            return []
        self.running.stop(self.patience_s)
        return [self.name] if self.running.alive else []


def adopted(mark: str) -> Process | None:
    """The process that an earlier `up` has started under this mark, if it still runs."""
    return next(with_environment(PART, mark), None)


def spawned(arguments: list[str], log: Path, mark: str) -> Process:
    """A process of its own session, which outlives us. Raises OSError."""
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
