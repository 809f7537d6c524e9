"""Makes a memory cgroup of our own, under the version that this machine has."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agents.health import oom_kills
from fault_injection.testbed.unavailable import NotHere

UNIFIED_ROOT = Path("/sys/fs/cgroup")
EMPTY_WITHIN_S = 10.0


class MemoryCgroup:
    """A cgroup's folder. Every process in it must have ended before the block does."""

    def __init__(self, folder: Path, legacy: bool) -> None:
        self.folder = folder
        self._legacy = legacy

    def add(self, pid: int) -> None:
        """Moves a process here; those that it forks from now on are born here."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def used(self) -> int:
        """Returns the bytes in use."""
        return int((self.folder / ("memory.usage_in_bytes" if self._legacy else "memory.current")).read_text())

    def limit(self, size: int) -> None:
        """Limits the bytes of memory, without swap to fall back on."""
        (self.folder / ("memory.limit_in_bytes" if self._legacy else "memory.max")).write_text(str(size))
        swap = self.folder / ("memory.memsw.limit_in_bytes" if self._legacy else "memory.swap.max")
        if swap.exists():
            swap.write_text(str(size) if self._legacy else "0")

    def kills(self) -> int:
        """Returns the kills that the kernel has counted."""
        count = oom_kills.read_count(self.folder / (oom_kills.LEGACY if self._legacy else oom_kills.UNIFIED))
        assert count is not None
        return count


def _parent() -> tuple[Path, bool]:
    legacy = oom_kills.counter(oom_kills.cgroup_of(os.getpid()))
    if legacy is not None and legacy.name == oom_kills.LEGACY:
        return legacy.parent, True
    control = UNIFIED_ROOT / "cgroup.subtree_control"
    if not control.exists() or "memory" not in control.read_text().split():
        raise NotHere(
            "the kernel gives no memory controller here: neither a version 1 mount, nor in cgroup.subtree_control"
        )
    return UNIFIED_ROOT, False


@contextmanager
def memory_cgroup(name: str) -> Iterator[MemoryCgroup]:
    """Yields an empty one without a limit. Raises NotHere without a memory controller or the right to make a cgroup."""
    parent, legacy = _parent()
    folder = parent / f"supervisor-{os.getpid()}-{name}"
    try:
        folder.mkdir()
    except OSError as error:
        raise NotHere(f"no cgroup can be made in {parent}: {error.strerror}") from error
    try:
        yield MemoryCgroup(folder, legacy)
    finally:
        until = time.monotonic() + EMPTY_WITHIN_S
        while (folder / "cgroup.procs").read_text().split() and time.monotonic() < until:
            time.sleep(0.02)
        folder.rmdir()
