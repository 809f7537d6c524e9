"""Limits logs that other processes append to: copies a large log to a numbered file beside it, and truncates it.

A rank and its children hold their log open for life, so the file cannot be replaced. Each writer opened it to append
(O_APPEND), so it continues at the new end. Bytes written between the last copied byte and the cut, within microseconds,
are lost. Standard library only.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LIMIT_BYTES = 64 * 2**20
KEPT = 3
"""Numbered files of a log. In all it takes at most (KEPT + 1) * LIMIT_BYTES, and what comes between two looks."""
EVERY_S = 5.0
"""Seconds between looks."""

_COPYING = ".new"


def parts(log: Path) -> list[Path]:
    """Returns a log's numbered files, oldest first, without the log: `output.log.1` is older than `output.log.2`."""
    found = (path for path in log.parent.glob(f"{log.name}.*") if number(path))
    return sorted(found, key=number)


def number(part: Path) -> int:
    """Returns the number of a numbered file; 0 for any other."""
    last = part.name.rpartition(".")[2]
    return int(last) if last.isascii() and last.isdecimal() else 0


def copying(log: Path) -> Path:
    """Returns the file that a rotation writes. Once the log is shorter, it is complete and gets its number."""
    return log.with_name(log.name + _COPYING)


def keep_small(logs: Iterable[Path], limit: int = LIMIT_BYTES, kept: int = KEPT) -> None:
    """Rotates each log above the limit. If that fails, as on a full disk, the next look tries again."""
    for log in logs:
        with suppress(OSError):
            if log.stat().st_size > limit:
                rotate(log, kept)


def rotate(log: Path, kept: int = KEPT) -> None:
    """Moves the log's content to its next numbered file, and removes the oldest. After an OSError it is unchanged."""
    new = copying(log)
    with log.open("r+b") as source:
        fcntl.flock(source, fcntl.LOCK_EX | fcntl.LOCK_NB)  # supervisors that share a home look at the same files
        _take_over(log, new)
        there, numbered = parts(log), _next(log)
        for old in there[: max(0, len(there) + 1 - kept)]:
            old.unlink()
        try:
            with new.open("wb") as target:
                _copy(source.fileno(), target.fileno())
                os.ftruncate(source.fileno(), 0)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        new.rename(numbered)


def _copy(source: int, target: int) -> None:
    """Copies to the end, in the kernel: nothing passes through our memory."""
    done = 0
    while copied := os.sendfile(target, source, done, 2**24):
        done += copied


def _take_over(log: Path, new: Path) -> None:
    """Cleans up after a killed rotation: numbers a complete copy, removes any other."""
    with suppress(FileNotFoundError):
        if new.stat().st_size > log.stat().st_size:
            new.rename(_next(log))
        else:
            new.unlink()


def _next(log: Path) -> Path:
    there = parts(log)
    return log.with_name(f"{log.name}.{number(there[-1]) + 1 if there else 1}")
