"""EtcdStore, the fake, and the simulator's model of etcd, held to the same contract."""

from __future__ import annotations

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from fault_injection.sim.clock import Clock
from fault_injection.sim.store import Etcd, SimStore
from supervisor.ports.errors import Fenced, Retryable
from supervisor.ports.store import Store
from supervisor.shell.etcd import EtcdStore
from tests.system.store.contract import Kit, StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def kit(self) -> Kit:
        store = MemoryStore()
        return Kit(store, store.expire, store.compact)


class TestSimStore(StoreContract):
    """A lease here expires like a real one: nothing renews it, and its time passes."""

    @pytest.fixture
    def kit(self) -> Kit:
        clock = Clock()
        etcd = Etcd(clock)
        store = SimStore(etcd)

        def expire(lease: int) -> None:
            ttl_s = etcd.leases[lease].ttl_s
            etcd.leases[lease].interrupted()
            clock.wait(0.6 * ttl_s)
            assert lease in etcd.leases, "it is renewed at a third of its time"
            clock.wait(0.4 * ttl_s)

        return Kit(store, expire, etcd.compact)


@pytest.mark.etcd
class TestEtcdStore(StoreContract):
    @pytest.fixture
    def kit(self, each_store: EtcdStore) -> Kit:
        def expire(lease: int) -> None:
            each_store._connection.client.revoke_lease(lease)

        return Kit(each_store, expire, each_store.compact)


class TestFaultsOfTheFake:
    def test_away(self) -> None:
        store = MemoryStore()
        port: Store = store
        watch = port.watch("/", port.put("/a", b""))
        lease = port.lease(5)
        store.away = True
        for call in (
            lambda: port.get("/a"),
            lambda: port.list("/"),
            lambda: port.put("/a", b""),
            lambda: port.lease(1),
        ):
            with pytest.raises(Retryable):
                call()
        assert watch.poll(0.0) is None
        assert watch.silent_s >= 0
        store.expire(lease.id)
        assert lease.lost
        store.away = False
        put = port.put("/a", b"2")
        changes = watch.poll(0.0)
        assert changes is not None
        assert changes.revision == put
        assert watch.silent_s == 0

    def test_fail_next(self) -> None:
        store = MemoryStore()
        store.fail_next(1, Fenced)
        store.fail_next(1)
        with pytest.raises(Fenced):
            store.put("/a", b"")
        with pytest.raises(Retryable):
            store.put("/a", b"")
        assert store.get("/a") is None

    def test_unknown_outcome(self) -> None:
        store = MemoryStore()
        store.fail_next(1, applied=True)
        with pytest.raises(Retryable):
            store.commit({"/a": b"1"})
        assert store.get("/a") is not None

    def test_a_lease_that_lapses_for_its_holder_only(self) -> None:
        store = MemoryStore()
        lease = store.lease(5)
        store.put("/a", b"", lease.id)
        lease.lapse()
        assert lease.lost
        assert store.get("/a") is not None
