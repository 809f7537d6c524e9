"""A token store on disk: shards in Megatron's format, and a manifest.

A shard is `NAME.bin`, the tokens of its documents one after another, and `NAME.idx`: a header, the lengths of its
sequences (int32), their offsets in bytes (int64), and the sequence with which each document begins (int64). In what
Everstep writes each document is one sequence.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from pydantic import TypeAdapter, ValidationError

MANIFEST = "manifest.json"

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, code of the type, sequences, and documents + 1."""

TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Megatron's codes of whole numbers -> numpy's names."""

BLOCK = 1 << 22
"""Bytes that are read, hashed and checked at a time."""

LONGEST = 2**31 - 1
"""Tokens of the longest document: the index has its length in 32 bits."""


class TokensError(ValueError):
    """The store, its sources or the tokenizer is unfit; the text names the file and says what to do."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One pair of files."""

    path: str
    """Without the ending; relative to the manifest's folder, or absolute for files that were there before."""
    documents: int
    tokens: int
    bin_bytes: int
    idx_bytes: int
    bin_sha256: str
    idx_sha256: str

    @property
    def pairs(self) -> int:
        """Pairs of input and label: the last token of a document is no input."""
        return self.tokens - self.documents


@dataclass(frozen=True, kw_only=True)
class TokenizerMark:
    """The tokenizer by which a store was made."""

    sha256: str
    """Hash of tokenizer.json."""
    vocabulary: int
    bos: int | None
    eos: int | None
    path: str
    """Where it was; only to be shown."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file that was read."""

    path: str
    bytes: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of a store."""

    version: int = 1
    dtype: str
    tokenizer: TokenizerMark
    text_field: str
    shards: tuple[Shard, ...]
    sources: tuple[Source, ...]

    @property
    def documents(self) -> int:
        """Documents of all shards."""
        return sum(shard.documents for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Tokens of all shards."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def pairs(self) -> int:
        """Pairs of input and label of all shards."""
        return sum(shard.pairs for shard in self.shards)

    @property
    def digest(self) -> str:
        """Names the tokens and documents, in their order, wherever the files are."""
        hashed = hashlib.sha256()
        for shard in self.shards:
            hashed.update(f"{shard.bin_sha256} {shard.idx_sha256}\n".encode())
        return hashed.hexdigest()[:16]


_MANIFEST = TypeAdapter(Manifest)


def load(folder: str | Path) -> Manifest:
    """Reads a store's manifest. Raises TokensError."""
    at = Path(folder) / MANIFEST
    try:
        found: Manifest = _MANIFEST.validate_json(at.read_bytes(), strict=False)
    except FileNotFoundError:
        unfinished = (Path(folder) / "building").is_dir()
        why = "its build is not finished: run `supervisor data build` again" if unfinished else _none(Path(folder))
        raise TokensError(f"{folder} is no token store: {why}") from None
    except OSError as error:
        raise TokensError(f"{at} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(each) for each in first["loc"])
        raise TokensError(f"{at} is no manifest of a store: {where}: {first['msg']}") from None
    if found.version != 1:
        raise TokensError(f"{at} is of version {found.version}, and this program reads version 1: upgrade it")
    if found.dtype not in TYPES.values():
        raise TokensError(f"{at} names no type of tokens: {found.dtype!r}")
    return found


def _none(folder: Path) -> str:
    if not folder.is_dir():
        return "there is no such folder"
    return f"there is no {MANIFEST} in it; make one with `supervisor data build SOURCE --tokenizer T --out {folder}`"


def write_json(at: Path, value: Any) -> None:
    """Replaces a file by the JSON of a value, on disk when it returns. Raises OSError."""
    scratch = at.with_name(f".{at.name}.{os.getpid()}")
    try:
        with open(scratch, "wb") as file:
            file.write(json.dumps(value, indent=1).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, at)
    finally:
        scratch.unlink(missing_ok=True)


def dtype_for(vocabulary: int) -> str:
    """Returns the type of the tokens of a vocabulary, as Megatron chooses it."""
    return "<u2" if vocabulary < 65500 else "<i4"


def code_of(dtype: str) -> int:
    """Returns Megatron's code of a type."""
    return next(code for code, name in TYPES.items() if name == dtype)


def index_of(lengths: Any, dtype: str) -> bytes:
    """Returns the contents of the .idx of documents of these lengths, each of one sequence."""
    counts = numpy.asarray(lengths, dtype="<i4")
    offsets = numpy.zeros(len(counts), dtype="<i8")
    numpy.cumsum(counts[:-1], dtype="<i8", out=offsets[1:])
    offsets *= numpy.dtype(dtype).itemsize
    header = HEADER.pack(MAGIC, 1, code_of(dtype), len(counts), len(counts) + 1)
    starts = numpy.arange(len(counts) + 1, dtype="<i8")
    return header + counts.tobytes() + offsets.tobytes() + starts.tobytes()


@dataclass(frozen=True)
class Index:
    """The header of an .idx, and where its parts are."""

    dtype: str
    sequences: int
    documents: int

    @property
    def offsets_at(self) -> int:
        """Place of the offsets of the sequences."""
        return HEADER.size + 4 * self.sequences

    @property
    def starts_at(self) -> int:
        """Place of the first sequences of the documents."""
        return self.offsets_at + 8 * self.sequences

    @property
    def bytes(self) -> int:
        """Size of the file; one of images has more."""
        return self.starts_at + 8 * (self.documents + 1)


def index_header(head: bytes, path: str) -> Index:
    """Reads the first HEADER.size bytes of an .idx. Raises TokensError with the path for anything else."""
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        raise TokensError(f"{path} is no index of Megatron's format")
    _, version, code, sequences, starts = HEADER.unpack(head[: HEADER.size])
    if version != 1 or code not in TYPES or starts < 1:
        raise TokensError(
            f"{path} is of version {version} and of type {code}: only whole numbers of version 1 are read"
        )
    return Index(TYPES[code], sequences, starts - 1)
