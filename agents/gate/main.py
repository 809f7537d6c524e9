"""The gate before a run's lighthouse: admits, holds, beats and cuts by generation. `python -m agents.gate ...`.

It passes TorchFT's bytes unchanged, once requests.py has allowed them. The rules are in state.py; connections, lighthouse
and etcd are here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from agents.gate.etcd import Answer, Orders, OrdersWatch, Publisher
from agents.gate.forwarder import BUILT, CHUNK, GONE, GOODBYE_WITHIN_S, LINKS, PING, PONG
from agents.gate.lighthouse_child import FROZEN_S, GateFailed, Lighthouse
from agents.gate.requests import Answers, Refused, Requests
from agents.gate.state import GateState
from agents.threads.from_thread import from_thread
from supervisor.core.model.observed import GATE_ETCD_SILENCE_S
from supervisor.shell.etcd.lease import boot_time
from supervisor.shell.failpoints import reach
from supervisor.wire import logged, sockets
from supervisor.wire.aside import Aside
from supervisor.wire.deny_list import Serial
from supervisor.wire.listener_files import ListenerFiles, server_context, shown
from supervisor.wire.local_peer import is_ours
from supervisor.wire.records import GateGroup, GateObserved, GatePresence
from supervisor.wire.security import SecurityError, common_name, is_loopback, load, node_name

log = logging.getLogger("agents.gate")

TICK_S = 0.05
"""Seconds between two looks at what has fallen silent. What comes over a connection, or from etcd, is looked at at once."""
ALIVE_S = 1.0
"""Seconds between two requests for a sign of life from the lighthouse. Touching `gate.json` as often is the gate's own
sign to the agent."""
SETTLE_S = 0.15
"""Seconds of three beats: the lighthouse must know all the living before the first of them asks for a quorum."""
HEADER_WITHIN_S = 5.0
UNKNOWN = 256
"""Most connections without a first line. A forwarder sends its own at once."""
REQUEST_BYTES = 4096
"""Bytes of a manager that are looked at in one turn: at most 455 frames, in 2 ms."""
HELD_BYTES = 1 << 16
"""Most bytes of a manager that waits to be admitted: hours of requests that timed out."""
NO_DESCRIPTOR_S = 0.1
"""Seconds until the next try to accept a connection."""
VISITORS = 4 * LINKS
"""Most connections of one node. Each of its generations has a probe, a manager, and lines that wait."""
LAST_WORDS_S = 2.0
MUTE_WARNING_S = 2.0
"""Seconds to wait for a manager's replica id: it calls every 100 ms, with its id in each call."""


@dataclass(eq=False)
class Visitor:
    """One connection from a forwarder."""

    node: str
    group: int
    generation: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    certificate: Serial | None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> tuple[int, int]:
        return self.group, self.generation


class Gate:
    """Serves one run's lighthouse."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._state = GateState(
            options.heartbeat_timeout_ms / 1000, options.join_timeout_ms / 1000, GATE_ETCD_SILENCE_S, FROZEN_S
        )
        self._visitors: set[Visitor] = set()
        self._unknown: dict[socket.socket, asyncio.Task[None]] = {}
        """Connections that have not sent their first line, the first one first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._files = Aside("files")
        self._lighthouse = Lighthouse()
        self._told: GateObserved | None = None
        self._address, self._port = "", 0
        self._opening = False
        self._silent: tuple[tuple[int, str], ...] = ()
        """Groups with a further node that is silent."""
        self._asked = self._answered = 0
        """Numbers of the last reading of all admissions that was asked for, and of the last that came."""
        self._ending = asyncio.Event()
        self._failure = ""
        self._ticked_at: float | None = None
        self._asked_for_life_at = 0.0
        self._security = load(options.security)
        self._tls_files = ListenerFiles(self._security) if self._security.tls else None
        self._server_context = server_context(self._tls_files) if self._tls_files is not None else None
        own = (options.node, options.run, options.generation)
        self._watch = OrdersWatch(*own, options.etcd, from_thread(self._loop, self._obey), self._security)
        presence = GatePresence(run=options.run, node=options.node, generation=options.generation)
        self._asking: tuple[int, tuple[tuple[int, int], ...]] | None = None
        """Number of the open question, and the silent generations that it is about."""
        self._no_doubt = asyncio.Event()
        self._no_doubt.set()
        self._publisher = Publisher(
            presence, options.etcd, from_thread(self._loop, self._confirm), self._is_alive, self._security
        )

    # --- life ---

    async def run(self) -> None:
        """Runs until TERM or until another has the seat. Raises GateFailed if the lighthouse ends or the gate stood
        still."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._ending.set)
        try:
            self._watch.start()
            self._publisher.start()
            options = self._options
            died = await self._lighthouse.start(options.min_groups, options.join_timeout_ms, options.quorum_ids_above)
            listener = sockets.listen_at(options.address)
            accepting = asyncio.create_task(self._accept(listener))
            self._port = int(listener.getsockname()[1])
            self._address = f"{self._options.address}:{self._port}"
            reach("gate.listening")
            self._write_state(())
            await self._files.done(lambda: None)
            print(json.dumps({"port": self._port}), flush=True)
            self._ticked_at = boot_time()
            ended = asyncio.create_task(self._ending.wait())
            while not ended.done():
                if died.done():
                    raise GateFailed(f"the lighthouse ended (exit code {died.result()}); its output is above")
                if self._stood_still() or self._failure:
                    raise GateFailed(self._failure)
                self._tick()
                self._signs_of_life()
                await asyncio.wait({died, ended}, timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED)
            died.cancel()
            accepting.cancel()
            listener.close()
        finally:
            self._state.retired = True
            self._review()
            self._watch.stop()
            self._publisher.stop()
            await self._lighthouse.end()
            await asyncio.to_thread(self._publisher.join, LAST_WORDS_S)

    def _tls(self) -> dict[str, Any]:
        """Returns a connection's TLS arguments for forwarders; empty without certificates."""
        if not self._security.tls:
            return {}
        return {
            "ssl": self._server_context,
            "ssl_handshake_timeout": HEADER_WITHIN_S,
            "ssl_shutdown_timeout": GOODBYE_WITHIN_S,
        }

    def _write_state(self, groups: Sequence[GateGroup]) -> None:
        """Writes `gate.json` for the agent: the port, and how each group is heard."""
        text = json.dumps({"port": self._port, "hearing": {str(each.group): each.hearing for each in groups}})
        self._files.ask(partial(_leave, Path(self._options.folder), text))

    def _signs_of_life(self) -> None:
        self._lighthouse.check()
        if self._loop.time() - self._asked_for_life_at >= ALIVE_S:
            self._asked_for_life_at = self._loop.time()
            self._lighthouse.ask()
            if not self._files.left:  # else its disk stalls
                self._files.ask(partial(os.utime, Path(self._options.folder) / "gate.json"))
                if self._tls_files is not None:
                    self._files.ask(self._tls_files.stamp)
            self._end_revoked()

    def _end_revoked(self) -> None:
        """Cuts the connections that were made with a certificate which the deny list in use names."""
        denied: frozenset[Serial] = self._tls_files.denied if self._tls_files is not None else frozenset()
        for visitor in [visitor for visitor in self._visitors if visitor.certificate in denied]:
            log.warning("cut a connection of node %s: its certificate was revoked", visitor.node)
            visitor.writer.transport.abort()

    def _is_alive(self) -> bool:
        """Returns true while the event loop turns; for the publisher's thread. True too while the lighthouse starts."""
        return self._ticked_at is None or boot_time() - self._ticked_at <= FROZEN_S

    def _stood_still(self) -> bool:
        """Returns true if the gate stood still for so long that another may have its seat soon. Then nothing passes."""
        if self._ticked_at is not None and not self._failure:
            still_s = boot_time() - self._ticked_at
            if still_s > FROZEN_S:
                self._failure = f"the gate stood still for {still_s:.1f} s: another may serve by now"
                self._state.retired = True
                log.warning("%s", self._failure)  # at once: a kill would not wait for our last words
        return bool(self._failure)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- what changes ---

    def _obey(self, orders: Orders) -> None:
        self._answered = orders.asked
        if orders.retired:
            log.warning(
                "another gate has the seat of lighthouse %d, or this one must close: ending", self._options.generation
            )
            self._state.retired = True
            self._ending.set()
        for group, generation in sorted(self._state.admit(orders.admitted, self._loop.time())):
            log.info(
                "group %d: generation %d is stale and cut for good",
                group,
                generation,
                extra=self._about(group, generation),
            )
        self._review()
        self._tick()

    def _review(self) -> None:
        """Has every connection check again how it is treated, and cuts at once those that must be cut."""
        for visitor in list(self._visitors):
            if self._passage(visitor) == "cut":
                visitor.writer.transport.abort()
            visitor.changed.set()

    def _passage(self, visitor: Visitor) -> str:
        if self._stood_still():
            return "cut"
        return self._state.passage(*visitor.key, visitor.node, self._loop.time())

    def _about(self, group: int, generation: int) -> dict[str, dict[str, object]]:
        return logged.about(run=self._options.run, group=group, generation=generation)

    def _tick(self) -> None:
        if self._stood_still() or self._ticked_at is None:
            return
        self._ticked_at = boot_time()
        now = self._loop.time()
        if (silent := self._state.silent_nodes(now)) != self._silent:
            for group, node in set(silent) - set(self._silent):
                log.warning("group %d: its node %s is silent", group, node)
            self._silent = silent
            self._review()
        if self._state.judge_etcd(self._watch.silent_s, self._answered >= self._asked, now):
            if self._state.closed:
                log.warning("etcd is silent and a group is lost: closed, because the current generation is not known")
                self._asked = self._watch.read_again()
            else:
                log.warning("etcd is back and was read again: open")
            self._review()
        if not self._state.opened and not self._opening and self._state.may_open(now):
            self._opening = True
            self._keep(asyncio.create_task(self._open()))
        self._doubt(now)
        self._lighthouse.beat(self._state.beats(now))
        if self._address:
            self._publish(now)

    def _doubt(self, now: float) -> None:
        """Asks etcd before the quorum steps on without a silent group. This gate may be cut off, while that group
        trains on with the other side."""
        doubted = self._state.doubted(now)
        if doubted and self._asking is None:
            self._asking = (self._publisher.ask(), doubted)
        if doubted:
            self._no_doubt.clear()
        else:
            self._no_doubt.set()

    def _confirm(self, answer: Answer) -> None:
        if answer.orders is not None:
            self._obey(replace(answer.orders, asked=self._answered))
        if self._asking is not None and answer.number >= self._asking[0]:
            self._state.confirm(self._asking[1])
            self._asking = None
            self._tick()

    async def _open(self) -> None:
        reach("gate.opening")
        self._state.open(self._loop.time())
        self._lighthouse.beat(self._state.beats(self._loop.time()))
        await asyncio.sleep(SETTLE_S)
        reach("gate.open")
        self._opening = False
        log.info("open: %s", ", ".join(self._lighthouse.beats))
        self._review()

    def _publish(self, now: float) -> None:
        observed = GateObserved(
            run=self._options.run,
            node=self._options.node,
            generation=self._options.generation,
            address=self._address,
            groups=self._state.groups(now),
            quorum_id=self._state.quorum_id,
        )
        if observed != self._told:
            self._told = observed
            self._publisher.publish(observed)
            self._write_state(observed.groups)

    # --- connections ---

    async def _accept(self, listener: socket.socket) -> None:
        """Accepts connections. When too many have not sent their first line, the one that came first must go."""
        while True:
            try:
                connection, _ = await self._loop.sock_accept(listener)
            except OSError as error:
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(NO_DESCRIPTOR_S)
                continue
            if len(self._unknown) >= UNKNOWN:
                self._unknown.pop(next(iter(self._unknown))).cancel()
            meeting = asyncio.create_task(self._receive(connection))
            self._unknown[connection] = meeting
            self._keep(meeting)
            await asyncio.sleep(0)  # all else goes on, however many wait to be accepted

    async def _receive(self, connection: socket.socket) -> None:
        writer = None
        try:
            async with asyncio.timeout(HEADER_WITHIN_S):
                reader, writer = await self._streams(connection)
                header = await reader.readline()
            if header and not self._security.tls and is_loopback(self._options.address) and not is_ours(connection):
                raise PermissionError("another user of this machine, where no certificate says who it is")
            visitor = self._identify(header, reader, writer)
            self._unknown.pop(connection, None)
            if visitor is not None:
                await self._serve(visitor)
        except (OSError, TimeoutError, ValueError) as error:
            log.debug("a connection ended: %s", error)
        finally:
            self._unknown.pop(connection, None)
            if writer is None:
                connection.close()
            else:
                writer.close()  # sends what is left first

    async def _streams(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, connection, **self._tls())
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    async def _serve(self, visitor: Visitor) -> None:
        if self._passage(visitor) == "cut":
            return
        if sum(other.node == visitor.node for other in self._visitors) >= VISITORS:
            log.warning("closed a connection from node %s: it has %d", visitor.node, VISITORS)
            return
        self._visitors.add(visitor)
        self._state.link(*visitor.key, visitor.node)
        try:
            first = await visitor.reader.read(CHUNK)
            if first == PING:
                await self._answer(visitor)
            elif first == GONE or first.startswith(BUILT):
                if await self._is_of_its_group(visitor):
                    await (self._gone(visitor) if first == GONE else self._built(visitor, first))
            elif first:
                await self._client(visitor, first)
        finally:
            self._visitors.discard(visitor)
            self._state.unlink(*visitor.key, visitor.node, self._loop.time())
            if not self._state.is_admitted(*visitor.key) and all(v.key != visitor.key for v in self._visitors):
                self._state.left(*visitor.key)

    def _identify(self, header: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Visitor | None:
        if not header:
            return None  # it left without a header
        try:
            who = json.loads(header)
            if who["run"] != self._options.run:
                raise ValueError(f"it belongs to run {who['run']!r}")
            node = str(who["node"])
            if self._security.tls:
                met = common_name(writer.get_extra_info("ssl_object"))
                if met != node_name(node):
                    raise ValueError(f"it claims to be node {node}, but shows the certificate of {met!r}")
            certificate = shown(writer.get_extra_info("ssl_object"))
            return Visitor(node, int(who["group"]), int(who["generation"]), reader, writer, certificate)
        except (ValueError, KeyError, TypeError) as error:
            log.warning("closed a connection from %s: %s", writer.get_extra_info("peername"), error)
            return None

    async def _answer(self, visitor: Visitor) -> None:
        """Answers the forwarder's pings for as long as this gate serves it."""
        while self._passage(visitor) != "cut":
            self._state.asked(*visitor.key, visitor.node, self._loop.time())
            visitor.writer.write(PONG)
            await visitor.writer.drain()
            if not await visitor.reader.read(CHUNK):
                return

    async def _gone(self, visitor: Visitor) -> None:
        self._state.gone(*visitor.key)
        log.info("group %d generation %d is gone", *visitor.key, extra=self._about(*visitor.key))
        self._visitors.discard(visitor)
        self._review()
        self._tick()
        visitor.writer.write(b"OK\n")
        await visitor.writer.drain()

    async def _built(self, visitor: Visitor, line: bytes) -> None:
        replica_id = str(json.loads(line.removeprefix(BUILT))["replica_id"])
        if not self._state.built(*visitor.key, replica_id, self._loop.time()):
            what = "group %d generation %d is not built as %s: it has another replica id, or another group has this one"
            log.warning(what, *visitor.key, replica_id, extra=self._about(*visitor.key))
            return
        log.info("group %d generation %d is built: %s", *visitor.key, replica_id, extra=self._about(*visitor.key))
        self._review()
        self._tick()
        self._loop.call_later(MUTE_WARNING_S, self._warn_of_other_id, visitor.key)
        if await self._admitted(visitor, bytearray()):
            visitor.writer.write(b"OK\n")
            await visitor.writer.drain()

    def _warn_of_other_id(self, key: tuple[int, int]) -> None:
        if self._state.speaks_otherwise(*key):
            what = "group %d generation %d is held: its manager does not use the replica id that it gave"
            log.warning(what, *key, extra=self._about(*key))

    async def _client(self, visitor: Visitor, first: bytes) -> None:
        self._state.came(*visitor.key)
        self._heard(visitor, first)
        held = bytearray(first)
        if not await self._admitted(visitor, held):
            return
        reader, writer = await self._lighthouse.connect()
        asked = Requests(self._state.replica_id(*visitor.key))
        try:
            # connecting yielded to other tasks: what was admitted may be stale by now
            if self._passage(visitor) != "admit":
                return
            for at in range(0, len(held), REQUEST_BYTES):
                writer.write(asked.passing(bytes(held[at : at + REQUEST_BYTES])))
                await asyncio.sleep(0)
            pumps = {
                asyncio.create_task(self._inward(visitor, asked, writer)),
                asyncio.create_task(self._outward(reader, visitor)),
            }
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
        except Refused as refused:
            self._refuse(visitor, refused)
        finally:
            writer.transport.abort()  # a cut leaves nothing on its way to the lighthouse

    async def _admitted(self, visitor: Visitor, held: bytearray) -> bool:
        """Holds until this generation is admitted; False when it is cut, or its client leaves before."""
        while True:
            visitor.changed.clear()
            passage = self._passage(visitor)
            if passage != "hold" and not (passage == "admit" and self._opening):
                return passage == "admit"
            if not await self._waits(visitor, held):
                return False

    async def _is_of_its_group(self, visitor: Visitor) -> bool:
        """Holds until etcd names the nodes of this generation; True if the visitor's is one of them. Another node's word
        of a generation to come would keep that out for good."""
        while True:
            visitor.changed.clear()
            if self._passage(visitor) == "cut":
                return False
            if self._state.knows_nodes_of(*visitor.key):
                return True
            if not await self._waits(visitor, bytearray()):
                return False

    async def _waits(self, visitor: Visitor, held: bytearray) -> bool:
        """Waits until something has changed, and holds what the client sends meanwhile; False if it leaves, or sends too
        much."""
        reading = asyncio.create_task(visitor.reader.read(CHUNK))
        changing = asyncio.create_task(visitor.changed.wait())
        await asyncio.wait({reading, changing}, return_when=asyncio.FIRST_COMPLETED)
        changing.cancel()
        # a read that is cancelled while it waits has consumed nothing: the next one gets it all
        reading.cancel()
        await asyncio.wait({reading})
        if not reading.cancelled():
            more = reading.result()
            if not more or len(held) > HELD_BYTES:
                return False
            self._heard(visitor, more)
            held += more
        return True

    def _heard(self, visitor: Visitor, data: bytes) -> None:
        if self._state.heard(*visitor.key, data, self._loop.time()):
            self._review()
            self._tick()

    def _refuse(self, visitor: Visitor, refused: Refused) -> None:
        what = "group %d generation %d: closed a connection from node %s to the lighthouse: %s"
        log.warning(what, *visitor.key, visitor.node, refused, extra=self._about(*visitor.key))

    async def _inward(self, visitor: Visitor, asked: Requests, lighthouse: asyncio.StreamWriter) -> None:
        try:
            while data := await visitor.reader.read(REQUEST_BYTES):
                if self._passage(visitor) != "admit":
                    return
                self._heard(visitor, data)
                lighthouse.write(asked.passing(data))
                await lighthouse.drain()
                await asyncio.sleep(0)  # neither read nor drain gives others their turn while there is more
        except Refused as refused:
            self._refuse(visitor, refused)
        except OSError:
            pass  # same as the end of file

    async def _outward(self, lighthouse: asyncio.StreamReader, visitor: Visitor) -> None:
        answers = Answers()
        try:
            while data := await lighthouse.read(CHUNK):
                while not self._no_doubt.is_set() and self._passage(visitor) == "admit":
                    await self._no_doubt.wait()
                if self._passage(visitor) != "admit":
                    return
                self._state.answered(self._loop.time())
                self._state.quorum_id = max(self._state.quorum_id, answers.quorum_id(data))
                visitor.writer.write(data)
                await visitor.writer.drain()
        except OSError:
            pass  # same as the end of file


def _leave(folder: Path, text: str) -> None:
    try:
        (folder / "gate.tmp").write_text(text)
        (folder / "gate.tmp").replace(folder / "gate.json")
    except OSError as error:
        log.warning("cannot write gate.json: %s", error)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agents.gate")
    for name in ("run", "node", "address", "folder"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("generation", "groups", "min-groups", "quorum-ids-above", "join-timeout-ms", "heartbeat-timeout-ms"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--security", default="")
    parser.add_argument("--etcd", required=True, type=lambda text: tuple(text.split(",")))
    return parser.parse_args(arguments)


async def _run(options: argparse.Namespace) -> None:
    await Gate(options).run()


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    try:
        logged.set_up()
        asyncio.run(_run(options))
    except logged.LogFormatError as error:
        log.error("%s", error)
        return 2
    except (GateFailed, SecurityError, OSError) as error:
        log.error("the gate of run %s ends: %s", options.run, error)
        return 1
    return 0
