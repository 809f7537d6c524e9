"""The lighthouse as its gate has it: a child process that is told for whom to beat, and asked for signs of life."""

from __future__ import annotations

import asyncio
import json
import os

from supervisor.wire import programs
from supervisor.wire.programs import QUORUM_IDS_ABOVE

BEAT_TIMEOUT_MS = 300
"""Of the lighthouse: 20 ms beats, so fourteen may be late before the living are dropped. It was 150: on a machine with much too much to
do the beats were once late by a quarter of a second, and each of two groups committed the same step alone (ADR 6)."""
STARTS_WITHIN_S = 120.0
FROZEN_S = 3.0
"""A lighthouse that gives no sign of life for this long is ended, and so is a gate that stood still for as long. It is less than
what our lease needs to lapse (gate_etcd.GATE_LEASE_S), so nobody has taken our place before that."""


class GateFailed(Exception):
    """The gate cannot go on; the text says why."""


class Lighthouse:
    """Of one gate. They live and die together."""

    def __init__(self) -> None:
        self.port = 0
        self.beats: tuple[str, ...] = ()
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._answered_at = 0.0

    async def start(self, min_groups: int, join_timeout_ms: int, quorum_ids_above: int) -> asyncio.Task[int]:
        """Returns once it listens on loopback; the task ends with its exit code. Raises GateFailed when it does not."""
        argv = programs.command(
            "lighthouse",
            f"--min-replicas={min_groups}",
            f"--join-timeout-ms={join_timeout_ms}",
            f"--heartbeat-timeout-ms={BEAT_TIMEOUT_MS}",
        )
        # it ends when its stdin does, so it never outlives us; and the shim ends our whole session
        self._process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, QUORUM_IDS_ABOVE: str(quorum_ids_above)},
        )
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), STARTS_WITHIN_S)
            self.port = int(json.loads(line)["port"])
        except (TimeoutError, ValueError, KeyError, TypeError) as error:
            raise GateFailed(
                f"the lighthouse did not say where it listens ({type(error).__name__}: {error})"
            ) from error
        self._answered_at = asyncio.get_running_loop().time()
        self._listening = asyncio.create_task(self._listen(self._process.stdout))
        return asyncio.create_task(self._process.wait())

    def beat(self, ids: tuple[str, ...]) -> None:
        """It is to count these as alive, and no other."""
        if self.port and ids != self.beats:
            self.beats = ids
            self.ask()

    def ask(self) -> None:
        """Tell it again; it answers, if it lives."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"beat": list(self.beats)}).encode() + b"\n")

    def check(self) -> None:
        """Raises GateFailed when it has given no sign of life for too long: it must not serve when it thaws."""
        if asyncio.get_running_loop().time() - self._answered_at > FROZEN_S:
            raise GateFailed(f"the lighthouse has given no sign of life for {FROZEN_S:.0f} s")

    async def end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()  # it holds nothing: the replicas ask the next one
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
