"""Runs a cluster of three etcds on this machine, whose members can be killed, stopped and slowed down."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc

from fault_injection.testbed.unavailable import NotHere, missing
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.dev.etcd_server import COMPACT_AFTER, find_server
from supervisor.shell.etcd import connect
from supervisor.shell.etcd.stubs import rpc
from supervisor.wire import environment
from supervisor.wire.address import free_ports
from supervisor.wire.security import Security

QUOTA_BYTES = 64 << 20
"""A hundred times what a run of two groups keeps, and filled in seconds."""

AGREE_WITHIN_S = 20.0
LOOK_S = 0.05


class Cluster:
    """Three members on one address."""

    def __init__(
        self, folder: Path, binary: Path | None = None, host: str = "127.0.0.1", security: Security | None = None
    ) -> None:
        """`security`: that of the clients; off loopback it must state that plain is intended."""
        binary = binary or find_server()
        self._security = security
        ports = free_ports(6, host)
        self.endpoints = [f"{host}:{port}" for port in ports[:3]]
        self.endpoint = ",".join(self.endpoints)
        peers = [f"http://{host}:{port}" for port in ports[3:]]
        initial = ",".join(f"m{n}={peer}" for n, peer in enumerate(peers))
        self._commands: list[list[str]] = []
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for n, (endpoint, peer) in enumerate(zip(self.endpoints, peers, strict=True)):
            flags = {
                "name": f"m{n}",
                "data-dir": folder / f"m{n}",
                "listen-client-urls": f"http://{endpoint}",
                "advertise-client-urls": f"http://{endpoint}",
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": initial,
                "auto-compaction-mode": "periodic",
                "auto-compaction-retention": COMPACT_AFTER,
                "quota-backend-bytes": QUOTA_BYTES,
                "logger": "zap",
                "log-level": "warn",
            }
            self._commands.append([str(binary), *(f"--{name}={value}" for name, value in flags.items())])
        self.members = [self._spawn(n) for n in range(3)]

    def _spawn(self, n: int) -> subprocess.Popen[bytes]:
        with (self._folder / f"m{n}.log").open("ab") as log:
            return subprocess.Popen(
                self._commands[n], stdout=log, stderr=log, env=environment.of_etcd(os.environ), start_new_session=True
            )  # fmt: skip

    def kill(self, n: int) -> None:
        """Kills one member with SIGKILL; it has ended when this returns."""
        self.members[n].kill()
        self.members[n].wait()

    def start(self, n: int) -> None:
        """Starts a killed member again, on its old ports and data."""
        self.members[n] = self._spawn(n)

    def leader(self) -> int:
        """Returns the leading member. Waits until the live members agree on one; raises Fatal when they do not."""
        until = time.monotonic() + AGREE_WITHIN_S
        while (found := self._leader()) is None:
            if time.monotonic() > until:
                raise Fatal(f"the members of {self.endpoint} do not agree on a leader within {AGREE_WITHIN_S:g} s")
            time.sleep(LOOK_S)
        return found

    def _leader(self) -> int | None:
        said: dict[int, int] = {}
        leaders = set()
        for n, member in enumerate(self.members):
            if member.poll() is None:
                try:
                    with connect([self.endpoints[n]], timeout_s=1.0, security=self._security) as store:
                        answer = store.connection.client.maintenancestub.Status(rpc.StatusRequest(), 1.0)
                except (Retryable, grpc.RpcError):
                    return None
                said[answer.header.member_id] = n
                leaders.add(answer.leader)
        return said[leaders.pop()] if len(leaders) == 1 and leaders <= said.keys() else None

    def make_space(self, revision: int) -> None:
        """Makes space after NOSPACE, by etcd's documentation: compacts to a revision, defragments, clears the alarm."""
        with connect(self.endpoints, security=self._security) as store:
            store.compact(revision)
        for endpoint in self.endpoints:
            with connect([endpoint], security=self._security) as store:
                stub = store.connection.client.maintenancestub
                stub.Defragment(rpc.DefragmentRequest(), 20.0)
        with connect(self.endpoints, security=self._security) as store:
            stub = store.connection.client.maintenancestub
            for alarm in stub.Alarm(rpc.AlarmRequest(action=rpc.AlarmRequest.GET), 5.0).alarms:
                off = rpc.AlarmRequest(action=rpc.AlarmRequest.DEACTIVATE, memberID=alarm.memberID, alarm=alarm.alarm)
                stub.Alarm(off, 5.0)

    def stop(self) -> None:
        for member in self.members:
            if member.poll() is None:
                member.kill()
            member.wait()


@contextlib.contextmanager
def cluster(
    folder: Path, binary: Path | None = None, host: str = "127.0.0.1", security: Security | None = None
) -> Iterator[Cluster]:
    """Yields three members, which end with the block."""
    three = Cluster(folder, binary, host, security)
    try:
        yield three
    finally:
        three.stop()


@contextlib.contextmanager
def slow_disk(pids: Sequence[int], delay_s: float, log: Path) -> Iterator[None]:
    """Delays every fsync and fdatasync of these processes by `delay_s`. Raises NotHere where strace may not do that."""
    if why := missing("strace"):
        raise NotHere(why)
    calls = "fdatasync,fsync"
    argv = [
        "strace",
        "-f",
        *(word for pid in pids for word in ("-p", str(pid))),
        "-e",
        f"trace={calls}",
        "-o",
        str(log),
    ]
    argv += ["-e", f"inject={calls}:delay_enter={delay_s * 1e6:.0f}"]
    said = log.with_suffix(".said")
    with said.open("wb") as err:
        tracer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=err, stderr=err)
    try:
        until = time.monotonic() + AGREE_WITHIN_S
        while said.read_bytes().count(b"attached") < len(pids):
            if tracer.poll() is not None or time.monotonic() > until:
                raise NotHere(f"strace may not trace here: {said.read_text().strip()}")
            time.sleep(LOOK_S)
        yield
    finally:
        if tracer.poll() is None:
            tracer.send_signal(signal.SIGTERM)  # strace then detaches from etcd, which a KILL would leave stopped
        tracer.wait(10)
