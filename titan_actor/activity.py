"""Records what this rank is doing now, for its node's agent: see supervisor.wire.activity."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supervisor.wire import activity as wire

log = logging.getLogger(__name__)


class ActivityFile:
    """The file of the current activity. For the main thread, or one that it waits for. On a disk without room the agent
    sees less, and training goes on."""

    def __init__(self, folder: str | Path) -> None:
        self._changes = 0
        self._now: wire.Activity = "other"
        self._map: mmap.mmap | None = None
        path = Path(folder) / wire.FILE
        try:
            path.write_bytes(wire.LAYOUT.pack(0, 0))
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), wire.LAYOUT.size)
        except OSError as error:
            log.warning("%s cannot be written (%s): only its steps show a hang of this rank", path, error)

    @contextmanager
    def during(self, name: wire.Activity) -> Iterator[None]:
        """Sets the activity inside the block, and restores the one before afterwards."""
        before = self._now
        self.set(name)
        try:
            yield
        finally:
            self.set(before)

    def set(self, name: wire.Activity) -> None:
        """Sets the activity from now on."""
        self._now = name
        self._changes += 1
        if self._map is not None:
            wire.LAYOUT.pack_into(self._map, 0, self._changes, wire.NAMES.index(name))
