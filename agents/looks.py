"""The agent's looks at the files of what runs on its node. A file system that stalls is waited for once, for a second."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agents.facts.files import DEADLINE_S
from agents.view import Seen, View
from supervisor.wire.aside import Aside
from supervisor.wire.records import Fact

ANSWERS_WITHIN_S = 1.0
"""A turn of the agent goes on without its node's files when they have not answered by then."""


class Looks:
    """One at a time, in the thread of `files`."""

    def __init__(self, view: View, files: Aside, folder: Path) -> None:
        self._view, self._files, self._folder = view, files, folder
        self._looking: asyncio.Future[Seen] | None = None
        self._stalled_at: float | None = None

    @property
    def stalled(self) -> bool:
        """Whether the last look is not over yet."""
        return self._stalled_at is not None

    async def look(self, now: float) -> list[str] | None:
        """As `View.poll`; None: the files do not answer, and what ranks do is not seen."""
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
        """That ranks which run here cannot be seen, once that is no matter of a busy disk."""
        if self._stalled_at is None or now - self._stalled_at < DEADLINE_S or not self._view.running():
            return ()
        sentence = f"what the ranks here do is not seen: {self._folder} does not answer"
        return (Fact(kind="ranks_unseen", subject=str(self._folder), evidence=sentence),)
