"""The rights of each role in a real etcd with auth: the table of docs/adr/0007-security.md, line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Fatal, Retryable
from supervisor.ports.store import Expect, Store
from supervisor.shell.etcd import EtcdStore, connect
from supervisor.shell.etcd.auth import init_auth
from supervisor.shell.etcd.errors import is_denied
from supervisor.shell.etcd.stubs import rpc
from supervisor.wire import keys, node_requests
from tests.helpers.tls import Certificates, TlsEtcd, tls_etcd

pytestmark = pytest.mark.etcd

Operation = Callable[[Store], object]


def put(key: str) -> Operation:
    return lambda store: store.put(key, b"{}")


def get(key: str) -> Operation:
    return lambda store: store.get(key)


def ls(prefix: str) -> Operation:
    return lambda store: store.list(prefix)


def delete(key: str) -> Operation:
    return lambda store: store.commit({}, deletes=[key])


def compare(key: str) -> Operation:
    """A transaction on a key of n1 that compares another: its answer would reveal that key's value."""
    return lambda store: store.commit({keys.health("n1"): b"{}"}, expect=[Expect(key, create_revision=0)])


OF_N1 = [keys.registration("n1"), keys.health("n1"), keys.observed("n1"), keys.gate("n1", "r"), keys.gate_presence("n1", "r")]  # fmt: skip
OF_OTHERS = [
    keys.LEADER, keys.EPOCHS_BEFORE, keys.health("n2"), keys.health("n11"), keys.desired("n1", "r"),
    keys.desired("n2", "r"), keys.spec("r"), keys.control("r"), keys.memory("r", "run"), keys.grant("r", "a"),
    keys.checkpoint("r"), "/elsewhere",
]  # fmt: skip
ALL = [*OF_N1, *OF_OTHERS]
OURS = [key for key in ALL if key.startswith(keys.PREFIX)]

ASKED, ANSWER = node_requests.asked("n1", "i"), node_requests.answer("n1", "i", 0)
ASKED_OF_OTHER, OF_OTHER = node_requests.asked("n11", "i"), node_requests.answer("n11", "i", 0)
REQUESTS = [ASKED, ANSWER, ASKED_OF_OTHER, OF_OTHER]

ALLOWED: dict[str, list[Operation]] = {
    "supervisor": [*map(put, OURS), *map(get, OURS), *map(delete, OURS), ls(keys.PREFIX), lambda s: s.lease(5).revoke(),
        *map(put, REQUESTS), *map(get, REQUESTS), *map(delete, REQUESTS), ls(node_requests.PREFIX)],
    "reader": [*map(get, OURS), ls(keys.PREFIX)],
    "node-n1": [
        *map(put, OF_N1), *map(get, OF_N1), *map(delete, OF_N1),
        get(keys.desired("n1", "r")), ls(keys.desired("n1", "")), ls(f"{keys.NODES}n1/"), lambda s: s.lease(5).revoke(),
        get(ASKED), ls(node_requests.asked("n1", "")), put(ANSWER), get(ANSWER), delete(ANSWER),
    ],
}  # fmt: skip
REFUSED: dict[str, list[Operation]] = {
    "supervisor": [put("/elsewhere"), get("/elsewhere"), ls("/")],
    "reader": [*map(put, ALL), *map(delete, ALL), get("/elsewhere"), ls("/"),
        *map(put, REQUESTS), *map(get, REQUESTS), *map(delete, REQUESTS), ls(node_requests.PREFIX)],
    "node-n1": [
        *map(put, OF_OTHERS), *map(delete, OF_OTHERS), *map(compare, OF_OTHERS[:4]),
        *(get(key) for key in OF_OTHERS if key != keys.desired("n1", "r")),
        ls(keys.PREFIX), ls(keys.NODES), ls(keys.DESIRED), ls(keys.RUNS), ls("/"),
        put(ASKED), delete(ASKED), get(ASKED_OF_OTHER), put(OF_OTHER), get(OF_OTHER), delete(OF_OTHER),
        ls(node_requests.ASKED), ls(node_requests.ANSWERS),
    ],
    "nobody": [*map(put, ALL), *map(get, ALL), ls(keys.PREFIX)],
}  # fmt: skip


@contextmanager
def as_user(etcd: TlsEtcd, name: str) -> Iterator[EtcdStore]:
    with connect([etcd.endpoint], security=etcd.certificates.of(name)) as store:
        yield store


@pytest.mark.parametrize("who", ALLOWED)
def test_what_a_user_may_do(authed: TlsEtcd, who: str) -> None:
    with as_user(authed, who) as store:
        for operation in ALLOWED[who]:
            operation(store)


@pytest.mark.parametrize("who", REFUSED)
def test_what_a_user_may_not_do(authed: TlsEtcd, who: str) -> None:
    if who == "nobody":
        authed.certificates.make("nobody")
    with as_user(authed, "supervisor") as store:
        before = {item.key: item.mod_revision for item in store.list(keys.PREFIX).items}
    refused = rf"etcd does not allow this to the user '{who}'|user name not found"
    for operation in REFUSED[who]:
        with pytest.raises(Fatal, match=refused), as_user(authed, who) as store:
            operation(store)
    with as_user(authed, "supervisor") as store:
        assert {item.key: item.mod_revision for item in store.list(keys.PREFIX).items} == before


def test_a_watch_of_what_one_may_not_read_fails(authed: TlsEtcd) -> None:
    with as_user(authed, "node-n1") as node, as_user(authed, "supervisor") as supervisor:
        allowed, refused = node.watch(keys.desired("n1", ""), 0), node.watch(keys.desired("n2", ""), 0)
        supervisor.put(keys.desired("n1", "w"), b"1")
        supervisor.put(keys.desired("n2", "w"), b"2")
        eventually(lambda: (changes := allowed.poll(0.1)) and changes.puts, 10, "the own record is seen")

        def ended() -> bool:
            try:
                assert refused.poll(0.1) is None
            except Fatal as error:
                return "'node-n1'" in str(error)
            return False

        eventually(ended, 10, "the watch of another's record is refused")


def test_a_key_under_anothers_lease_stays(authed: TlsEtcd) -> None:
    """Anyone may ask for the end of a lease; etcd refuses it when its keys are not theirs."""
    with as_user(authed, "supervisor") as supervisor, as_user(authed, "node-n1") as node:
        lease = supervisor.lease(30)
        supervisor.put(keys.LEADER, b"{}", lease.id)
        with pytest.raises(Fatal, match="'node-n1'"), node.connection.call("revoke") as client:
            client.revoke_lease(lease.id)
        assert supervisor.get(keys.LEADER) is not None
        lease.revoke()


def test_the_holes_that_etcd_has(authed: TlsEtcd) -> None:
    """docs/SECURITY.md names them: when an etcd refuses one of these, remove it there."""
    with as_user(authed, "supervisor") as supervisor, as_user(authed, "reader") as reader:
        try:
            reader.compact(supervisor.put(keys.LEADER, b"{}"))
        except Fatal as error:  # 3.4.42, 3.5.28 and 3.6.9 allow it to `root` alone
            if not is_denied(error):
                raise
        lease = supervisor.lease(30)
        with reader.connection.call("keep alive") as client:
            request = rpc.LeaseKeepAliveRequest(ID=lease.id)
            assert next(iter(client.leasestub.LeaseKeepAlive(iter([request]), 3.0))).TTL > 0
        with reader.connection.call("revoke") as client:
            client.revoke_lease(lease.id)


def test_no_certificate_and_anothers_authority(authed: TlsEtcd, tmp_path: Path) -> None:
    with pytest.raises(Retryable, match="no etcd answers"):
        connect([authed.plain], timeout_s=1.0)
    foreign = Certificates(tmp_path)
    foreign.make("supervisor")
    with pytest.raises(Retryable, match="no etcd answers"):
        connect([authed.endpoint], timeout_s=1.0, security=foreign.of("supervisor"))


def test_init_auth_again_adds_nodes_and_mends_roles(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    certificates.make("etcd", "root", "supervisor", "reader", "node-n1", "node-n2")
    root = certificates.of("root")
    with tls_etcd(tmp_path / "etcd", certificates) as server:
        first = list(init_auth([server.endpoint], root, ["n1"]))
        assert "user node-n1 made" in first
        assert [line for line in init_auth([server.endpoint], root, ["n1"]) if line.startswith(("user", "role"))] == []
        refused = pytest.raises(Fatal, match=r"'node-n2'|user name not found")
        with refused, as_user(server, "node-n2") as store:
            store.put(keys.health("n2"), b"{}")
        assert "user node-n2 made" in list(init_auth([server.endpoint], root, ["n2"]))
        with as_user(server, "node-n2") as store, as_user(server, "node-n1") as other:
            store.put(keys.health("n2"), b"{}")
            other.put(keys.health("n1"), b"{}")
        loosen(server)
        with as_user(server, "reader") as store:
            store.put(keys.LEADER, b"{}")
        assert "role reader may no longer use /" in list(init_auth([server.endpoint], root, []))
        with as_user(server, "reader") as store, pytest.raises(Fatal, match="'reader'"):
            store.put(keys.LEADER, b"{}")


def test_a_removed_node_reads_and_writes_nothing_though_its_certificate_is_valid(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    certificates.make("etcd", "root", "node-n1", "node-n2")
    root = certificates.of("root")
    with tls_etcd(tmp_path / "etcd", certificates) as server:
        list(init_auth([server.endpoint], root, ["n1", "n2"]))
        with as_user(server, "node-n1") as kept, as_user(server, "node-n2") as store:
            store.put(keys.health("n2"), b"{}")
            store.put(keys.registration("n2"), b"{}", store.lease(30).id)
            told = list(init_auth([server.endpoint], root, [], ["n2", "n3"]))
            assert told[:3] == ["user node-n2 removed", "role node-n2 removed", "there is no user node-n3"]
            for operation in (put(keys.health("n2")), get(keys.health("n2")), ls(keys.desired("n2", ""))):
                with pytest.raises(Fatal, match=r"'node-n2'|user name not found"):
                    operation(store)
            kept.put(keys.health("n1"), b"{}")
        with as_user(server, "root") as store:
            assert [item.key for item in store.list(keys.NODES).items] == [keys.health("n1")], (
                "it counts as lost at once"
            )
            assert store.get(keys.removed_node("n2")) is not None, "it gets no certificate"
        assert "node n2 may ask for certificates again" in list(init_auth([server.endpoint], root, ["n2"]))
        with as_user(server, "root") as store:
            assert store.get(keys.removed_node("n2")) is None


def loosen(server: TlsEtcd) -> None:
    """Adds a right that a person gave the readers by hand."""
    with as_user(server, "root") as store, store.connection.call("grant") as client:
        everything = rpc.auth_pb2.Permission(permType=rpc.auth_pb2.Permission.READWRITE, key=b"/", range_end=b"0")
        stub = rpc.AuthStub(client.channel)
        stub.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="reader", perm=everything), 5.0)


@pytest.mark.parametrize(
    ("who", "endpoint", "words"),
    [
        ("supervisor", "https", "is the certificate of 'supervisor': init-auth is only for `root`"),
        ("root", "plain", "sees no certificate: give https://"),
    ],
)
def test_init_auth_is_for_root(authed: TlsEtcd, who: str, endpoint: str, words: str) -> None:
    at = authed.endpoint if endpoint == "https" else authed.plain
    with pytest.raises(Fatal, match=words):
        list(init_auth([at], authed.certificates.of(who), []))
