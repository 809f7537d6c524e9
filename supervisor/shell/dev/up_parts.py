"""The content of one `up`: its parts, the nodes of its pool, and their runs when it ends and starts."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.control.leader import kept_port
from supervisor.shell.dev import prometheus, suspend
from supervisor.shell.dev.etcd_server import SOCKETS, EtcdServer, running_etcd, start_etcd
from supervisor.shell.dev.parts import Part, adopted, spawned
from supervisor.shell.dev.prometheus import Prometheus
from supervisor.shell.engines.local import LocalEngine, Pool
from supervisor.shell.etcd import EtcdStore, connect
from supervisor.shell.processes import Process
from supervisor.shell.signals import Notice
from supervisor.wire.records import LeaderRecord
from supervisor.wire.security import UNIX, Security, file_of_node, is_loopback

SERVICE_HOST = "host"
"""Node name of this machine as the lighthouse's host."""

SUPERVISOR, HOST, ETCD = "the supervisor", "the service host", "etcd"


@dataclass
class Up:
    """The parts of one home's `up`. `stop` ends all of them, including nodes that the engine started meanwhile."""

    home: Path
    address: str
    name: str = SERVICE_HOST
    """Node name of the service host."""
    pool: bool = True
    """True if there are local nodes, which belong to this `up` alone."""
    node_folder: Path | None = None
    """Folder of the service host's records, if not in the home."""
    security: Security = Security()
    endpoint: str = ""
    parts: list[Part] = field(default_factory=list)
    """In the order of their start."""
    found: list[str] = field(default_factory=list)
    """Names of parts and nodes that an earlier `up` had left running."""
    notice: Notice = field(default_factory=Notice)
    page: str = ""
    """Page of its supervisor, once that has led; empty while another one leads."""
    prometheus: Prometheus | None = None
    _resuming: bool = False
    """True while runs that an earlier `up` began to stop may still need to be resumed."""

    @property
    def listens(self) -> str:
        """Address of the page and /metrics. With a pool everything is on this machine, and so are its readers."""
        return "127.0.0.1" if self.pool else self.address

    @property
    def supervisor_log(self) -> Path:
        return self.home / ("supervisor.log" if self.pool else f"supervisor-{self.name}.log")

    @property
    def host_log(self) -> Path:
        return (self.node_folder or self.home) / "nodes" / self.name / "shim.log"

    @property
    def supervisor(self) -> Process | None:
        """The supervisor's process; None before its start."""
        running = next((p.running for p in self.parts if p.name == SUPERVISOR), None)
        return running if isinstance(running, Process) else None

    def start_supervisor(self) -> Process:
        mark = self._mark("supervisor")
        found = adopted(mark)
        if found is not None:
            return found
        arguments = ["-m", "supervisor.cli", "run", "--etcd", self.endpoint, "--home", str(self.home.parent)]
        arguments += ["--metrics-address", self.listens]
        return spawned([*arguments, *self.security.arguments()], self.supervisor_log, mark)

    def start_host(self) -> Process:
        mark = self._mark("host")
        found = adopted(mark)
        if found is not None:
            return found
        file = file_of_node(self.security, self.name)
        return spawned(
            [
                *["-m", "agents.cli", "run", "--node", self.name, "--etcd", self.endpoint, "--role", "service"],
                *["--address", self.address, "--slots", "0", "--report-s", "1", "--cold"],
                *["--home", str(self.node_folder or self.home)],
                *([f"--security={file}"] if file else []),
            ],
            self.host_log,
            mark,
        )

    def start_etcd(self) -> EtcdServer:
        # every part knows this endpoint: etcd waits if another program has taken its port
        if self.endpoint.startswith(UNIX) or (not self.endpoint and is_loopback(self.address)):
            server = start_etcd(self.home / "etcd", host=SOCKETS)
        else:
            port = int(self.endpoint.rpartition(":")[2]) if self.endpoint else 0
            server = start_etcd(self.home / "etcd", client_port=port, host=self.address)
        self.endpoint = server.endpoint
        return server

    def _mark(self, part: str) -> str:
        return f"{self.home}:{self.name}:{part}"

    def look(self) -> list[str]:
        """Finds what an earlier `up` has left running. Returns the names, nodes included."""
        etcd = running_etcd(self.home / "etcd") if self.pool else None
        nodes = LocalEngine(self.home).alive() if self.pool and Pool.load(self.home) is not None else ()
        found = [(ETCD, etcd)]
        found += [(SUPERVISOR, adopted(self._mark("supervisor"))), (HOST, adopted(self._mark("host")))]
        self.found = [name for name, process in found if process is not None]
        self.found += [f"node {name}" for name in nodes]
        return self.found

    def plan(self, etcd: str) -> None:
        """Lists the parts in the order of their start; without `etcd`, an etcd of our own comes first."""
        self.parts = [
            Part(SUPERVISOR, self.start_supervisor, lambda: self.supervisor_log),
            Part(HOST, self.start_host, lambda: self.host_log, patience_s=15.0),
        ]
        if not etcd:
            self.parts.insert(0, Part(ETCD, self.start_etcd, lambda: self.home / "etcd" / "etcd.log"))

    def save(self) -> None:
        """Notes its etcd for other commands, and its settings for `down`. A full disk is no error here."""
        about = {"etcd": self.endpoint, "pid": os.getpid(), "security": self.security.path, "name": self.name}
        about |= {"address": self.address, "given": "" if any(p.name == ETCD for p in self.parts) else self.endpoint}
        with contextlib.suppress(OSError):
            (self.home / "up.json").write_text(json.dumps(about))

    def start_prometheus(self, say: Callable[[str], None]) -> None:
        """Starts Prometheus. If that fails, everything else goes on."""
        try:
            folder = (self.node_folder or self.home) / "prometheus"
            host = f"[{self.listens}]" if ":" in self.listens else self.listens
            port = urlsplit(self.page).port or kept_port(self.home)
            self.prometheus = prometheus.start(folder, f"{host}:{port}", self.security)
        except Fatal as error:
            say(str(error))

    def miss_prometheus(self) -> list[str]:
        """Returns a sentence if Prometheus has ended. Does not restart it: a full disk would end it again and again."""
        if self.prometheus is None or self.prometheus.process.poll() is None:
            return []
        code, log = self.prometheus.process.returncode, self.prometheus.log
        self.prometheus = None
        return [f"prometheus ended with code {code}: {log}; no metrics are kept until the next `supervisor up`"]

    def leads(self, leader: LeaderRecord) -> None:
        """Remembers the page of its supervisor, if that one leads."""
        supervisor = self.supervisor
        if supervisor is not None and (leader.host, leader.pid) == (socket.gethostname(), supervisor.pid):
            self.page = leader.page

    def dead(self) -> list[str]:
        """Returns sentences about parts that have ended."""
        return [part.ended for part in self.parts if part.ended]

    def mend(self) -> list[str]:
        """Restarts parts that have ended, and returns the news. Never gives up: training can wait for them."""
        return [news for part in self.parts if (news := part.mend())]

    def store(self) -> EtcdStore:
        """Returns a store, to be closed. Raises Retryable if no etcd answers."""
        return connect(self.endpoint.split(","), security=self.security)

    def greet(self, say: Callable[[str], None]) -> None:
        """Begins to resume runs that an earlier `up` stopped, and reports which runs there are."""
        if not self.pool:
            return
        if self.found:
            say(f"still running from an earlier `supervisor up`, and adopted: {', '.join(self.found)}")
        with contextlib.suppress(Retryable), self.store() as store:
            for sentence in suspend.going_on(store, self.home.parent):
                say(sentence)
        self._resuming = True

    def resume(self) -> None:
        """Resumes runs while some still stop. Tries again later if etcd is away."""
        if self._resuming:
            with contextlib.suppress(Retryable), self.store() as store:
                self._resuming = suspend.resume(store, self.home.parent)

    def suspend(self, say: Callable[[str], None]) -> None:
        """Stops the runs of its nodes before a person's end of `up`. A second Ctrl-C cuts this short."""
        if not self.pool:
            return

        def tend() -> None:
            for sentence in self.mend():
                say(sentence)

        try:
            with self.store() as store:
                suspend.suspend(store, self.home.parent, say, tend)
        except Retryable as error:
            say(f"the runs end without a last checkpoint: {error}")
        except KeyboardInterrupt:
            say("ending at once; `supervisor up` goes on from the newest checkpoint")

    def stop(self) -> list[str]:
        """Ends every part and all nodes. Returns the names of what did not end."""
        left: list[str] = []
        if self.prometheus is not None:
            Process.of(self.prometheus.process).stop(10.0)
        parts = {part.name: part for part in self.parts}
        for name in (SUPERVISOR, "nodes", HOST, ETCD):
            if name == "nodes" and self.pool:
                with contextlib.suppress(Retryable, Fatal):
                    left += LocalEngine(self.home).stop_all(20.0)
            elif name in parts:
                left += parts[name].stop()
        if self.pool:
            (self.home / "up.json").unlink(missing_ok=True)
        return left

    def leave(self) -> list[str]:
        """Ends what this `up` started itself; what it had found trains on. Returns the names of what did not end."""
        return [name for part in reversed(self.parts) if part.name not in self.found for name in part.stop()]
