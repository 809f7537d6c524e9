"""Fetches the versions of the code that are wanted here, and offers them to later leaders, in a thread of its own
(ADR 24)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.core.model.code import SHOWN, CodeVersion
from supervisor.wire.code import BadManifest
from supervisor.wire.code_client import CodeClient, StoreError
from supervisor.wire.code_tree import Tree, Trees
from supervisor.wire.records import NodeDesired
from supervisor.wire.security import Security, SecurityError

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Seconds until a fetch that failed is tried again; they double."""


class NotHere(OSError):
    """A version that a start needs is not here (any more); the start is tried again."""


@dataclass(frozen=True)
class Here:
    """Versions of the code that are wanted and lie here."""

    versions: tuple[str, ...] = ()
    error: str = ""
    """As NodeObserved.code_error."""


class Codes:
    """The trees of one node."""

    def __init__(self, folder: Path, credentials: Callable[[], Security], changed: Callable[[Here], None]) -> None:
        """`changed` gets what lies here, from this thread, whenever that has changed."""
        self._trees = Trees(folder)
        self._credentials, self._changed = credentials, changed
        self._some = threading.Condition()
        self._wanted: dict[str, str] = {}
        """Version -> URL of the leader's listener."""
        self._stop = False
        self._news = False
        self._told = Here()
        self._at_leader: dict[str, str] = {}
        """Version -> URL of the leader's listener that is known to have it, or got it from here."""
        self._not_taken = ""
        self._pause_s = FIRST_PAUSE_S

    def start(self) -> None:
        threading.Thread(target=self._run, name="codes", daemon=True).start()

    def stop(self) -> None:
        with self._some:
            self._stop = True
            self._some.notify()

    def want(self, by_run: Mapping[str, NodeDesired]) -> None:
        """Takes what is desired here: the code of the next start, and that of each generation."""
        wanted: dict[str, str] = {}
        for node in by_run.values():
            for code in (node.code, *(trainer.code for trainer in node.trainers)):
                if code is not None:
                    wanted[code.version] = node.code_from or wanted.get(code.version, "")
        with self._some:
            if wanted != self._wanted:
                self._wanted, self._news = wanted, True
                self._some.notify()

    def tree(self, code: CodeVersion | None) -> Tree | None:
        """Returns where a version lies; None for no version. Raises NotHere."""
        if code is None:
            return None
        if not self._trees.at(code.version).is_dir():
            raise NotHere(f"code {code.version[:SHOWN]} is not here yet")
        return Tree(code, self._trees.at(code.version))

    def _run(self) -> None:
        again_s = 0.0
        while True:
            with self._some:
                self._some.wait_for(lambda: self._news or self._stop, again_s or None)
                if self._stop:
                    return
                if self._news:
                    self._pause_s = FIRST_PAUSE_S
                wanted, self._news = dict(self._wanted), False
            again_s = self._look(wanted)

    def _look(self, wanted: Mapping[str, str]) -> float:
        """Fetches what is not here, and offers what is. Returns the seconds until the next look; 0: once something else is
        wanted."""
        error = ""
        self._tell(Here(self._here(wanted), self._told.error if set(wanted) - set(self._here(wanted)) else ""))
        for version, source in wanted.items():
            if not self._trees.has(version):
                error = self._fetch(version, source) or error
        self._tell(Here(self._here(wanted), error))
        if self._offer(wanted) and not error:
            return 0.0
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s

    def _offer(self, wanted: Mapping[str, str]) -> bool:
        """Sends a leader what it lacks of the versions that lie here: another may have led when they were synced. Returns
        false if that must be tried again."""
        self._at_leader = {version: source for version, source in self._at_leader.items() if version in wanted}
        not_taken = ""
        for version, source in wanted.items():
            if not source or self._at_leader.get(version) == source or not self._trees.has(version):
                continue
            try:
                sent = self._trees.offer(CodeClient(source, self._credentials()), version)
            except (StoreError, BadManifest, SecurityError, OSError) as error:
                not_taken = f"code {version[:SHOWN]} is not offered to the leader yet: {error}"
            else:
                self._at_leader[version] = source
                log.info("code %s: the leader got %d contents that it lacked", version[:SHOWN], sent)
        if not_taken and not_taken != self._not_taken:
            log.info("%s", not_taken)
        self._not_taken = not_taken
        return not not_taken

    def _here(self, wanted: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(sorted(version for version in wanted if self._trees.has(version)))

    def _fetch(self, version: str, source: str) -> str:
        """Fetches one version. Returns why it cannot; empty if it is here."""
        began = time.monotonic()
        try:
            if not source:
                raise StoreError("no leader has said where it lies")
            self._trees.fetch(CodeClient(source, self._credentials()), version)
            self._at_leader[version] = source
            self._trees.keep(wanted={*self._wanted, version})
        except (StoreError, BadManifest, SecurityError) as error:
            why = str(error)
        except OSError as error:
            why = f"{error.strerror or error} ({error.filename or self._trees.folder})"
        else:
            log.info("code %s is here, after %.1f s", version[:SHOWN], time.monotonic() - began)
            return ""
        why = f"code {version[:SHOWN]}: {why}"
        if why != self._told.error:
            log.warning("%s; it is tried again", why)
        return why

    def _tell(self, here: Here) -> None:
        if here != self._told:
            self._told = here
            self._changed(here)
