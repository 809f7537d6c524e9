"""Reports how far a heal has come, and heals that fail in a row, and ends the rank after a few: TorchFT tries again in each quorum, forever, and no step
of the others is committed meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from supervisor.wire.records import HealFailed, Healing
from titan_actor import torchft_names
from titan_actor.peers import PeersGone
from titan_actor.report import Report

ERROR_CHARACTERS = 500

READ_S = 60.0
"""TorchFT's default; its own timeout is short where it is that of a collective."""

EVERY_S = 1.0
"""Seconds between two reports on a heal in progress; most take less."""

MOST = 3
"""Heals that may fail in a row: the first peer may have ended meanwhile, and the next one too."""


class Heals:
    """Reports a heal in progress, and the newest failure until a heal succeeds."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._times = 0
        self._since = 0.0
        self._from, self._began, self._came, self._reported = "", 0.0, 0, 0.0
        self.source, self.bytes = "", 0
        """Where the newest state came from, as host:port, and its size."""

    def watching(self, receive: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps TorchFT's call that fetches a peer's state, in whatever thread that runs."""

        def received(src_rank: int, metadata: str, *args: Any, **kwargs: Any) -> Any:
            began = self._began = self._reported = time.monotonic()
            self._from, self._came = _host(metadata), 0
            if "timeout" in kwargs:
                # of each read: the peer sends nothing until it has copied its state from its GPU
                kwargs["timeout"] = max(kwargs["timeout"], timedelta(seconds=READ_S))
            try:
                state = receive(src_rank, metadata, *args, **kwargs)
            except Exception as error:
                self._failed(metadata, error, began)
                raise
            finally:
                if self._report.progress.healing is not None:
                    self._report.update(healing=None)
            self.none_needed()
            self.source, self.bytes = _host(metadata), _bytes(state)
            return state

        return received

    def count(self) -> None:
        """Has TorchFT report what comes of a state."""
        torchft_names.count_heals(self._read)

    def _read(self, size: int) -> None:
        self._came += size
        now = time.monotonic()
        if now - self._reported >= EVERY_S:
            self._reported = now
            self._report.update(healing=Healing(source=self._from, bytes=self._came, for_s=round(now - self._began, 1)))

    def refuse_another(self) -> None:
        """Raises PeersGone if too many have failed in a row."""
        failed = self._report.progress.heal_failed
        if failed is not None and failed.times >= MOST:
            raise PeersGone(f"{failed.times} heals in a row have failed, the last from {failed.source}: {failed.error}")

    def none_needed(self) -> None:
        """Forgets those that have failed: one has succeeded, or a step was committed."""
        if self._times:
            self._times = 0
            self._report.update(heal_failed=None)

    def _failed(self, metadata: str, error: Exception, began: float) -> None:
        self._since = self._since if self._times else began
        self._times += 1
        self._report.update(
            heal_failed=HealFailed(
                source=_host(metadata),
                error=f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS],
                times=self._times,
                for_s=round(time.monotonic() - self._since, 1),
            )
        )


def _host(metadata: str) -> str:
    return urlsplit(metadata).netloc or metadata


def _bytes(state: Any) -> int:
    """Returns the size of all tensors in a state."""
    if isinstance(state, Mapping):
        return sum(map(_bytes, state.values()))
    if isinstance(state, list | tuple):
        return sum(map(_bytes, state))
    return int(getattr(state, "nbytes", 0))
