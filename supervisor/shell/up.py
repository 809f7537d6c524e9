"""`supervisor up`: etcd if none is given, a supervisor, the service host and the local pool of nodes, on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
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

SERVICE_HOST = "host"
"""Node name of this machine as the host of the lighthouse."""


@dataclass
class Up:
    """What `up` started. `stop` ends all of it, also the nodes that the engine started meanwhile."""

    home: Path
    endpoint: str
    etcd: EtcdServer | None
    supervisor: subprocess.Popen[bytes]
    host: subprocess.Popen[bytes]
    warnings: list[str] = field(default_factory=list)

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
        if self.supervisor.poll() is not None:
            found.append(f"the supervisor ended with code {self.supervisor.returncode}: {self.home}/supervisor.log")
        if self.host.poll() is not None:
            found.append(f"the service host ended with code {self.host.returncode}: {self.home}/nodes/host/shim.log")
        if self.etcd is not None and not self.etcd.alive:
            found.append(f"etcd ended: {self.etcd.log}")
        return found


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
    say: Callable[[str], None] = print,
) -> Iterator[Up]:
    """Start it all, and end it all on the way out. Raises Fatal or Retryable with a sentence when something is in the way."""
    home = system_folder(home)
    with _alone(home):
        server = None
        if not etcd:
            server = start_etcd(home / "etcd", host=address)
            etcd = server.endpoint
        started = None
        try:
            Pool(nodes=tuple(nodes), etcd=etcd, cold=cold).save(home)
            started = _start(home, etcd, server, address)
            _wait_ready(started)
            if server is not None and server.warning:
                say(f"warning: {server.warning}")
            yield started
        finally:
            if started is not None:
                started.stop()
            elif server is not None:
                server.stop()


def endpoints_of(home: Path) -> str:
    """The etcd of the `up` that runs in this home, or an empty string."""
    try:
        body = json.loads((system_folder(home) / "up.json").read_text())
    except (OSError, ValueError):
        return ""
    return str(body.get("etcd", ""))


def _start(home: Path, etcd: str, server: EtcdServer | None, address: str) -> Up:
    supervisor = _spawn(["-m", "supervisor.cli", "run", "--etcd", etcd, "--home", str(home)], home / "supervisor.log")
    host = _spawn(
        [
            *f"-m agents.cli run --node {SERVICE_HOST} --etcd {etcd} --role service --address {address}".split(),
            *["--slots", "0", "--report-s", "1", "--cold", "--home", str(home)],
        ],
        home / "nodes" / SERVICE_HOST / "shim.log",
    )
    (home / "up.json").write_text(json.dumps({"etcd": etcd, "pid": os.getpid()}))
    return Up(home=home, endpoint=etcd, etcd=server, supervisor=supervisor, host=host)


def _spawn(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )


def _wait_ready(started: Up, within_s: float = 30.0) -> None:
    until = time.monotonic() + within_s
    store = connect([started.endpoint])
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


def _end(name: str, process: subprocess.Popen[bytes], patience_s: float) -> list[str]:
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


def clear(home: Path) -> None:
    """End what an `up` that was killed left in this home, and forget its state. Raises Fatal when it lives."""
    system = system_folder(home)
    if not system.exists():
        return
    with _alone(system):
        with contextlib.suppress(Fatal):
            LocalEngine(system).stop_all(20.0)
        for name in (SERVICE_HOST, "etcd"):
            _end_leftover(system, name)
    shutil.rmtree(system, ignore_errors=True)


def _end_leftover(system: Path, name: str) -> None:
    if name == "etcd":
        if (system / "etcd" / "server.json").exists():
            with contextlib.suppress(Fatal, Retryable):
                start_etcd(system / "etcd").stop()
        return
    with contextlib.suppress(OSError, ValueError):
        pid = int((system / "nodes" / name / "shim.lock").read_text())
        if f"--home={system}" in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
            os.kill(pid, signal.SIGTERM)


def watch_over(started: Up) -> None:
    """Until Ctrl-C or TERM; raises Fatal when a part ends by itself."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    while not stop.wait(0.5):
        dead = started.dead()
        if dead:
            raise Fatal("; ".join(dead))
