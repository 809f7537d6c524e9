"""Stores for tests, of documents that are given as lists of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy

from titan_actor.tokens.format import MANIFEST, Manifest, Shard, Source, TokenizerMark, index_of, write_json

MARK = TokenizerMark(sha256="00", vocabulary=500, bos=None, eos=2, path="/t")


def written(folder: Path, shards: Sequence[Sequence[Sequence[int]]], dtype: str = "<u2") -> Path:
    """Writes a store of these shards of documents; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number, documents in enumerate(shards):
        tokens = numpy.array([token for document in documents for token in document], dtype=dtype).tobytes()
        index = index_of([len(document) for document in documents], dtype)
        (folder / f"s{number}.bin").write_bytes(tokens)
        (folder / f"s{number}.idx").write_bytes(index)
        made.append(
            Shard(
                path=f"s{number}",
                documents=len(documents),
                tokens=sum(map(len, documents)),
                bin_bytes=len(tokens),
                idx_bytes=len(index),
                bin_sha256=hashlib.sha256(tokens).hexdigest(),
                idx_sha256=hashlib.sha256(index).hexdigest(),
            )
        )
    source = (Source(path="/corpus/a.jsonl", bytes=100, mtime_ns=0),)
    made_of = Manifest(dtype=dtype, tokenizer=MARK, text_field="text", shards=tuple(made), sources=source)
    write_json(folder / MANIFEST, asdict(made_of))
    return folder
