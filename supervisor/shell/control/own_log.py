"""Answers a person elsewhere who asks for the log of the leader."""

from __future__ import annotations

import os
import time
from pathlib import Path

from supervisor.shell.etcd.inbox import Answer, CannotDo, Job
from supervisor.wire.node_logs import newest_lines
from supervisor.wire.node_requests import NodeRequest, pieces

STDERR = Path("/proc/self/fd/2")


def answer(request: NodeRequest, job: Job) -> Answer:
    """Yields the newest lines of this process's log as {"path", "text"}; the first item has no text. Raises CannotDo if the
    log is not in a file, or for another request."""
    if request.what != "logs":
        raise CannotDo("the leader gives its log alone")
    path = Path(os.readlink(STDERR))
    if not path.is_file():
        raise CannotDo(
            f"it is not in a file, but goes to {path}: look where it was started, as with `journalctl` or `kubectl logs`"
        )
    yield {"path": str(path), "text": ""}
    for line in newest_lines(path, request, time.time()):
        yield from ({"path": str(path), "text": piece} for piece in pieces(f"{line}\n"))
        if job.over:
            return
