"""Makes real failures inside a rank. A file in the run's folder orders one, and the rank does it at the right place of
its step.

A trainer for tests calls `Orders.due` at each such place. It does itself what needs its model, its peers or its
collectives (PLANT_NAN, FLIP_BIT, HOLD_HEAL, SKIP_COLLECTIVE, SLOW). An order holds for one generation, so the next one
is well; an order for EVERY one holds for all."""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

FOR_EVER_S = 3600
HOG_BYTES = 1 << 30
ASIDE_S = 0.25
"""Some steps of a toy: the main thread can be anywhere by then."""

SEGFAULT, ABORT, EXIT, RAISE, HOG, WRITE = "segfault", "abort", "exit", "raise", "hog", "write"
HOLD_GIL, LOOP, BLOCK_DATA, BLOCK_CHECKPOINT = "hold_gil", "loop", "block_data", "block_checkpoint"
SKIP_COLLECTIVE, PLANT_NAN, SLOW, FLIP_BIT = "skip_collective", "plant_nan", "slow", "flip_bit"
RAISE_DATA, HOLD_HEAL, HOLD_GIL_ASIDE = "raise_data", "hold_heal", "hold_gil_aside"

EXIT_CODE = 7

EVERY = -1
"""The generation of an order that holds for all, until it is withdrawn."""


class Bug(Exception):
    """Stands for a program's own error."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """A failure that a rank is ordered to suffer.

    `at_step`: the first step in which it may happen. `seconds`: how much longer each round of a step takes (SLOW), or how
    long a peer waits for the state that it heals from (HOLD_HEAL)."""

    cause: str
    at_step: int = 0
    seconds: float = 0.0


def order(run_dir: str | Path, group: int, generation: int, rank: int, wanted: Order) -> None:
    """Writes an order, which holds from now on."""
    path = _path(run_dir, group, generation, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.tmp")
    scratch.write_text(json.dumps(asdict(wanted)))
    scratch.replace(path)


def withdraw(run_dir: str | Path, group: int, generation: int, rank: int) -> None:
    """Withdraws an order. A rank that has begun it goes on with it; no other begins it."""
    _path(run_dir, group, generation, rank).unlink(missing_ok=True)


def done_at(run_dir: str | Path, group: int, generation: int, rank: int) -> float | None:
    """Returns when the rank began it, by this machine's monotonic clock; None if it has not."""
    try:
        return float(_mark(_path(run_dir, group, generation, rank)).read_text())
    except (OSError, ValueError):
        return None


def obeys(run_dir: str | Path, group: int, generation: int, rank: int) -> bool:
    """Returns true if that rank looks for orders."""
    return _ear(_path(run_dir, group, generation, rank)).exists()


class Orders:
    """The rank's side. Creating it announces that the rank looks for orders."""

    def __init__(self, run_dir: str | Path, group: int, generation: int, rank: int) -> None:
        self._path = _path(run_dir, group, generation, rank)
        self._of_every = _path(run_dir, group, EVERY, rank)
        self._begun: Order | None = None
        with suppress(OSError):  # a full disk: the rank then counts as one that does not look
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _ear(self._path).touch()

    def due(self, *causes: str, step: int) -> Order | None:
        """Returns the order if it is due now and one of these causes. Notes the moment, once."""
        wanted = self._begun or self._ordered()
        if wanted is None or wanted.cause not in causes or step < wanted.at_step:
            return None
        self._begun = wanted
        if not _mark(self._path).exists():
            scratch = self._path.with_name(f"{self._path.name}.at.tmp")
            scratch.write_text(repr(time.monotonic()))
            scratch.replace(_mark(self._path))
        return wanted

    def _ordered(self) -> Order | None:
        """Reads the order at each call until it is begun, for it may be withdrawn."""
        for path in (self._path, self._of_every):
            with suppress(OSError, ValueError):
                return Order(**json.loads(path.read_text()))
        return None


def suffer(wanted: Order, folder: Path) -> None:
    """Does it. `folder` is the rank's own, for a cause that blocks on a file there."""
    BY_ITSELF[wanted.cause](folder)


def _segfault(folder: Path) -> None:
    ctypes.string_at(0)


def _abort(folder: Path) -> None:
    os.abort()


def _exit(folder: Path) -> None:
    os._exit(EXIT_CODE)


def _raise(folder: Path) -> None:
    raise Bug("the shapes do not fit")


def _raise_data(folder: Path) -> None:
    raise Bug("the shard cannot be read")


def _hog(folder: Path) -> None:
    taken = bytearray(HOG_BYTES)
    page = os.sysconf("SC_PAGE_SIZE")
    for at in range(0, HOG_BYTES, page):
        taken[at] = 1
    print(f"no one minds {len(taken)} bytes", flush=True)


def _write(folder: Path) -> None:
    """Fails where the disk is full or read-only."""
    (folder / "written").write_bytes(b"\0" * 65536)


def _hold_gil(folder: Path) -> None:
    ctypes.PyDLL(None).sleep(FOR_EVER_S)  # C code that does not release the interpreter's lock


def _hold_gil_aside(folder: Path) -> None:
    def hold() -> None:
        time.sleep(ASIDE_S)
        _hold_gil(folder)

    threading.Thread(target=hold, daemon=True).start()


def _loop(folder: Path) -> None:
    while True:
        pass


def _block_reading(folder: Path) -> None:
    os.mkfifo(folder / "batches")
    (folder / "batches").read_bytes()  # no process ever writes there


def _block_writing(folder: Path) -> None:
    os.mkfifo(folder / "checkpoint.pipe")
    with open(os.open(folder / "checkpoint.pipe", os.O_RDWR), "wb", buffering=0) as pipe:
        while True:
            pipe.write(b"\0" * 65536)  # no process ever reads there: it blocks when the pipe is full


BY_ITSELF: Mapping[str, Callable[[Path], None]] = {
    SEGFAULT: _segfault,
    ABORT: _abort,
    EXIT: _exit,
    RAISE: _raise,
    RAISE_DATA: _raise_data,
    HOG: _hog,
    WRITE: _write,
    HOLD_GIL: _hold_gil,
    HOLD_GIL_ASIDE: _hold_gil_aside,
    LOOP: _loop,
    BLOCK_DATA: _block_reading,
    BLOCK_CHECKPOINT: _block_writing,
}


def _path(run_dir: str | Path, group: int, generation: int, rank: int) -> Path:
    return Path(run_dir) / "faults" / f"{group}.{generation}.{rank}"


def _ear(path: Path) -> Path:
    return path.with_name(f"{path.name}.obeys")


def _mark(path: Path) -> Path:
    return path.with_name(f"{path.name}.at")
