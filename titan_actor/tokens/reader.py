"""Reads a token store at random: windows of pairs of input and label, as TorchTitan packs them.

The pairs of a store are those of all its documents, one after another: token i of a document with its token i + 1. So
no label is of another document. A window is `seq_len` pairs in a row.
"""

from __future__ import annotations

import bisect
import hashlib
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy

from titan_actor.tokens.format import HEADER, Index, Manifest, Shard, TokensError, index_header, load

AHEAD = 64
"""Starts of documents that are read at once behind that in which a window begins."""

OPEN_SHARDS = 128
"""Shards that are open at a time: two files each."""


@dataclass(frozen=True)
class Window:
    """One sample, each part of shape (seq_len,), int64."""

    inputs: Any
    labels: Any
    positions: Any
    """Places within the document, counted from 0 where the window or the document begins."""


class TokenStore:
    """An open store. Files are opened when they are needed. Safe to use from several threads."""

    def __init__(self, folder: str | Path, vocabulary: int | None = None) -> None:
        """`vocabulary`: tokens of the trainer's tokenizer, if windows must hold no others. Raises TokensError for what is
        no store, or a shard of another size than its manifest says."""
        self.folder = Path(folder)
        self.manifest: Manifest = load(folder)
        self._vocabulary = vocabulary
        self._ends = list(accumulate(shard.pairs for shard in self.manifest.shards))
        self._shard = lru_cache(OPEN_SHARDS)(self._opened)
        sizes = {
            f"{self.folder / shard.path}{ending}": size
            for shard in self.manifest.shards
            for ending, size in ((".bin", shard.bin_bytes), (".idx", shard.idx_bytes))
        }
        self._times = {path: _checked(path, size) for path, size in sizes.items()}
        """When each file was last written to, in ns."""

    def windows(self, seq_len: int) -> int:
        """Returns how many windows of this length there are. Pairs that are left over are in none."""
        return self.manifest.pairs // seq_len

    def window(self, number: int, seq_len: int) -> Window:
        """Returns a window. Raises IndexError, and TokensError where a shard cannot be read or is corrupt."""
        if not 0 <= number < self.windows(seq_len):
            raise IndexError(f"window {number} of {self.windows(seq_len)}")
        at, left = number * seq_len, seq_len
        which = bisect.bisect_right(self._ends, at)
        parts: list[tuple[Any, Any, Any]] = []
        while left:
            before = self._ends[which - 1] if which else 0
            take = min(left, self._ends[which] - at)
            if take:
                parts += self._shard(which).pairs(at - before, take)
            at, left, which = at + take, left - take, which + 1
        inputs, labels, positions = (numpy.concatenate(each) for each in zip(*parts, strict=True))
        return Window(inputs, labels, positions)

    def _opened(self, which: int) -> _Open:
        shard = self.manifest.shards[which]
        path = str(self.folder / shard.path)
        hashes = {".bin": shard.bin_sha256, ".idx": shard.idx_sha256}
        files = (_Bytes(f"{path}{ending}", self._times, sha256) for ending, sha256 in hashes.items())
        return _Open(path, shard, self.manifest, self._vocabulary, *files)


def _checked(file: str, size: int) -> int:
    """Returns the time in ns at which a file was last written to. Raises TokensError for one of another size."""
    try:
        found = os.stat(file)
    except OSError as error:
        raise TokensError(f"shard {file} cannot be read: {error.strerror}: copy it again, or build the store") from None
    if found.st_size != size:
        raise TokensError(
            f"shard {file} has {found.st_size} bytes, and its manifest says {size}: copy it again, or build the store"
        )
    return found.st_mtime_ns


class _Open:
    """One shard."""

    def __init__(
        self, path: str, shard: Shard, manifest: Manifest, vocabulary: int | None, bin_: _Bytes, idx: _Bytes
    ) -> None:
        self._path, self._tokens = path, shard.tokens
        self._type = numpy.dtype(manifest.dtype)
        self._most = vocabulary
        self._bin, self._idx = bin_, idx
        self._index: Index = index_header(self._idx.read(0, HEADER.size), f"{path}.idx")
        self._same = self._index.sequences == self._index.documents
        """Each document is one sequence."""
        if self._index.dtype != manifest.dtype or self._index.documents != shard.documents:
            raise TokensError(f"shard {path}.idx does not fit its manifest: build the store again")

    def pairs(self, at: int, count: int) -> Iterator[tuple[Any, Any, Any]]:
        """Yields inputs, labels and positions, document by document: pairs `at` to `at + count` of the shard."""
        document = bisect.bisect_right(range(self._index.documents), at, key=lambda d: self._start(d) - d) - 1
        # the pairs before it are fewer than its tokens by one for each document
        begin, end = at + document, at + document
        bounds: list[tuple[int, int]] = []
        while count:
            starts = self._starts(document + 1, AHEAD)
            for start in starts:
                take = min(count, start - 1 - begin)
                bounds.append((begin, begin + take))
                begin, count, end = start, count - take, begin + take
                document += 1
                if not count:
                    break
        first = bounds[0][0]
        tokens = self._read(first, end + 1 - first)
        for low, high in bounds:
            if high > low:
                part = tokens[low - first : high + 1 - first]
                yield part[:-1], part[1:], numpy.arange(high - low)

    def _read(self, at: int, count: int) -> Any:
        size = self._type.itemsize
        found = numpy.frombuffer(self._bin.read(at * size, count * size), self._type).astype(numpy.int64)
        self._bin.check()
        self._idx.check()
        if self._most is not None and (found.max() >= self._most or found.min() < 0):
            raise TokensError(
                f"shard {self._path}.bin is corrupt: among tokens {at} to {at + count} are some that a vocabulary of "
                f"{self._most} does not have: `supervisor data show --verify` finds all such shards"
            )
        return found

    def _start(self, document: int) -> int:
        """Returns the token with which a document begins."""
        return int(self._starts(document, 1)[0])

    def _starts(self, document: int, count: int) -> list[int]:
        """Returns the tokens with which some documents begin; the one after the last begins at the end."""
        count = min(count, self._index.documents - document)
        found: list[int] = []
        if count > 0:
            if self._same:
                raw = numpy.frombuffer(self._idx.read(self._index.offsets_at + 8 * document, 8 * count), "<i8")
            else:
                first = numpy.frombuffer(self._idx.read(self._index.starts_at + 8 * document, 8 * count), "<i8")
                reads = (self._idx.read(self._index.offsets_at + 8 * int(each), 8) for each in first)
                raw = numpy.frombuffer(b"".join(reads), "<i8")
            found = (raw // self._type.itemsize).tolist()
        if document + max(0, count) == self._index.documents:
            found.append(self._tokens)
        if not found or found != sorted(found) or found[0] < 0 or found[-1] > self._tokens:
            raise TokensError(f"shard {self._path}.idx is corrupt: copy it again, or build the store")
        return found


class _Bytes:
    """A file that is read at random. Not mapped: a page that cannot be read would end the process (ADR 26)."""

    def __init__(self, path: str, times: dict[str, int], sha256: str) -> None:
        """`times`: when each file was last written to. Raises TokensError if this one was since, and has other bytes."""
        self._path, self._times, self._sha256 = path, times, sha256
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise TokensError(f"shard {path} cannot be read: {error.strerror}") from None
        weakref.finalize(self, os.close, self._descriptor)
        self.check()

    def read(self, at: int, count: int) -> bytes:
        try:
            found = os.pread(self._descriptor, count, at)
        except OSError as error:
            raise TokensError(f"shard {self._path} cannot be read: {error.strerror}") from None
        if len(found) != count:
            raise TokensError(
                f"shard {self._path} is shorter than its manifest says: it has changed since it was opened"
            )
        return found

    def check(self) -> None:
        """Raises TokensError for a file with other bytes than its manifest says, if it has been written to since the start: a
        copy or `touch` of the same bytes is no harm. Reads all of it then."""
        mtime_ns = os.fstat(self._descriptor).st_mtime_ns
        if mtime_ns == self._times[self._path]:
            return
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self._sha256:
            raise TokensError(
                f"shard {self._path} has been written to under the run, and has other bytes than its manifest says: copy it again, "
                "or build the store"
            )
        self._times[self._path] = mtime_ns
