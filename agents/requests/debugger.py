"""Passes a person's lines on to the debugger in which a rank is stopped, and its output back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from supervisor.shell.etcd.inbox import Answer, CannotDo, Job
from supervisor.wire import sockets
from supervisor.wire.node_requests import NodeRequest, pieces
from supervisor.wire.records import ProcessRecord

WAIT_S = 0.5
"""Seconds that the rank waits for its debugger before it answers with what there is."""
ANSWERS_WITHIN_S = 10.0
LINE_BYTES = 48 * 1024
"""Most bytes of a line for the debugger: the rank takes requests of 64 KiB."""


def converse(record: ProcessRecord, request: NodeRequest, job: Job) -> Answer:
    """Yields the debugger's output as {"output"}, until it waits for the next line or the rank goes on, and at last
    {"stopped", "waits"}. Raises CannotDo."""
    line = request.text
    if line is not None and (len(line.encode()) > LINE_BYTES or "\n" in line):
        raise CannotDo(f"a line for the debugger has {LINE_BYTES} bytes at most, and no line end")
    while True:
        answer = _ask(Path(record.folder), {"do": "debug", "line": line, "wait_s": WAIT_S})
        line = None
        output = answer.get("output", "")
        if output:
            for piece in pieces(output):
                yield {"output": piece}
        if answer.get("waits") or not answer.get("stopped"):
            yield {"stopped": bool(answer.get("stopped")), "waits": bool(answer.get("waits"))}
            return
        if job.over:
            raise CannotDo(f"its debugger is still busy after {request.limit_s:g} s: look again later")
        yield None


def _ask(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    try:
        with sockets.connect(folder / "command.sock", ANSWERS_WITHIN_S) as rank, rank.makefile("rwb") as lines:
            lines.write(json.dumps(request).encode() + b"\n")
            lines.flush()
            answer = json.loads(lines.readline())
    except (OSError, ValueError) as error:
        raise CannotDo(f"the rank does not answer ({error}): see whether it still runs") from error
    if not isinstance(answer, dict) or "ok" not in answer:
        raise CannotDo(str(answer.get("error", answer) if isinstance(answer, dict) else answer)[:500])
    return answer
