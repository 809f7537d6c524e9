"""Sends commands to a running rank over its `command.sock` when something changes, until each is answered."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

from agents.agent.launch import read_launch
from agents.agent.names import about
from agents.health.progress_file import ProgressFile
from supervisor.wire import sockets
from supervisor.wire.records import CheckpointMark, TrainerDesired, encode

log = logging.getLogger(__name__)

ANSWER_WITHIN_S = 5.0
AGAIN_S = 0.5


async def ask(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Sends one request and returns its answer. Raises OSError when the rank does not listen, refuses or is late."""
    connected = sockets.connect(folder / "command.sock", timeout_s=1.0)
    connected.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=connected)
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(ANSWER_WITHIN_S):
            line = await reader.readline()
    except TimeoutError as error:
        raise OSError(f"no answer within {ANSWER_WITHIN_S:g} s") from error
    finally:
        writer.close()
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise OSError(f"answered {line[:200]!r}, which is not JSON") from error
    if not isinstance(answer, dict) or not answer.get("ok"):
        raise OSError(f"answered {line[:200]!r}")
    return answer


class RankCommands:
    """Keeps what one rank has been sent so far, and sends the rest. Its launch settings count as sent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        launch = read_launch(folder)
        self._writer: tuple[bool, CheckpointMark | None] | None = (
            (launch.writer, launch.checkpoint) if launch is not None else None
        )
        self._stop_at: tuple[int | None, int] = (None, 0)
        """Step of the drain, and the relaunch for which it keeps its state."""
        self._wait = False
        self._aborted: tuple[tuple[int, ...], int] | None = None
        self._task: asyncio.Task[None] | None = None
        self._next_try = 0.0

    def update(self, desired: TrainerDesired, progress: ProgressFile, now: float) -> None:
        """Sends the next command that the rank does not have yet, one at a time."""
        if self._task is not None and not self._task.done():
            return
        if progress.newest is None or now < self._next_try:
            return
        stuck = progress.stuck_s(now) * 1000 > desired.torchft.heartbeat_timeout_ms
        lost = (desired.lost, progress.newest.step)
        if desired.lost and stuck and self._aborted != lost:
            self._send({"do": "abort", "lost": list(desired.lost)}, now, aborted=lost)
        elif desired.stop_at_step is not None and self._stop_at != (desired.stop_at_step, desired.from_memory):
            drain = {"do": "drain", "at_step": desired.stop_at_step, "keep": desired.from_memory}
            self._send(drain, now, stop_at=(desired.stop_at_step, desired.from_memory))
        elif self._writer != (desired.writer, desired.checkpoint):
            mark = desired.checkpoint
            pointer = None if mark is None else json.loads(encode(mark))
            told = (desired.writer, mark)
            self._send({"do": "writer", "writer": desired.writer, "pointer": pointer}, now, writer=told)
        elif self._wait != desired.wait or (progress.newest.phase == "waiting" and not desired.wait):
            # the second: an earlier agent had it wait
            self._send({"do": "wait", "wait": desired.wait}, now, wait=desired.wait)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _send(self, request: dict[str, Any], now: float, **told: Any) -> None:
        self._next_try = now + AGAIN_S
        self._task = asyncio.create_task(self._ask(request, told))

    async def _ask(self, request: dict[str, Any], told: dict[str, Any]) -> None:
        try:
            await ask(self._folder, request)
        except OSError as error:
            name = self._folder.name
            log.info("%s did not accept %s: %s; trying again", name, request, error, extra=about(name))
            return
        log.info("%s took %s", self._folder.name, request, extra=about(self._folder.name))
        for name, value in told.items():
            setattr(self, f"_{name}", value)
