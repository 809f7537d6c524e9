"""Runs the gate's lighthouse: a child process that gets the ids to beat for, and is asked for signs of life."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket

from supervisor.wire import programs
from supervisor.wire.programs import QUORUM_IDS_ABOVE

log = logging.getLogger("agents.gate")

BEAT_TIMEOUT_MS = 330
"""Heartbeat timeout of the lighthouse. At 50 ms a beat, one may be 280 ms late before the living are dropped. With 150
ms, beats were once a quarter of a second late on an overloaded machine. Two groups then each committed the same step
alone (ADR 6)."""
STARTS_WITHIN_S = 120.0
FROZEN_S = 3.0
"""A lighthouse that gives no sign of life for this many seconds is ended, and so is a gate that stood still for as
long. This is less than our lease takes to lapse (etcd.GATE_LEASE_S), so no other gate has our seat before that."""


class GateFailed(Exception):
    """The gate cannot go on; the text says why."""


class Lighthouse:
    """One gate's lighthouse. They live and die together."""

    def __init__(self) -> None:
        self.listens = False
        self._doors, self._child_doors = socket.socketpair()
        self._one_by_one = asyncio.Lock()
        self.beats: tuple[str, ...] = ()
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._answered_at = 0.0

    async def start(self, min_groups: int, join_timeout_ms: int, quorum_ids_above: int) -> asyncio.Task[int]:
        """Returns once the lighthouse listens, with a task for its exit code. Raises GateFailed if it does not."""
        argv = programs.command(
            "lighthouse",
            f"--min-replicas={min_groups}",
            f"--join-timeout-ms={join_timeout_ms}",
            f"--heartbeat-timeout-ms={BEAT_TIMEOUT_MS}",
            f"--doors={self._child_doors.fileno()}",
        )
        # the lighthouse ends when its stdin closes, so it never outlives the gate; and the shim ends the whole session
        self._process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, QUORUM_IDS_ABOVE: str(quorum_ids_above)},
            pass_fds=(self._child_doors.fileno(),),
        )
        self._child_doors.close()
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), STARTS_WITHIN_S)
            about = json.loads(line)
            if not about["private"]:
                log.warning("every process of this host reaches the lighthouse, at port %d of loopback", about["port"])
        except (TimeoutError, ValueError, KeyError, TypeError) as error:
            raise GateFailed(f"the lighthouse did not report its address ({type(error).__name__}: {error})") from error
        self.listens = True
        self._answered_at = asyncio.get_running_loop().time()
        self._listening = asyncio.create_task(self._listen(self._process.stdout))
        return asyncio.create_task(self._process.wait())

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Returns a connection to the lighthouse, which only its own process can make. Raises OSError."""
        async with self._one_by_one:
            connection = await asyncio.to_thread(self._take_connection)
        return await asyncio.open_connection(sock=connection)

    def _take_connection(self) -> socket.socket:
        self._doors.send(b".")
        _, handles, _, _ = socket.recv_fds(self._doors, 1, 1)
        if not handles:
            raise ConnectionRefusedError("the lighthouse gave no connection")
        return socket.socket(fileno=handles[0])

    def beat(self, ids: tuple[str, ...]) -> None:
        """Has the lighthouse count these ids as alive, and no other."""
        if self.listens and ids != self.beats:
            self.beats = ids
            self.ask()

    def ask(self) -> None:
        """Sends the ids again; a live lighthouse answers."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"beat": list(self.beats)}).encode() + b"\n")

    def check(self) -> None:
        """Raises GateFailed when the lighthouse gave no sign of life for too long: it must not serve when it thaws."""
        if asyncio.get_running_loop().time() - self._answered_at > FROZEN_S:
            raise GateFailed(f"the lighthouse has given no sign of life for {FROZEN_S:.0f} s")

    async def end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()  # it holds no state: the replicas ask the next one
            await self._process.wait()

    async def _listen(self, output: asyncio.StreamReader) -> None:
        while line := await output.readline():
            try:
                late_s = float(json.loads(line)["late_s"])
            except (ValueError, KeyError, TypeError):
                print(line.decode(errors="replace"), end="", flush=True)
            else:
                if late_s < FROZEN_S:
                    self._answered_at = asyncio.get_running_loop().time()
