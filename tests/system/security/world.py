"""A whole system with TLS and etcd's auth: every process has a certificate of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.world import World
from supervisor.shell.etcd.auth import init_auth
from supervisor.wire import keys
from supervisor.wire.records import GateObserved, RunRecord
from tests.helpers.tls import Certificates, TlsEtcd, tls_etcd

NODES = ("n1", "n2", "n3")


class TlsWorld(World):
    """Works as `World`, with `--security` for everything that is started."""

    def __init__(self, folder: Path, etcd: TlsEtcd) -> None:
        self.certificates = etcd.certificates
        # the environment of the process that starts us: no trainer may see the last two
        environment = {
            "SUPERVISOR_PROGRAMS": json.dumps(TOYS),
            "SUPERVISOR_SECURITY": str(self.certificates.file("supervisor")),
            "SUPERVISOR_ETCD": etcd.endpoint,
        }
        ours = self.certificates.of("supervisor")
        super().__init__(folder, etcd, len(NODES), environment, security=ours)  # type: ignore[arg-type]

    def _spawn(self, log: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        # the option that is given last counts: the service host is a node
        own = [f"--security={self.certificates.file('node-host')}"] if log == "host" else []
        return super()._spawn(log, *arguments, *own, **environment)


def gate_address(world: TlsWorld, record: RunRecord) -> str:
    """host:port of the run's gate, as the gate reports it."""
    gate = world.mirror().record(keys.gate("host", record.spec.name), GateObserved)
    assert gate is not None
    return gate.address


@contextmanager
def authed_etcd(folder: Path, seconds: float | None = None) -> Iterator[TlsEtcd]:
    """Yields an etcd with TLS, our users and roles, and certificates for all of them. `seconds`: the life of our
    processes' certificates."""
    certificates = Certificates(folder / "certificates")
    certificates.make("etcd", "root")
    ours = ("supervisor", "reader", "node-host", *(f"node-{name}" for name in NODES))
    certificates.make(*ours, seconds=seconds)
    with tls_etcd(folder / "etcd", certificates) as server:
        list(init_auth([server.endpoint], certificates.of("root"), ["host", *NODES]))
        yield server


@contextmanager
def tls_world(folder: Path) -> Iterator[TlsWorld]:
    """The system without a supervisor: the test starts those."""
    with authed_etcd(folder) as server:
        made = TlsWorld(folder, server)
        try:
            yield made
        finally:
            made.close()
