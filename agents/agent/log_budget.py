"""Keeps the logs of a node within a size."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from agents.agent.launch import OUTPUT
from supervisor.wire import rotated
from supervisor.wire.aside import Aside

OF_THE_NODE = ("shim.log", "agent.log", "warm.log")


class Logs:
    """The logs of the shim, the agent and the warm process, and of each rank, gate and lighthouse that runs here."""

    def __init__(self, folder: Path) -> None:
        self._own = [folder / name for name in OF_THE_NODE]
        self._aside = Aside("logs")
        self._next = 0.0

    def look(self, folders: Iterable[str], now: float) -> None:
        """Shortens the logs every `rotated.EVERY_S`. `folders`: of the processes. A stalled disk holds only a
        thread."""
        if now < self._next or self._aside.left:
            return
        self._next = now + rotated.EVERY_S
        self._aside.ask(partial(rotated.keep_small, [*self._own, *(Path(folder) / OUTPUT for folder in folders)]))
