"""Logs that other processes append to, kept within a size: what is above it is copied to a numbered file beside the log, and cut off.

A rank, and whatever it starts, holds its log open for its whole life, so the file cannot be exchanged for another. Each writer has
opened it to append (O_APPEND), so it goes on at the new end. What is written between the last copied byte and the cut, within
microseconds, is lost. Standard library only.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LIMIT_BYTES = 64 * 2**20
KEPT = 3
"""Numbered files of a log: with the log itself it takes (KEPT + 1) * LIMIT_BYTES at most, and what comes between two looks."""
EVERY_S = 5.0
"""Between two looks."""

_COPYING = ".new"


def parts(log: Path) -> list[Path]:
    """The numbered files of a log, the oldest first, without the log itself: `output.log.1` is older than `output.log.2`."""
    found = (path for path in log.parent.glob(f"{log.name}.*") if number(path))
    return sorted(found, key=number)


def number(part: Path) -> int:
    """Of a numbered file; 0 of any other."""
    last = part.name.rpartition(".")[2]
    return int(last) if last.isascii() and last.isdecimal() else 0


def copying(log: Path) -> Path:
    """The file that a rotation writes: complete once the log is shorter than it, and numbered then."""
    return log.with_name(log.name + _COPYING)


def keep_small(logs: Iterable[Path], limit: int = LIMIT_BYTES, kept: int = KEPT) -> None:
    """Rotate each of these that is above the limit. What cannot be done now, as on a full disk, is tried at the next look."""
    for log in logs:
        with suppress(OSError):
            if log.stat().st_size > limit:
                rotate(log, kept)


def rotate(log: Path, kept: int = KEPT) -> None:
    """Move what the log holds to its next numbered file, and remove the oldest ones. Raises OSError; then the log is as it was."""
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
    """To the end, by the kernel: nothing of it is in our memory."""
    done = 0
    while copied := os.sendfile(target, source, done, 2**24):
        done += copied


def _take_over(log: Path, new: Path) -> None:
    """What a rotation left that was killed: a whole copy gets its number, any other goes."""
    with suppress(FileNotFoundError):
        if new.stat().st_size > log.stat().st_size:
            new.rename(_next(log))
        else:
            new.unlink()


def _next(log: Path) -> Path:
    there = parts(log)
    return log.with_name(f"{log.name}.{number(there[-1]) + 1 if there else 1}")
