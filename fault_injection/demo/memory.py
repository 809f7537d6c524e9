"""Measures the peak memory of everything that the demo started."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from fault_injection.faults.acts import tree


class Peak:
    """Samples the proportional set size of this process and all its descendants, the nodes' processes included, while
    entered. Shared pages (a warm process and its forks) count once."""

    PERIOD_S = 1.0

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self.PERIOD_S):
            self.bytes = max(self.bytes, sum(_pss(pid) for pid in tree(os.getpid())))


def _pss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
