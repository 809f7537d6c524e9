"""The checks of a node, as its agent runs them: before the first rank, and when the node has nothing to run after a rank of
it failed. Beside everything else, and never twice at once."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from agents import process, programs
from agents.checks import network
from agents.checks.run import TOTAL_S
from agents.settings import Settings
from supervisor.wire.checks import CheckResult, from_line
from supervisor.wire.records import NodeCheck

log = logging.getLogger(__name__)

FIRST = "before its first rank"
AGAIN = "a rank had failed there"

IDLE_S = 2.0
"""A group that is started again where it was is back in tenths of a second: it must not wait for a check."""


class NodeChecks:
    """One node's. For one thread, `written` excepted."""

    def __init__(self, settings: Settings, life: str, tell: Callable[[NodeCheck], None]) -> None:
        """`life` names this node's shim: its next agent finds what was checked. `tell` has a record written, and
        `written` called when it is."""
        self._settings = settings
        self._tell = tell
        self._mark = Mark(settings.node_folder / "check.json", life)
        self._why = ""
        """Of the checks that run now; empty: none do."""
        self._suspect = False
        self._idle_since: float | None = None
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def start(self, runs_here: bool) -> None:
        """To be called once, before the node is registered. `runs_here`: it has a rank already."""
        if self._settings.role != "trainer":
            return
        known = self._mark.read()
        if known == "done" or (known == "" and runs_here):
            return  # an older agent of this node checked nothing
        self._begin(FIRST)

    def failed(self) -> None:
        """A rank has ended, and not well."""
        self._suspect = True

    def look(self, idle: bool, now: float) -> None:
        """`idle`: nothing runs here and nothing is to; `now` by any clock that only grows."""
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif self._suspect and now - self._idle_since >= IDLE_S and not self._why:
            self._begin(AGAIN)

    def _begin(self, why: str) -> None:
        self._why, self._suspect = why, False
        self._mark.write("pending")
        self._tell(self._record("pending", ()))

    def written(self, record: NodeCheck, revision: int, peers: Sequence[network.Peer]) -> None:
        """A record is in the etcd, at this revision. From the thread that wrote it."""
        if record.state == "pending":
            threading.Thread(target=self._run, args=(revision, peers), name="checks", daemon=True).start()
        else:
            self._mark.write("done")
            self._why = ""

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()
            if self._child is not None:
                self._child.kill()

    def _run(self, revision: int, peers: Sequence[network.Peer]) -> None:
        command = arguments(self._settings.node_folder, self._settings.slots, peers)
        try:
            with self._lock:
                if self._stopped.is_set():
                    return
                self._child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            results = collect(self._child)
        except OSError as error:  # no memory, no processes: nor would a rank start
            results = [CheckResult(name="checks", outcome="failed", evidence=f"cannot be run: {error.strerror}")]
        if self._stopped.is_set():
            return  # cut short: the next agent does it
        record = self._record("failed" if any(r.outcome == "failed" for r in results) else "passed", results, revision)
        for result in results:
            log.log(
                logging.WARNING if result.outcome == "failed" else logging.INFO,
                "check of %s %s: %s", result.name, result.outcome, result.evidence,
            )  # fmt: skip
        self._tell(record)

    def _record(self, state: str, results: Sequence[CheckResult], began: int = 0) -> NodeCheck:
        node, host = self._settings.node, self._settings.host or self._settings.node
        return NodeCheck(node=node, host=host, state=state, why=self._why, began=began, results=tuple(results))  # type: ignore[arg-type]


class Mark:
    """How far the checks of this node's life are, on its disk."""

    def __init__(self, path: Path, life: str) -> None:
        self._path, self._life = path, life

    def read(self) -> str:
        """pending, done, or an empty string."""
        try:
            found = json.loads(self._path.read_text())
            return str(found["state"]) if found["life"] == self._life else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def write(self, state: str) -> None:
        try:
            self._path.write_text(json.dumps({"life": self._life, "state": state}))
        except OSError as error:
            log.warning("cannot write %s: %s", self._path, error)


def arguments(folder: Path, ranks: int, peers: Sequence[network.Peer]) -> list[str]:
    """The command that runs all checks."""
    others = [f"--peer={p.node},{p.port},{p.address}" for p in peers]
    return programs.command("checks", f"--folder={folder}", f"--ranks={ranks}", *others)


def collect(child: subprocess.Popen[str]) -> list[CheckResult]:
    """What it says; when it does not end in its time, or says nothing, that is a failed check too."""
    # Not communicate's own timeout: that sleeps by the clock, and a clock that is set may make a sleep fail.
    late = threading.Timer(TOTAL_S, child.kill)
    late.daemon = True
    late.start()
    text, _ = child.communicate()
    if not late.is_alive():
        return [CheckResult(name="checks", outcome="failed", evidence=f"no answer within {TOTAL_S:g} s")]
    late.cancel()
    found = []
    for line in text.splitlines():
        try:
            found.append(from_line(line))
        except ValueError as error:
            log.warning("a check said what cannot be read: %s", error)
    if found:
        return found
    return [
        CheckResult(name="checks", outcome="failed", evidence=f"they ended with {child.returncode}, without a word")
    ]


def life() -> str:
    """Names the shim above this process for good."""
    stat = process.stat_of(os.getppid())
    return f"{stat.pid}.{stat.start_ticks}" if stat is not None else ""
