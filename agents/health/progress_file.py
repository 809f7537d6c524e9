"""Follows a rank's `progress.json`: looked at often, and read only when it has changed.

A user's own command that reports no steps has none. There each growth of its output, or touch of its heartbeat file,
stands for a commit: it shows that the process lives, and no more (docs/OWN_SCRIPT.md).
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

from agents.agent.launch import HEARTBEAT_FILE, OUTPUT, read_launch
from supervisor.wire.records import Progress, RecordError, TrainerLaunch, decode

SECOND_NS = 10**9


class ProgressFile:
    """The newest progress of one rank, and since when its step has not moved by our own clock."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / "progress.json"
        self._seen: tuple[int, ...] | None = None
        self._launch: TrainerLaunch | None = None
        """Read for a rank without a progress record."""
        self.newest: Progress | None = None
        self.problem = ""
        self._moved_at: float | None = None

    def poll(self, now: float) -> bool:
        """Looks again; true when there is something new. A file that cannot be read keeps the last good one."""
        try:
            stat = os.stat(self._path)
        except OSError:
            return self._poll_output(now)
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

    @property
    def plain(self) -> bool:
        """True if it is the output that is followed."""
        return self._launch is not None and self._launch.trainer.plain

    def _poll_output(self, now: float) -> bool:
        self._launch = self._launch or read_launch(self._path.parent)
        if self._launch is None or not self.plain:
            return False
        marks: list[int] = []
        for name in (OUTPUT, HEARTBEAT_FILE):
            try:
                stat = os.stat(self._path.parent / name)
            except OSError:
                continue
            marks += (stat.st_mtime_ns, stat.st_size)
        if not marks or tuple(marks) == self._seen:
            return False
        self._seen, newest_ns, before = tuple(marks), max(marks[::2]), self.newest
        run = self._launch
        self.newest = Progress(
            run=run.run,
            group=run.group,
            generation=run.generation,
            rank=run.rank,
            pid=0,
            # the next agent, and the look at its last words, go on from the same files
            sequence=newest_ns if before is None else max(newest_ns, before.sequence + 1),
            phase="step",
            commits=1 if before is None else before.commits + 1,
            stepped_unix_s=round(newest_ns / 1e9, 1),
        )
        self._moved_at = now
        return True

    def ended(self, exit_code: int | None) -> None:
        """Notes that a command that reports no steps has ended: with exit code 0 it has finished."""
        if self.plain and exit_code == 0 and self.newest is not None:
            # above what another look has counted since: two changes may have one time stamp
            self.newest = replace(self.newest, phase="finished", sequence=self.newest.sequence + SECOND_NS)

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
        progress.debugging,
    )
