"""`supervisor up`: etcd if none is given, a supervisor, the service host and the local pool of nodes, on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.engines.local import LocalEngine, Pool, PoolNode
from supervisor.shell.etcd_server import EtcdServer, start_etcd
from supervisor.shell.store import connect
from supervisor.wire import keys
from supervisor.wire.security import Security, file_of_node

SERVICE_HOST = "host"
"""Node name of this machine as the host of the lighthouse."""

MENDS, MENDS_WITHIN_S = 5, 60.0
"""A part that ends more often than this will not be cured by one more start."""


@dataclass
class Up:
    """What `up` started. `stop` ends all of it, also the nodes that the engine started meanwhile."""

    home: Path
    address: str
    security: Security = Security()
    endpoint: str = ""
    etcd: EtcdServer | None = None
    """None: an etcd that somebody else runs."""
    supervisor: subprocess.Popen[bytes] | None = None
    host: subprocess.Popen[bytes] | None = None
    mended: list[float] = field(default_factory=list)

    def start_supervisor(self) -> None:
        runs = str(self.home.parent)
        arguments = ["-m", "supervisor.cli", "run", "--etcd", self.endpoint, "--home", runs]
        arguments += self.security.arguments()
        self.supervisor = _spawn(arguments, self.home / "supervisor.log")

    def start_host(self) -> None:
        file = file_of_node(self.security, SERVICE_HOST)
        self.host = _spawn(
            [
                *f"-m agents.cli run --node {SERVICE_HOST} --etcd {self.endpoint} --role service".split(),
                *["--address", self.address, "--slots", "0", "--report-s", "1", "--cold", "--home", str(self.home)],
                *([f"--security={file}"] if file else []),
            ],
            self.home / "nodes" / SERVICE_HOST / "shim.log",
        )

    def stop(self) -> list[str]:
        """Returns the names of what would not end."""
        left = _end("supervisor", self.supervisor, 10.0)
        with contextlib.suppress(Retryable, Fatal):
            left += LocalEngine(self.home).stop_all(20.0)
        left += _end("the service host", self.host, 15.0)
        if self.etcd is not None:
            self.etcd.stop()
        (self.home / "up.json").unlink(missing_ok=True)
        return left

    def dead(self) -> list[str]:
        """Sentences about parts that have ended."""
        found = []
        if self.supervisor is not None and self.supervisor.poll() is not None:
            found.append(f"the supervisor ended with code {self.supervisor.returncode}: {self.home}/supervisor.log")
        if self.host is not None and self.host.poll() is not None:
            found.append(f"the service host ended with code {self.host.returncode}: {self.home}/nodes/host/shim.log")
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
    cold: bool = False,
    security: Security | None = None,
    say: Callable[[str], None] = print,
) -> Iterator[Up]:
    """Start it all, and end it all on the way out. Raises Fatal, Retryable or SecurityError with a sentence when something
    is in the way."""
    security = security or Security()
    for node in (SERVICE_HOST, *(node.name for node in nodes)):
        file_of_node(security, node)
    home = system_folder(home)
    with _alone(home), _ended_by_signals():
        started = Up(home=home, address=address, security=security, endpoint=etcd)
        try:
            if not etcd:
                started.etcd = start_etcd(home / "etcd", host=address)
                started.endpoint = started.etcd.endpoint
                if started.etcd.warning:
                    say(f"warning: {started.etcd.warning}")
            Pool(nodes=tuple(nodes), etcd=started.endpoint, cold=cold, security=security.path).save(home)
            started.start_supervisor()
            started.start_host()
            (home / "up.json").write_text(
                json.dumps({"etcd": started.endpoint, "pid": os.getpid(), "security": security.path})
            )
            _wait_ready(started)
            yield started
        finally:
            left = started.stop()
            if left:
                say(f"these would not end: {', '.join(left)}")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """TERM and a closed terminal end us as Ctrl-C does: by way of every `finally`."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
            if store.get(keys.LEADER) is not None and store.get(keys.registration(SERVICE_HOST)) is not None:
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
    for path in (started.home / "supervisor.log", started.home / "nodes" / SERVICE_HOST / "shim.log"):
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
def _alone(home: Path) -> Iterator[None]:
    """Only one `up` in a home."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / "up.lock").open("a")
    except OSError as error:
        raise Fatal(f"cannot use {home}: {error.strerror}; give another --home") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Fatal(f"another `supervisor up` or `demo` runs in {home}; stop it, or give another --home") from None
        yield


def watch_over(started: Up, say: Callable[[str], None] = print) -> None:
    """Until Ctrl-C or TERM, starting again what ends; raises Fatal when that does not help."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            for sentence in started.mend():
                say(sentence)
            time.sleep(0.5)
