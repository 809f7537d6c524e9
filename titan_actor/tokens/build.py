"""Builds a token store: one process for each core, each of which makes one shard after another.

A shard's record is written once its files are on disk. The same command goes on where another ended. The manifest
comes last.
"""

from __future__ import annotations

import concurrent.futures as futures
import ctypes
import errno
import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy
from pydantic import TypeAdapter

from titan_actor.tokens import sources
from titan_actor.tokens.format import LONGEST, MANIFEST, Manifest, Shard, TokensError, dtype_for, index_of, write_json
from titan_actor.tokens.sources import Chunk, Corpus, Reading
from titan_actor.tokens.tokenizer import Encoder

BATCH = 1 << 18
"""Characters that are tokenized in one call."""

BUILDING = "building"
"""Folder within the store, with the plan and a record for each shard that is done."""

PR_SET_PDEATHSIG = 1

_SHARD = TypeAdapter(Shard)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a build is."""

    done: float
    """Bytes of the sources."""
    total: int
    tokens: int
    """Those made by this process and its workers."""
    shards: int
    all_shards: int
    seconds: float
    resumed: float
    """Bytes of the sources whose shards were there at the start."""


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A shard to be made."""

    folder: str
    name: str
    chunk: Chunk
    number: int
    """Its place in the table of what is done."""


def build(
    corpus: Corpus,
    tokenizer: Path,
    out: Path,
    *,
    processes: int = 0,
    show: Callable[[Progress], None] = lambda progress: None,
) -> Manifest:
    """Builds a store in a folder, or goes on with it. Raises TokensError, and KeyboardInterrupt once all processes have
    ended."""
    mark = Encoder(tokenizer).mark
    read = sources.marks(sources.files(corpus))
    plan = {
        # bos and eos are not in tokenizer.json
        "tokenizer": f"{mark.sha256} {mark.bos} {mark.eos}",
        "text_field": corpus.text_field,
        "sources": sources.as_json(read),
    }
    with alone(out), _no_space(out):
        _begin(out, plan)
        jobs = [
            _Job(folder=str(out), name=f"shard-{number:05}", chunk=chunk, number=number)
            for number, chunk in enumerate(sources.chunks(read))
        ]
        shards = _shards(jobs, tokenizer, corpus.text_field, processes or cores(), show)
        for each in read:
            if sources.changed(each):
                raise TokensError(f"{each.path} has changed while it was read: remove {out}, and build it again")
        made = Manifest(
            dtype=dtype_for(mark.vocabulary),
            tokenizer=mark,
            text_field=corpus.text_field,
            shards=tuple(shard for shard in shards if shard.documents),
            sources=read,
        )
        for shard in shards:
            if not shard.documents:
                for ending in (".bin", ".idx"):
                    (out / f"{shard.path}{ending}").unlink()
        if not made.documents:
            shutil.rmtree(out / BUILDING)
            raise TokensError(f"{corpus.source} holds no text: there is nothing to train on")
        write_json(out / MANIFEST, asdict(made))
        shutil.rmtree(out / BUILDING)
    return made


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Makes the folder of a store, and keeps other builds out of it. Raises TokensError while one is there, and for a
    store that is finished."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise TokensError(f"{out} cannot be made: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise TokensError(f"another build is writing to {out}: wait for it, or give another --out") from None
    except OSError:
        pass  # a file system without locks
    try:
        if (out / MANIFEST).exists():
            raise TokensError(f"{out} holds a token store already: give another --out, or remove it")
        yield
    finally:
        os.close(handle)


@contextmanager
def _no_space(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TokensError(full(out)) from None
        raise TokensError(f"{error.filename or out}: {error.strerror or error}") from None


def full(out: Path) -> str:
    """Returns what to do about a disk that is full."""
    return f"no space is left for {out}: free some, and run the same command again"


def _begin(out: Path, plan: dict[str, str]) -> None:
    """Writes the plan, or compares it with that of an unfinished build."""
    _sweep(out)
    at = out / BUILDING / "plan.json"
    if not at.exists():
        refuse_full(out, but=BUILDING)
        at.parent.mkdir(exist_ok=True)
        write_json(at, plan)
        return
    before = json.loads(at.read_text(encoding="utf-8"))
    differ = {
        "tokenizer": "tokenizer, or its bos_token and eos_token have changed",
        "text_field": "text field",
        "sources": "source, or its files have changed",
    }
    for key, what in differ.items():
        if before.get(key) != plan[key]:
            raise TokensError(f"{out} holds an unfinished build of another {what}: give another --out, or remove it")


def refuse_full(out: Path, but: str = "") -> None:
    """Raises TokensError for a folder that holds something else than `but`."""
    if strange := [each.name for each in out.iterdir() if each.name != but]:
        raise TokensError(f"{out} is not empty ({min(strange)}): give another --out")


def _sweep(out: Path) -> None:
    """Removes what killed processes were writing."""
    for torn in out.glob(".shard-*"):
        torn.unlink()


def _shards(
    jobs: list[_Job], tokenizer: Path, text_field: str, processes: int, show: Callable[[Progress], None]
) -> list[Shard]:
    """Makes the shards that are not there yet, and returns all in order."""
    found = {job.number: _made(job) for job in jobs}
    left = [job for job in jobs if found[job.number] is None]
    weights = [sum(span.weight for span in job.chunk) for job in jobs]
    there = float(sum(weights[number] for number, shard in found.items() if shard is not None))
    spawn = multiprocessing.get_context("spawn")
    # for each shard the bytes that were read and the tokens that were written
    table = spawn.Array(ctypes.c_double, 2 * max(1, len(jobs)), lock=False)
    began = time.monotonic()

    def progress() -> Progress:
        return Progress(
            done=there + sum(table[0::2]),
            total=sum(weights),
            tokens=int(sum(table[1::2])),
            shards=sum(shard is not None for shard in found.values()),
            all_shards=len(jobs),
            seconds=time.monotonic() - began,
            resumed=there,
        )

    if left:
        arguments = (str(tokenizer), text_field, table)
        pool = futures.ProcessPoolExecutor(
            min(processes, len(left)), mp_context=spawn, initializer=_start, initargs=(os.getpid(), *arguments)
        )
        try:
            waiting = {pool.submit(_make, job): job for job in left}
            while waiting:
                done, _ = futures.wait(waiting, timeout=1.0, return_when=futures.FIRST_COMPLETED)
                for each in done:
                    found[waiting.pop(each).number] = each.result()
                show(progress())
        except futures.process.BrokenProcessPool:
            raise TokensError(
                "a process of the build was killed, perhaps for memory: run the same command again, with fewer --processes"
            ) from None
        finally:
            _end(pool)
            _sweep(Path(left[0].folder))
    show(progress())
    return [shard for _, shard in sorted(found.items()) if shard is not None]


def _end(pool: futures.ProcessPoolExecutor) -> None:
    """Ends the processes in the midst of their work: a shard is there or not."""
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(wait=True, cancel_futures=True)


def _made(job: _Job) -> Shard | None:
    """Returns a shard that was made before; None if it must be made."""
    folder = Path(job.folder)
    try:
        shard: Shard = _SHARD.validate_json((folder / BUILDING / f"{job.name}.json").read_bytes())
        sizes = [(folder / f"{job.name}{ending}").stat().st_size for ending in (".bin", ".idx")]
    except (OSError, ValueError):
        return None
    return shard if sizes == [shard.bin_bytes, shard.idx_bytes] else None


# --- in a process of the pool ---

_encoder: Encoder
_field: str
_table: Any


def _start(parent: int, tokenizer: str, text_field: str, table: Any) -> None:
    global _encoder, _field, _table
    # it ends with its parent, which alone hears of an interrupt
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != parent:
        os._exit(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process for each core is all there is
    _encoder, _field, _table = Encoder(Path(tokenizer)), text_field, table


def _make(job: _Job) -> Shard:
    folder = Path(job.folder)
    with _no_space(folder):
        reading = Reading(job.chunk, _field)

        def seen(tokens: int) -> None:
            _table[2 * job.number], _table[2 * job.number + 1] = reading.done, tokens

        shard = write_shard(folder, job.name, reading.pieces(), _encoder, seen)
        seen(shard.tokens)
        write_json(folder / BUILDING / f"{job.name}.json", asdict(shard))
    return shard


def write_shard(
    folder: Path, name: str, pieces: Iterator[tuple[str, bool]], encoder: Encoder, seen: Callable[[int], None]
) -> Shard:
    """Writes a shard of documents that come in pieces, on disk when it returns. `seen` is called with the tokens so far.
    Raises TokensError and OSError, and leaves nothing then."""
    scratch = {ending: folder / f".{name}{ending}.{os.getpid()}" for ending in (".bin", ".idx")}
    try:
        with open(scratch[".bin"], "wb") as file:
            writer = _Writer(file, encoder)
            for texts, lasts in _batches(pieces):
                writer.write(texts, lasts)
                seen(writer.tokens)
            _sync(file)
        index = index_of(writer.lengths, writer.dtype)
        with open(scratch[".idx"], "wb") as file:
            file.write(index)
            _sync(file)
        for ending, path in scratch.items():
            os.replace(path, folder / f"{name}{ending}")
    finally:
        for path in scratch.values():
            path.unlink(missing_ok=True)
    return Shard(
        path=name,
        documents=len(writer.lengths),
        tokens=writer.tokens,
        bin_bytes=writer.tokens * numpy.dtype(writer.dtype).itemsize,
        idx_bytes=len(index),
        bin_sha256=writer.sha256.hexdigest(),
        idx_sha256=hashlib.sha256(index).hexdigest(),
    )


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _batches(pieces: Iterator[tuple[str, bool]]) -> Iterator[tuple[list[str], list[bool]]]:
    """Gathers pieces into batches of at least BATCH characters."""
    texts: list[str] = []
    lasts: list[bool] = []
    characters = 0
    for text, last in pieces:
        texts.append(text)
        lasts.append(last)
        characters += len(text)
        if characters >= BATCH:
            yield texts, lasts
            texts, lasts, characters = [], [], 0
    if texts:
        yield texts, lasts


class _Writer:
    """The .bin of a shard."""

    def __init__(self, file: Any, encoder: Encoder) -> None:
        self._file, self._encoder = file, encoder
        self.dtype = dtype_for(encoder.mark.vocabulary)
        self.sha256 = hashlib.sha256()
        self.lengths = array("i")
        self.tokens = 0
        self._length = 0
        """Tokens of the document in the midst of which the last piece ended."""

    def write(self, texts: list[str], lasts: list[bool]) -> None:
        """Writes pieces; `lasts` is true for the last of a document."""
        bos, eos = self._encoder.bos, self._encoder.eos
        tokens: list[int] = []
        for found, last in zip(self._encoder.encode(texts), lasts, strict=True):
            before = len(tokens)
            if not self._length and bos is not None:
                tokens.append(bos)
            tokens += found
            if last and eos is not None:
                tokens.append(eos)
            self._length += len(tokens) - before
            if self._length > LONGEST:
                raise TokensError(f"a document has more than {LONGEST} tokens: split it")
            if last:
                self.lengths.append(self._length)
                self._length = 0
        raw = numpy.asarray(tokens, dtype=self.dtype).tobytes()
        self.sha256.update(raw)
        self._file.write(raw)
        self.tokens += len(tokens)
