"""Measures the peak memory of everything that the demo started."""

from __future__ import annotations

import threading
from pathlib import Path


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
        import os

        own = os.getpid()
        while not self._stop.wait(self.PERIOD_S):
            self.bytes = max(self.bytes, sum(_pss(pid) for pid in _below(own)))


def _below(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [root], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _pss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
