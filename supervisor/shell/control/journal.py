"""The journal: one JSON line per decision, on disk, before and after it is committed.

A line `intent` is written before the transaction and a line `outcome` after it. An intent without an outcome was
committed if the memory's decision count has reached it: the reader need not guess. The input of a decision that did
something is kept beside the journal (`inputs`).
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from supervisor.core.model.decision import Decision
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import Observed
from supervisor.core.model.spec import RunSpec
from supervisor.core.report.words import said, say
from supervisor.shell.control.decision_inputs import Given, Inputs, take
from supervisor.wire.aside import Aside

log = logging.getLogger(__name__)


ANSWERS_WITHIN_S = 1.0
"""Seconds until the disk counts as stalled; a busy shared disk takes tenths of a second."""
LINES = 10_000
"""Most lines that wait for a stalled disk. Later ones are lost, and the journal records how many."""
INPUTS = 100
"""Most inputs that wait likewise: one of a thousand groups may take a megabyte."""


class Journal:
    """Appends to one file per run. A full, missing or stalled disk is logged once and never stops the supervisor. What
    waits for a stalled disk is written when it answers again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._aside = Aside("journal")
        self._stalls = False
        self._broken = False
        self._first = True
        self._inputs = Inputs(path.parent)
        self._told_all = False
        self._lost = 0

    def take(self, observed: Observed, spec: RunSpec, memory: Memory) -> Given | None:
        """Returns the parts of a decision's input to keep; None if they cannot be written."""
        try:
            return take(observed, spec, memory)
        except ValueError:  # every later leader would fail on it too
            log.exception("the inputs of decisions are not recorded: they cannot be written")
            return None

    def intent(
        self,
        epoch: int,
        observed: Observed,
        decision: Decision,
        before: Memory | None = None,
        given: Given | None = None,
        policy: int = 0,
    ) -> None:
        """Writes what is about to be committed, and why. Of the groups it writes those that differ from `before`: a
        thousand would be 60 kB in each line. `policy` is the version of a policy that a person has set. A decision
        that changes nothing has its predecessor's number."""
        known = before.groups if before is not None and self._told_all and not _resumes(decision) else {}
        self._told_all = True
        self._append(
            {
                "entry": "intent",
                "epoch": epoch,
                "decision": decision.memory.decisions,
                "changed": decision.memory is not before,
                "revision": observed.revision,
                "now": round(observed.now, 4),
                "actions": [_lean(a) | {"reason": say(a.reason), "code": a.reason.code} for a in decision.actions],
                "waits": said(decision.waits),
                "waits_of": [{"code": why.code, "groups": why.groups} for why in decision.waits],
                "incidents": [_lean(i) for i in decision.incidents],
                "groups": {
                    str(g): {"generation": m.generation, "node": m.first_node, "phase": m.phase}
                    | ({"nodes": m.nodes} if m.size > 1 else {})
                    for g, m in decision.memory.groups.items()
                    if known.get(g) is not m and known.get(g) != m
                },
                "phase": decision.memory.phase,
                "policy": policy,
                **({} if given is None else {"input": given.digest}),
            }
        )

    def keep(self, given: Given) -> None:
        """Keeps the input itself, after the commit, so that the commit does not wait for it."""
        if self._aside.left < INPUTS:
            self._write(partial(self._inputs.keep, given))

    def outcome(self, epoch: int, decision: int, revision: int | None, refused: str = "") -> None:
        """Writes if a decision was committed, and at which revision."""
        self._append(
            {"entry": "outcome", "epoch": epoch, "decision": decision, "revision": revision, "refused": refused}
        )

    def event(self, what: str, **about: Any) -> None:
        """Writes another event: leadership, an outage, an unreadable record."""
        self._append({"entry": "event", "event": what, **about})

    def close(self, within_s: float) -> None:
        """Waits at most `within_s` for unwritten lines: a slow disk may take the last ones a moment later."""
        self._aside.end(within_s)

    def _append(self, line: dict[str, Any]) -> None:
        line = {"t": round(time.time(), 4), **line}
        self._write(partial(self._add, json.dumps(line, separators=(",", ":")).encode() + b"\n"))

    def _write(self, work: Callable[[], None]) -> None:
        """Runs the work and waits for it, but not forever."""
        if self._stalls and not self._aside.left:
            self._stalls = False
            log.info("the disk of the journal %s answers again", self.path)
            if self._lost:
                lost, self._lost = self._lost, 0
                self.event("lines_lost", lines=lost)
        if self._aside.left >= LINES:
            self._lost += 1
            return
        asked = self._aside.ask(work)
        if self._stalls:
            return
        try:
            asked.result(ANSWERS_WITHIN_S)
        except TimeoutError:
            self._stalls = True
            log.error("the disk of the journal %s does not answer; the run goes on without waiting for it", self.path)

    def _add(self, line: bytes) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+", buffering=0) as file:
                if self._first and file.tell() and not _ends_a_line(file):
                    line = b"\n" + line  # the previous writer was killed in the middle of a line
                before = file.tell()
                if file.write(line) < len(line):
                    file.truncate(before)  # else the next line would join this one
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._first = self._broken = False
        except OSError as error:
            if not self._broken:
                log.error("cannot write the journal %s: %s; the run goes on without it", self.path, error.strerror)
            self._broken = True


def read(path: Path, *words: str) -> Iterator[dict[str, Any]]:
    """Yields the lines of a journal, except torn ones. With `words`, only lines that hold one of them: the rest of a
    long file is not parsed."""
    if not path.exists():
        return
    with path.open(errors="replace") as file:
        for line in file:
            if words and not any(word in line for word in words):
                continue
            try:
                body = json.loads(line)
            except ValueError:
                continue
            if isinstance(body, dict):
                yield body


def _resumes(decision: Decision) -> bool:
    """Returns true if the decision resumes the run, and so gives every group its generation."""
    return any(action.verb == "resume" for action in decision.actions)


def _ends_a_line(file: FileIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _lean(value: Any) -> dict[str, Any]:
    body = to_jsonable_python(value)
    return {k: v for k, v in body.items() if v not in (None, "", [], ())}
