"""The text of a build: which files there are, how they are cut into chunks, and the documents of a chunk.

The chunks depend on the files alone, so that a build goes on where another ended, on any number of processes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from titan_actor.data import SUFFIXES, DataError, field_of, folder_files
from titan_actor.tokens.format import Source, TokensError

LEAST_BYTES, USUAL_BYTES = 1 << 20, 64 << 20
"""Bytes of a chunk: what a kill costs each process, and what a shard holds."""

CHUNKS, MOST_CHUNKS = 64, 1024
"""Chunks of a small corpus, for that many processes, and of a large one."""

PIECE = 1 << 18
"""Characters of a document that are tokenized at a time. A longer one is cut between words."""

ROWS = 256
"""Rows of a table in memory at a time."""

PARQUET, ARROW, JSONL = ".parquet", ".arrow", ".jsonl"


@dataclass(frozen=True, kw_only=True)
class Span:
    """A part of a file: bytes of jsonl and text, row groups of parquet, rows of Arrow."""

    path: str
    start: int
    end: int
    weight: int
    """Its share of the file's bytes."""


Chunk = tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The text of a build, as a user names it."""

    source: str
    """A folder, a file, a data set saved by `datasets`, or one of its name on the Hugging Face hub."""
    text_field: str = "text"
    split: str = "train"


class Reading:
    """The documents of a chunk, and how much of it was read."""

    def __init__(self, chunk: Chunk, text_field: str) -> None:
        self._chunk, self._field = chunk, text_field
        self.done = 0.0
        """Bytes of the sources that were read, in the measure of `Span.weight`."""

    def pieces(self) -> Iterator[tuple[str, bool]]:
        """Yields the text in pieces, and true with the last of each document. Raises TokensError and OSError."""
        before = 0
        for span in self._chunk:
            self.done = before
            try:
                yield from self._of(span)
            except DataError as error:
                raise TokensError(str(error)) from None
            before += span.weight
        self.done = before

    def _of(self, span: Span) -> Iterator[tuple[str, bool]]:
        if span.path.endswith(JSONL):
            yield from self._cut(self._lines(span))
        elif span.path.endswith((PARQUET, ARROW)):
            yield from self._cut(self._rows(span))
        else:
            yield from self._text(span)

    def _cut(self, documents: Iterator[str]) -> Iterator[tuple[str, bool]]:
        for text in documents:
            start = 0
            while len(text) - start > PIECE:
                end = _end(text, start, start + PIECE)
                yield text[start:end], False
                start = end
            if text:
                yield text[start:], True

    def _text(self, span: Span) -> Iterator[tuple[str, bool]]:
        """Reads a file that is one document, without holding it all."""
        left = ""
        with open(span.path, encoding="utf-8", errors="replace", newline=None) as file:
            while more := file.read(PIECE):
                if left:
                    end = _end(left, 0, len(left))
                    yield left[:end], False
                    more = left[end:] + more
                left = more
                self.done += len(more)
        if left:
            yield left, True

    def _lines(self, span: Span) -> Iterator[str]:
        """Reads the lines that begin in a span of bytes."""
        begun = self.done
        with open(span.path, "rb") as file:
            at = _line_start(file, span.start)
            while at < span.end and (line := file.readline()):
                if line.strip():
                    yield field_of(line.decode(errors="replace"), self._field, f"{span.path}: the line at byte {at}")
                at += len(line)
                self.done = begun + at - span.start

    def _rows(self, span: Span) -> Iterator[str]:
        import pyarrow

        begun, read = self.done, 0
        batches = _of_parquet(span, self._field) if span.path.endswith(PARQUET) else _of_arrow(span, self._field)
        try:
            for rows, total in batches:
                yield from (str(value) for value in rows if value)
                read += len(rows)
                self.done = begun + span.weight * read / max(1, total)
        except (OSError, pyarrow.ArrowException) as error:
            raise TokensError(f"{span.path} cannot be read: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """Returns the first line of an error's text; its name if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _line_start(file: IO[bytes], start: int) -> int:
    """Goes to the first line that begins at or after a byte; returns its place."""
    if start:
        file.seek(start - 1)
        return start - 1 + len(file.readline())
    return 0


def _end(text: str, start: int, most: int) -> int:
    """Returns where to cut a long text after `start`: before the last single blank between two words, where no tokenizer
    has a token across it; else where it is full."""
    at = most
    while (at := text.rfind(" ", start + 1, at)) > 0:
        if text[at + 1 : at + 2].isalpha() and not text[at - 1].isspace():
            return at
    return most


def _of_parquet(span: Span, text_field: str) -> Iterator[tuple[list[Any], int]]:
    import pyarrow.parquet as parquet

    # a buffered stream: without it a row group is read whole
    with parquet.ParquetFile(span.path, buffer_size=LEAST_BYTES, pre_buffer=False) as table:
        if text_field not in table.schema_arrow.names:
            raise _no_column(span.path, text_field, table.schema_arrow.names)
        groups = range(span.start, span.end)
        total = sum(table.metadata.row_group(group).num_rows for group in groups)
        for batch in table.iter_batches(ROWS, row_groups=list(groups), columns=[text_field], use_threads=False):
            yield batch.column(0).to_pylist(), total


def _of_arrow(span: Span, text_field: str) -> Iterator[tuple[list[Any], int]]:
    table = _arrow(span.path)
    if text_field not in table.column_names:
        raise _no_column(span.path, text_field, table.column_names)
    column = table.column(text_field)
    for start in range(span.start, span.end, ROWS):
        yield column.slice(start, min(ROWS, span.end - start)).to_pylist(), span.end - span.start


def _no_column(path: str, text_field: str, names: list[str]) -> TokensError:
    return TokensError(f"{path} has no column {text_field!r}: it has {', '.join(names)}; name one by --text-field")


def _arrow(path: str) -> Any:
    """Opens a file of `datasets`, mapped."""
    import pyarrow

    with pyarrow.memory_map(path) as mapped:
        return pyarrow.ipc.open_stream(mapped).read_all()


def files(corpus: Corpus) -> list[str]:
    """Returns the files of a corpus, in its order. Raises TokensError."""
    source, split = corpus.source, corpus.split
    path = Path(source)
    try:
        if path.is_dir() and ((path / "state.json").exists() or (path / "dataset_dict.json").exists()):
            return _of_dataset(source, split, saved=True)
        if path.is_dir():
            return folder_files(str(path.resolve()))
        if path.is_file() and path.suffix in SUFFIXES:
            return [str(path.resolve())]
    except DataError as error:
        raise TokensError(str(error)) from None
    if path.exists():
        raise TokensError(f"{source} is none of {', '.join(SUFFIXES)}: give such a file, or a folder of them")
    if source.startswith(("/", ".", "~")) or source.count("/") > 1:
        raise TokensError(f"there is no {source}")
    return _of_dataset(source, split, saved=False)


def _of_dataset(source: str, split: str, saved: bool) -> list[str]:
    import datasets

    try:
        found = datasets.load_from_disk(source) if saved else datasets.load_dataset(source, split=split)
    except Exception as error:  # noqa: BLE001 - a library of many backends
        where = "the data set saved in" if saved else "no such file is here, and the Hugging Face hub's data set"
        raise TokensError(f"{where} {source} cannot be loaded: {_first_line(error)}") from None
    if isinstance(found, dict):
        if split not in found:
            raise TokensError(f"{source} has no split {split!r}: it has {', '.join(found)}; name one by --split")
        found = found[split]
    paths = [str(Path(each["filename"]).resolve()) for each in found.cache_files]
    if (rows := sum(map(_row_count, paths))) != len(found):
        # a slice, as train[:10%], is of the same files
        raise TokensError(
            f"{source}: {split} has {len(found):,} of the {rows:,} rows in its files, and whole files alone are built: "
            "name a whole split by --split"
        )
    return paths


def marks(paths: list[str]) -> tuple[Source, ...]:
    """Returns the files with what shows that they have changed. Raises OSError."""
    about = [(path, os.stat(path)) for path in paths]
    return tuple(Source(path=path, bytes=each.st_size, mtime_ns=each.st_mtime_ns) for path, each in about)


def changed(source: Source) -> bool:
    """Returns true if a file is not as it was."""
    try:
        return marks([source.path]) != (source,)
    except OSError:
        return True


def chunks(sources: tuple[Source, ...]) -> list[Chunk]:
    """Cuts files into chunks, in their order. Raises TokensError for a file that cannot be read."""
    total = sum(source.bytes for source in sources)
    size = max(LEAST_BYTES, min(USUAL_BYTES, total // CHUNKS), total // MOST_CHUNKS)
    found: list[Chunk] = []
    current: list[Span] = []
    weight = 0
    for source in sources:
        for span in _spans(source, size):
            if current and weight + span.weight > size:
                found.append(tuple(current))
                current, weight = [], 0
            current.append(span)
            weight += span.weight
    return [*found, tuple(current)] if current else found


def _spans(source: Source, size: int) -> Iterator[Span]:
    path, whole = source.path, source.bytes
    if path.endswith(JSONL):
        for start in range(0, whole, size):
            end = min(whole, start + size)
            yield Span(path=path, start=start, end=end, weight=end - start)
    elif path.endswith((PARQUET, ARROW)):
        cut = _row_groups(path, whole, size) if path.endswith(PARQUET) else _row_ranges(path, whole, size)
        for start, end, part in cut:
            yield Span(path=path, start=start, end=end, weight=int(whole * part))
    else:
        yield Span(path=path, start=0, end=whole, weight=whole)


def _row_groups(path: str, whole: int, size: int) -> Iterator[tuple[int, int, float]]:
    """Yields runs of row groups with their share of the file."""
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        about = parquet.read_metadata(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise TokensError(f"{path} is no readable parquet file: {_first_line(error)}") from None
    parts = [max(1, about.row_group(group).total_byte_size) for group in range(about.num_row_groups)]
    total, start, taken = sum(parts), 0, 0
    for at, part in enumerate(parts):
        if at > start and (taken + part) * whole > size * total:
            yield start, at, taken / total
            start, taken = at, 0
        taken += part
    if parts:
        yield start, len(parts), taken / total


def _row_count(path: str) -> int:
    import pyarrow

    try:
        return int(_arrow(path).num_rows)
    except (OSError, pyarrow.ArrowException) as error:
        raise TokensError(f"{path} is no readable file of datasets: {_first_line(error)}") from None


def _row_ranges(path: str, whole: int, size: int) -> Iterator[tuple[int, int, float]]:
    rows = _row_count(path)
    each = max(1, rows * size // max(1, whole))
    for start in range(0, rows, each):
        end = min(rows, start + each)
        yield start, end, (end - start) / rows


def as_json(sources: tuple[Source, ...]) -> str:
    """Returns the sources as a line of JSON, by which two builds are compared."""
    return json.dumps([[source.path, source.bytes, source.mtime_ns] for source in sources])
