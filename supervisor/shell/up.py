"""`supervisor up`: etcd if none is given, a supervisor, the service host and the local pool of nodes, on this machine.

Without a pool it is what a control-plane job runs (docs/SLURM.md): there may be one on each host, in a home that they share.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell import prometheus
from supervisor.shell.engines.local import LocalEngine, Pool, PoolNode
from supervisor.shell.etcd_server import EtcdServer, start_etcd
from supervisor.shell.prometheus import Prometheus
from supervisor.shell.store import connect
from supervisor.wire import keys
from supervisor.wire.address import free_port, taken, told
from supervisor.wire.records import LeaderRecord, RecordError, decode
from supervisor.wire.security import Security, SecurityError, file_of_node, refuse_listener

SERVICE_HOST = "host"
"""Node name of this machine as the host of the lighthouse."""

MENDS, MENDS_WITHIN_S = 5, 60.0
"""A part that ends more often than this will not be cured by one more start."""


REFUSED_PAUSE_S = 20.0
"""How long what was refused at a notice is left alone."""

LOOK_S = 0.5
"""How often `up` looks whether what it started still runs."""

WAIT_FOR_PREDECESSOR_S = 0.5
"""How often a control-plane job looks whether the one before it, on the same host, has ended."""


@dataclass
class Notice:
    """What is done when Slurm tells of a time limit, by a SIGUSR1: once, but again until it was done, also when it is refused,
    for there is nothing else left to do."""

    answer: Callable[[], str] | None = None
    """Does it, and returns what it has done. None: nothing is to be done."""
    came: threading.Event = field(default_factory=threading.Event)
    _not_before: float = 0.0
    """time.monotonic()"""
    _said: str = ""

    def look(self, say: Callable[[str], None]) -> None:
        """Do it if it is time, and say so."""
        if self.answer is None or not self.came.is_set() or time.monotonic() < self._not_before:
            return
        try:
            sentence, pause_s = self.answer(), 0.0
            self.answer = None
        except Retryable as error:
            sentence, pause_s = str(error), error.after_s
        except Fatal as error:
            sentence, pause_s = str(error), REFUSED_PAUSE_S
        self._not_before = time.monotonic() + pause_s
        if sentence != self._said:
            say(sentence)
        self._said = sentence


@dataclass
class Up:
    """What `up` started. `stop` ends all of it, also the nodes that the engine started meanwhile."""

    home: Path
    address: str
    name: str = SERVICE_HOST
    """Node name of the service host."""
    pool: bool = True
    """Whether there are local nodes: they are this `up`'s alone."""
    node_folder: Path | None = None
    """Where the service host keeps its records, when not in the home."""
    security: Security = Security()
    endpoint: str = ""
    etcd: EtcdServer | None = None
    """None: an etcd that somebody else runs."""
    supervisor: subprocess.Popen[bytes] | None = None
    host: subprocess.Popen[bytes] | None = None
    mended: list[float] = field(default_factory=list)
    notice: Notice = field(default_factory=Notice)
    page: str = ""
    """Of its supervisor, once that has led; empty: another one leads."""
    metrics_port: int = 0
    """Of that one; 0: not known."""
    prometheus: Prometheus | None = None

    @property
    def listens(self) -> str:
        """Where the page and /metrics are. Beside a pool all is this machine's, and so is who looks."""
        return "127.0.0.1" if self.pool else self.address

    @property
    def supervisor_log(self) -> Path:
        return self.home / ("supervisor.log" if self.pool else f"supervisor-{self.name}.log")

    @property
    def host_log(self) -> Path:
        return (self.node_folder or self.home) / "nodes" / self.name / "shim.log"

    def start_supervisor(self) -> None:
        runs = str(self.home.parent)
        arguments = ["-m", "supervisor.cli", "run", "--etcd", self.endpoint, "--home", runs]
        arguments += ["--metrics-address", self.listens]
        if self.metrics_port and not taken(self.listens, self.metrics_port):
            # a browser that had its page open finds it again
            arguments += ["--metrics-port", str(self.metrics_port)]
        arguments += self.security.arguments()
        self.supervisor = _spawn(arguments, self.supervisor_log)

    def start_host(self) -> None:
        file = file_of_node(self.security, self.name)
        folder = str(self.node_folder or self.home)
        self.host = _spawn(
            [
                *f"-m agents.cli run --node {self.name} --etcd {self.endpoint} --role service".split(),
                *["--address", self.address, "--slots", "0", "--report-s", "1", "--cold", "--home", folder],
                *([f"--security={file}"] if file else []),
            ],
            self.host_log,
        )

    def start_prometheus(self, say: Callable[[str], None]) -> None:
        """A convenience: without it everything else goes on."""
        try:
            folder = (self.node_folder or self.home) / "prometheus"
            host = f"[{self.listens}]" if ":" in self.listens else self.listens
            self.prometheus = prometheus.start(folder, f"{host}:{self.metrics_port}", self.security)
        except Fatal as error:
            say(str(error))

    def miss_prometheus(self) -> list[str]:
        """A sentence when it has ended. It is not started again: a full disk would end it again and again."""
        if self.prometheus is None or self.prometheus.process.poll() is None:
            return []
        code, log = self.prometheus.process.returncode, self.prometheus.log
        self.prometheus = None
        return [f"prometheus ended with code {code}: {log}; no metrics are kept until the next `supervisor up`"]

    def leads(self, leader: LeaderRecord) -> None:
        """Remember where its supervisor is found, if it is this one that leads."""
        mine = self.supervisor is not None and (leader.host, leader.pid) == (socket.gethostname(), self.supervisor.pid)
        if mine:
            self.page, self.metrics_port = leader.page, leader.metrics_port

    def stop(self) -> list[str]:
        """Returns the names of what would not end."""
        left = _end("prometheus", self.prometheus.process if self.prometheus is not None else None, 10.0)
        left += _end("supervisor", self.supervisor, 10.0)
        if self.pool:
            with contextlib.suppress(Retryable, Fatal):
                left += LocalEngine(self.home).stop_all(20.0)
        left += _end("the service host", self.host, 15.0)
        if self.etcd is not None:
            self.etcd.stop()
        if self.pool:
            (self.home / "up.json").unlink(missing_ok=True)
        return left

    def dead(self) -> list[str]:
        """Sentences about parts that have ended."""
        found = []
        if self.supervisor is not None and self.supervisor.poll() is not None:
            found.append(f"the supervisor ended with code {self.supervisor.returncode}: {self.supervisor_log}")
        if self.host is not None and self.host.poll() is not None:
            found.append(f"the service host ended with code {self.host.returncode}: {self.host_log}")
        if self.etcd is not None and not self.etcd.alive:
            found.append(f"etcd ended: {self.etcd.log}")
        return found

    def mend(self) -> list[str]:
        """Start again what has ended, and say so: training needs none of it for a while. Raises Fatal when parts end
        more than MENDS times within MENDS_WITHIN_S."""
        found = self.dead()
        if not found:
            return []
        now = time.monotonic()
        self.mended = [t for t in self.mended if now - t < MENDS_WITHIN_S] + [now] * len(found)
        if len(self.mended) > MENDS:
            raise Fatal(f"parts end again and again: {'; '.join(found)}")
        if self.etcd is not None and not self.etcd.alive:
            self.etcd = start_etcd(self.home / "etcd", host=self.address)
        if self.supervisor is not None and self.supervisor.poll() is not None:
            self.start_supervisor()
        if self.host is not None and self.host.poll() is not None:
            self.start_host()
        return [f"{sentence}; started again" for sentence in found]


def system_folder(home: Path) -> Path:
    """Where everything but the runs themselves is kept, below the folder of the runs."""
    return home.resolve() / ".supervisor"


@contextmanager
def up(
    home: Path,
    nodes: Sequence[PoolNode],
    *,
    etcd: str = "",
    address: str = "127.0.0.1",
    name: str = SERVICE_HOST,
    node_folder: Path | None = None,
    cold: bool = False,
    security: Security | None = None,
    with_prometheus: bool = False,
    say: Callable[[str], None] = print,
    on_notice: Callable[[], str] | None = None,
) -> Iterator[Up]:
    """Start it all, and end it all on the way out; no nodes: nothing but a supervisor and a service host, for an etcd that is
    there. `on_notice`: what is done at a SIGUSR1, also while it waits for the one before it. Raises Fatal, Retryable or
    SecurityError with a sentence when something is in the way."""
    security = security or Security()
    for node in (name, *(node.name for node in nodes)):
        file_of_node(security, node)
    home = system_folder(home)
    started = Up(
        home=home,
        address=address,
        name=name,
        pool=bool(nodes),
        node_folder=node_folder,
        security=security,
        endpoint=etcd,
        notice=Notice(on_notice),
    )
    noticing = contextlib.nullcontext() if nodes and on_notice is None else _noticing(started.notice)
    with ended_by_signals(), noticing, _alone(started, say):
        try:
            started.address = _own(address, etcd, security)
            if with_prometheus:
                # it is told where the supervisor is, also after that was started again
                started.metrics_port = free_port(started.listens)
            if not etcd:
                started.etcd = start_etcd(home / "etcd", host=address)
                started.endpoint = started.etcd.endpoint
                if started.etcd.warning:
                    say(f"warning: {started.etcd.warning}")
            if nodes:
                Pool(nodes=tuple(nodes), etcd=started.endpoint, cold=cold, security=security.path).save(home)
            started.start_supervisor()
            started.start_host()
            if nodes:
                (home / "up.json").write_text(
                    json.dumps({"etcd": started.endpoint, "pid": os.getpid(), "security": security.path})
                )
            _wait_ready(started)
            if with_prometheus:
                started.start_prometheus(say)
            yield started
        finally:
            left = started.stop()
            if left:
                say(f"these would not end: {', '.join(left)}")


def _own(address: str, etcd: str, security: Security) -> str:
    """The address itself, found where it is `auto`. Raises Fatal when nobody can listen there, SecurityError when nobody may."""
    try:
        found = told(address, etcd.split(",")[0].strip())
    except (OSError, ValueError) as error:
        raise Fatal(str(error)) from error
    refusal = refuse_listener("what this host listens on", found, security)
    if refusal is not None:
        raise SecurityError(refusal)
    why = taken(found, 0)
    if why:
        raise Fatal(f"cannot listen on {found}: {why}; give an --address of this machine")
    return found


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """TERM and a closed terminal end us as Ctrl-C does: by way of every `finally`."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _noticing(notice: Notice) -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: notice.came.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def endpoints_of(home: Path) -> str:
    """The etcd of the `up` that runs in this home, or an empty string."""
    return _said_by_up(home, "etcd")


def security_of(home: Path) -> str:
    """The security file of the `up` that runs in this home, or an empty string."""
    return _said_by_up(home, "security")


def _said_by_up(home: Path, what: str) -> str:
    try:
        body = json.loads((system_folder(home) / "up.json").read_text())
    except (OSError, ValueError):
        return ""
    return str(body.get(what, ""))


def _spawn(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )


def _wait_ready(started: Up, within_s: float = 30.0) -> None:
    until = time.monotonic() + within_s
    store = connect(started.endpoint.split(","), security=started.security)
    try:
        while True:
            dead = started.dead()
            if dead:
                raise Fatal("; ".join(dead) + _last_lines(started))
            # whoever leads: one that stands by is as ready
            leader = store.get(keys.LEADER)
            if leader is not None and store.get(keys.registration(started.name)) is not None:
                with contextlib.suppress(RecordError):
                    started.leads(decode(leader.value, LeaderRecord))
                return
            if time.monotonic() > until:
                raise Fatal(
                    f"the supervisor or the service host is not up after {within_s:g} s; logs are in {started.home}"
                )
            time.sleep(0.05)
    except Retryable as error:
        raise Fatal(str(error)) from error
    finally:
        store.close()


def _last_lines(started: Up) -> str:
    text = ""
    for path in (started.supervisor_log, started.host_log):
        with contextlib.suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()[-3:]
            text += "".join(f"\n  {path.name}: {line}" for line in lines)
    return text


def _end(name: str, process: subprocess.Popen[bytes] | None, patience_s: float) -> list[str]:
    if process is None:
        return []
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
    return [] if process.poll() is not None else [name]


@contextmanager
def _alone(started: Up, say: Callable[[str], None]) -> Iterator[None]:
    """Only one `up` with a pool in a home: another is refused. Of those without one, only one of a name on a host: the
    next waits for its end, as a control-plane job does that was given the host of the one that it is to succeed. Its own time
    limit may come first: it has a successor all the same."""
    folder = started.home if started.pool else started.node_folder or started.home
    try:
        folder.mkdir(parents=True, exist_ok=True)
        started.home.mkdir(parents=True, exist_ok=True)
        lock = (folder / ("up.lock" if started.pool else f"up-{started.name}.lock")).open("a")
    except OSError as error:
        raise Fatal(f"cannot use {folder}: {error.strerror}; give another --home") from error
    with lock:
        if started.pool and not _locked(lock):
            raise Fatal(f"another `supervisor up` or `demo` runs in {folder}; stop it, or give another --home")
        if not started.pool and not _locked(lock):
            say(f"another `supervisor up` carries {started.name} here: waiting for its end")
            while not _locked(lock):
                started.notice.look(say)
                time.sleep(WAIT_FOR_PREDECESSOR_S)
        yield


def _locked(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def watch_over(started: Up, say: Callable[[str], None] = print) -> None:
    """Until Ctrl-C or TERM, starting again what ends, and doing what is to be done at a notice; raises Fatal when what ends
    ends again and again."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            for sentence in (*started.mend(), *started.miss_prometheus()):
                say(sentence)
            started.notice.look(say)
            time.sleep(LOOK_S)
