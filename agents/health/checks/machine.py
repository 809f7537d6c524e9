"""Checks of memory, the node's disk and the loopback interface. Each uses its part as training would and compares what
comes back. The best of a few tries counts: a busy machine is slow now and then, a broken one always."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from supervisor.wire.checks import CheckResult, floored

PATTERN = bytes(range(256)) * 4096
"""A mebibyte in which every byte differs from its neighbours."""

MEMORY_BYTES = 32 << 20
"""More than one processor core's own caches hold."""
MEMORY_TRIES = 5
MEMORY_FLOOR = 0.5
"""GB/s. One channel of DDR3-800, the slowest that a 64-bit server has had for 15 years, moves 6.4 GB/s (JESD79-3)."""

DISK_BYTES = 8 << 20
DISK_FLOOR = 1.0
"""MB/s. A node's own disk takes logs and records. A hard disk writes 100 MB/s and more sequentially; the floor is a
hundredth of that, for a disk that others keep busy."""
DISK_TRIES = 3

LOOPBACK_BYTES = 16 << 20
LOOPBACK_TRIES = 3
LOOPBACK_FLOOR = 10.0
"""MB/s. Trainers reach the lighthouse through loopback. The kernel only copies memory: hundreds on the slowest
machine."""
BLOCK = 1 << 16


def memory() -> CheckResult:
    """Copies within main memory, a mebibyte at a time, and compares the copies. The best try of each mebibyte counts,
    because copying all of it takes longer than a busy machine leaves a thread alone."""
    source, target = PATTERN * (MEMORY_BYTES // len(PATTERN)), bytearray(MEMORY_BYTES)
    reading, writing = memoryview(source), memoryview(target)  # slicing the bytes would copy the source once more

    def copy(at: int) -> None:
        writing[at : at + len(PATTERN)] = reading[at : at + len(PATTERN)]

    places = range(0, MEMORY_BYTES, len(PATTERN))
    tries = [[_timed(partial(copy, at)) for at in places] for _ in range(MEMORY_TRIES)]
    best = sum(map(min, zip(*tries, strict=True)))
    if target != source:
        return CheckResult(name="memory", outcome="failed", evidence="the copy differs from the original")
    return floored("memory", MEMORY_BYTES / best / 1e9, MEMORY_FLOOR, "GB/s", "copied")


def disk(folder: Path) -> CheckResult:
    """Writes, syncs and reads back an unlinked file, so that nothing is left behind whatever happens. Raises
    OSError."""
    rate = 0.0
    for _ in range(DISK_TRIES):
        path = folder / f".check-{os.getpid()}"
        handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
        try:
            path.unlink()
            took_s = _timed(lambda handle=handle: _write(handle))  # type: ignore[misc]
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)  # else the page cache would answer
            began = time.monotonic()
            if not _reads(handle):
                said = f"what is read from {folder} differs from what was written"
                return CheckResult(name="disk", outcome="failed", evidence=said)
            took_s = max(took_s, time.monotonic() - began)
        finally:
            os.close(handle)
        rate = max(rate, DISK_BYTES / took_s / 1e6)
        if rate >= DISK_FLOOR:
            break
    return floored("disk", rate, DISK_FLOOR, "MB/s", f"written and read in {folder}")


def _write(handle: int) -> None:
    for _ in range(DISK_BYTES // len(PATTERN)):
        left = memoryview(PATTERN)
        while left:
            left = left[os.write(handle, left) :]
    os.fsync(handle)


def _reads(handle: int) -> bool:
    os.lseek(handle, 0, os.SEEK_SET)
    with open(handle, "rb", closefd=False) as file:
        return all(file.read(len(PATTERN)) == PATTERN for _ in range(DISK_BYTES // len(PATTERN)))


def loopback() -> CheckResult:
    """Sends data through TCP on 127.0.0.1. Raises OSError."""
    rate = 0.0
    for _ in range(LOOPBACK_TRIES):
        took_s, left = _received()
        if left:
            return CheckResult(
                name="loopback", outcome="failed", evidence=f"{left} of {LOOPBACK_BYTES} bytes never came"
            )
        rate = max(rate, LOOPBACK_BYTES / took_s / 1e6)
        if rate >= LOOPBACK_FLOOR:
            break
    return floored("loopback", rate, LOOPBACK_FLOOR, "MB/s", "sent through 127.0.0.1")


def _received() -> tuple[float, int]:
    """Returns the seconds that the transfer took, and the number of bytes that never came."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_send_all, args=(server,), daemon=True)
        thread.start()
        with socket.create_connection(server.getsockname()) as reading:
            began, left = time.monotonic(), LOOPBACK_BYTES
            while left and (block := reading.recv(BLOCK)):
                left -= len(block)
            took_s = time.monotonic() - began
        thread.join()
    return took_s, left


def _send_all(server: socket.socket) -> None:
    writing, _ = server.accept()
    with writing:
        for _ in range(LOOPBACK_BYTES // BLOCK):
            writing.sendall(bytes(BLOCK))


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return max(time.monotonic() - began, 1e-9)
