"""`steps.jsonl`: where every second of this process went.

Lines with `"overlaps": false` follow each other without a gap. Each starts where the one before ended, from the birth
of the process on, so a ledger of lost time can be summed from them. Lines with `"overlaps": true` describe a time that
other lines cover (a heal inside a step, a checkpoint written in the background).
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from supervisor.core.goodput.causes import of_lines, totals

log = logging.getLogger(__name__)


def born_unix_s() -> float:
    """Returns when the kernel started (or forked) this process, to 10 ms, on this machine's wall clock."""
    stat = Path("/proc/self/stat").read_text(encoding="ascii")
    ticks = int(stat.rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return time.time() - (uptime - ticks / os.sysconf("SC_CLK_TCK"))


KEPT_BYTES = 16 << 20
"""Most bytes of lines that wait for room on the disk: some 20,000 steps of a rank. Later lines are lost."""


class Ledger:
    """Appends lines to `steps.jsonl`. A line without room is written with a later one; it never stops the training."""

    def __init__(self, path: str | Path, born: float, **every: Any) -> None:
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._unwritten = b""
        """Lines not written yet; the first may be a part."""
        self._every = every
        self._last = born
        # re-entrant: the SIGTERM handler runs in the main thread, wherever that is
        self._lock = threading.RLock()
        self._full = False
        self.seconds: dict[str, float] = {}
        """Seconds of this process so far, by cause. Repeated steps, committed before, are not separated."""

    def event(self, kind: str, **fields: Any) -> float:
        """Writes a line from the end of the last one to now; returns its length in seconds."""
        with self._lock:
            start, now = self._last, time.time()
            self._last = now
        self._account({"event": kind, "start": start, "t": now, "overlaps": False, **fields})
        return now - start

    def step(self, seconds: dict[str, float], **fields: Any) -> float:
        """Writes the line of a step attempt; returns its length in seconds. `compute` is what the other parts leave."""
        with self._lock:
            start, now = self._last, time.time()
            self._last = now
        rest = max(0.0, now - start - sum(seconds.values()))
        shares = {name: round(value, 6) for name, value in {**seconds, "compute": rest}.items()}
        self._account({"event": "step", "start": start, "t": now, "overlaps": False, **fields, "seconds": shares})
        return now - start

    def note(self, kind: str, start: float | None = None, **fields: Any) -> None:
        """Writes a line about a time that other lines cover: from `start` (or now) to now."""
        now = time.time()
        self._write({"event": kind, "start": now if start is None else start, "t": now, "overlaps": True, **fields})

    def close(self) -> None:
        """Closes the file; later lines are dropped."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
            self._file = None

    def _account(self, line: dict[str, Any]) -> None:
        found = totals(of_lines([line]))
        with self._lock:
            self.seconds = self.seconds | {c: round(self.seconds.get(c, 0.0) + s, 3) for c, s in found.items()}
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            if self._file is None:
                return
            if len(self._unwritten) < KEPT_BYTES:
                self._unwritten += json.dumps({**line, **self._every}).encode() + b"\n"
            try:
                while self._unwritten:
                    written = os.write(self._file, self._unwritten)  # only a part on an almost full disk
                    self._unwritten = self._unwritten[written:]
                self._full = False
            except OSError as error:
                if not self._full:
                    log.warning("steps.jsonl waits for free space: %s", error)
                self._full = True


def told(error: BaseException) -> str:
    """Returns an error's text with its root cause, the first error that it was raised from."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    text, cause = (f"{type(one).__name__}: {one}" for one in (error, first))
    return text if first is error or str(first) in text else f"{text} (caused by {cause})"


def write_error_file(folder: str | Path, error: BaseException, callstack: str) -> None:
    """Writes `error.json` as torchelastic does, so that readers of both understand it."""
    body = {
        "message": {
            "message": told(error),
            "extraInfo": {"py_callstack": callstack, "timestamp": str(int(time.time()))},
        }
    }
    target = Path(folder) / "error.json"
    scratch = target.with_suffix(".tmp")
    scratch.write_text(json.dumps(body), encoding="utf-8")
    os.replace(scratch, target)
