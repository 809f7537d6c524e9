"""The checks of a node, as its agent runs them: before the first rank, and when the node has nothing to run after a rank of
it failed. Beside everything else, and never twice at once."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from agents import process
from agents.checks import network
from agents.checks.run import TOTAL_S
from agents.settings import Settings
from supervisor.wire import programs
from supervisor.wire.checks import CheckResult, from_line
from supervisor.wire.records import NodeCheck

log = logging.getLogger(__name__)

FIRST = "before its first rank"
AGAIN = "a rank had failed there"
REPEATED = "once more, since they had not passed"

IDLE_S = 1.5
"""A group that is started again where it was is back in tenths of a second, or after a second: it must not wait for a check. After
the next pause (policy.backoff_first_s, doubled) it does: what has failed there three times in a row is worth one."""

REPEAT_FIRST_S = 60.0
"""What all nodes share (a driver, a storage, a switch) is mended in minutes or hours, and nobody tells the nodes."""
REPEAT_MOST_S = 1800.0
"""The pause doubles up to this: half a second of a processor, or half a minute of idle GPUs, is then nothing."""


class NodeChecks:
    """One node's. For one thread, `written` excepted."""

    def __init__(
        self,
        settings: Settings,
        life: str,
        tell: Callable[[NodeCheck, bool], None],
        write: Callable[[Callable[[], None]], object] = lambda work: work(),
    ) -> None:
        """`life` names this node's shim: its next agent finds what was checked. `tell` has a record written, and
        `written` called when it is; with True only where etcd still says that this node has not passed. `write` has what writes
        the node's files done, in order: its disk may stall."""
        self._settings = settings
        self._tell = tell
        self._mark = Mark(settings.node_folder / "check.json", life, write)
        self._why = ""
        """Of the checks that run now; empty: none do."""
        self._suspect = False
        self._bad = False
        """The newest checks have not passed, as far as etcd knows."""
        self._again_s = REPEAT_FIRST_S
        self._again_at: float | None = None
        self._idle_since: float | None = None
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def start(self, runs_here: bool) -> None:
        """To be called once, before the node is registered. `runs_here`: it has a rank already."""
        if self._settings.role != "trainer":
            return
        known = self._mark.read()
        self._bad = known == "bad"
        if known in ("done", "bad") or (known == "" and runs_here):
            return  # an older agent of this node checked nothing
        self._begin(FIRST)

    def failed(self) -> None:
        """A rank has ended, and not well."""
        self._suspect = True

    def look(self, idle: bool, now: float) -> None:
        """`idle`: nothing runs here and nothing is to; `now` by any clock that only grows."""
        if not self._bad:
            self._again_s, self._again_at = REPEAT_FIRST_S, None
        elif self._again_at is None and not self._why:
            self._again_at = now + self._again_s
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif self._why or now - self._idle_since < IDLE_S:
            return
        elif self._suspect:
            self._begin(AGAIN)
        elif self._again_at is not None and now >= self._again_at:
            self._again_s, self._again_at = min(2 * self._again_s, REPEAT_MOST_S), None
            self._begin(REPEATED)

    def _begin(self, why: str) -> None:
        self._why, self._suspect = why, False
        if why != REPEATED:
            self._mark.write("pending")
        self._tell(self._record("pending", ()), why == REPEATED)

    def written(self, record: NodeCheck, revision: int, peers: Sequence[network.Peer]) -> None:
        """A record is in the etcd, at this revision; 0: it is not, since a person has freed this node, or it has passed by
        hand. From the thread that wrote it."""
        if not revision:
            self._settle(False)
        elif record.state == "pending":
            threading.Thread(target=self._run, args=(revision, peers), name="checks", daemon=True).start()
        else:
            self._settle(record.state != "passed")

    def _settle(self, bad: bool) -> None:
        self._mark.write("bad" if bad else "done")
        self._bad = bad
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
            results = [CheckResult(name="checks", outcome="unknown", evidence=f"cannot be run: {error.strerror}")]
        if self._stopped.is_set():
            return  # cut short: the next agent does it
        record = self._record(outcome(results), results, revision)
        for result in results:
            log.log(
                logging.WARNING if result.outcome in ("failed", "unknown") else logging.INFO,
                "check of %s %s: %s", result.name, result.outcome, result.evidence,
            )  # fmt: skip
        self._tell(record, self._why == REPEATED)

    def _record(self, state: str, results: Sequence[CheckResult], began: int = 0) -> NodeCheck:
        node, host = self._settings.node, self._settings.host or self._settings.node
        return NodeCheck(node=node, host=host, state=state, why=self._why, began=began, results=tuple(results))  # type: ignore[arg-type]


class Mark:
    """How far the checks of this node's life are, on its disk."""

    def __init__(self, path: Path, life: str, write: Callable[[Callable[[], None]], object]) -> None:
        self._path, self._life, self._later = path, life, write

    def read(self) -> str:
        """pending, done, bad (done, and not passed), or an empty string."""
        try:
            found = json.loads(self._path.read_text())
            return str(found["state"]) if found["life"] == self._life else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def write(self, state: str) -> None:
        self._later(partial(self._write, state))

    def _write(self, state: str) -> None:
        try:
            self._path.write_text(json.dumps({"life": self._life, "state": state}))
        except OSError as error:
            log.warning("cannot write %s: %s", self._path, error)


def arguments(folder: Path, ranks: int, peers: Sequence[network.Peer]) -> list[str]:
    """The command that runs all checks."""
    others = [f"--peer={p.node},{p.port},{p.address}" for p in peers]
    return programs.command("checks", f"--folder={folder}", f"--ranks={ranks}", *others)


def collect(child: subprocess.Popen[str]) -> list[CheckResult]:
    """What it says; when it does not end in its time, or says nothing, that is told as a check that could not be done."""
    # Not communicate's own timeout: that sleeps by the clock, and a clock that is set may make a sleep fail.
    late = threading.Timer(TOTAL_S, child.kill)
    late.daemon = True
    late.start()
    text, _ = child.communicate()
    if not late.is_alive():
        return [CheckResult(name="checks", outcome="unknown", evidence=f"no answer within {TOTAL_S:g} s")]
    late.cancel()
    found = []
    for line in text.splitlines():
        try:
            found.append(from_line(line))
        except ValueError as error:
            log.warning("a check said what cannot be read: %s", error)
    if found:
        return found
    said = f"they ended with {child.returncode}, without a word"
    return [CheckResult(name="checks", outcome="unknown", evidence=said)]


def outcome(results: Sequence[CheckResult]) -> Literal["passed", "failed", "unknown"]:
    """Of all together: what failed is graver than what could not be done."""
    found = {result.outcome for result in results}
    return "failed" if "failed" in found else "unknown" if "unknown" in found else "passed"


def life() -> str:
    """Names the shim above this process for good."""
    stat = process.stat_of(os.getppid())
    return f"{stat.pid}.{stat.start_ticks}" if stat is not None else ""
