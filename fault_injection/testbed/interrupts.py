"""Turns SIGINT, SIGTERM and a closed terminal into KeyboardInterrupt, which waits for a heal that has begun."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

WAITS = b"supervisor: what was broken is being healed: leaving after that. Once more to leave now\n"


def ending() -> list[signal.Signals]:
    """Returns the signals that ask a command to end. Leaves out SIGHUP where `nohup` has it ignored."""
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if is_nohup else [signal.SIGHUP])]


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes each of them raise KeyboardInterrupt, also where a shell started this with SIGINT ignored."""
    with _handled_by(signal.default_int_handler):
        yield


@contextmanager
def finished_first() -> Iterator[None]:
    """Raises the first of them when the block is left, also by an error, and a second one at once."""
    came: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        with suppress(OSError):  # the terminal may be gone
            os.write(2, WAITS)  # no print, for the signal may have interrupted one

    try:
        with _handled_by(keep):
            yield
    finally:
        if came:
            raise KeyboardInterrupt


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in ending()}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
