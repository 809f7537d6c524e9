"""Reads the newest lines of a run's ranks on this node, of all generations, in the order of their times."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from agents.agent.launch import OUTPUT
from agents.agent.names import TrainerName, parse
from agents.requests.inbox import Answer, Job
from supervisor.wire.log_follower import begun, stamped
from supervisor.wire.node_requests import NodeRequest, pieces

FIRST_BYTES = 256 * 1024
"""Bytes that are read from the end of each log."""
SEARCHED_BYTES = 4 * 2**20
"""The same where lines are chosen by their time or text."""
LINES = 100_000
"""Most lines, however many are asked for."""

Line = tuple[float, TrainerName, str]
"""Time (Unix, by this node's clock), rank, and the line or a piece of it."""


def read(ranks: Path, request: NodeRequest, job: Job) -> Answer:
    """Yields the newest lines as {"t", "group", "generation", "rank", "text"}, the oldest first. `ranks`: the folder of
    the ranks' folders."""
    number, newest = count(), list[tuple[float, int, TrainerName, str]]()
    for t, name, text in _lines(ranks, request):
        heapq.heappush(newest, (t, next(number), name, text))
        if len(newest) > min(request.lines, LINES):
            heapq.heappop(newest)
        if job.over:
            break
    for t, _, name, text in sorted(newest, key=lambda line: line[:2]):
        where = {"group": name.group, "generation": name.generation, "rank": name.rank}
        yield {"t": round(t, 3), **where, "text": text}


def of_run(ranks: Path, request: NodeRequest) -> list[tuple[TrainerName, Path]]:
    """Returns the folders of a request's ranks, found among those that are there: none is made of what was sent."""
    found = []
    for folder in sorted(ranks.iterdir()) if ranks.is_dir() else ():
        name = parse(folder.name)
        if isinstance(name, TrainerName) and is_asked(name, request):
            found.append((name, folder))
    return found


def is_asked(name: TrainerName, request: NodeRequest) -> bool:
    """Returns true if the request is about this rank."""
    return name.run == request.run and request.group in (None, name.group) and request.rank in (None, name.rank)


def _lines(ranks: Path, request: NodeRequest) -> Iterator[Line]:
    searched = request.since_s is not None or bool(request.grep)
    now = time.time()
    since = None if request.since_s is None else now - request.since_s
    for name, folder in of_run(ranks, request):
        log = begun(folder / OUTPUT, SEARCHED_BYTES if searched else FIRST_BYTES)
        t = _changed(folder / "launch.json")  # until a line has a time of its own
        while True:
            for line in log.pieces(whole=True):
                t = max(t, min(stamped(line) or 0.0, now))  # no line is before the one above it
                if (since is None or t >= since) and request.grep in line:
                    yield from ((t, name, piece) for piece in pieces(line))
            if not log.behind:
                break


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
