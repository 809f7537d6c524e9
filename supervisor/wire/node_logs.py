"""Follows what a node's files say of a run: the lines of its ranks' logs, and their starts and ends.

A command on the node reads with it, and the node's agent for a command elsewhere.
"""

from __future__ import annotations

import json
import re
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from supervisor.wire.log_follower import PIECE_BYTES, Followed, begun, resumed
from supervisor.wire.node_requests import NodeRequest

FIRST_BYTES = 256 * 1024
"""Bytes that are read from the end of each log."""
SEARCHED_BYTES = 4 * 2**20
"""The same where lines are chosen by their time or text, or more than MANY_LINES are wanted."""
MANY_LINES = 1000
LEAST_BYTES = PIECE_BYTES + 4096
"""Least bytes that a look reads of a log: more than the longest line, so that a reader from a position comes on."""

GONE = "had ended before its node's shim came back; how is not known"

Who = tuple[int, int, int]
"""Group, generation and rank."""
Position = dict[str, Any]
"""How far a reader has come, as JSON: {"logs": {folder: [part, byte, time]}, "shim": [part, byte], "held": [Event]}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line of a rank's log, or the rank's start or end."""

    t: float
    """Unix seconds, by the node's clock. A line without a time has that of the line before."""
    what: Literal["line", "start", "end"]
    group: int
    generation: int
    rank: int
    text: str

    @property
    def who(self) -> Who:
        return self.group, self.generation, self.rank


class NodeLog:
    """Follows one node's files of a run, or of one of its groups or ranks. Each call of `new` returns what came since."""

    def __init__(
        self, folder: Path, run: str, group: int | None = None, rank: int | None = None, most: int | None = FIRST_BYTES
    ) -> None:
        """`folder`: the node's. `most`: bytes read from the end of each log that is there at first; None: all of it."""
        self._folder = folder
        self._run, self._group, self._rank = run, group, rank
        self._most = most
        self._logs: dict[str, Followed] = {}
        """By the name of the rank's folder."""
        self._shim = Followed(folder / "shim.jsonl")
        self._held: list[Event] = []
        """Ends of ranks whose logs are not fully read yet."""

    def go_on(self, position: Position) -> None:
        """Takes up where another reader has stopped. Raises ValueError, KeyError or TypeError if that is no position."""
        self._logs = {
            name: resumed(self._output(name), int(part), int(byte), float(t))
            for name, (part, byte, t) in position["logs"].items()
            if rank_of(name, self._run) is not None  # no path is made of what was sent
        }
        part, byte = position["shim"]
        self._shim = resumed(self._folder / "shim.jsonl", int(part), int(byte))
        self._held = [Event(**body) for body in position["held"]]
        self._most = None

    def position(self) -> Position:
        """Returns how far it has come, for `go_on`."""
        return {
            "logs": {name: [*log.place, round(log.t, 3)] for name, log in self._logs.items()},
            "shim": [*self._shim.place],
            "held": [asdict(end) for end in self._held],
        }

    @property
    def behind(self) -> bool:
        """True if more is there already than was read."""
        return any(log.behind for log in self._logs.values())

    @property
    def empty(self) -> bool:
        """True if no log was found yet."""
        return not self._logs

    def newest(self) -> dict[int, int]:
        """Returns the newest generation of each group here."""
        found: dict[int, int] = {}
        for _, (group, generation, _) in self._found():
            found[group] = max(generation, found.get(group, 0))
        return found

    def new(
        self,
        newest: Mapping[int, int] | None = None,
        at_most: int | None = None,
        whole: bool = False,
        lines_alone: bool = False,
    ) -> list[Event]:
        """Returns new events, ordered by time. A rank's lines come before its end.

        `newest`: the newest generation of each group; None: by this node's files. `at_most`: bytes after which
        this look begins no further log; None: READ_BYTES of each. `whole`: unfinished last lines too. `lines_alone`:
        neither starts nor ends.
        """
        # the history first: a rank that it reports as ended has written its last line
        happened = [] if lines_alone else [*self._held, *self._of_shim()]
        lines = list(self._of_logs(happened, self.newest() if newest is None else newest, at_most, whole))
        behind = {rank_of(name, self._run) for name, log in self._logs.items() if log.behind}
        self._held = [e for e in happened if e.what == "end" and e.who in behind]
        self._most = None
        return sorted((*(e for e in happened if e not in self._held), *lines), key=order)

    def _of_logs(
        self, happened: Sequence[Event], newest: Mapping[int, int], at_most: int | None, whole: bool
    ) -> Iterator[Event]:
        ended = {e.who for e in happened if e.what == "end"}
        found = self._found()
        self._logs = {name: self._logs.get(name) or self._begun(name) for name, _ in found}
        left = at_most
        # the oldest first, so that one whose lines have times does not keep the others from their turn
        for name, who in found if at_most is None else sorted(found, key=lambda each: self._logs[each[0]].t):
            log = self._logs[name]
            if left is not None and left <= 0:
                log.behind = True
                continue
            # no one reports the end of a rank that ended with its machine
            over = who in ended or who[1] < newest.get(who[0], 0)
            for t, line in log.timed(whole or over, None if left is None else max(left, LEAST_BYTES)):
                left = left if left is None else left - len(line) - 1
                yield _event(t, "line", who, line)

    def _found(self) -> list[tuple[str, Who]]:
        names = sorted(path.parent.name for path in self._folder.glob(f"ranks/{_literal(self._run)}.*/output.log"))
        return [(name, who) for name in names if (who := self._wanted(name)) is not None]

    def _wanted(self, name: str) -> Who | None:
        who = rank_of(name, self._run)
        return who if who is not None and self._group in (None, who[0]) and self._rank in (None, who[2]) else None

    def _begun(self, name: str) -> Followed:
        path = self._output(name)
        log = Followed(path) if self._most is None else begun(path, self._most)
        log.t = _changed_s(path.parent / "launch.json")  # until a line has a time of its own
        return log

    def _output(self, name: str) -> Path:
        return self._folder / "ranks" / name / "output.log"

    def _of_shim(self) -> Iterator[Event]:
        for body in bodies(self._shim):
            who = self._wanted(str(body.get("name", "")))
            if who is None:
                continue
            if body.get("event") == "spawned":
                yield _event(body["t"], "start", who, f"starts (pid {body.get('pid')})")
            elif body.get("event") == "leftover_gone":
                yield _event(body["t"], "end", who, GONE)
            elif body.get("event") in ("exited", "leftover_killed"):
                yield _event(body["t"], "end", who, _how(body))


def first_bytes(lines: int | None, since_s: float | None, grep: str) -> int:
    """Returns the bytes to read from the end of each log for this wish."""
    searches = since_s is not None or bool(grep) or (lines or 0) > MANY_LINES
    return SEARCHED_BYTES if searches else FIRST_BYTES


def rank_of(name: str, run: str) -> Who | None:
    """Returns group, generation and rank in the name of a rank's process and folder; None: it is no rank of the run."""
    match = re.fullmatch(rf"{re.escape(run)}\.(\d+)\.(\d+)\.(\d+)", name, re.ASCII)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def order(event: Any) -> tuple[float, bool]:
    """Sorts events by time, and a rank's end behind all else of that time."""
    return event.t, event.what == "end"


def bodies(file: Followed) -> Iterator[dict[str, Any]]:
    """Yields the new JSON lines of a history that has times; passes over what is none."""
    for line in file.lines():
        try:
            body = json.loads(line)
        except ValueError:
            continue
        if isinstance(body, dict) and isinstance(body.get("t"), int | float):
            yield body


def newest_lines(path: Path, request: NodeRequest, now: float) -> Iterator[str]:
    """Yields the newest lines of a log that a request wants. `now`: Unix seconds, by this machine's clock."""
    found: deque[str] = deque(maxlen=request.lines)
    log = begun(path, first_bytes(request.lines, request.since_s, request.grep))
    while True:
        found.extend(line for t, line in log.timed(whole=True) if request.takes(t, line, now))
        if not log.behind:
            break
    yield from found


def _event(t: float, what: Literal["line", "start", "end"], who: Who, text: str) -> Event:
    return Event(t=t, what=what, group=who[0], generation=who[1], rank=who[2], text=text)


def _literal(run: str) -> str:
    """Returns a run's name for a glob, in which it stands for itself."""
    return re.sub(r"([*?[])", r"[\1]", run)


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


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
