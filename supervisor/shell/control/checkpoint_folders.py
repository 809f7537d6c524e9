"""Lists the runs' checkpoint folders, each in its own thread, so that a hanging file system delays no decision."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import Checkpoint, DiskView
from supervisor.wire import checkpoints, logged
from supervisor.wire.aside import Aside

log = logging.getLogger(__name__)

ANSWERS_WITHIN_S = 10.0
"""Seconds after which a listing counts as hung, and no start waits for it any more."""

SHOWN = 8
"""Most checkpoints (the newest) and other entries (the first by name) that a decision gets."""


class Lister(Protocol):
    """The listing that the loop needs; the simulator has its own."""

    def look(self, run: str, run_dir: str, groups: Mapping[int, GroupMemory], now: float) -> DiskView | None: ...

    def forget(self, run: str) -> None:
        """Forgets a run that was removed: the next one of its name has a folder of its own."""


@dataclass
class _Folder:
    """The checkpoint folder of one run."""

    newest: DiskView = DiskView(at=-1.0)
    began: float = 0.0
    """Run clock when the pending or last listing began."""
    asked: Future[DiskView] | None = None


@dataclass
class Folders:
    """Implements Lister. `read` lists one folder."""

    read: Callable[[str], DiskView] = field(default_factory=lambda: read)
    _known: dict[str, _Folder] = field(default_factory=dict)

    def look(self, run: str, run_dir: str, groups: Mapping[int, GroupMemory], now: float) -> DiskView:
        """Returns the newest listing of a run's folder. Begins another in a new term, and when a group that may have to
        start from it began to wait after the last one. `now`: the run clock, in seconds."""
        known = self._known.setdefault(run, _Folder())
        if known.asked is not None and known.asked.done():
            known.newest, known.asked = replace(known.asked.result(), at=known.began), None
            for sentence in known.newest.others:
                log.info("%s: in the folder of checkpoints: %s", run, sentence, extra=logged.about(run=run))
        waiting = [g.since for g in groups.values() if g.phase in ("unplaced", "fencing", "placing")]
        if known.asked is None and known.newest.at < max(waiting, default=0.0):
            aside = Aside("checkpoints")
            known.began, known.asked = now, aside.ask(lambda: self.read(run_dir))
            aside.end(within_s=0.0)
        if known.asked is not None and now - known.began >= ANSWERS_WITHIN_S:
            return DiskView(at=now, unseen=f"{checkpoints.folder_of(run_dir)} does not answer")
        return known.newest

    def forget(self, run: str) -> None:
        """Implements Lister."""
        self._known.pop(run, None)


def read(run_dir: str) -> DiskView:
    """Lists a run's checkpoint folder; leaves `at` open."""
    folder = checkpoints.folder_of(run_dir)
    try:
        others = tuple(checkpoints.others(run_dir))
    except OSError as error:
        why = f"{folder} cannot be listed on {socket.gethostname()}: {error.strerror}"
        return DiskView(at=-1.0, unseen=why)
    more = (f"{len(others) - SHOWN} more",) if len(others) > SHOWN else ()
    marks = [mark for _, _, mark in checkpoints.listed(run_dir) if mark is not None][:SHOWN]
    return DiskView(
        at=-1.0,
        complete=tuple(Checkpoint(mark.step, mark.path, mark.group, mark.generation) for mark in marks),
        others=(*others[:SHOWN], *more),
    )
