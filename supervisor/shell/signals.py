"""Signals to a long-running command: they end it, detach it from its terminal, or announce a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from supervisor.ports.errors import Fatal, Retryable
from supervisor.wire.printer import print_line

REFUSED_PAUSE_S = 20.0
"""Seconds before a refused answer to a notice is tried again."""


@dataclass
class Notice:
    """The answer to Slurm's notice of a time limit (SIGUSR1). It is given once, and retried until it succeeds, even
    after a refusal: nothing else is left to do."""

    answer: Callable[[], str] | None = None
    """Answers the notice and returns what it did. None: there is nothing to do."""
    came: threading.Event = field(default_factory=threading.Event)
    _not_before: float = 0.0
    """time.monotonic()"""
    _said: str = ""

    def look(self, say: Callable[[str], None]) -> None:
        """Answers the notice if it is time, and reports it."""
        if self.answer is None or not self.came.is_set() or time.monotonic() < self._not_before:
            return
        try:
            sentence, pause_s = self.answer(), 0.0
            self.answer = None
        except Retryable as error:
            sentence, pause_s = str(error), error.after_s
        except Fatal as error:
            sentence, pause_s = str(error), REFUSED_PAUSE_S
        self._not_before = time.monotonic() + pause_s
        if sentence != self._said:
            say(sentence)
        self._said = sentence


@contextlib.contextmanager
def handled(
    handler: Callable[[int, FrameType | None], object] | signal.Handlers, *numbers: signal.Signals
) -> Iterator[None]:
    """Sends these signals to `handler` inside the block."""
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def ended_by_signals() -> contextlib.AbstractContextManager[None]:
    """Makes TERM and a closed terminal end us as Ctrl-C does: through every `finally`."""
    return handled(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP)


def notices(notice: Notice) -> contextlib.AbstractContextManager[None]:
    """Makes SIGUSR1 this notice."""
    return handled(lambda *_: notice.came.set(), signal.SIGUSR1)


def not_interrupted() -> contextlib.AbstractContextManager[None]:
    """Ignores signals while parts are being ended: a second Ctrl-C would leave half of them running."""
    return handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminal:
    """The output of `up`: its terminal, or a log once that is gone. A closed terminal does not end training."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._detached = False

    def say(self, sentence: str) -> None:
        """Prints to stderr; never raises."""
        try:
            print_line(sentence, err=True)
        except OSError:  # a terminal that was closed without SIGHUP (EIO), or a full disk
            if not self._detached:
                self.detach()
                self.say(sentence)

    def detach(self, *_: object) -> None:
        """Goes on without the terminal. Safe as a handler of SIGHUP, which may come in the middle of a print."""
        if self._detached:
            return
        self._detached = True
        with contextlib.suppress(OSError):
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            for number in (1, 2):
                os.dup2(log, number)
            os.close(log)
            os.write(2, b"the terminal is gone: `supervisor up` goes on; `supervisor down` ends it\n")

    def outlived(self) -> contextlib.AbstractContextManager[None]:
        """Makes SIGHUP detach inside the block."""
        return handled(self.detach, signal.SIGHUP)
