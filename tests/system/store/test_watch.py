"""The watch against servers that die, freeze, compact, lose their quorum or their data."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fault_injection.testbed.stopping import frozen
from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Retryable
from supervisor.ports.store import Changes, Watch
from supervisor.shell.dev.etcd_server import EtcdServer
from supervisor.shell.etcd import EtcdStore, connect
from supervisor.shell.etcd.watch import IDLE_S
from tests.helpers.etcd import cluster, kill, running
from tests.helpers.relay import relay
from tests.system.store.contract import collect

pytestmark = pytest.mark.etcd

BACK_S = 15.0


def insist(store: EtcdStore, key: str, value: bytes) -> int:
    """Puts until the store takes it (the value makes a repetition harmless)."""

    def once() -> int | None:
        try:
            return store.put(key, value)
        except Retryable:
            return None

    return eventually(once, BACK_S, f"{key} is written")


def opened(watch: Watch, store: EtcdStore) -> None:
    """Waits until the watch follows a stream: an event has come through it."""
    revision = store.put("/t/opened", b"")
    assert collect(watch, 1)[0].revision == revision


def port_of(server: EtcdServer) -> int:
    return int(server.endpoint.rpartition(":")[2])


def test_goes_on_after_a_killed_server_is_back(tmp_path: Path, binary: Path) -> None:
    with running(tmp_path, binary=binary) as server, connect([server.endpoint]) as store:
        watch = store.watch("/t/", store.list("/t/").revision)
        before = [store.put("/t/a", str(n).encode()) for n in range(5)]
        kill(server)
        with pytest.raises(Retryable):
            store.put("/t/a", b"away")
        with running(tmp_path, port_of(server), binary=binary) as again:
            assert again.endpoint == server.endpoint
            after = [insist(store, "/t/a", b"x"), insist(store, "/t/a", b"y")]
            assert [changes.revision for changes in collect(watch, 7)] == before + after
            watch.close()


def test_nothing_is_lost_or_doubled_while_connections_are_cut(store: EtcdStore, etcd_server: EtcdServer) -> None:
    with relay(etcd_server.endpoint) as between, connect([between.endpoint]) as far:
        watch = far.watch("/t/", store.list("/t/").revision)
        written: list[int] = []
        seen: list[Changes] = []
        for _ in range(4):
            written += [store.put("/t/a", b"before"), store.put("/t/a", b"just before")]
            between.cut()
            written.append(store.put("/t/a", b"just after"))
            # each round waits for all of it, so that each cut hits an open stream
            seen += collect(watch, 3)
        assert [changes.revision for changes in seen] == written
        assert between.accepted >= 4
        watch.close()


def test_a_frozen_server_is_noticed_and_followed_again(tmp_path: Path, any_binary: Path) -> None:
    with running(tmp_path, binary=any_binary) as server, connect([server.endpoint], timeout_s=1.0) as store:
        watch = store.watch("/t/", store.put("/t/a", b"1"))
        opened(watch, store)
        with frozen(server.pid):
            eventually(lambda: watch.silent_s > 5.0, 10, "silence is noticed")
            assert watch.poll(0.0) is None
        put = insist(store, "/t/a", b"2")
        assert collect(watch, 1)[0].revision <= put
        eventually(lambda: watch.silent_s < IDLE_S, 5, "it is heard again")
        watch.close()


def test_a_connection_that_falls_silent_is_left(store: EtcdStore, etcd_server: EtcdServer) -> None:
    """No FIN, no RST: gRPC would wait for its keepalive. The server is fine, only the way is dead."""
    with relay(etcd_server.endpoint) as between, connect([between.endpoint]) as far:
        watch = far.watch("/t/", store.put("/t/a", b"1"))
        opened(watch, store)
        between.silence()
        put = store.put("/t/a", b"2")
        changes = watch.poll(3 * IDLE_S)
        assert changes is not None
        assert changes.revision == put
        watch.close()


def test_a_quiet_watch_hears_the_server(store: EtcdStore) -> None:
    """Progress requests: without them a quiet watch and a dead one look the same."""
    watch = store.watch("/t/", store.put("/t/a", b"1"))
    opened(watch, store)
    stream = watch._stream
    eventually(lambda: watch.silent_s > 0.5, 5, "quiet for a while")
    eventually(lambda: watch.silent_s < 0.3, 5, "heard without any event")
    # and not because the stream was left as dead and opened again
    assert watch._stream is stream
    assert watch.poll(0.0) is None
    watch.close()


def test_compaction_while_the_way_was_cut(store: EtcdStore, etcd_server: EtcdServer) -> None:
    with relay(etcd_server.endpoint) as between, connect([between.endpoint], timeout_s=1.0) as far:
        watch = far.watch("/t/", store.put("/t/gone", b""))
        opened(watch, store)
        between.replies.clear()
        store.commit({"/t/a": b"1"}, ["/t/gone"])
        last = store.put("/t/a", b"2")
        store.compact(last)
        # the held bytes are thrown away, and the new streams find the history gone
        between.cut()
        between.replies.set()
        found = collect(watch, 1)[0]
        assert (found.reset, found.revision) == (True, last)
        assert [item.key for item in found.puts] == ["/t/a", "/t/opened"]
        watch.close()


def test_a_store_that_lost_its_data_is_a_reset(tmp_path: Path, any_binary: Path) -> None:
    with running(tmp_path, binary=any_binary) as server, connect([server.endpoint]) as store:
        watch = store.watch("/t/", store.put("/t/a", b"1"))
        for n in range(5):
            store.put("/t/a", str(n).encode())
        assert len(collect(watch, 5)) == 5
        kill(server)
        shutil.rmtree(tmp_path / "data")
        with running(tmp_path, port_of(server), binary=any_binary):
            reset = collect(watch, 1)[0]
            assert reset.reset
            assert reset.puts == ()
            put = insist(store, "/t/b", b"")
            assert collect(watch, 1)[0].revision <= put
            watch.close()


def test_lost_quorum_is_noticed_and_a_dead_member_is_left(tmp_path: Path, any_binary: Path) -> None:
    with cluster(tmp_path, any_binary) as three:
        store = eventually(lambda: _connected(three.endpoints), BACK_S, "the cluster answers")
        watch = store.watch("/t/", insist(store, "/t/a", b"1"))
        opened(watch, store)

        # the member that we talk to dies: calls and watch go to another
        mine = three.endpoints.index(store._connection.endpoint)
        three.members[mine].kill()
        second = insist(store, "/t/a", b"2")
        assert collect(watch, 1)[0].revision <= second

        # one more freezes, and no quorum is left; the watch must not take the last one's silence for peace
        other = three.members[(three.endpoints.index(store._connection.endpoint) + 1) % 3]
        other = other if other.poll() is None else three.members[(three.members.index(other) + 1) % 3]
        with frozen(other.pid):
            eventually(lambda: watch.silent_s > 2 * IDLE_S, 30, "lost quorum is noticed by silence")
            with pytest.raises(Retryable):
                store.put("/t/lost", b"")
        insist(store, "/t/a", b"3")
        assert any(item.value == b"3" for changes in _until(watch, b"3") for item in changes.puts)
        watch.close()
        store.close()


def _connected(endpoints: list[str]) -> EtcdStore | None:
    try:
        return connect(endpoints, timeout_s=1.0)
    except Retryable:
        return None


def _until(watch: Watch, value: bytes) -> list[Changes]:
    seen: list[Changes] = []

    def found() -> bool:
        changes = watch.poll(0.05)
        if changes is not None:
            seen.append(changes)
        return any(item.value == value for each in seen for item in each.puts)

    eventually(found, BACK_S, f"{value!r} is seen")
    return seen
