"""`progress.json`: this rank's report on itself, written whole at every change."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from supervisor.wire.records import Progress, TrainerLaunch, encode
from titan_actor.seconds import Seconds

log = logging.getLogger(__name__)


class Report:
    """The newest Progress of this rank. Safe to update from any thread."""

    def __init__(self, launch: TrainerLaunch) -> None:
        self._target = Path(launch.rank_dir) / "progress.json"
        self._scratch = self._target.with_suffix(".tmp")
        # re-entrant: the SIGTERM handler runs in the main thread, wherever that is
        self._lock = threading.RLock()
        self._full = False
        self._progress = Progress(
            run=launch.run,
            group=launch.group,
            generation=launch.generation,
            rank=launch.rank,
            pid=os.getpid(),
            sequence=0,
            phase="starting",
        )

    @property
    def progress(self) -> Progress:
        """The newest record."""
        return self._progress

    def update(self, **changes: Any) -> None:
        """Changes fields, increments the sequence and writes the file. A full disk is logged once and survived."""
        with self._lock:
            sequence = self._progress.sequence + 1
            self._progress = dataclasses.replace(self._progress, sequence=sequence, **changes)
            try:
                self._scratch.write_bytes(encode(self._progress))
                os.replace(self._scratch, self._target)
                self._full = False
            except OSError as error:
                if not self._full:
                    log.warning("progress.json is not written: %s", error)
                self._full = True

    def attempt(
        self,
        took_s: float,
        spent: Seconds,
        *,
        committed: bool,
        loss: float | None,
        healed: bool,
        **more: Any,
    ) -> None:
        """Reports an attempt at a step that took so long, and where its seconds went. `more`: further fields."""
        now, parts = self._progress, spent.total()
        self.update(
            commits=now.commits + committed,
            stepped_unix_s=round(time.time(), 1) if committed else now.stepped_unix_s,
            failed_commits=now.failed_commits + (not committed),
            loss=now.loss if loss is None else loss,
            step_s=took_s,
            compute_s=max(0.0, took_s - sum(parts.values()) - spent.take_waited()),
            data_s=parts["data"],
            healed=now.healed or healed,
            **more,
        )

    def phase(self, phase: str) -> None:
        """Changes the phase, and writes only when it did change."""
        if self._progress.phase != phase:
            self.update(phase=phase)
