"""Follows a rank's `progress.json`: looked at often, and read only when it has changed."""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path

from supervisor.wire.records import Progress, RecordError, decode


class ProgressFile:
    """The newest progress of one rank, and since when its step has not moved by our own clock."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / "progress.json"
        self._seen: tuple[int, int] | None = None
        self.newest: Progress | None = None
        self.problem = ""
        self._moved_at: float | None = None

    def poll(self, now: float) -> bool:
        """Looks again; true when there is something new. A file that cannot be read keeps the last good one."""
        try:
            stat = os.stat(self._path)
        except OSError:
            return False
        seen = (stat.st_ino, stat.st_mtime_ns)
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            progress = decode(self._path.read_bytes(), Progress)
        except (OSError, RecordError) as error:
            self.problem = f"{self._path} cannot be read: {error}"
            return False
        self.problem = ""
        if self.newest is not None and progress.sequence <= self.newest.sequence:
            return False
        if self.newest is None or progress.step != self.newest.step:
            self._moved_at = now
        self.newest = progress
        return True

    def newer_than(self, other: ProgressFile) -> bool:
        """Returns true if the record read here is the later one."""
        return self.newest is not None and (other.newest is None or other.newest.sequence < self.newest.sequence)

    def stuck_s(self, now: float) -> float:
        """Returns for how many seconds the step has not moved; 0 before there is any progress."""
        return now - self._moved_at if self._moved_at is not None else 0.0


def milestones(progress: Progress | None) -> Hashable:
    """Returns the parts of a progress record that are worth a report at once; the rest can wait."""
    if progress is None:
        return None
    # the phases of a step come and go many times a second
    phase = progress.phase if progress.phase in ("starting", "built", "draining", "finished", "failed") else "stepping"
    return (
        phase,
        progress.commits > 0,
        progress.checkpoint,
        progress.digest,
        progress.replica_id,
        progress.participants,
        progress.quorum_id,
        progress.error,
    )
