"""`steps.jsonl`: where every second of this process went.

Lines with `"overlaps": false` follow each other without a gap: each starts where the one before ended, from the birth
of the process on, so a ledger of lost time can be summed from them. Lines with `"overlaps": true` say more about a
time that other lines cover (a heal inside a step, a checkpoint written in the background).
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


def born_unix_s() -> float:
    """When the kernel started (or forked) this process, to 10 ms, on this machine's wall clock."""
    stat = Path("/proc/self/stat").read_text(encoding="ascii")
    ticks = int(stat.rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return time.time() - (uptime - ticks / os.sysconf("SC_CLK_TCK"))


class Ledger:
    """Appends lines to `steps.jsonl`; a full disk costs lines, never the training."""

    def __init__(self, path: str | Path, born: float, **every: Any) -> None:
        self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115  (open as long as the process lives)
        self._every = every
        self._last = born
        # re-entrant: the SIGTERM handler runs in the main thread, wherever that is
        self._lock = threading.RLock()
        self._full = False

    def event(self, kind: str, **fields: Any) -> float:
        """A line from the end of the last one to now; returns its length in seconds."""
        with self._lock:
            start, now = self._last, time.time()
            self._last = now
        self._write({"event": kind, "start": start, "t": now, "overlaps": False, **fields})
        return now - start

    def step(self, seconds: dict[str, float], **fields: Any) -> float:
        """The line of a step attempt; `compute` of its seconds is what the other parts leave."""
        with self._lock:
            start, now = self._last, time.time()
            self._last = now
        rest = max(0.0, now - start - sum(seconds.values()))
        shares = {name: round(value, 6) for name, value in {**seconds, "compute": rest}.items()}
        self._write({"event": "step", "start": start, "t": now, "overlaps": False, **fields, "seconds": shares})
        return now - start

    def note(self, kind: str, start: float | None = None, **fields: Any) -> None:
        """A line about a time that other lines cover: from `start` (or now) to now."""
        now = time.time()
        self._write({"event": kind, "start": now if start is None else start, "t": now, "overlaps": True, **fields})

    def close(self) -> None:
        """Close the file; later lines are dropped."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps({**line, **self._every}) + "\n")
            self._full = False
        except (OSError, ValueError) as error:
            if not self._full:
                log.warning("steps.jsonl misses lines: %s", error)
            self._full = True


def write_error_file(folder: str | Path, error: BaseException, callstack: str) -> None:
    """`error.json` as torchelastic writes it, so that readers of both understand it."""
    body = {
        "message": {
            "message": f"{type(error).__name__}: {error}",
            "extraInfo": {"py_callstack": callstack, "timestamp": str(int(time.time()))},
        }
    }
    target = Path(folder) / "error.json"
    scratch = target.with_suffix(".tmp")
    scratch.write_text(json.dumps(body), encoding="utf-8")
    os.replace(scratch, target)
