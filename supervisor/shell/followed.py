"""A file that others append to, read as it grows: across its rotations, a bounded part of it at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from supervisor.wire import rotated

READ_BYTES = 2**20
"""At one look: who reads many logs at once holds so much of each in memory."""

PIECE_BYTES = 64 * 1024
"""A longer line is shown in pieces: the next may not end for ever."""

_LINE_ENDS = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""A carriage return ends a line too, as of a bar of progress; but the last byte may be half of an end."""


@dataclass(slots=True)
class Followed:
    """One such file, as far as it was read."""

    path: Path
    offset: int = 0
    rest: bytes = b""
    t: float = 0.0
    number: int = 1
    """Of the numbered file that what is read now has become, or will become (`rotated`)."""
    behind: bool = False
    """More was there than was read; so it is wherever a numbered file is read."""

    def lines(self) -> Iterator[str]:
        """New lines, whatever their length: of files that we write ourselves."""
        new = self._new(-1)
        *done, self.rest = (self.rest + new).split(b"\n")
        for line in done:
            yield line.decode(errors="replace").rstrip("\r")

    def pieces(self, whole: bool = False) -> Iterator[str]:
        """New lines of at most READ_BYTES, long ones in pieces; with `whole` also one that nobody ended."""
        new = self._new(READ_BYTES)  # it may forget the rest
        *done, rest = _LINE_ENDS.split(self.rest + new)
        if whole and not self.behind and rest:
            done, rest = [*done, rest.rstrip(b"\r")], b""
        for line in done:
            *pieces, last = _cut(line)
            yield from (piece.decode(errors="replace") for piece in pieces)
            yield last.decode(errors="replace")
        *pieces, self.rest = _cut(rest)
        yield from (piece.decode(errors="replace") for piece in pieces)

    def _new(self, at_most: int) -> bytes:
        """What came since the last look. A file that became shorter, and was not rotated, is read from its beginning."""
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
                    continue  # rotated meanwhile: what was read may be of either
                data += found
                self.offset += len(found)
                self.behind = not (at_end and done)
                if done or not at_end:
                    break
                self.number, self.offset = self.number + 1, 0
        except OSError:
            self.behind = False  # its node cleans up
        return data

    def _source(self) -> tuple[Path, bool]:
        """The file to go on with, and whether it is the newest."""
        size = self.path.stat().st_size
        if size == self.offset and not self.behind:
            return self.path, True
        for part in rotated.parts(self.path):
            if (number := rotated.number(part)) >= self.number:
                self.number, self.offset = number, self.offset if number == self.number else 0
                return part, False
        if size < self.offset:
            if (new := rotated.copying(self.path)).exists():
                return new, False  # it is cut off already, and has no number yet
            self.offset, self.rest = 0, b""
        return self.path, True


def begun(path: Path, most: int) -> Followed:
    """A file of which so many bytes at the end are read, from the start of a line, or in the middle of one that is long."""
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


def _cut(line: bytes) -> list[bytes]:
    """Pieces of at most PIECE_BYTES, no character of UTF-8 cut in two."""
    pieces, at = [], 0
    while len(line) - at > PIECE_BYTES:
        end = at + PIECE_BYTES
        while end > at + PIECE_BYTES - 4 and line[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(line[at:end])
        at = end
    return [*pieces, line[at:]]
