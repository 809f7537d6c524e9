"""Runs a node's checks for its agent: before the first rank, and after a rank failed once the node has nothing to run.
They run beside everything else, and never twice at once."""

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

from agents.health.checks import network
from agents.health.checks.run import TOTAL_S
from agents.shim import process
from agents.shim.settings import Settings
from supervisor.wire import programs
from supervisor.wire.checks import CheckResult, from_line
from supervisor.wire.records import NodeCheck

log = logging.getLogger(__name__)

FIRST = "before its first rank"
AGAIN = "a rank had failed there"
REPEATED = "again, because they had not passed"

IDLE_S = 1.5
"""Seconds without work before a check. A group that restarts in place returns within about a second and must not wait
for a check. After the next pause (policy.backoff_first_s, doubled) a third failure in a row is worth one."""

REPEAT_FIRST_S = 60.0
"""Seconds before checks that did not pass are repeated. What nodes share (a driver, a storage, a switch) takes minutes
or hours to mend, and no one reports it to the nodes."""
REPEAT_MOST_S = 1800.0
"""Longest pause, up to which it doubles. Half a second of a processor, or half a minute of idle GPUs, is then
nothing."""


class NodeChecks:
    """Decides when to check one node and records the result. For one thread, except `written`."""

    def __init__(
        self,
        settings: Settings,
        life: str,
        tell: Callable[[NodeCheck, bool], None],
        write: Callable[[Callable[[], None]], object] = lambda work: work(),
    ) -> None:
        """`life` names this node's shim, so that the next agent finds what was checked.

        `tell` has a record written to etcd and calls `written` afterwards; with True it writes only if etcd still has
        this node as not passed. `write` runs the writes of the node's files in order, because its disk may stall.
        """
        self._settings = settings
        self._tell = tell
        self._mark = Mark(settings.node_folder / "check.json", life, write)
        self._why = ""
        """Reason of the checks that run now; empty while none run."""
        self._repeats = False
        """True if they run again because they had not passed."""
        self._suspect = False
        self._bad = False
        """True if the newest checks have not passed, as far as etcd knows."""
        self._again_s = REPEAT_FIRST_S
        self._again_at: float | None = None
        self._idle_since: float | None = None
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def start(self, runs_here: bool) -> None:
        """Begins the first checks unless they were done. Call it once, before the node is registered. `runs_here`: it
        has a rank already."""
        if self._settings.role != "trainer":
            return
        known = self._mark.read()
        self._bad = known == "bad"
        if known in ("done", "bad") or (known == "" and runs_here):
            return  # an agent of an older version started that rank and checked nothing
        self._begin(FIRST)

    def failed(self) -> None:
        """Notes that a rank ended with a failure."""
        self._suspect = True

    def look(self, idle: bool, now: float) -> None:
        """Begins checks that are due. `idle`: nothing runs or is desired here; `now`: by any clock that only grows."""
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
            self._begin(REPEATED, repeats=True)

    def _begin(self, why: str, repeats: bool = False) -> None:
        self._why, self._repeats, self._suspect = why, repeats, False
        if not repeats:
            self._mark.write("pending")
        self._tell(self._record("pending", ()), repeats)

    def written(self, record: NodeCheck, revision: int, peers: Sequence[network.Peer]) -> None:
        """Goes on once etcd has the record, at this revision. Revision 0: it was not written, because a person freed
        this node or it passed by hand. Called from the thread that wrote it."""
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
        except OSError as error:  # no memory or no processes: a rank could not start either
            results = [CheckResult(name="checks", outcome="unknown", evidence=f"cannot be run: {error.strerror}")]
        if self._stopped.is_set():
            return  # cut short: the next agent runs them
        record = self._record(outcome(results), results, revision)
        for result in results:
            log.log(
                logging.WARNING if result.outcome in ("failed", "unknown") else logging.INFO,
                "check of %s %s: %s", result.name, result.outcome, result.evidence,
            )  # fmt: skip
        self._tell(record, self._repeats)

    def _record(self, state: str, results: Sequence[CheckResult], began: int = 0) -> NodeCheck:
        node, host = self._settings.node, self._settings.host or self._settings.node
        return NodeCheck(node=node, host=host, state=state, why=self._why, began=began, results=tuple(results))  # type: ignore[arg-type]


class Mark:
    """Keeps on disk how far the checks of this shim's life have got."""

    def __init__(self, path: Path, life: str, write: Callable[[Callable[[], None]], object]) -> None:
        self._path, self._life, self._later = path, life, write

    def read(self) -> str:
        """Returns `pending`, `done`, `bad` (done and not passed), or an empty string."""
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
    """Returns the command that runs all checks."""
    others = [f"--peer={p.node},{p.port},{p.address}" for p in peers]
    return programs.command("checks", f"--folder={folder}", f"--ranks={ranks}", *others)


def collect(child: subprocess.Popen[str]) -> list[CheckResult]:
    """Returns the results that the child prints. A child that is late or prints nothing yields one `unknown` result."""
    # not communicate's own timeout: it sleeps by the clock, and setting the clock may break a sleep
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
            log.warning("a check printed an unreadable result: %s", error)
    if found:
        return found
    said = f"they ended with {child.returncode}, without output"
    return [CheckResult(name="checks", outcome="unknown", evidence=said)]


def outcome(results: Sequence[CheckResult]) -> Literal["passed", "failed", "unknown"]:
    """Returns the outcome of all results together: `failed` outweighs `unknown`."""
    found = {result.outcome for result in results}
    return "failed" if "failed" in found else "unknown" if "unknown" in found else "passed"


def life() -> str:
    """Returns a permanent, unique name for the shim above this process."""
    stat = process.stat_of(os.getppid())
    return f"{stat.pid}.{stat.start_ticks}" if stat is not None else ""
