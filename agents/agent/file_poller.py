"""The agent's looks at the files of what runs on its node. It waits a second, once, for a file system that stalls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from agents.agent.node_view import Seen, View
from agents.health.facts.files import DEADLINE_S
from supervisor.wire.aside import Aside
from supervisor.wire.records import Fact

ANSWERS_WITHIN_S = 1.0
"""Seconds after which a turn of the agent goes on without its node's files."""

GATE_FROZEN_S = 3.0
"""Seconds. A gate touches its file every second: one that does not is stopped or hangs, and never serves again."""


class Looks:
    """Looks at the files one look at a time, in the thread of `files`."""

    def __init__(self, view: View, files: Aside, folder: Path) -> None:
        self._view, self._files, self._folder = view, files, folder
        self._looking: asyncio.Future[Seen] | None = None
        self._stalled_at: float | None = None

    @property
    def stalled(self) -> bool:
        """True while the last look is not over yet."""
        return self._stalled_at is not None

    async def look(self, now: float) -> list[str] | None:
        """Returns the ranks with new progress, as `View.poll` does; None: the files do not answer."""
        if self._looking is None:
            self._looking = asyncio.wrap_future(self._files.ask(self._view.look(now)))
        await asyncio.wait({self._looking}, timeout=0.0 if self.stalled else ANSWERS_WITHIN_S)
        if not self._looking.done():
            self._stalled_at = now if self._stalled_at is None else self._stalled_at
            self._view.unseen()
            return None
        seen, self._looking, self._stalled_at = self._looking.result(), None, None
        return self._view.take(seen)

    def facts(self, now: float) -> tuple[Fact, ...]:
        """Returns a fact that the ranks here cannot be seen, once a busy disk no longer explains it."""
        if self._stalled_at is None or now - self._stalled_at < DEADLINE_S or not self._view.running():
            return ()
        sentence = f"cannot see what the ranks here do: {self._folder} does not answer"
        return (Fact(kind="ranks_unseen", subject=str(self._folder), evidence=sentence),)


class FrozenGates:
    """Finds gates that do not touch their file though their disk takes a touch. A disk that takes none (it stalls, is
    frozen for a snapshot, or is read-only) may still be readable. It proves nothing about a gate, which does not wait
    for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._aside = Aside("touch")
        self._touch: Future[None] | None = None
        self._touched_at: float | None = None

    def look(self, still: Mapping[str, float], awake: float) -> dict[str, float]:
        """Returns the frozen gates, each with its seconds of standing still. `still`: from `View.still_gates`."""
        if not any(still_s > GATE_FROZEN_S / 2 for still_s in still.values()):
            self._touched_at = None
            self._touch = self._touch if self._touch is not None and not self._touch.done() else None
            return {}
        if self._touch is None:
            self._touch = self._aside.ask(partial(os.utime, self._folder))
        if self._touched_at is None and self._touch.done() and self._touch.exception() is None:
            self._touched_at = awake
        if self._touched_at is None or awake - self._touched_at < GATE_FROZEN_S / 2:
            return {}  # a gate that had to wait for the disk may go on just now
        return {name: still_s for name, still_s in still.items() if still_s > GATE_FROZEN_S}
