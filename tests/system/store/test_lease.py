"""The lease: kept alive while it can be, lost by the holder's own clock when it can't."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fault_injection.testbed.stopping import frozen
from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Fenced
from supervisor.shell.dev.etcd_server import EtcdServer
from supervisor.shell.etcd import EtcdStore, connect
from tests.helpers.etcd import kill, running
from tests.helpers.relay import relay

pytestmark = pytest.mark.etcd

TTL_S = 2


def passed(seconds: float) -> None:
    """Lets time pass on purpose, in tests that a state stays the same."""
    end = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= end, seconds + 5)


def test_is_kept_alive_beyond_its_ttl(store: EtcdStore) -> None:
    lease = store.lease(TTL_S)
    store.put("/t/a", b"", lease.id)
    passed(2 * TTL_S)
    assert not lease.lost
    assert store.get("/t/a") is not None
    lease.revoke()


def test_without_its_holder_it_lapses(store: EtcdStore, etcd_server: EtcdServer) -> None:
    with connect([etcd_server.endpoint]) as other:
        lease = other.lease(TTL_S)
        other.put("/t/a", b"", lease.id)
    assert store.get("/t/a") is not None
    eventually(lambda: store.get("/t/a") is None, 4 * TTL_S, "the key lapses")
    assert lease.lost


def test_lost_by_the_local_deadline_while_the_server_is_frozen(tmp_path: Path, any_binary: Path) -> None:
    with running(tmp_path, binary=any_binary) as server, connect([server.endpoint], timeout_s=1.0) as store:
        lease = store.lease(TTL_S)
        store.put("/t/a", b"", lease.id)
        with frozen(server.pid):
            began = time.monotonic()
            eventually(lambda: lease.lost, 4 * TTL_S, "lost though nobody said so")
            assert time.monotonic() - began <= 2 * lease.ttl_s
        # the server, thawed, still holds the lease for a while; the holder must not take it up again
        passed(TTL_S / 2)
        assert lease.lost
        eventually(lambda: store.get("/t/a") is None, 5 * TTL_S, "nobody renews it")
        lease.revoke()


def test_survives_an_outage_shorter_than_its_ttl(tmp_path: Path, any_binary: Path) -> None:
    with running(tmp_path, binary=any_binary) as server, connect([server.endpoint], timeout_s=1.0) as store:
        lease = store.lease(9)
        store.put("/t/a", b"", lease.id)
        kill(server)
        with running(tmp_path, int(server.endpoint.rpartition(":")[2]), binary=any_binary):
            # renewed by the new server: its remaining time jumps back to nearly all of it
            deadline = lease._deadline
            eventually(lambda: lease._deadline > deadline, 15, "renewed")
            assert not lease.lost


def test_a_cut_connection_does_not_cost_the_lease(store: EtcdStore, etcd_server: EtcdServer) -> None:
    with relay(etcd_server.endpoint) as between, connect([between.endpoint], timeout_s=1.0) as far:
        lease = far.lease(6)
        far.put("/t/a", b"", lease.id)
        between.silence()
        passed(6.5)
        assert not lease.lost
        assert store.get("/t/a") is not None


def test_revoke_never_raises(tmp_path: Path, any_binary: Path) -> None:
    with running(tmp_path, binary=any_binary) as server, connect([server.endpoint], timeout_s=5.0) as store:
        lease = store.lease(5)
        kill(server)
        lease.revoke()
        assert lease.lost
        store.close()
        lease.revoke()


def test_a_write_under_a_lost_lease_writes_nothing(store: EtcdStore) -> None:
    lease = store.lease(5)
    lease.revoke()
    with pytest.raises(Fenced):
        store.commit({"/t/a": b"", "/t/b": b""}, lease=lease.id)
    assert store.list("/t/").items == ()
