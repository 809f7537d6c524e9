"""Gives the trainers a fixed way to the lighthouse: a loopback port per generation, forwarded to wherever the gate is.

While there is no gate it accepts and holds connections, so that a trainer never sees the lighthouse away. Its first
line to the gate identifies the generation. To a new gate it repeats the lines that trainers sent, because each sends
BUILT only once. It reports at once when a process has ended. A connection that carries only this first line and pings
shows whether the gate is reached.
"""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agents.gate.round_trips import Trip
from agents.shim import process
from supervisor.wire.local_peer import is_ours
from supervisor.wire.security import Reloading, Security, common_name, node_name

RETRY_S = 0.05
CONNECT_WITHIN_S = 1.0
SILENT_GATE_MS = 2000
"""Milliseconds without acknowledgement after which a gate is cut off (TCP_USER_TIMEOUT). A live gate acknowledges in a
round trip. TorchFT's heartbeat has no timeout of its own and hangs forever on a machine that vanished."""
GOODBYE_WITHIN_S = 1.0
"""Seconds to wait for the end of a TLS connection; asyncio would wait for 30 s."""
HELD_BYTES = 1 << 20
LINKS = 64
"""Most connections of a generation's processes. A manager has one, and one for its line BUILT."""
SPEAKS_WITHIN_S = 5.0
"""Seconds to wait for a connection's first bytes, so that silent ones leave their places."""
CHUNK = 1 << 16
BUILT = b"BUILT "
GONE = b"GONE\n"
PING = b"PING\n"
PONG = b"PONG\n"
PING_EVERY_S = 1.0
PONG_WITHIN_S = 3.0
"""Seconds to wait for a PONG. A gate that stood still for as long ends itself when it thaws (FROZEN_S)."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Forward:
    """One generation's way to the gate."""

    name: str
    header: bytes
    gate: str = ""
    gate_node: str = ""
    """Node of the gate; with TLS the gate must show this node's certificate."""
    files: Reloading | None = None
    """Our certificate; None: plain TCP."""
    said_of_peer: str = ""
    """Last sentence about a connection that was refused, so that each is logged once."""
    reaches: bool | None = None
    """True if the gate is reached now; None before the first try."""
    trip: Trip = field(default_factory=Trip)
    said: list[bytes] = field(default_factory=list)
    """BUILT lines that a gate has answered."""
    gone: bool = False
    server: asyncio.Server | None = None
    links: set[asyncio.Task[None]] = field(default_factory=set)
    silent: dict[asyncio.Task[None], None] = field(default_factory=dict)
    """Links that have sent nothing, the first one first: it makes place when there are LINKS."""
    passing: set[asyncio.Task[Any]] = field(default_factory=set)
    """Links that have reached the gate: cut when it moves. Links that still wait for it go on waiting."""
    attempts: set[asyncio.Task[bytes]] = field(default_factory=set)
    """Lines on their way to the gate: sent again when it moves."""
    telling: set[asyncio.Task[bytes]] = field(default_factory=set)
    connecting: set[asyncio.Task[Streams | None]] = field(default_factory=set)
    outward: set[asyncio.StreamWriter] = field(default_factory=set)
    """Connections to the gate that may still be open."""
    probe: asyncio.Task[None] | None = None
    ping_every_s: float = PING_EVERY_S

    @property
    def port(self) -> int:
        assert self.server is not None
        return int(self.server.sockets[0].getsockname()[1])


class Forwarder:
    """Holds the ways of all generations on a node."""

    def __init__(
        self,
        node: str,
        changed: Callable[[str, bool], None],
        measured: Callable[[str, float], None],
        credentials: Callable[[], Security] = Security,
    ) -> None:
        """`credentials` is asked at the first way, since a node starts sooner without OpenSSL. `changed(name, reaches)` is called when a way begins or ceases to reach its gate. `measured(name, ms)` is
        called when the gate's answer time has reached another power of two."""
        self._node = node
        self._changed = changed
        self._measured = measured
        self._credentials = credentials
        self._forwards: dict[str, Forward] = {}

    @functools.cached_property
    def _files(self) -> Reloading | None:
        security = self._credentials()
        return Reloading(security) if security.tls else None

    async def set(
        self,
        run: str,
        group: int,
        generation: int,
        gate: str,
        gate_node: str = "",
        ping_every_s: float = PING_EVERY_S,
    ) -> int:
        """Opens a generation's way (once), sets its gate (empty: none), and returns the loopback port. `ping_every_s`:
        by which the gate of a group on several nodes knows that this one lives.

        A changed gate cuts every connection to the old one before this returns: they are made again to the new one.
        Raises OSError, and SecurityError for files that cannot be used.
        """
        name = f"{run}.{group}.{generation}"
        forward = self._forwards.get(name)
        if forward is None:
            identity = {"node": self._node, "run": run, "group": group, "generation": generation}
            header = json.dumps(identity).encode() + b"\n"
            forward = Forward(name, header, gate, gate_node, self._files, ping_every_s=ping_every_s)
            self._forwards[name] = forward
            try:
                forward.server = await asyncio.start_server(functools.partial(self._accept, forward), "127.0.0.1", 0)
            except OSError:
                del self._forwards[name]
                raise
            self._probe(forward)
        elif (forward.gate, forward.gate_node) != (gate, gate_node):
            forward.gate, forward.gate_node = gate, gate_node
            await _cut(forward)
            if forward.reaches:
                self._note(forward, False)
            self._probe(forward)
            self._tell(forward)
        return forward.port

    @property
    def reaches(self) -> dict[str, bool]:
        """Maps each way to whether it reaches its gate, where that is known."""
        return {name: forward.reaches for name, forward in self._forwards.items() if forward.reaches is not None}

    def gone(self, name: str) -> None:
        """Reports to the gate, and to each later one, that a process of this generation has ended."""
        forward = self._forwards.get(name)
        if forward is not None and not forward.gone:
            forward.gone = True
            self._tell(forward)

    def drop(self, name: str) -> None:
        forward = self._forwards.pop(name, None)
        if forward is None:
            return
        if forward.server is not None:
            forward.server.close()
        for task in [*forward.links, *forward.telling, *([forward.probe] if forward.probe else [])]:
            task.cancel()
        for writer in forward.outward:
            writer.transport.abort()

    def close(self) -> None:
        for name in list(self._forwards):
            self.drop(name)

    # --- whether the gate is reached ---

    def _probe(self, forward: Forward) -> None:
        if forward.probe is not None:
            forward.probe.cancel()
        forward.probe = (
            asyncio.create_task(_keep_reaching(forward, self._note, self._note_trip)) if forward.gate else None
        )

    def _note(self, forward: Forward, reaches: bool) -> None:
        if forward.reaches != reaches:
            forward.reaches = reaches
            self._changed(forward.name, reaches)

    @property
    def trips(self) -> dict[str, float]:
        """Maps each way to its round trip to the gate in milliseconds, where measured."""
        return {name: forward.trip.ms for name, forward in self._forwards.items() if forward.trip.ms}

    def _note_trip(self, forward: Forward, trip_s: float) -> None:
        if forward.trip.note(trip_s):
            self._measured(forward.name, forward.trip.ms)

    # --- a generation's lines, repeated to a new gate ---

    def _tell(self, forward: Forward) -> None:
        for telling in forward.telling:
            telling.cancel()
        for line in [GONE] if forward.gone else forward.said:
            telling = asyncio.create_task(_tell_until_answered(forward, line))
            forward.telling.add(telling)
            telling.add_done_callback(forward.telling.discard)

    # --- connections ---

    def _accept(self, forward: Forward, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(forward.links) >= LINKS:
            if not forward.silent:
                writer.transport.abort()
                return
            first = next(iter(forward.silent))
            del forward.silent[first]
            first.cancel()
        link = asyncio.create_task(_link(forward, reader, writer))
        forward.links.add(link)
        forward.silent[link] = None

        def over(_: object) -> None:
            forward.links.discard(link)
            forward.silent.pop(link, None)
            writer.close()

        link.add_done_callback(over)


async def _link(forward: Forward, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(SPEAKS_WITHIN_S):
            first = await reader.read(CHUNK)
        link = asyncio.current_task()
        assert link is not None
        forward.silent.pop(link, None)
        if first and not is_ours(writer.get_extra_info("socket")):
            _say_once(forward, f"closed a connection of another user to the way of {forward.name}")
        elif first.startswith(BUILT):
            await _announce(forward, first, reader, writer)
        elif first:
            await _pass(forward, first, reader, writer)
    except OSError:
        pass  # one side is gone: closing the other reports it


async def _announce(forward: Forward, line: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Brings a BUILT line to the gate, or to the next one if this one dies, while the trainer waits."""
    telling = asyncio.create_task(_tell_until_answered(forward, line))
    leaving = asyncio.create_task(reader.read(CHUNK))
    try:
        await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if telling.done():
            forward.said.append(line)
            writer.write(telling.result())
            await writer.drain()
    finally:
        telling.cancel()
        leaving.cancel()


async def _tell_until_answered(forward: Forward, line: bytes) -> bytes:
    pause_s = RETRY_S
    while True:
        attempt = asyncio.create_task(_tell_once(forward, line))
        forward.attempts.add(attempt)
        try:
            await asyncio.wait({attempt})
            if not attempt.cancelled() and (answer := attempt.result()):
                return answer
        finally:
            attempt.cancel()
            forward.attempts.discard(attempt)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, 1.0)


async def _tell_once(forward: Forward, line: bytes) -> bytes:
    reader, writer = await _reach(forward)
    try:
        writer.write(line)
        return await reader.read(CHUNK)
    except OSError:
        return b""
    finally:
        writer.close()


async def _pass(forward: Forward, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    reaching = asyncio.create_task(_reach(forward))
    link = asyncio.current_task()
    assert link is not None
    try:
        held = await _hold(first, reader, reaching)
        if not held:
            return
        forward.passing.add(link)
        gate_reader, gate_writer = reaching.result()
        gate_writer.write(held)
        await both_ways((reader, writer), (gate_reader, gate_writer))
    finally:
        if reaching.done() and not reaching.cancelled():
            reaching.result()[1].close()
        reaching.cancel()
        forward.passing.discard(link)


async def _hold(held: bytes, reader: asyncio.StreamReader, until: asyncio.Task[Streams]) -> bytes:
    """Returns all that the client sent until the gate was reached; nothing if the client left before."""
    while not until.done():
        reading = asyncio.create_task(reader.read(CHUNK))
        try:
            await asyncio.wait({reading, until}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # a read that is cancelled while it waits has consumed nothing: the next one gets it all
            reading.cancel()
            await asyncio.wait({reading})
        if not reading.cancelled():
            more = reading.result()
            if not more or len(held) > HELD_BYTES:
                return b""
            held += more
    return held


async def both_ways(one: Streams, other: Streams) -> None:
    """Passes bytes between two connections until either ends."""
    pumps = {asyncio.create_task(_pump(one[0], other[1])), asyncio.create_task(_pump(other[0], one[1]))}
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()


async def _reach(forward: Forward) -> Streams:
    """Returns a connection to the gate, however long it takes, with our first line sent."""
    while True:
        if forward.gate and (streams := await _connect(forward)) is not None:
            return streams
        await asyncio.sleep(RETRY_S)


async def _connect(forward: Forward) -> Streams | None:
    """Tries once to connect; None when it fails, or the gate moves meanwhile."""
    connecting = asyncio.create_task(_open(forward, forward.gate))
    forward.connecting.add(connecting)
    try:
        await asyncio.wait({connecting})
        return None if connecting.cancelled() else connecting.result()
    except asyncio.CancelledError:
        if connecting.done() and not connecting.cancelled() and (made := connecting.result()) is not None:
            made[1].transport.abort()
        raise
    finally:
        connecting.cancel()
        forward.connecting.discard(connecting)


async def _open(forward: Forward, gate: str) -> Streams | None:
    host, _, port = gate.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            reader, writer = await asyncio.open_connection(host, int(port), **_tls(forward))
    except ssl.SSLError as error:
        _say_once(forward, f"no TLS with the gate at {gate}: {error}")
        return None
    except (OSError, ValueError):  # a TimeoutError is an OSError
        return None
    if not _is_the_gate(forward, writer):
        writer.transport.abort()
        return None
    _notice_silence(writer.get_extra_info("socket"))
    forward.outward = {each for each in forward.outward if not _is_gone(each)}
    forward.outward.add(writer)
    writer.write(forward.header)
    return reader, writer


def _tls(forward: Forward) -> dict[str, Any]:
    if forward.files is None:
        return {}
    return {"ssl": forward.files.context(), "ssl_shutdown_timeout": GOODBYE_WITHIN_S}


def _is_the_gate(forward: Forward, writer: asyncio.StreamWriter) -> bool:
    """Returns true if the certificate shown is that of the gate's node; always without TLS."""
    if forward.files is None:
        return True
    met, wanted = common_name(writer.get_extra_info("ssl_object")), node_name(forward.gate_node)
    if met != wanted:
        _say_once(
            forward, f"the server at {forward.gate} is not the gate: its certificate is of {met!r}, not {wanted!r}"
        )
    return met == wanted


def _say_once(forward: Forward, sentence: str) -> None:
    if sentence != forward.said_of_peer:
        forward.said_of_peer = sentence
        process.say(sentence)


def _is_gone(writer: asyncio.StreamWriter) -> bool:
    # a closing connection stays open until the gate has taken what is left to send
    return writer.transport.is_closing() and writer.transport.get_write_buffer_size() == 0


async def _cut(forward: Forward) -> None:
    """Ends every connection to the gate, and every try to make one."""
    for task in [*forward.passing, *forward.attempts, *forward.connecting]:
        task.cancel()
    writers, forward.outward = forward.outward, set()
    for writer in writers:
        writer.transport.abort()
    await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def _keep_reaching(
    forward: Forward, note: Callable[[Forward, bool], None], note_trip: Callable[[Forward, float], None]
) -> None:
    """Asks the gate again and again whether it serves us, and notes the answer. An open connection proves nothing: the
    kernel keeps that of a frozen gate alive."""
    pause_s = RETRY_S
    while True:
        streams = await _connect(forward)
        if streams is not None:
            reader, writer = streams
            try:
                while (trip_s := await _answers(reader, writer)) is not None:
                    note(forward, True)
                    note_trip(forward, trip_s)
                    pause_s = RETRY_S
                    await asyncio.sleep(forward.ping_every_s)
            finally:
                writer.transport.abort()
        note(forward, False)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, 1.0)


async def _answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float | None:
    """Returns the seconds until the gate answered; None if it did not."""
    began = asyncio.get_running_loop().time()
    try:
        # not wait_for: in Python 3.11 it swallows a cancellation that comes together with the end of the connection
        async with asyncio.timeout(PONG_WITHIN_S):
            writer.write(PING)
            await writer.drain()
            answered = await reader.read(CHUNK) == PONG
    except (OSError, TimeoutError):
        return None
    return asyncio.get_running_loop().time() - began if answered else None


def _notice_silence(link: socket.socket) -> None:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_GATE_MS)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # same as the end of file
