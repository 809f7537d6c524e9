"""A certificate that is renewed on disk is used without a restart, and one that has expired is not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import toy_spec
from supervisor.ports.errors import PortError, Retryable
from supervisor.shell.etcd import EtcdStore, connect
from supervisor.wire import keys, security
from supervisor.wire.records import LeaderRecord, NodeObserved, Registration
from supervisor.wire.security import SecurityError, read_certificate
from tests.helpers.tls import Certificates, TlsEtcd, tls_etcd
from tests.helpers.tls_client import serial
from tests.system.security.world import NODES, TlsWorld, authed_etcd, gate_address

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(900)]

SHORT_S = 6
"""Life of a certificate that must expire in a test of one client."""

RUN_S = 75
"""The same for a whole system, which must come up before that."""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[TlsEtcd]:
    certificates = Certificates(tmp_path / "certificates")
    certificates.make("etcd", "root")
    with tls_etcd(tmp_path / "etcd", certificates) as server:
        yield server


def works(store: EtcdStore) -> bool:
    try:
        store.put("/t/a", b"")
    except Retryable:
        return False
    return True


def test_files_are_read_again_when_they_have_changed_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = Certificates(tmp_path)
    certificates.make("reader", "supervisor")
    ours = certificates.of("reader")
    made: list[object] = []
    context = security._context

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return context(*arguments)

    monkeypatch.setattr(security, "_context", counted)
    assert read_certificate(ours) == read_certificate(ours)
    assert made == []
    for end in ("pem", "key"):
        (tmp_path / f"supervisor.{end}").rename(tmp_path / f"reader.{end}")
    assert read_certificate(ours).name == "supervisor"
    assert made
    (tmp_path / "reader.key").unlink()
    with pytest.raises(SecurityError, match=r"reader\.key cannot be read"):
        read_certificate(ours)


@contextmanager
def expiring(etcd: TlsEtcd) -> Iterator[EtcdStore]:
    """A client whose certificate expires in a moment."""
    etcd.certificates.make("supervisor", seconds=SHORT_S)
    with connect([etcd.endpoint], timeout_s=1.0, security=etcd.certificates.of("supervisor")) as store:
        assert works(store)
        yield store


def until_expired(not_after: float) -> None:
    eventually(lambda: time.time() > not_after + 1, not_after + 2 - time.time(), "the certificate expires")


def not_after(certificates: Certificates, name: str) -> float:
    return read_certificate(certificates.of(name)).not_after_unix_s


def test_a_certificate_lives_a_month(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    certificates.make("etcd")
    days = (not_after(certificates, "etcd") - time.time()) / 86400
    assert 29 < days <= 30


def test_a_client_of_etcd_goes_on_with_the_renewed_one(etcd: TlsEtcd) -> None:
    with expiring(etcd) as store:
        expires = not_after(etcd.certificates, "supervisor")
        watch = store.watch("/t/", store.list("/t/").revision)
        etcd.certificates.make("supervisor")
        until_expired(expires)
        # every connection has to be made again, after the old certificate has expired
        etcd.restart()
        eventually(lambda: works(store), 10, "the client writes")
        eventually(lambda: (changes := watch.poll(0.1)) is not None and changes.puts, 15, "the watch goes on")


def test_a_client_of_etcd_with_an_expired_one_is_refused_and_told_why(etcd: TlsEtcd) -> None:
    with expiring(etcd) as store:
        until_expired(not_after(etcd.certificates, "supervisor"))
        etcd.restart()
        since = time.monotonic()
        with pytest.raises(Retryable, match=r"our certificate .*supervisor\.pem has expired: renew it, no restart"):
            connect([etcd.endpoint], timeout_s=1.0, security=etcd.certificates.of("supervisor"))
        assert not works(store)
        eventually(lambda: time.monotonic() - since > 3, 5)
        assert not works(store)
        etcd.certificates.make("supervisor")
        eventually(lambda: works(store), 10, "it is renewed after all")


def test_half_a_renewal_changes_nothing(etcd: TlsEtcd, tmp_path: Path) -> None:
    """The new key is there and its certificate not yet: the old pair, as it was read, stays in use."""
    certificates = etcd.certificates
    certificates.make("supervisor")
    other = Certificates(tmp_path / "other")
    other.make("supervisor")
    with connect([etcd.endpoint], security=certificates.of("supervisor")) as store:
        key = certificates.folder / "supervisor.key"
        right = key.read_bytes()
        key.write_bytes((other.folder / "supervisor.key").read_bytes())
        client = store.connection.client
        since = time.monotonic()
        eventually(lambda: works(store) and time.monotonic() - since > 2.5, 5)
        assert store.connection.client is client
        key.write_bytes(right)
        eventually(lambda: store.connection.client is not client, 5, "the whole pair is taken")
        assert works(store)


def reaches(world: TlsWorld, generation: int) -> bool:
    """True if the forwarders of both groups reach the gate of this generation."""
    mirror = world.mirror()
    host = mirror.record(keys.observed("host"), NodeObserved)
    if host is None or not any(x.generation == generation and x.state == "running" for x in host.lighthouses):
        return False
    seen = [mirror.record(keys.observed(name), NodeObserved) for name in NODES]
    trainers = [trainer for node in seen if node is not None for trainer in node.trainers if trainer.state == "running"]
    return len(trainers) == 2 and all(trainer.gate and trainer.reaches_gate for trainer in trainers)


@pytest.mark.long
def test_a_whole_system_outlives_its_certificates(tmp_path: Path) -> None:
    with authed_etcd(tmp_path, seconds=RUN_S) as server:
        world = TlsWorld(tmp_path, server)
        try:
            _outlive(world)
        finally:
            world.close()


def _outlive(world: TlsWorld) -> None:
    certificates = world.certificates
    expires = not_after(certificates, "supervisor")
    supervisor = world.supervisor()
    record = world.launch(toy_spec())
    eventually(lambda: reaches(world, 1), RUN_S, "both groups run and reach the gate")
    leader = world.mirror().record(keys.LEADER, LeaderRecord)
    agent = world.mirror().record(keys.registration("n1"), Registration)
    assert leader is not None
    assert agent is not None
    listeners = [f"127.0.0.1:{leader.metrics_port}", f"127.0.0.1:{agent.metrics_port}", gate_address(world, record)]  # fmt: skip
    root = certificates.of("root")
    before = [serial(address, root) for address in listeners]
    assert time.time() < expires, "the system came up too late for this test"
    certificates.make("supervisor", "node-host", *(f"node-{name}" for name in NODES))
    assert [serial(address, root) for address in listeners] != before
    assert not set(before) & {serial(address, root) for address in listeners}
    until_expired(expires)
    world.etcd.restart()  # type: ignore[attr-defined]
    eventually(lambda: _put(world), 15, "the test's own client goes on")
    # a new gate, and with it new connections of every forwarder
    world.kill_host_process("lighthouse.toy.1")
    eventually(lambda: reaches(world, 2), 60, "the forwarders reach the next gate")
    # the agents report and the leader decides, with certificates that did not exist when they started
    world.kill_trainer(record, 1)
    eventually(world.running(record, 1, 2), 60, "the killed group is back")
    assert supervisor.poll() is None
    after = world.mirror().record(keys.LEADER, LeaderRecord)
    assert after is not None
    assert after.pid == leader.pid
    again = world.mirror().record(keys.registration("n1"), Registration)
    assert again is not None
    assert again.agent_pid == agent.agent_pid


def _put(world: TlsWorld) -> bool:
    try:
        world.store.put(keys.PREFIX + "test", b"")
    except PortError:
        return False
    return True
