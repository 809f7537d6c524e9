"""Probes disks and file systems by using them: `df` does not show what a write meets."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from supervisor.wire.records import Fact

DEADLINE_S = 10.0
"""Seconds until an answer is overdue. A local disk takes milliseconds, a busy shared file system 1 or 2 s."""
EVERY_S = 10.0
EVERY_SHARED_S = 10.0
"""Ten thousand nodes on one shared file system list a folder a thousand times a second, which one metadata server can
answer beside its work. A stall is reported DEADLINE_S after the next look, so before a step counts as a hang."""
BYTES = 4096
ROOM_BYTES = 1 << 20
"""A disk with less room is full for ranks that write. One block that fits proves nothing: removed files free some."""

_KINDS = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EROFS: "disk_read_only",
}


def takes_nothing(folder: Path) -> str:
    """Returns a sentence if the disk is full or read-only, else an empty text. It finds at once what a probe finds in a
    few seconds, as far as that is possible."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""
    if found.f_flag & os.ST_RDONLY:
        return _sentence(folder, errno.EROFS)
    no_names = found.f_files > 0 and found.f_favail == 0  # file systems without such a limit report 0 of 0
    free = found.f_bfree if os.geteuid() == 0 else found.f_bavail  # the reserve is for root only
    full = free * found.f_frsize < ROOM_BYTES or no_names
    return _sentence(folder, errno.ENOSPC) if full else ""


def _sentence(folder: Path, number: int | None) -> str:
    return f"{folder}: {os.strerror(number or errno.EIO)}"


def writes(folder: Path) -> None:
    """Writes, syncs and removes a block, with some room beside it. For a folder that is this node's alone."""
    path = folder / f".probe-{os.getpid()}"
    try:
        # "w+": without fallocate in the file system, libc writes into each block and reads there first
        with path.open("w+b") as file:
            file.write(b"\0" * BYTES)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
    finally:
        path.unlink(missing_ok=True)


def lists(folder: Path) -> None:
    """Reads the first entry of a folder. For a file system that many nodes share."""
    with os.scandir(folder) as entries:
        next(entries, None)


class Probe:
    """Uses a folder repeatedly in a thread of its own, so that a file system that hangs holds only that thread."""

    def __init__(
        self,
        folder: Path,
        use: Callable[[Path], None],
        every_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._use, self._every_s, self._monotonic = folder, use, every_s, monotonic
        self._began: float | None = None
        self._said: OSError | None = None
        self._thread: threading.Thread | None = None

    def read(self) -> Sequence[Fact]:
        """Returns at once: the error of the last use, or for how long the current one hangs."""
        now = self._monotonic()
        running = self._thread is not None and self._thread.is_alive()
        if self._began is not None and running and now - self._began > DEADLINE_S:
            told_s = DEADLINE_S  # doubled, so that the sentence changes now and then, not at every look
            while 2 * told_s < now - self._began:
                told_s *= 2
            sentence = f"{self._folder} has not answered for over {told_s:g} s"
            return (Fact(kind="file_system_stalled", subject=str(self._folder), evidence=sentence),)
        if not running and (self._began is None or now - self._began >= self._every_s):
            self._began = now
            self._thread = threading.Thread(target=self._once, name="probe", daemon=True)
            self._thread.start()
        error = self._said
        if error is None:
            return ()
        kind = _KINDS.get(error.errno or 0, "file_system_error")
        return (Fact(kind=kind, subject=str(self._folder), evidence=_sentence(self._folder, error.errno)),)

    def _once(self) -> None:
        try:
            self._use(self._folder)
            self._said = None
        except FileNotFoundError:
            self._said = None  # a person removed the run's folder: no fault of the disk
        except OSError as error:
            self._said = error


class SharedFolders:
    """Probes the run folders that this node uses now."""

    def __init__(self) -> None:
        self._probes: dict[str, Probe] = {}

    def use(self, folders: set[str]) -> None:
        """Sets the folders to probe; others are dropped. From any thread."""
        kept = {folder: probe for folder, probe in self._probes.items() if folder in folders}
        self._probes = kept | {folder: Probe(Path(folder), lists, EVERY_SHARED_S) for folder in folders - kept.keys()}

    def read(self) -> Sequence[Fact]:
        return [fact for probe in list(self._probes.values()) for fact in probe.read()]
