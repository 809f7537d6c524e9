"""The agent's end of `shim.sock`: sends requests, and receives what the shim reports unasked."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.wire import sockets
from supervisor.wire.records import ProcessRecord, RecordError, decode

LINE_LIMIT = 1 << 22


class ShimRefused(Exception):
    """The shim could not meet a request; the text says why."""


class ShimLost(Exception):
    """The shim does not answer any more: without it the agent has nothing to do."""


PING_S = 1.0
"""Seconds between two pings: ten of them make the shim's AGENT_FROZEN_S."""


@dataclass(frozen=True)
class Watched:
    """Callbacks for what the shim reports unasked."""

    exited: Callable[[ProcessRecord], None]
    warm: Callable[[str], None]
    reaches: Callable[[Mapping[str, bool]], None]
    """Way -> true if its forwarder reaches the gate."""
    trips: Callable[[Mapping[str, float]], None]
    """Way -> milliseconds that its gate takes to answer."""
    leaving: Callable[[str], None]
    """Why the scheduler will end this node soon."""
    stopping: Callable[[], None]
    """Called when the shim ends what runs here, and then itself."""


class _Line:
    """One connection, with one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._busy = asyncio.Lock()

    async def ask(self, request: bytes) -> bytes:
        async with self._busy:
            self._writer.write(request)
            return await self._reader.readline()


class ShimClient:
    """Talks to the shim: requests on one connection, starts on another, exits and pings on a third."""

    def __init__(self, requests: _Line, starts: _Line, path: Path) -> None:
        self._requests = requests
        self._starts = starts
        """Own connection for starts: they wait while the shim's disk stalls, and stops must not."""
        self._path = path

    @classmethod
    async def connect(cls, path: Path) -> ShimClient:
        return cls(_Line(*await _open(path)), _Line(*await _open(path)), path)

    async def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Sends one request and returns its answer. Raises ShimRefused, ShimLost."""
        try:
            by = self._starts if do == "spawn" else self._requests
            line = await by.ask(json.dumps({"do": do, **fields}).encode() + b"\n")
        except OSError as error:
            raise ShimLost(str(error)) from error
        if not line:
            raise ShimLost(f"the shim closed {self._path}")
        answer: dict[str, Any] = json.loads(line)
        if not answer.get("ok"):
            raise ShimRefused(str(answer.get("error", "no reason given")))
        return answer

    async def listed(self) -> tuple[list[ProcessRecord], str]:
        """Returns what runs and has run here, and why the node will end soon (empty: no notice)."""
        answer = await self.ask("list")
        return [record(body) for body in answer["processes"]], str(answer.get("leaving", ""))

    async def watch(self, watched: Watched) -> None:
        """Calls back for every exit, first for the known ones, and sends pings meanwhile. Ends by raising ShimLost."""
        reader, writer = await _open(self._path)
        writer.write(b'{"do":"watch"}\n')
        pinging = asyncio.create_task(_ping(writer))
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if "exited" in message:
                    watched.exited(record(message["exited"]))
                elif "warm" in message:
                    watched.warm(str(message["warm"]))
                elif "reaches" in message:
                    watched.reaches(dict(message["reaches"]))
                elif "trips" in message:
                    watched.trips(dict(message["trips"]))
                elif "leaving" in message:
                    watched.leaving(str(message["leaving"]))
                elif "stopping" in message:
                    watched.stopping()
        except OSError as error:
            raise ShimLost(str(error)) from error
        finally:
            pinging.cancel()
            writer.close()
        raise ShimLost(f"the shim closed {self._path}")


async def _ping(writer: asyncio.StreamWriter) -> None:
    # not among the requests: a slow start must not keep a ping waiting
    while True:
        writer.write(json.dumps({"do": "ping", "pid": os.getpid()}).encode() + b"\n")
        await asyncio.sleep(PING_S)


def record(body: Any) -> ProcessRecord:
    """Decodes a ProcessRecord from the shim. Raises ShimLost when it is none: then shim and agent do not match."""
    try:
        return decode(json.dumps(body), ProcessRecord)
    except RecordError as error:
        raise ShimLost(f"the shim sent a process record that cannot be read: {error}") from error


async def _open(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        connected = sockets.connect(path, timeout_s=5.0)
    except OSError as error:
        raise ShimLost(f"no shim answers at {path}: {error}") from error
    connected.setblocking(False)
    return await asyncio.open_unix_connection(sock=connected, limit=LINE_LIMIT)
