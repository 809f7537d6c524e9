"""Follows a growing file across its rotations, a bounded part at a time."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from supervisor.wire import rotated

READ_BYTES = 2**20
"""Bytes of one look: a reader of many logs holds this much of each in memory."""

PIECE_BYTES = 64 * 1024
"""Longer lines are shown in pieces: such a line may never end."""

_LINE_ENDS = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""A carriage return ends a line too, as in a progress bar; but as the last byte it may be half of a line end."""

_STAMP = re.compile(r"(?:\[[^\]]{1,40}\]:?\s*)*(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[,.](\d{3})")
"""Time stamp of Python's logging at the start of a line, after names in brackets, in the machine's own time zone."""

_JSON_STAMP = re.compile(r'\{"t": (\d{1,12}(?:\.\d{1,9})?),')
"""Time stamp of our own logs as JSON lines, in Unix seconds."""


@dataclass(slots=True)
class Followed:
    """One followed file, and the position reached in it."""

    path: Path
    offset: int = 0
    rest: bytes = b""
    t: float = 0.0
    number: int = 1
    """Number that the part being read has, or will have, after its rotation (`rotated`)."""
    behind: bool = False
    """True if more was there than was read, as it is while a numbered file is read."""

    def lines(self) -> Iterator[str]:
        """Yields new lines of any length, for files that we write ourselves."""
        new = self._new(-1)
        *done, self.rest = (self.rest + new).split(b"\n")
        for line in done:
            yield line.decode(errors="replace").rstrip("\r")

    def pieces(self, whole: bool = False, at_most: int | None = None) -> Iterator[str]:
        """Yields new lines, long ones in pieces; with `whole` also an unfinished last line. `at_most`: bytes that are read;
        None: READ_BYTES."""
        new = self._new(READ_BYTES if at_most is None else at_most)  # it may reset `rest`
        *done, rest = _LINE_ENDS.split(self.rest + new)
        if whole and not self.behind and rest:
            done, rest = [*done, rest.rstrip(b"\r")], b""
        for line in done:
            *pieces, last = _cut(line)
            yield from (piece.decode(errors="replace") for piece in pieces)
            yield last.decode(errors="replace")
        *pieces, self.rest = _cut(rest)
        yield from (piece.decode(errors="replace") for piece in pieces)

    def timed(self, whole: bool = False, at_most: int | None = None) -> Iterator[tuple[float, str]]:
        """Yields the pieces with their times, in Unix seconds: a line's own, else that of the line before."""
        for line in self.pieces(whole, at_most):
            self.t = max(self.t, min(stamped(line) or 0.0, time.time()))  # no line is before the one above it
            yield self.t, line

    @property
    def place(self) -> tuple[int, int]:
        """Number of the part, and the byte in it, at which what was not given out begins. `resumed` goes on there."""
        number, offset = self.number, self.offset - len(self.rest)
        if offset < 0:  # an unfinished line that began in the part before
            try:
                size = self.path.with_name(f"{self.path.name}.{number - 1}").stat().st_size
            except OSError:  # its node has removed it
                return number, 0
            return number - 1, max(0, size + offset)
        return number, offset

    def _new(self, at_most: int) -> bytes:
        """Returns what was appended since the last look. Rereads a file that shrank without a rotation."""
        data = b""
        try:
            while at_most < 0 or len(data) < at_most:
                source, done = self._source()
                begin = self.offset
                with source.open("rb") as file:
                    file.seek(self.offset)
                    found = file.read(-1 if at_most < 0 else at_most - len(data))
                    at_end = not file.read(1)
                if self._source()[0] != source or self.offset != begin:
                    continue  # rotated meanwhile: the bytes may be from either file
                data += found
                self.offset += len(found)
                self.behind = not (at_end and done)
                if done or not at_end:
                    break
                self.number, self.offset = self.number + 1, 0
        except OSError:
            self.behind = False  # its node has removed it
        return data

    def _source(self) -> tuple[Path, bool]:
        """Returns the file to read next, and true if it is the newest."""
        size = self.path.stat().st_size
        if size == self.offset and not self.behind:
            return self.path, True
        for part in rotated.parts(self.path):
            if (number := rotated.number(part)) >= self.number:
                self.number, self.offset = number, self.offset if number == self.number else 0
                return part, False
        if size < self.offset:
            if (new := rotated.copying(self.path)).exists():
                return new, False  # it was truncated already, and its copy has no number yet
            self.offset, self.rest = 0, b""
        return self.path, True


def begun(path: Path, most: int) -> Followed:
    """Follows a file from `most` bytes before its end: from the start of a line, or in the middle of a long one."""
    parts = rotated.parts(path)
    number = rotated.number(parts[-1]) + 1 if parts else 1
    try:
        size = path.stat().st_size
        if size < most and parts:
            begin, number, skip = parts[-1], number - 1, parts[-1].stat().st_size - (most - size)
        else:
            begin, skip = path, size - most
        with begin.open("rb") as file:
            at = max(0, skip)
            if skip > 0:
                file.seek(skip)
                line_end = _LINE_ENDS.search(file.read(min(most, PIECE_BYTES)))
                at += line_end.end() if line_end is not None else 0
            return Followed(path, at, number=number, behind=begin != path)
    except OSError:
        return Followed(path, number=number)


def resumed(path: Path, number: int, offset: int, t: float = 0.0) -> Followed:
    """Follows a file from a place that an earlier follower had reached."""
    return Followed(path, offset, t=t, number=number, behind=True)  # it may have been rotated since


def stamped(line: str) -> float | None:
    """Returns the Unix time of a line's own time stamp; None if it has none."""
    if (ours := _JSON_STAMP.match(line)) is not None:
        return float(ours[1])
    match = _STAMP.match(line)
    if match is None:
        return None
    try:
        return time.mktime(time.strptime(match[1], "%Y-%m-%d %H:%M:%S")) + int(match[2]) / 1000
    except (ValueError, OverflowError):
        return None


def _cut(line: bytes) -> list[bytes]:
    """Cuts a line into pieces of at most PIECE_BYTES, without splitting a UTF-8 character."""
    pieces, at = [], 0
    while len(line) - at > PIECE_BYTES:
        end = at + PIECE_BYTES
        while end > at + PIECE_BYTES - 4 and line[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(line[at:end])
        at = end
    return [*pieces, line[at:]]
