"""What browsers are told of one run: the newest snapshot, and the changes that led to it."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from supervisor.shell.page import merge

PATCHES = 30
"""A browser that is further behind is told the whole again."""


class Feed:
    """One thread publishes, many wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0
        self._newest: Mapping[str, Any] = {}
        self._patches: deque[bytes] = deque(maxlen=PATCHES)
        self._whole: tuple[int, bytes] = (0, b"")
        self.readers = 0
        """Browsers that are there now; `Page` counts them."""

    def publish(self, snapshot: Mapping[str, Any]) -> None:
        """The newest; whoever waits is told what changed."""
        change = merge.patch(self._newest, snapshot)
        event = _event("change", change)
        with self._changed:
            self._newest = snapshot
            self._version += 1
            self._patches.append(event)
            self._changed.notify_all()

    @property
    def newest(self) -> Mapping[str, Any]:
        """What was told last; empty: nothing yet. Not to be changed by who reads it."""
        return self._newest

    def whole(self) -> bytes | None:
        """The newest snapshot as JSON; None: there is none yet."""
        return self._dumped() if self._version else None

    def after(self, version: int, timeout_s: float) -> tuple[int, bytes]:
        """(newest version, the events that lead to it from `version`; 0: from nothing). No bytes: nothing came within the time."""
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
    return text.encode(errors="replace")  # half of a surrogate pair, as in the name of a file
