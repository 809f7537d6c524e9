"""Known holes of the etcd in use: each is really used, and the probe says open or shut as it was."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Fatal
from supervisor.shell.dev.etcd_server import SOCKETS, start_etcd
from supervisor.shell.etcd import EtcdStore, auth, connect, holes
from supervisor.shell.etcd.convert import bytes_of, put
from supervisor.shell.etcd.errors import OutOfSpace, is_denied
from supervisor.shell.etcd.stubs import rpc
from supervisor.shell.inspect.doctor import trust
from supervisor.wire import keys
from supervisor.wire.address import free_ports
from supervisor.wire.security import load
from tests.helpers.tls import TlsEtcd
from tests.system.security.world import authed_etcd

pytestmark = pytest.mark.etcd


@contextmanager
def as_user(etcd: TlsEtcd, name: str) -> Iterator[EtcdStore]:
    with connect([etcd.endpoint], security=etcd.certificates.of(name)) as store:
        yield store


def transact(store: EtcdStore, *requests: object) -> bool:
    """Returns true if etcd takes the transaction."""

    def ask() -> None:
        with store.connection.call("transact", writes=True) as client:
            client.kvstub.Txn(rpc.TxnRequest(success=requests), store.timeout_s)

    return allowed(ask)


def allowed(ask: Callable[[], None]) -> bool:
    try:
        ask()
    except Fatal as error:
        if not is_denied(error):
            raise
        return False
    return True


def writes_anothers_key(etcd: TlsEtcd, who: str = "node-n1") -> bool:
    """True if n1 could say what n2 runs."""
    key = keys.desired("n2", "forged")
    with as_user(etcd, who) as user, as_user(etcd, "supervisor") as supervisor:
        transact(user, rpc.RequestOp(request_txn=rpc.TxnRequest(success=[put(key, b"code", 0)])))
        found = supervisor.get(key)
        if found is not None:
            supervisor.commit({}, deletes=[key])
        return found is not None


def holds_anothers_lease(etcd: TlsEtcd) -> bool:
    """True if n1 could keep the leader from giving its lease back: it has a key under it then that it must not write."""
    with as_user(etcd, "node-n1") as node, as_user(etcd, "supervisor") as supervisor:
        lease = supervisor.lease(30)
        supervisor.put(keys.LEADER, b"{}", lease.id)
        try:
            return transact(node, put(keys.health("n1"), b"{}", lease.id))
        finally:
            lease.revoke()


def sees_anothers_key(etcd: TlsEtcd) -> bool:
    """True if n1 could watch what n2 reports."""
    with as_user(etcd, "node-n1") as node, as_user(etcd, "supervisor") as supervisor:
        create = rpc.WatchCreateRequest(key=bytes_of(keys.health("n1")), range_end=b"\0")
        with node.connection.call("watch") as client:
            answers = rpc.WatchStub(client.channel).Watch(iter([rpc.WatchRequest(create_request=create)]), timeout=20)
            if next(answers).canceled:
                return False
            supervisor.put(keys.health("n2"), b"secret")
            seen = eventually(lambda: next(answers).events, 10, "an event")
            answers.cancel()
    return bytes(seen[0].kv.value) == b"secret"


def stops_all_writes(etcd: TlsEtcd) -> bool:
    """True if n1 could raise an alarm by which the supervisor writes no more."""
    with as_user(etcd, "node-n1") as node, as_user(etcd, "supervisor") as supervisor, as_user(etcd, "root") as root:
        if not allowed(lambda: alarm(node, rpc.AlarmRequest.ACTIVATE)):
            return False
        try:
            with pytest.raises(OutOfSpace):
                supervisor.put(keys.health("n2"), b"{}")
        finally:
            alarm(root, rpc.AlarmRequest.DEACTIVATE)
        return True


def alarm(store: EtcdStore, action: int) -> None:
    with store.connection.call("alarm") as client:
        client.maintenancestub.Alarm(rpc.AlarmRequest(action=action, memberID=7, alarm=rpc.NOSPACE), store.timeout_s)


@cache
def fills_it_and_ends_all_roles() -> bool:
    """True if n1 could switch etcd's users off, by its own keys alone. It has an etcd of its own for it."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ETCD_QUOTA_BACKEND_BYTES", str(4 * 2**20))
        with authed_etcd(Path(folder)) as etcd, as_user(etcd, "node-n1") as node:
            assert not switches_users_off(node)
            with pytest.raises(OutOfSpace):
                fill(node)
            return switches_users_off(node)


def fill(node: EtcdStore) -> None:
    for _ in range(16):
        node.put(keys.health("n1"), bytes(2**20))


def switches_users_off(store: EtcdStore) -> bool:
    def ask() -> None:
        with store.connection.call("auth disable") as client:
            rpc.AuthStub(client.channel).AuthDisable(rpc.AuthDisableRequest(), timeout=store.timeout_s)

    return allowed(ask)


USED = {
    holes.NESTED: writes_anothers_key,
    holes.LEASE: holds_anothers_lease,
    holes.ALARM: stops_all_writes,
    holes.WATCH: sees_anothers_key,
    holes.FULL: lambda _: fills_it_and_ends_all_roles(),
}


def used(etcd: TlsEtcd) -> tuple[holes.Hole, ...]:
    """Returns those that are really open, but FULL where etcd tells its version to root alone."""
    with as_user(etcd, "node-n1") as node:
        known = bool(node.status().version)
    return tuple(hole for hole, use in USED.items() if use(etcd) and (known or hole is not holes.FULL))


@pytest.mark.parametrize("hole", USED, ids=lambda hole: hole.name)
def test_the_probe_is_right(authed: TlsEtcd, hole: holes.Hole) -> None:
    with as_user(authed, "supervisor") as supervisor, as_user(authed, "node-n1") as node:
        lease = supervisor.lease(30)
        supervisor.put(keys.health("n2"), b"{}", lease.id)
        before = {item.key: item.mod_revision for item in supervisor.list(keys.PREFIX).items}
        probed = holes.open_holes(node, keys.health("n1"), lease.id)
        assert {item.key: item.mod_revision for item in supervisor.list(keys.PREFIX).items} == before
        lease.revoke()
    assert (hole in probed) is (hole in used(authed))


def test_where_anyone_may_raise_an_alarm_a_reader_ends_all_roles_by_it(tmp_path: Path) -> None:
    """Without filling anything."""
    with authed_etcd(tmp_path) as etcd, as_user(etcd, "reader") as reader:
        opened = used(etcd)
        assert not switches_users_off(reader)
        assert allowed(lambda: alarm(reader, rpc.AlarmRequest.ACTIVATE)) is (holes.ALARM in opened)
        assert switches_users_off(reader) is ({holes.ALARM, holes.FULL} <= {*opened})


@pytest.mark.parametrize("who", ["reader", "supervisor"])
def test_others_are_told_of_the_same_holes(authed: TlsEtcd, who: str) -> None:
    """All but that of leases, for which one must be able to write something and not everything."""
    with as_user(authed, who) as store, as_user(authed, "node-n1") as node:
        assert holes.open_holes(store) == holes.open_holes(node, keys.health("n1"))
    if who == "reader":
        with as_user(authed, who) as store:
            assert (holes.NESTED in holes.open_holes(store)) is writes_anothers_key(authed, who)


def test_a_user_that_etcd_does_not_know_gets_in_by_nested_transactions_alone(authed: TlsEtcd) -> None:
    """A certificate of our authority under a name that has no user."""
    authed.certificates.make("nobody")
    with as_user(authed, "node-n1") as node:
        nested = holes.NESTED in holes.open_holes(node, keys.health("n1"))
    if nested:
        assert writes_anothers_key(authed, "nobody")
        return
    with pytest.raises(Fatal, match="user name not found"):
        writes_anothers_key(authed, "nobody")


def test_a_watch_that_is_denied_is_no_hole(authed: TlsEtcd) -> None:
    with as_user(authed, "node-n1") as node:
        assert holes.WATCH not in holes.open_holes(node, keys.health("n2"))


@pytest.fixture
def strict(authed: TlsEtcd, tmp_path: Path) -> Callable[[str], Path]:
    """Returns the security file of a user that accepts no hole."""

    def of(name: str) -> Path:
        there, file = authed.certificates.folder, tmp_path / f"{name}.toml"
        file.write_text(f'ca = "{there}/ca.pem"\ncert = "{there}/{name}.pem"\nkey = "{there}/{name}.key"\n')
        return file

    return of


def test_an_open_etcd_is_refused(authed: TlsEtcd, strict: Callable[[str], Path], tmp_path: Path) -> None:
    strict("node-n1")
    with as_user(authed, "supervisor") as store:
        found = holes.tried(store, [authed.endpoint], authed.certificates.of("supervisor")).holes
    run = ["run", "--etcd", authed.endpoint, "--home", str(tmp_path / "runs"), "--security", str(strict("supervisor"))]
    init = ["init-auth", "--etcd", authed.endpoint, "--node", "n1", "--security", str(strict("root"))]
    for arguments in (run, init):
        code, said = program(*arguments)
        assert ("etcd does not hold its users to their roles" in said) is bool(found)
        assert all(hole.sentence in said for hole in found)
        assert code == bool(found)


def program(*arguments: str, within_s: float = 60) -> tuple[int, str]:
    """Returns the exit code of one of our commands, and what it printed. It is ended after so long."""
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said = process.communicate(timeout=within_s)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        said = process.communicate()[0]
    return process.returncode, said


@pytest.mark.parametrize("nodes", [["--node", "n1"], []])
def test_init_auth_fails_where_it_cannot_try_them(
    authed: TlsEtcd, strict: Callable[[str], Path], nodes: list[str]
) -> None:
    """Where no file of a node lies, none of the roles is proved."""
    file = strict("root")
    init = ["init-auth", "--etcd", authed.endpoint, "--security", str(file), *nodes]
    code, said = program(*init)
    assert code == 1
    assert "known holes were not tried" in said
    assert (
        "put the files of one node there, or give `signs` in the security file, and run `supervisor init-auth` again"
        in " ".join(said.split())
    )
    with file.open("a") as more:
        more.write("insecure = true\n")
    code, said = program(*init)
    assert code == 0
    assert "known holes were not tried" in said


@pytest.fixture
def signing(authed: TlsEtcd, strict: Callable[[str], Path]) -> Path:
    """The security file of a supervisor that signs nodes' certificates, where no node's lies."""
    file = strict("supervisor")
    (port,) = free_ports(1)
    with file.open("a") as more:
        more.write(f'signs = "{authed.certificates.folder}/ca.key"\nenroll = ["127.0.0.1:{port}"]\n')
    return file


def test_a_supervisor_that_signs_tries_as_a_node(authed: TlsEtcd, signing: Path, tmp_path: Path) -> None:
    """At its start: all, as the node that never runs, whose certificate does not stay."""
    open_ = used(authed)
    before = set(Path(tempfile.gettempdir()).glob("everstep-*"))
    with as_user(authed, "supervisor") as store:
        lease = store.lease(30)
        store.put(keys.registration("n2"), b"{}", lease.id)
        kept = {item.key: item.mod_revision for item in store.list(keys.PREFIX).items}
        found = holes.tried(store, [authed.endpoint], load(signing))
        assert {item.key: item.mod_revision for item in store.list(keys.PREFIX).items} == kept
        code, said = program(
            *("run", "--etcd", authed.endpoint, "--home", str(tmp_path / "runs"), "--security", str(signing)),
            within_s=5 if not open_ else 60,
        )
        lease.revoke()
    assert found == holes.Tried(open_, f"node-{holes.PROBE}", True)
    assert (code == 1) is bool(open_)
    assert all(hole.sentence in said for hole in open_)
    assert f"tried with a certificate of node-{holes.PROBE}" in said
    assert set(Path(tempfile.gettempdir()).glob("everstep-*")) == before


def test_where_no_node_can_try_the_sentence_names_what_was_left(authed: TlsEtcd, strict: Callable[[str], Path]) -> None:
    security = load(strict("reader"))
    with connect([authed.endpoint], security=security) as store:
        found = holes.tried(store, [authed.endpoint], security)
        notes = [f.what for f in trust.rights(store, [authed.endpoint], security) if f.level == "note"]
    assert (found.user, found.node) == ("reader", False)
    assert (
        "tried with the certificate of reader; not that of leases, since there is no node-NAME.toml" in found.sentence
    )
    assert notes == [found.sentence]


def test_a_certificate_whose_user_has_no_role_proves_nothing(authed: TlsEtcd, signing: Path) -> None:
    """As after an upgrade, until `init-auth` runs again: etcd denies everything then, which is no proof."""
    security = load(signing)
    try:
        with as_user(authed, "root") as root, as_user(authed, "supervisor") as store:
            auth.ask(root, "UserDelete", rpc.AuthUserDeleteRequest(name=f"node-{holes.PROBE}"))
            found = holes.tried(store, [authed.endpoint], security)
    finally:
        list(auth.init_auth([authed.endpoint], authed.certificates.of("root"), []))
    assert (found.user, found.node) == ("supervisor", False)
    assert f"node-{holes.PROBE} cannot try them" in found.left


def test_an_etcd_in_plain_is_asked_for_no_roles(authed: TlsEtcd, strict: Callable[[str], Path], tmp_path: Path) -> None:
    """`up --security FILE` with an etcd of its own, at a socket: the files are for gate and page."""
    server = start_etcd(tmp_path / "etcd", host=SOCKETS)
    try:
        security = load(strict("supervisor"))
        with connect([server.endpoint], security=security) as store:
            assert holes.tried(store, [server.endpoint], security) == holes.Tried()
    finally:
        server.stop()


def test_the_doctor_names_them(authed: TlsEtcd, strict: Callable[[str], Path]) -> None:
    security = load(strict("supervisor"))
    strict("node-n1")
    with connect([authed.endpoint], security=security) as store:
        lease = store.lease(30)
        store.put(keys.registration("n2"), b"{}", lease.id)
        findings = list(trust.rights(store, [authed.endpoint], security))
        lease.revoke()
    found = used(authed)
    assert [f.level for f in findings if "roles: " not in f.what] == ["good"]
    told = [f.what for f in findings if f.level == "bad"]
    assert [hole.sentence in line for hole, line in zip(found, told, strict=True)] == [True] * len(found)
