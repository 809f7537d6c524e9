"""Feeds browsers with one run: the newest snapshot, and the changes that led to it."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from supervisor.core.report.visible import visible
from supervisor.shell.web import merge

PATCHES = 30
"""Changes kept. A browser that is further behind gets the whole snapshot."""


class Feed:
    """Snapshots for browsers: one thread publishes, many wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0
        self._newest: Mapping[str, Any] = {}
        self._patches: deque[bytes] = deque(maxlen=PATCHES)
        self._whole: tuple[int, bytes] = (0, b"")
        self.readers = 0
        """Number of connected browsers; `Page` counts them."""

    def publish(self, snapshot: Mapping[str, Any]) -> None:
        """Publishes the newest snapshot, and sends the changes to those who wait."""
        change = merge.patch(self._newest, snapshot)
        event = _event("change", change)
        with self._changed:
            self._newest = snapshot
            self._version += 1
            self._patches.append(event)
            self._changed.notify_all()

    @property
    def newest(self) -> Mapping[str, Any]:
        """The snapshot published last; empty if there is none. Readers must not change it."""
        return self._newest

    def whole(self) -> bytes | None:
        """Returns the newest snapshot as JSON; None if there is none."""
        return self._dumped() if self._version else None

    def after(self, version: int, timeout_s: float) -> tuple[int, bytes]:
        """Returns the newest version and the events from `version` (0: nothing) to it; no bytes if nothing came."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > version, timeout_s)
            newest, behind = self._version, self._version - version
            if not behind:
                return newest, b""
            if version > 0 and behind <= len(self._patches):
                return newest, b"".join(list(self._patches)[-behind:])
            return newest, b"event: whole\ndata: " + self._dumped() + b"\n\n"

    def _dumped(self) -> bytes:
        with self._changed:
            if self._whole[0] != self._version:
                self._whole = (self._version, _json(self._newest))
            return self._whole[1]


def _event(name: str, body: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _json(body) + b"\n\n"


def _json(body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # JSON escapes control characters; what is left are marks that turn a line's direction, and halves of surrogate pairs
    return visible(text).encode()
