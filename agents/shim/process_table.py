"""Keeps the shim's process table: records on disk, and the history of what happened to each process.

A record's file is a `ProcessRecord` (supervisor.wire.records), written by hand: importing pydantic would double the
shim's memory.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agents.shim import process

RECORD_VERSION = 1
"""`supervisor.wire.records.VERSION`; a test holds the two equal."""

LEFTOVER_DEADLINE_S = 10.0
"""Seconds for a killed process to end. One that takes longer is stuck in the kernel, and its GPU or disk with it."""


@dataclass(slots=True)
class Child:
    """One process, with the fields of ProcessRecord."""

    name: str
    pid: int
    start_ticks: int
    folder: str
    warm: bool = False
    exit_code: int | None = None
    signal: int | None = None
    exited: bool = False
    told: str = ""
    """Why we sent the signal that ended it; while it runs, the reason of the newest such signal."""
    oom: bool | None = None
    ended_s: float = 0.0

    def record(self) -> dict[str, Any]:
        return {"$kind": "ProcessRecord", "$version": RECORD_VERSION, **asdict(self)}


def generation_of(name: str) -> int | None:
    """Returns the generation in a process name: `RUN.GROUP.GENERATION.RANK` or `lighthouse.RUN.GENERATION`."""
    parts = name.split(".")
    place = {4: 2, 3: 2}.get(len(parts))
    return int(parts[place]) if place is not None and parts[place].isdigit() else None


def is_last(name: str) -> bool:
    """Returns true for the name of a hook `after`, `hook.RUN.after`, which runs while its node ends too."""
    parts = name.split(".")
    return len(parts) == 3 and (parts[0], parts[2]) == ("hook", "after")


class Table:
    """The records of one node folder. Memory is the truth while the shim lives; the files are for the next shim."""

    def __init__(self, folder: Path, later: Callable[[Callable[[], None]], object] = lambda work: work()) -> None:
        """`later` runs the writes in order, in any thread: the disk may stall."""
        self._node, self._later = folder, later
        self._folder = folder / "processes"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._history = os.open(folder / "shim.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._unwritten = b""
        """Lines of the history that had no room yet; the first may be a part."""
        self._disk_failed = False
        self.children: dict[str, Child] = {}

    def put(self, child: Child) -> None:
        self.children[child.name] = child
        path = self._folder / f"{child.name}.json"
        body = json.dumps(child.record()).encode()
        self._on_disk(lambda: _write_whole(path, body))

    def drop(self, name: str) -> None:
        self.children.pop(name, None)
        self._on_disk(lambda: (self._folder / f"{name}.json").unlink(missing_ok=True))

    def remember(self, event: str, child: Child | None = None, **more: Any) -> None:
        """Appends to shim.jsonl. `t` is unix time, for people and for checkers that read one machine's files. A line
        without room on the disk is written with a later event."""
        line: dict[str, Any] = {"t": time.time(), "event": event}
        if child is not None:
            line |= {"name": child.name, "pid": child.pid, "start_ticks": child.start_ticks}
            line["generation"] = generation_of(child.name)
        encoded = json.dumps(line | more).encode() + b"\n"
        self._on_disk(lambda: self._append(encoded))

    def _append(self, line: bytes) -> None:
        self._unwritten += line
        while self._unwritten:
            written = os.write(self._history, self._unwritten)  # only a part on an almost full disk
            self._unwritten = self._unwritten[written:]

    def _on_disk(self, write: Callable[[], object]) -> None:
        self._later(lambda: self._try(write))

    def _try(self, write: Callable[[], object]) -> None:
        # a full disk must not end the parent of every trainer here; the agent reads our memory, not these files
        try:
            write()
            self._disk_failed = False
        except OSError as error:
            if not self._disk_failed:
                process.say(f"cannot write the records under {self._folder}: {error}; free some space there")
            self._disk_failed = True

    def take_over(self) -> list[str]:
        """Reads what an earlier shim left, and kills what still runs of it. All of it is kept as exited, so that the
        agent can report it and never starts that generation again. Returns sentences about what was done. Raises
        OSError if a process does not end."""
        sentences = []
        left = {(stat.pid, stat.start_ticks): stat for stat in process.marked(str(self._node))}
        for path in sorted(self._folder.glob("*.json")):
            child = _read(path)
            if child is None:
                sentences.append(f"ignored {path}: it is not a process record")
                continue
            if (child.pid, child.start_ticks) in left:
                sentences.append(f"killed {child.name} (pid {child.pid}), left over from an earlier shim of this node")
                self.remember("leftover_killed", child)
            if generation_of(child.name) is None:  # agent or warm process: no one asks for these again
                path.unlink(missing_ok=True)
                continue
            if not child.exited:
                if (child.pid, child.start_ticks) not in left:
                    self.remember("leftover_gone", child)
                child.exited, child.signal, child.told = True, int(signal.SIGKILL), "its node's shim had ended"
            self.put(child)
        if not process.kill_and_wait(list(left.values()), LEFTOVER_DEADLINE_S):
            raise OSError(f"processes {sorted(pid for pid, _ in left)} of an earlier shim do not end, even by SIGKILL")
        return sentences


def _read(path: Path) -> Child | None:
    try:
        body = json.loads(path.read_bytes())
        return Child(**{name: body[name] for name in Child.__slots__ if name in body})
    except (ValueError, KeyError, TypeError):
        return None


def _write_whole(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
