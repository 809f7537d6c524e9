"""EtcdStore and the fake, held to the same contract."""

from __future__ import annotations

import pytest

from supervisor.ports.errors import Fenced, Retryable
from supervisor.ports.store import Store
from supervisor.shell.store import EtcdStore
from tests.helpers.memory_store import MemoryStore
from tests.store.contract import Kit, StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def kit(self) -> Kit:
        store = MemoryStore()
        return Kit(store, store.expire, store.compact)


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
