"""Reads what this node has of a run's logs: the newest lines, what came since, and the output of hooks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

from supervisor.shell.etcd.inbox import Answer, CannotDo, Job
from supervisor.wire.node_logs import Event, NodeLog, first_bytes, newest_lines, order
from supervisor.wire.node_requests import ANSWER_BYTES, Item, NodeRequest, pieces, size

LINES = 100_000
"""Most lines, however many are asked for."""
READ_BYTES = 2**20
"""Bytes of all logs together that are in memory at a time, but for one log's as many."""
FOLLOWED_BYTES = 64 * 1024
"""The same of one answer to a follower: if each were an empty line, they would still fit into it."""


def read(folder: Path, request: NodeRequest, job: Job) -> Answer:
    """Yields the newest lines of the ranks as {"t", "what", "group", "generation", "rank", "text"}, the oldest first.
    `folder`: the node's."""
    for event in _newest(_log(folder, request), request, job, lines_alone=True):
        yield asdict(event)


def follow(folder: Path, request: NodeRequest, job: Job) -> Answer:
    """Yields what came since the request's position, or the newest without one, as `read`, with starts and ends; at last
    {"position", "behind", "empty"}. Raises CannotDo if it is no position."""
    log = _log(folder, request)
    if request.position:
        try:
            log.go_on(request.position)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CannotDo(f"its agent cannot read the position ({error!r})") from error
        items = [asdict(event) for event in _wanted(log.new(at_most=FOLLOWED_BYTES), request)]
    else:
        items = _fitting([asdict(event) for event in _newest(log, request, job)])
    yield from items
    yield {"position": log.position(), "behind": log.behind, "empty": log.empty}


def hooks(folder: Path, request: NodeRequest) -> Answer:
    """Yields the newest lines of each hook of the run when it ran last here, as {"hook", "path", "text"}."""
    for at in folder.glob("hooks/*"):
        for which in ("before", "after") if at.name == request.run else ():
            if (path := at / f"{which}.log").exists():
                for line in newest_lines(path, request, time.time()):
                    yield from ({"hook": which, "path": str(path), "text": piece} for piece in pieces(f"{line}\n"))


def _log(folder: Path, request: NodeRequest) -> NodeLog:
    most = first_bytes(request.lines, request.since_s, request.grep)
    return NodeLog(folder, request.run, request.group, request.rank, most)


def _newest(log: NodeLog, request: NodeRequest, job: Job, lines_alone: bool = False) -> list[Event]:
    """Reads to the end of all logs, and returns the newest wanted events of all together."""
    newest: list[Event] = []
    while True:
        found = log.new(at_most=READ_BYTES, whole=lines_alone, lines_alone=lines_alone)
        newest += _wanted(found, request)
        newest = sorted(newest, key=order)[max(0, len(newest) - min(request.lines, LINES)) :]
        if not log.behind or job.over:
            return newest


def _wanted(events: Iterable[Event], request: NodeRequest) -> Iterator[Event]:
    """Yields what is asked for, long lines in pieces."""
    now = time.time()
    for event in events:
        if request.takes(event.t, event.text, now):
            first, *others = pieces(event.text)
            yield replace(event, text=first) if others else event
            yield from (replace(event, text=piece) for piece in others)


def _fitting(items: list[Item]) -> list[Item]:
    """Returns the newest that fit into an answer, with room for its last item."""
    left = ANSWER_BYTES // 2
    for at in range(len(items) - 1, -1, -1):
        left -= size([items[at]])
        if left < 0:
            return items[at + 1 :]
    return items
