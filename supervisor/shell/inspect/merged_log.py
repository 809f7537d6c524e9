"""Joins the output of all ranks of a run into one log, across generations, with ends and incidents in place.

It reads only what this machine has: the ranks' logs, the histories of their shims, and the run's journal.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from supervisor.core.model.reason import of_json
from supervisor.core.report.words import say
from supervisor.shell.history.files import rank_of
from supervisor.wire.log_follower import Followed, begun, stamped

FIRST_BYTES = 256 * 1024
"""Bytes read from the end of each existing log."""

GONE = "had ended before its node's shim came back; how is not known"

FIRST_JOURNAL_BYTES = 16 * 2**20
"""Bytes read from the end of an existing journal: an earlier incident appears from its next change on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of a rank's log, or an event of the rank or its group."""

    t: float
    """Unix seconds, by the writer's clock. A line without a time has that of the line before."""
    what: Literal["line", "start", "end", "incident"]
    run: str
    group: int
    generation: int
    rank: int | None
    """None for an event of the whole group."""
    node: str
    incident: str
    """Incident that was open for the group; empty if none was."""
    text: str
    over: bool = False
    """True for an incident that is over."""


@dataclass(slots=True)
class Joined:
    """The joined log of a run, or of one of its groups or ranks. Each call of `new` returns what came since."""

    system: Path
    run: str
    run_dir: Path
    group: int | None = None
    rank: int | None = None
    _logs: dict[Path, Followed] = field(default_factory=dict)
    _shims: dict[Path, Followed] = field(default_factory=dict)
    _journal: Followed | None = None
    _open: dict[int, str] = field(default_factory=dict)
    """Open incident of each group."""
    _told: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    _held: list[Entry] = field(default_factory=list)
    """Ends of ranks whose logs are not fully read yet."""

    def new(self) -> list[Entry]:
        """Returns new entries, ordered by time. A rank's lines come before its end."""
        # Histories first: a rank that they report as ended has written its last line.
        happened = [*self._held, *self._of_shims(), *self._of_journal()]
        lines = list(self._of_logs(happened))
        behind = {path.parent.name for path, log in self._logs.items() if log.behind}
        self._held = [e for e in happened if e.what == "end" and _name(e) in behind]
        happened = [e for e in happened if e not in self._held]
        found = sorted((*happened, *lines), key=lambda e: (e.t, e.what == "end"))
        return [self._with_incident(e) for e in found]

    @property
    def behind(self) -> bool:
        """True if more is there already than was read."""
        return any(log.behind for log in self._logs.values())

    @property
    def empty(self) -> bool:
        """True if no log was found yet."""
        return not self._logs

    def _with_incident(self, entry: Entry) -> Entry:
        if entry.what == "incident":
            self._open[entry.group] = "" if entry.over else entry.incident
            return entry
        return replace(entry, incident=self._open.get(entry.group, ""))

    def _wanted(self, name: str) -> tuple[int, int, int] | None:
        who = rank_of(name, self.run)
        return who if who is not None and self.group in (None, who[0]) and self.rank in (None, who[2]) else None

    def _entry(
        self, t: float, what: Literal["line", "start", "end"], who: tuple[int, int, int], node: str, text: str
    ) -> Entry:
        group, generation, rank = who
        return Entry(
            t=t, what=what, run=self.run, group=group, generation=generation, rank=rank, node=node, incident="", text=text
        )  # fmt: skip

    def _of_logs(self, happened: list[Entry]) -> Iterator[Entry]:
        ended = {(e.node, e.group, e.generation, e.rank) for e in happened if e.what == "end"}
        paths = sorted(self.system.glob(f"nodes/*/ranks/{self.run}.*/output.log"))
        found = [(path, who) for path in paths if (who := self._wanted(path.parent.name)) is not None]
        # no one reports the end of a rank that ended with its machine
        newest: dict[int, int] = {}
        for _, (group, generation, _) in found:
            newest[group] = max(generation, newest.get(group, 0))
        for path, who in found:
            node = path.parts[-4]
            if path not in self._logs:
                self._logs[path] = begun(path, FIRST_BYTES)
                # Applies until a line has a time of its own.
                self._logs[path].t = _changed_s(path.parent / "launch.json")
            log = self._logs[path]
            for line in log.pieces(whole=(node, *who) in ended or who[1] < newest[who[0]]):
                log.t = max(log.t, min(stamped(line) or 0.0, time.time()))  # no line is before the one above it
                yield self._entry(log.t, "line", who, node, line)

    def _of_shims(self) -> Iterator[Entry]:
        for path in sorted(self.system.glob("nodes/*/shim.jsonl")):
            for body in _bodies(self._shims.setdefault(path, Followed(path))):
                who = self._wanted(str(body.get("name", "")))
                if who is None:
                    continue
                if body.get("event") == "spawned":
                    yield self._entry(body["t"], "start", who, path.parent.name, f"starts (pid {body.get('pid')})")
                elif body.get("event") == "leftover_gone":
                    yield self._entry(body["t"], "end", who, path.parent.name, GONE)
                elif body.get("event") in ("exited", "leftover_killed"):
                    yield self._entry(body["t"], "end", who, path.parent.name, _how(body))

    def _of_journal(self) -> Iterator[Entry]:
        self._journal = self._journal or begun(self.run_dir / "journal.jsonl", FIRST_JOURNAL_BYTES)
        for body in _bodies(self._journal):
            for i in body.get("incidents", ()):
                state = (i.get("state"), i.get("rung"), i.get("kind"))
                if self.group in (None, i["group"]) and self._told.get(i["id"]) != state:
                    self._told[i["id"]] = state
                    yield Entry(
                        t=body["t"], what="incident", run=self.run, group=i["group"], generation=i["generation_after"], rank=None,
                        node=i.get("node", ""), incident=i["id"], over=i.get("state") in ("recovered", "halted"),
                        text=f"incident {i['id']} {i.get('state')}: {i['kind']}, rung {i['rung']}: {say(of_json(i.get('reason', ''))) or 'not decided'}",
                    )  # fmt: skip


def label(group: int, generation: int, rank: int | None) -> str:
    """Returns the name of a rank before its lines: `g1.gen2.r0`."""
    return f"g{group}.gen{generation}.r{rank}"


def render(entry: Entry) -> str:
    """Renders one terminal line. Times are in UTC, as in `incidents` and `explain`, whatever zone the log uses."""
    at = f"{datetime.fromtimestamp(entry.t, UTC):%H:%M:%S}.{int(entry.t % 1 * 10)}Z"
    if entry.what == "incident":
        return f"{at} **** group {entry.group}: {entry.text}"
    if entry.what == "line":
        return f"{at} {label(entry.group, entry.generation, entry.rank)} | {entry.text}"
    mark = "====" if entry.what == "end" else "----"
    who = f"group {entry.group} generation {entry.generation} rank {entry.rank} on {entry.node}"
    return f"{at} {mark} {who} {entry.text}"


def _name(entry: Entry) -> str:
    return f"{entry.run}.{entry.group}.{entry.generation}.{entry.rank}"


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _bodies(file: Followed) -> Iterator[dict[str, Any]]:
    for line in file.lines():
        try:
            body = json.loads(line)
        except ValueError:
            continue
        if isinstance(body, dict) and isinstance(body.get("t"), int | float):
            yield body


def _how(body: dict[str, Any]) -> str:
    number, code = body.get("signal"), body.get("exit_code")
    if number is not None:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "a signal"
        how = f"ended by {name} (signal {number})"
    else:
        how = f"ended with exit code {code}" if code is not None else "ended"
    how += ", killed by the kernel for memory" if body.get("oom") else ""
    return f"{how}: {body['told']}" if body.get("told") else how
