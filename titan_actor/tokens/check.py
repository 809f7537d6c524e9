"""Checks the files of a store, and makes a store of Megatron files that exist."""

from __future__ import annotations

import concurrent.futures as futures
import hashlib
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy

from titan_actor.data import SUFFIXES
from titan_actor.tokens import sources
from titan_actor.tokens.build import BUILDING, alone, refuse_full
from titan_actor.tokens.format import (
    BLOCK,
    HEADER,
    MANIFEST,
    Index,
    Manifest,
    Shard,
    TokenizerMark,
    TokensError,
    index_header,
    load,
    write_json,
)
from titan_actor.tokens.tokenizer import Encoder


def corrupt(folder: Path, processes: int) -> list[str]:
    """Hashes all files of a store; returns a sentence for each that is not as its manifest says. Raises TokensError."""
    manifest = load(folder)
    wanted = {
        f"{folder / shard.path}{ending}": sha256
        for shard in manifest.shards
        for ending, sha256 in ((".bin", shard.bin_sha256), (".idx", shard.idx_sha256))
    }
    # hashing leaves the interpreter's lock
    with futures.ThreadPoolExecutor(processes) as pool:
        found = zip(wanted, pool.map(_hashed, wanted), strict=True)
        return [
            f"{path} is corrupt: {why or 'its hash is not that of the manifest'}: copy it again, or build the store"
            for path, (sha256, why) in found
            if sha256 != wanted[path]
        ]


def _hashed(path: str) -> tuple[str, str]:
    hashed = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(BLOCK):
                hashed.update(block)
    except OSError as error:
        return "", str(error.strerror)
    return hashed.hexdigest(), ""


def is_megatrons(source: str) -> bool:
    """Returns true for a folder of Megatron's files. Raises TokensError for one that holds text too."""
    folder = Path(source)
    if not folder.is_dir() or not (index := next(folder.rglob("*.idx"), None)):
        return False
    if text := next((path for path in folder.rglob("*") if path.suffix in SUFFIXES), None):
        raise TokensError(
            f"{source} holds text ({text.name}) and Megatron's files ({index.name}): give a folder of one kind"
        )
    return True


def refuse_inside(source: str, out: Path) -> None:
    """Raises TokensError for a store in its own source, whose files the next look at that would find."""
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(source)):
        raise TokensError(f"{out} is in the source {source}: give an --out outside of it")


def adopt(folder: Path, tokenizer: Path, out: Path) -> Manifest:
    """Writes a manifest for a folder of Megatron's files, which stay where they are. Raises TokensError for files that are
    torn or of a store, or hold tokens that the tokenizer does not have."""
    mark = Encoder(tokenizer).mark
    files = sorted(folder.rglob("*.idx"))
    for store in sorted({path.parent for path in files}):
        if (store / BUILDING).is_dir():
            raise TokensError(f"{store} is an unfinished build: finish it by the command that began it")
        if (store / MANIFEST).exists():
            raise TokensError(f"{store} is a token store already: train on it as it is")
    with alone(out):
        refuse_full(out)
        made = _read(folder, [str(path.resolve().with_suffix("")) for path in files], mark)
        try:
            write_json(out / MANIFEST, asdict(made))
        except OSError as error:
            raise TokensError(f"{out} cannot be written: {error.strerror}") from None
    return made


def _read(folder: Path, prefixes: list[str], mark: TokenizerMark) -> Manifest:
    read = [_adopted(prefix, mark.vocabulary) for prefix in prefixes]
    dtypes = {dtype for dtype, _ in read}
    if len(dtypes) > 1:
        raise TokensError(
            f"the files in {folder} hold tokens of several types ({', '.join(sorted(dtypes))}): give one kind"
        )
    shards = tuple(shard for _, shard in read if shard.documents)
    if not shards:
        raise TokensError(f"{folder} holds no document: there is nothing to train on")
    return Manifest(
        dtype=dtypes.pop(),
        tokenizer=mark,
        text_field="",
        shards=shards,
        sources=sources.marks([f"{prefix}{ending}" for prefix in prefixes for ending in (".bin", ".idx")]),
    )


def _adopted(prefix: str, vocabulary: int) -> tuple[str, Shard]:
    try:
        with open(f"{prefix}.idx", "rb") as file:
            index = index_header(file.read(HEADER.size), f"{prefix}.idx")
        idx_bytes, bin_bytes = (os.stat(f"{prefix}{ending}").st_size for ending in (".idx", ".bin"))
        if idx_bytes < index.bytes:
            raise TokensError(f"{prefix}.idx is torn: it has {idx_bytes} bytes of {index.bytes}")
        tokens = _check_index(f"{prefix}.idx", index)
        if bin_bytes != tokens * numpy.dtype(index.dtype).itemsize:
            raise TokensError(f"{prefix}.bin does not fit its index: it has {bin_bytes} bytes for {tokens} tokens")
        sha256 = _check_tokens(f"{prefix}.bin", index.dtype, vocabulary)
        idx_sha256, _ = _hashed(f"{prefix}.idx")
    except OSError as error:
        raise TokensError(f"{error.filename or prefix} cannot be read: {error.strerror}") from None
    shard = Shard(
        path=prefix,
        documents=index.documents,
        tokens=tokens,
        bin_bytes=bin_bytes,
        idx_bytes=idx_bytes,
        bin_sha256=sha256,
        idx_sha256=idx_sha256,
    )
    return index.dtype, shard


def _check_index(path: str, index: Index) -> int:
    """Returns the tokens of an index. Raises TokensError if its parts do not fit each other."""
    size = numpy.dtype(index.dtype).itemsize
    lengths = numpy.memmap(path, "<i4", "r", HEADER.size, (index.sequences,)) if index.sequences else numpy.zeros(0)
    offsets = numpy.memmap(path, "<i8", "r", index.offsets_at, (index.sequences,)) if index.sequences else lengths
    starts = numpy.memmap(path, "<i8", "r", index.starts_at, (index.documents + 1,))
    total, step = 0, BLOCK // 8
    for at in range(0, index.sequences, step):
        some = lengths[at : at + step].astype(numpy.int64)
        ends = total + numpy.cumsum(some)
        if (some < 1).any():
            raise TokensError(f"{path} has an empty sequence: write it without")
        if ((ends - some) * size != offsets[at : at + step]).any():
            raise TokensError(f"{path} is corrupt: its offsets are not those of its lengths")
        total = int(ends[-1])
    ordered = all((numpy.diff(starts[at : at + step + 1]) > 0).all() for at in range(0, index.documents, step))
    if not ordered or starts[0] != 0 or starts[-1] != index.sequences:
        raise TokensError(f"{path} is corrupt: its documents are not in order")
    return total


def _check_tokens(path: str, dtype: str, vocabulary: int) -> str:
    """Returns the hash of a .bin. Raises TokensError for a token that the vocabulary does not have."""
    hashed = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            hashed.update(block)
            tokens: Any = numpy.frombuffer(block, dtype)
            if (most := int(tokens.max())) >= vocabulary or int(tokens.min()) < 0:
                raise TokensError(
                    f"{path} has token {most}, and the tokenizer has {vocabulary}: give that of its files"
                )
    return hashed.hexdigest()
