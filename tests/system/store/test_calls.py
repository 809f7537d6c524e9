"""Each error has its class, and no request is sent twice."""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path

import pytest

from fault_injection.testbed.stopping import frozen
from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.dev.etcd_server import EtcdServer, start_etcd
from supervisor.shell.etcd import EtcdStore, OutOfSpace, check_version, connect
from supervisor.shell.etcd.connection import CHANNEL_OPTIONS, parse_endpoint
from supervisor.shell.etcd.convert import range_of
from supervisor.shell.etcd.stubs import rpc
from supervisor.wire.address import free_ports
from tests.helpers.etcd import running
from tests.helpers.relay import relay

etcd = pytest.mark.etcd


def version_of(store: EtcdStore, key: str) -> int:
    """The number of writes of the key since it was created."""
    answer = store._connection.client.kvstub.Range(rpc.RangeRequest(key=key.encode()), 3.0)
    return answer.kvs[0].version if answer.kvs else 0


def test_no_etcd_there() -> None:
    [port] = free_ports(1)
    with pytest.raises(
        Retryable,
        match=rf"no etcd answers at 127\.0\.0\.1:{port} .*--etcd, or set SUPERVISOR_ETCD.*first run, `supervisor up`",
    ):
        connect([f"127.0.0.1:{port}"], timeout_s=1.0)


def test_something_that_never_answers_is_no_etcd() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(Retryable, match="no etcd answers at"):
        connect([f"127.0.0.1:{mute.getsockname()[1]}"], timeout_s=0.5)


@pytest.mark.parametrize("endpoint", ["", "host", "host:", "host:x", ":1", "host:0", "host:70000", "https://a:1"])
def test_what_is_no_endpoint(endpoint: str) -> None:
    with pytest.raises(Fatal):
        connect([endpoint])


def test_endpoints() -> None:
    assert parse_endpoint("http://etcd-0:2379/") == ("etcd-0", 2379)
    assert parse_endpoint("[::1]:2379") == ("[::1]", 2379)
    with pytest.raises(Fatal):
        connect([])


@etcd
def test_one_good_endpoint_is_enough(store: EtcdStore, etcd_server: EtcdServer) -> None:
    dead = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with connect([*dead, etcd_server.endpoint], timeout_s=1.0) as found:
        assert found.put("/t/a", b"") > 0
    port = etcd_server.endpoint.rpartition(":")[2]
    with connect([f"localhost:{port}"]) as by_name:
        assert by_name.get("/t/a") is not None


def test_pings_no_oftener_than_etcd_bears() -> None:
    """5 s was seen to draw GOAWAY too_many_pings."""
    assert dict(CHANNEL_OPTIONS)["grpc.keepalive_time_ms"] >= 10_000


@pytest.mark.parametrize(("version", "warned"), [("3.4.23", 0), ("3.5.0", 1), ("3.5.5", 1), ("3.5.6", 0), ("3.6.1", 0), ("3.3.9", 1), ("", 1)])  # fmt: skip
def test_versions(version: str, warned: int) -> None:
    assert (check_version(version) is not None) == bool(warned)


def test_ranges() -> None:
    assert range_of("/a/") == (b"/a/", b"/a0")
    assert range_of("") == (b"\0", b"\0")
    assert range_of("a\udcff") == (b"a\xff", b"b")


@etcd
def test_status(each_store: EtcdStore, each_server: EtcdServer) -> None:
    status = each_store.status()
    assert status.version == each_server.version
    assert status.has_leader
    assert status.db_size > 0
    assert status.alarms == ()
    assert len(status.members) == 1
    assert (check_version(status.version) is not None) == (status.version == "3.5.1")


@etcd
def test_a_value_that_is_too_large_is_refused_for_good(each_store: EtcdStore) -> None:
    for size in (2_000_000, 20_000_000):
        with pytest.raises(Fatal):
            each_store.put("/t/a", b"x" * size)
        with pytest.raises(Fatal):
            each_store.commit({"/t/a": b"x" * size})
    assert each_store.get("/t/a") is None


@etcd
def test_a_listing_beyond_grpcs_default_limit(store: EtcdStore) -> None:
    for n in range(6):
        store.put(f"/t/{n}", b"x" * 1_000_000)
    assert len(store.list("/t/").items) == 6


@etcd
def test_an_unknown_outcome_is_said_and_never_repeated(store: EtcdStore, etcd_server: EtcdServer) -> None:
    with relay(etcd_server.endpoint) as between, connect([between.endpoint], timeout_s=1.0) as far:
        between.replies.clear()
        with pytest.raises(Retryable, match="unknown outcome"):
            far.commit({"/t/a": b"1"})
        between.replies.set()
        assert version_of(store, "/t/a") == 1
        # cut while the answer is awaited: gRPC must not send it again on the next connection
        eventually(lambda: store_answers(far), 10, "a new connection")
        between.replies.clear()

        def cut_once_written() -> None:
            eventually(lambda: version_of(store, "/t/b"), 5, "written")
            between.cut()
            between.replies.set()

        cutter = threading.Thread(target=cut_once_written)
        cutter.start()
        with pytest.raises(Retryable, match="unknown outcome"):
            far.commit({"/t/b": b"1"})
        cutter.join()
        # the connection is well again; a request sent twice would have arrived by now
        eventually(lambda: store_answers(far), 10, "a new connection")
        assert version_of(store, "/t/a") == version_of(store, "/t/b") == 1


@etcd
def test_a_call_to_a_frozen_server_ends_at_its_deadline(tmp_path: Path, any_binary: Path) -> None:
    with running(tmp_path, binary=any_binary) as server, connect([server.endpoint], timeout_s=0.5) as store:
        with frozen(server.pid):
            for call in (lambda: store.get("/t/a"), lambda: store.list("/"), lambda: store.lease(5), store.status):
                with pytest.raises(Retryable):
                    call()
            with pytest.raises(Retryable, match="unknown outcome"):
                store.put("/t/a", b"")
        eventually(lambda: store_answers(store), 10, "it answers again")


def store_answers(store: EtcdStore) -> bool:
    try:
        store.get("/t/a")
    except Retryable:
        return False
    return True


@etcd
def test_a_full_store_says_how_to_mend_it(tmp_path: Path, any_binary: Path) -> None:
    server = start_etcd(tmp_path, binary=any_binary, quota_bytes=2_000_000)
    try:
        with connect([server.endpoint]) as store:
            written = store.put("/t/a", b"kept")

            def refused() -> OutOfSpace | None:
                nonlocal written
                try:
                    written = store.put("/t/fill", b"x" * 100_000)
                except OutOfSpace as error:
                    return error
                return None

            full = eventually(refused, 20, "the quota is reached")
            assert re.search("compact.*defrag.*disarm", str(full))
            assert isinstance(full, Retryable)
            # (a transaction that only deletes is refused by 3.5.1, and taken by 3.4.23)
            with pytest.raises(OutOfSpace):
                store.commit({"/t/a": b""}, ["/t/fill"])
            with pytest.raises(OutOfSpace):
                store.lease(5)
            assert store.get("/t/a") is not None
            [alarm] = store.status().alarms
            assert "NOSPACE" in alarm
            assert "etcdctl alarm disarm" in alarm

            # the mend, in its order
            store.compact(written)
            client = store._connection.client
            client.defragment()
            # by member: etcd3's disarm_alarm() without one, "for all the members", disarms nothing
            for alarm in list(client.list_alarms()):
                client.disarm_alarm(alarm.member_id)
            assert store.put("/t/a", b"again") > written
            assert store.status().alarms == ()
    finally:
        server.stop()
