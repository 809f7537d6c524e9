"""Known ways around etcd's roles, each tried with a request that the user must be denied and that changes nothing.

A version says little, since distributions port mends back. It decides only on FULL, which no try leaves as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from supervisor.ports.errors import Fatal, PortError
from supervisor.shell.etcd.convert import bytes_of, put
from supervisor.shell.etcd.errors import is_denied
from supervisor.shell.etcd.etcd_store import EtcdStore, connect
from supervisor.shell.etcd.status import MENDED
from supervisor.shell.etcd.stubs import rpc
from supervisor.wire import keys
from supervisor.wire.security import ROOT, Security, SecurityError, load, node_name, read_certificate

OUTSIDE = "/everstep-probe"
"""A key that none of our users but `root` may use. It need not exist."""

PROBE = "everstep-probe"
"""A node that never runs. `init-auth` makes its user, so that a supervisor may try etcd as a node."""

FILES_TRIED = 3
"""Most files of nodes that are tried: those of nodes that are gone may lie first, and etcd may leave each unanswered."""

GIVE = (
    "put the files of one node there, or give `signs` in the security file, and run `supervisor init-auth` again, with "
    "--node for that node (docs/SECURITY.md)"
)
"""The mend where no hole can be tried as a node."""

NO_LEASE = "not that of leases, since no key of another is under one yet"

_FROM_HERE_ON = b"\0"
"""The end of a range that has none."""


@dataclass(frozen=True)
class Hole:
    """One way around etcd's roles. `opens` says to whom it opens what."""

    name: str
    opens: str

    @property
    def sentence(self) -> str:
        return f"{self.opens} ({self.name})"


NO_CHECKS = Hole("no checks", "etcd checks no permissions: anyone with a certificate may write everything")
NESTED = Hole("GHSA-rfx7-8w68-q57q", "by a nested transaction every user may read and write every key")
LEASE = Hole("CVE-2026-44283", "in a transaction every user may put its keys under another's lease")
ALARM = Hole("CVE-2026-33413", "every user may raise an alarm, by which etcd takes no more writes")
FULL = Hole("etcd pull request 22386", "a node that fills etcd's database up to its quota ends all roles")
WATCH = Hole("GHSA-xg4h-6gfc-h4m8", "a watch without an end shows every user all keys behind its own")


def open_holes(store: EtcdStore, own: str = keys.PREFIX, foreign_lease: int = 0) -> tuple[Hole, ...]:
    """Returns the holes that are open to the user of `store`, who must not be `root`.

    `own` is a key that this user may read; it need not exist. LEASE is tried with `foreign_lease`, under which there is
    a key that this user must not write, and which may then write `own`. Raises Retryable if etcd is away.
    """
    outside = rpc.RequestOp(request_range=rpc.RangeRequest(key=bytes_of(OUTSIDE)))
    if _allows(store, [outside]):
        return (NO_CHECKS,)
    found = []
    if _allows(store, [rpc.RequestOp(request_txn=rpc.TxnRequest(success=[outside]))]):
        found.append(NESTED)
    if foreign_lease and _allows(store, [put(own, b"", foreign_lease)], never=own):
        found.append(LEASE)
    if _may_end_an_alarm(store):
        found.append(ALARM)
    if _may_watch(store, bytes_of(own)):
        found.append(WATCH)
    # empty where etcd tells it to root alone: those versions have WATCH
    if store.status().version.startswith(("3.4.", "3.5.")):
        found.append(FULL)
    return tuple(found)


def _allows(store: EtcdStore, requests: list[Any], never: str = "") -> bool:
    """Returns true if etcd takes a transaction of these requests. `never`: a key that this user may read, by which the
    transaction is made never to execute them."""
    condition = (
        rpc.Compare(key=bytes_of(never), result=rpc.Compare.EQUAL, target=rpc.Compare.CREATE, create_revision=2**62),
    )
    request = rpc.TxnRequest(compare=condition if never else (), success=requests)
    return _takes(store, lambda client: client.kvstub.Txn(request, store.timeout_s))


def _may_end_an_alarm(store: EtcdStore) -> bool:
    """Tries it with an alarm of a member that does not exist."""
    request = rpc.AlarmRequest(action=rpc.AlarmRequest.DEACTIVATE, memberID=1, alarm=rpc.NOSPACE)
    return _takes(store, lambda client: client.maintenancestub.Alarm(request, store.timeout_s))


def _takes(store: EtcdStore, request: Callable[[Any], object]) -> bool:
    try:
        with store.connection.call("probe of etcd's roles") as client:
            request(client)
    except Fatal as error:
        if is_denied(error):
            return False
        raise
    return True


def _may_watch(store: EtcdStore, key: bytes) -> bool:
    create = rpc.WatchCreateRequest(key=key, range_end=_FROM_HERE_ON)
    with store.connection.call("probe of etcd's watches") as client:
        stub: Any = rpc.WatchStub  # built at run time, so it has no types
        answers = stub(client.channel).Watch(iter([rpc.WatchRequest(create_request=create)]), timeout=store.timeout_s)
        first = next(answers)
        answers.cancel()
    return not bool(first.canceled)


@dataclass(frozen=True)
class Tried:
    """Result of the tries: the holes found, and with whose certificate."""

    holes: tuple[Hole, ...] = ()
    user: str = ""
    """Common name of the certificate; empty: nothing was tried."""
    node: bool = False
    """It is a node's."""
    left: str = ""
    """Why something was left untried, and what to do; empty if all was tried as a node, or there are no users to hold."""

    @property
    def sentence(self) -> str:
        """Says how they were tried, for a log; empty if there was nothing to try."""
        if not self.user:
            return f"etcd's known holes were not tried: {self.left}" if self.left else ""
        tried = f"etcd's known holes were tried with {'a' if self.node else 'the'} certificate of {self.user}"
        return f"{tried}; {self.left}" if self.left else tried


def tried(store: EtcdStore, endpoints: Sequence[str], security: Security, foreign_lease: int = 0) -> Tried:
    """Tries the known holes as a node would use them: with a certificate that `signs` signs for the node PROBE, else with
    a node's that lies here, else with our own, if that is not `root`'s.

    `foreign_lease`: as in `open_holes`; 0: that of any key that is there. Without TLS to etcd there are no users to hold.
    Raises Retryable if etcd is away.
    """
    if not store.connection.encrypted:
        return Tried()
    why = ""
    for node, files in _nodes(security):
        try:
            with files() as theirs, connect(endpoints, security=theirs) as of_node:
                # a user without its role is denied everything, which proves nothing
                of_node.get(keys.health(node))
                lease = foreign_lease or _lease_not_of(store, node)
                found = open_holes(of_node, keys.health(node), lease)
                return Tried(found, node_name(node), True, "" if lease else NO_LEASE)
        except (PortError, SecurityError, OSError) as error:
            why = why or f"{node_name(node)} cannot try them ({error})"
    why = f"{why or f'there is no node-NAME.toml in {security.nodes_folder}'}: {GIVE}"
    user = read_certificate(security).name
    if user == ROOT:
        return Tried(left=why)
    node = user.removeprefix(node_name("")) if user.startswith(node_name("")) else ""
    found = open_holes(store, keys.health(node) if node else keys.PREFIX)
    return Tried(found, user, bool(node), f"not that of leases, since {why}")


def _nodes(security: Security) -> Iterator[tuple[str, Callable[[], AbstractContextManager[Security]]]]:
    """Yields nodes with their files, the likeliest first."""
    if security.signs:
        # cryptography is loaded only where something is signed
        from supervisor.shell.enroll.signer import signed_for_us

        yield PROBE, lambda: signed_for_us(security, node_name(PROBE))
    for path in sorted(security.nodes_folder.glob(f"{node_name('*')}.toml"))[:FILES_TRIED]:
        yield path.stem.removeprefix(node_name("")), lambda path=path: nullcontext(load(path))  # type: ignore[misc]


def _lease_not_of(store: EtcdStore, node: str) -> int:
    """Returns the lease of a key that this node must not write; 0 if there is none."""
    leader, own = store.get(keys.LEADER), f"{keys.NODES}{node}/"
    if leader is not None and leader.lease:
        return leader.lease
    others = store.list(keys.NODES).items
    return next((item.lease for item in others if item.lease and not item.key.startswith(own)), 0)


def refuse(tried: Tried, security: Security) -> tuple[str, ...]:
    """Returns a sentence for each open hole that the security file accepts. Raises Fatal if it accepts none."""
    sentences = tuple(hole.sentence for hole in tried.holes)
    if not sentences or security.accepts_holes:
        return sentences
    raise Fatal(
        f"etcd does not hold its users to their roles: {'; '.join(sentences)}. {mend(tried.holes)}; or write `insecure = "
        f"true` into the security file if every node may do so (docs/SECURITY.md). {tried.sentence}"
    )


def mend(found: Collection[Hole]) -> str:
    """Returns what a person can do about these holes."""
    if NO_CHECKS in found:
        return "Run `supervisor init-auth` with the certificate of `root`"
    return f"Use etcd {MENDED} or newer"
