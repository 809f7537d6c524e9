"""Runs a command that a person asks for, and passes on its output, within a limit of seconds and of bytes."""

from __future__ import annotations

import codecs
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from agents.agent.launch import read_launch
from supervisor.shell.etcd.inbox import Answer, CannotDo, Job
from supervisor.wire import environment, marks
from supervisor.wire.node_requests import pieces

_utf8 = codecs.getincrementaldecoder("utf-8")

READ_BYTES = 16 * 1024
LOOK_S = 0.1
ENDS_WITHIN_S = 2.0
"""Seconds from TERM to KILL, and from then on for its last words."""


def of_rank(pid: int, folder: Path) -> dict[str, str]:
    """Returns the environment that a rank was started with. Raises CannotDo if the rank has ended."""
    try:
        own = environment.of_process(pid)
    except OSError as error:
        raise CannotDo(f"the rank has just ended ({error.strerror}): ask again, or name the node alone") from error
    launch = read_launch(folder)
    if launch is None:
        return own
    # a rank that is forked got these later
    return {**own, **environment.meeting_point(launch), environment.LAUNCH: str(folder / "launch.json")}


def run(argv: tuple[str, ...], env: Mapping[str, str], folder: Path, job: Job, most_bytes: int) -> Answer:
    """Yields the output as {"stream", "text"}, at last {"code"} (negative: the signal). Ends it, and all of its process
    group, when a limit is reached or no one waits. Raises CannotDo if it does not start, or has reached a limit."""
    if not argv:
        raise CannotDo("no command is given")
    mark = {marks.STARTED_BY: f"exec.{job.id}"}  # if this agent dies first, the shim ends it at the next end of a rank
    try:
        child = subprocess.Popen(
            argv, env={**env, **mark}, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise CannotDo(f"{argv[0]} does not start: {error}") from error
    try:
        left, texts = most_bytes, {name: _utf8(errors="replace") for name in ("stdout", "stderr")}
        for stream, data in _output(child, job):
            if not stream:
                yield None
            elif text := texts[stream].decode(data[: max(0, left)]):
                for piece in pieces(text):
                    yield {"stream": stream, "text": piece}
            left -= len(data)
            if left < 0:
                raise CannotDo(f"its output is above {most_bytes} bytes: the command was ended")
            if job.gone.is_set():
                return
        if job.left_s <= 0:
            raise CannotDo(f"the command was ended: it took longer than {job.request.limit_s:g} s")
        yield {"code": child.wait()}
    finally:
        end(child)


def _output(child: subprocess.Popen[bytes], job: Job) -> Iterator[tuple[str, bytes]]:
    """Yields the output as it comes, and an empty stream while none comes. Ends with the command: a process that it left
    behind may keep its output open."""
    assert child.stdout is not None
    assert child.stderr is not None
    ended_at: float | None = None
    with selectors.DefaultSelector() as selector:
        for stream, pipe in (("stdout", child.stdout), ("stderr", child.stderr)):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, stream)
        while selector.get_map() and not job.over:
            ready = selector.select(LOOK_S)
            for key, _ in ready:
                data = os.read(key.fd, READ_BYTES)
                if data:
                    yield key.data, data
                else:
                    selector.unregister(key.fileobj)
            if not ready:
                yield "", b""
                if child.poll() is not None:
                    ended_at = ended_at or time.monotonic()
                    if time.monotonic() - ended_at > ENDS_WITHIN_S:
                        return
    while child.poll() is None and not job.over:
        yield "", b""
        with suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_S)


def end(child: subprocess.Popen[bytes]) -> None:
    """Ends a child and its process group: TERM, then KILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(ENDS_WITHIN_S)  # what it has started may stay on after it: KILL follows in any case
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
