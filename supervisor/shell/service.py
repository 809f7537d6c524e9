"""`supervisor run`: campaigns, leads, and stands by again when the term is lost."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from supervisor.ports.engine import Engine
from supervisor.ports.errors import Fatal, PortError, Retryable
from supervisor.ports.store import Term
from supervisor.shell import enroll, failpoints
from supervisor.shell.control import observe, own_log, version_guard
from supervisor.shell.control.engine_driver import EngineDriver
from supervisor.shell.control.leader import keep_port, kept_port
from supervisor.shell.control.loop import Loop
from supervisor.shell.control.pools import PoolDriver
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.control.system_id import system_id
from supervisor.shell.control.webhook import Notifier
from supervisor.shell.engines import registry
from supervisor.shell.etcd import Election, EtcdStore, connect, holes
from supervisor.shell.etcd.inbox import Inbox
from supervisor.shell.etcd.metrics import StoreWatch
from supervisor.shell.metrics.telemetry import Telemetry
from supervisor.shell.processes import pid_namespace, start_ticks
from supervisor.shell.web.server import Server, url_of
from supervisor.shell.web.server import serve as serve_http
from supervisor.shell.web.watcher import Page
from supervisor.wire import keys, logged, node_requests, rotated
from supervisor.wire.programs import PART
from supervisor.wire.records import LeaderRecord, encode
from supervisor.wire.security import PRIVATE, Security
from supervisor.wire.version import version

log = logging.getLogger(__name__)

OWN_LOGS = ("supervisor*.log", "up.log", "etcd/etcd.log", "prometheus/prometheus.log")
"""Logs below the home that `supervisor up` starts beside the nodes; their writers append to them."""


def serve(
    etcd: Sequence[str],
    home: Path,
    stop: threading.Event,
    lease_s: int,
    metrics: tuple[str, int],
    security: Security | None = None,
) -> None:
    """Runs a supervisor until `stop`. `metrics` is the address and port of the page and /metrics. For port 0, `_served`
    finds one, which the leader's record names. Waits for an etcd that is away. `home` is the system's folder. Raises
    Fatal if the engine cannot work at all; SecurityError if it cannot sign nodes' certificates with `signs`."""
    failpoints.armed()
    security = security or Security()
    if security.signs:
        enroll.check(security)
    connected = _connected(etcd, security, stop)
    if connected is None:
        return
    store, first, open_holes = connected
    leads = threading.Event()
    asked = Inbox(node_requests.LEADER, etcd, own_log.answer, leads.is_set, security, record=keys.LEADER)
    page, telemetry = Page(store, alarms=lambda: store_watch.alarms), Telemetry(security)
    store_watch = StoreWatch(store, telemetry.metrics, lambda: page.silent_s)
    try:
        built = registry.built(registry.Context(home=home, etcd=tuple(etcd), security=security.path))
        server = _served(telemetry.metrics.registry, page, metrics, security, home)
        if security.signs:
            enroll.serve(store, security)
        me = LeaderRecord(
            host=socket.gethostname(),
            pid=os.getpid(),
            home=str(home),
            metrics_port=server.server_port,
            page=url_of(server),
            insecure=security.insecure,
            holes=open_holes,
            start_ticks=start_ticks(os.getpid()) or 0,
            pid_namespace=pid_namespace(),
            version=version(),
        )
        readable = Readable(store, first)
        election = Election(store, keys.LEADER, encode(me), lease_s, readable.look)
        log.info("a candidate for leadership, pid %d; page %s", os.getpid(), me.page)
        page.start()
        store_watch.start()
        asked.start()
        threading.Thread(target=_keep_logs_small, args=(home, stop), name="logs", daemon=True).start()

        def engines() -> Sequence[Engine]:
            # a restore brings back another name of the system: it is read again in every term
            system = system_id(store)
            return [engine_of(system) for engine_of in built]

        while not stop.is_set():
            _term(store, election, engines, telemetry, stop, leads)
    finally:
        asked.stop()
        page.stop()
        store_watch.stop()
        store.close()


def _connected(
    etcd: Sequence[str], security: Security, stop: threading.Event
) -> tuple[EtcdStore, Mirror, tuple[str, ...]] | None:
    """Returns an etcd, its content, and the ways around its roles that the security file accepts. Waits while etcd is
    away, and logs it; None if `stop` came first. Raises Fatal, also when etcd does not hold its users to their roles.
    """
    said = False
    while not stop.is_set():
        try:
            store = connect(etcd, security=security)
            try:
                tried = holes.tried(store, etcd, security)
                warnings = holes.refuse(tried, security)
                for warning in warnings:
                    log.warning("%s", warning)
                if tried.sentence:
                    log.log(logging.INFO if tried.node else logging.WARNING, "%s", tried.sentence)
                return store, Mirror(store.list(keys.PREFIX)), warnings
            except PortError:
                store.close()
                raise
        except Retryable as error:
            if not said:
                log.warning("waiting for etcd: %s", error)
            said = True
            stop.wait(error.after_s)
    return None


def _served(
    registry: CollectorRegistry, page: Page, metrics: tuple[str, int], security: Security, system: Path
) -> Server:
    """Serves the page and metrics. Port 0 means that of the last start in this home if it is free, else any free one.
    Raises Fatal if a given one is taken."""
    address, port = metrics
    kept = kept_port(system) if port == 0 else 0
    if kept:
        with contextlib.suppress(OSError):  # another process has it, perhaps only for now: it stays the kept one
            return serve_http(registry, page, address, kept, security, system)
    try:
        server = serve_http(registry, page, address, port, security, system)
    except OSError as error:
        raise Fatal(f"cannot serve metrics on {address}:{port}: {error.strerror}") from error
    if port == 0 and not kept:
        keep_port(system, server.server_port)
    return server


def _keep_logs_small(system: Path, stop: threading.Event) -> None:
    """Rotates the logs of `supervisor up`, if this is its home: no agent does it for them."""
    while not stop.wait(rotated.EVERY_S):
        rotated.keep_small(path for pattern in OWN_LOGS for path in system.glob(pattern))


class Readable:
    """Checks if this program may lead on what etcd holds; logs once why not."""

    def __init__(self, store: EtcdStore, mirror: Mirror) -> None:
        """`mirror`: etcd's content at the start. Raises Fatal if a newer program wrote it: the wrong one was
        started."""
        self._store = store
        self._said = ""
        if version_guard.newer_records(mirror, mirror.items):
            raise Fatal(version_guard.why_not(mirror, mirror.items))

    def look(self) -> bool:
        mirror = Mirror(self._store.list(keys.PREFIX))
        why = version_guard.why_not(mirror, mirror.items)
        if why and why != self._said:
            log.error("standing by: %s", why)
        self._said = why
        return not why


class Drivers:
    """One driver for each engine, used as one: each serves the allocations of its own engine. `pools` serves those of
    runs on pools; None: no one does."""

    def __init__(self, drivers: Sequence[EngineDriver], pools: PoolDriver | None = None) -> None:
        self._drivers = drivers
        self._pools = pools

    def start(self) -> None:
        for driver in self._drivers:
            driver.start()

    def offer(self, mirror: Mirror, term: Term) -> None:
        if self._pools is not None:
            self._pools.offer(mirror, observe.runs(mirror), term)
        for driver in self._drivers:
            driver.offer(mirror, term)

    def word_s(self, engine: str) -> float:
        """Returns EngineDriver.word_s of this engine; 0 if it is not one of ours."""
        return max((driver.word_s(engine) for driver in self._drivers), default=0.0)

    def listed_at(self, engine: str) -> float | None:
        """Returns EngineDriver.listed_at of this engine."""
        return next((at for driver in self._drivers if (at := driver.listed_at(engine)) is not None), None)

    def stop(self) -> None:
        """Stops the drivers, one after another. Each gets up to 10 s to end its call."""
        for driver in self._drivers:
            driver.stop()


def _term(
    store: EtcdStore,
    election: Election,
    engines: Callable[[], Sequence[Engine]],
    telemetry: Telemetry,
    stop: threading.Event,
    leads: threading.Event,
) -> None:
    leadership = election.campaign(stop)
    if leadership is None:
        return
    drivers, notifier = Drivers(()), Notifier(store, leadership)
    try:
        drivers = Drivers([EngineDriver(store, engine) for engine in engines()], PoolDriver(store))
        loop = Loop(store, leadership, drivers, telemetry, tell=notifier.tell)
        log.info("leading, epoch %d", loop.epoch)
        telemetry.leading(loop.epoch)
        leads.set()
        drivers.start()
        notifier.start()
        loop.run(stop)
    except Retryable as error:
        log.warning("the store is away: %s; standing by", error)
        stop.wait(error.after_s)
    finally:
        leads.clear()
        telemetry.leading(None)
        drivers.stop()
        leadership.resign()
        notifier.stop()


def main(etcd: Sequence[str], home: Path, lease_s: int, metrics: tuple[str, int], security: Security) -> None:
    """Runs `serve` until TERM or INT. Also raises LogFormatError."""
    os.umask(PRIVATE)
    logged.set_up()
    os.environ.pop(PART, None)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    serve(etcd, home, stop, lease_s, metrics, security)
