"""A node without files gets its certificate from a supervisor, by the secret of its allocation, and goes on with later
ones."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from agents import enrollment as asking
from agents.enrollment import EnrollError
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.observed import Grant
from supervisor.shell.enroll.listener import EnrollListener
from supervisor.shell.enroll.signer import Signer, grants
from supervisor.shell.etcd import EtcdStore, connect
from supervisor.wire import enrollment, keys
from supervisor.wire.address import free_ports
from supervisor.wire.records import NodeObserved, Registration, decode, encode
from supervisor.wire.security import Security, load, read_certificate
from tests.helpers.tls import TlsEtcd
from tests.helpers.tls_client import client_context, serial
from tests.helpers.tls_client import metrics as exposed
from tests.system.security.world import authed_etcd

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(300)]

LEASE_S = 2
SOON_S = 40.0
LIFE_S = 15.0
"""Life of a certificate that must expire in a test: above the start of an agent on a busy machine."""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[TlsEtcd]:
    with authed_etcd(tmp_path) as server:
        yield server


@pytest.fixture
def store(etcd: TlsEtcd) -> Iterator[EtcdStore]:
    with connect([etcd.endpoint], security=etcd.certificates.of("root")) as opened:
        yield opened


def signing(etcd: TlsEtcd, port: int) -> Security:
    """The supervisor's security file, with the key that signs."""
    file = etcd.certificates.file("supervisor")
    with file.open("a") as out:
        out.write(f'signs = "ca.key"\nenroll = ["127.0.0.1:{port}"]\n')
    return load(file)


@contextmanager
def process(log: Path, arguments: Sequence[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        started = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=out,
            stderr=out,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


@contextmanager
def node(etcd: TlsEtcd, home: Path, given: enrollment.Given) -> Iterator[subprocess.Popen[bytes]]:
    """Node n1 of allocation toy-a1, as a job of Slurm's starts it."""
    arguments = ["-m", "agents.cli", "run", "--node=n1", f"--home={home}", f"--etcd={etcd.endpoint}", "--cold"]
    arguments += ["--allocation=toy-a1", f"--lease-s={LEASE_S}", "--report-s=1"]
    home.mkdir()
    with process(home / "node.log", arguments, SUPERVISOR_ENROLL=given.encode()) as started:
        yield started


def registered(store: EtcdStore) -> Registration | None:
    item = store.get(keys.registration("n1"))
    return decode(item.value, Registration) if item is not None else None


def grant(store: EtcdStore, allocation: str, state: str, *nodes: str) -> None:
    key = keys.grant("toy", allocation)
    store.put(key, encode(Grant(key=allocation, state=state, nodes=nodes)))  # type: ignore[arg-type]


def holders(secret: str, folder: Path) -> list[Path]:
    """Processes with the secret in their command line or environment, and files below the folder that hold it."""
    found = []
    for path in [*Path("/proc").glob("[0-9]*/cmdline"), *Path("/proc").glob("[0-9]*/environ")]:
        try:
            found += [path] if secret.encode() in path.read_bytes() else []
        except OSError:
            continue
    return found + [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def test_a_node_enrolls_at_a_supervisor_and_no_other_name_does(etcd: TlsEtcd, store: EtcdStore, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    security = signing(etcd, port)
    given = enrollment.given(security, ["toy-a1", "toy-a2"])
    grant(store, "toy-a2", "gone", "n2")
    home, log = tmp_path / "node", tmp_path / "supervisor.log"
    run = ["-m", "supervisor.cli", "run", f"--etcd={etcd.endpoint}", f"--home={tmp_path / 'runs'}"]
    # the job runs before its grant is in etcd, and before any supervisor does
    with (
        node(etcd, home, given),
        process(log, [*run, f"--lease-s={LEASE_S}", f"--security={security.path}"]),
    ):
        eventually(lambda: "the allocation is unknown" in log.read_text(), SOON_S, "the node asks")
        assert registered(store) is None
        grant(store, "toy-a1", "granted", "n1")
        eventually(lambda: registered(store) is not None, SOON_S, "the node is registered")
        folder = home / "nodes" / "n1" / "certificates"
        assert read_certificate(load(folder / "node.toml")).name == "node-n1"
        assert holders(given.secrets["toy-a1"], tmp_path) == [folder / "enroll.json"]

        def refused(name: str, allocation: str, secret: str) -> None:
            asked = enrollment.Given(given.addresses, given.ca, {allocation: secret})
            with pytest.raises(EnrollError, match="this gets no certificate; the supervisor's log has the reason"):
                asking.enroll(name, allocation, tmp_path / "attacker", asked, within_s=0.0)

        refused("n2", "toy-a1", given.secrets["toy-a1"])
        refused("n1", "toy-a1", given.secrets["toy-a2"])
        refused("n2", "toy-a2", given.secrets["toy-a2"])
        said = log.read_text()
        for why in (
            "from 127.0.0.1 is refused: node 'n2' of allocation 'toy-a1': the allocation was granted with n1",
            "from 127.0.0.1 is refused: node 'n1' of allocation 'toy-a1': the secret is not that of the allocation",
            "from 127.0.0.1 is refused: node 'n2' of allocation 'toy-a2': the allocation is gone",
        ):
            assert why in said
        assert not any(secret in said for secret in given.secrets.values())


def test_a_node_goes_on_with_renewed_certificates(etcd: TlsEtcd, store: EtcdStore, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    security = signing(etcd, port)
    grant(store, "toy-a1", "granted", "n1")
    listener = EnrollListener("127.0.0.1", port, Signer(security, grants(store), LIFE_S), security)
    listener.serve()
    home = tmp_path / "node"
    try:
        with node(etcd, home, enrollment.given(security, ["toy-a1"])) as shim:
            eventually(lambda: registered(store) is not None, SOON_S, "the node is registered")
            first = registered(store)
            assert first is not None
            of_node = load(home / "nodes" / "n1" / "certificates" / "node.toml")
            expires = read_certificate(of_node).not_after_unix_s
            metrics = f"127.0.0.1:{first.metrics_port}"
            before = serial(metrics, etcd.certificates.of("root"))
            eventually(lambda: time.time() > expires + 1, LIFE_S + 2, "the first certificate expires")
            # every connection has to be made again
            etcd.restart()
            since = store.list(keys.NODES).revision

            def reports() -> bool:
                item = store.get(keys.observed("n1"))
                return item is not None and item.mod_revision > since and bool(decode(item.value, NodeObserved))

            eventually(reports, SOON_S, "etcd takes the node's reports")
            after = registered(store)
            assert after is not None
            assert after.agent_pid == first.agent_pid
            assert serial(metrics, etcd.certificates.of("root")) != before
            exported = exposed(first.metrics_port, client_context(etcd.certificates.of("root")))
            (until,) = re.findall(r'agent_certificate_expiry_timestamp_seconds\{node="n1"\} (\S+)', exported)
            assert float(until) > expires
            assert shim.poll() is None
    finally:
        listener.shutdown()
        listener.server_close()
