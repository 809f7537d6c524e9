"""Known ways around etcd's roles, each tried with a request that the user must be denied and that changes nothing.

A version says little, since distributions port mends back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from supervisor.ports.errors import Fatal
from supervisor.shell.etcd.convert import bytes_of, put
from supervisor.shell.etcd.errors import is_denied
from supervisor.shell.etcd.etcd_store import EtcdStore
from supervisor.shell.etcd.status import MENDED
from supervisor.shell.etcd.stubs import rpc
from supervisor.wire import keys
from supervisor.wire.security import ROOT, Security, read_certificate

OUTSIDE = "/everstep-probe"
"""A key that none of our users but `root` may use. It need not exist."""

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
    if _may_watch(store, bytes_of(own)):
        found.append(WATCH)
    return tuple(found)


def _allows(store: EtcdStore, requests: list[Any], never: str = "") -> bool:
    """Returns true if etcd takes a transaction of these requests. `never`: a key that this user may read, by which the
    transaction is made never to execute them."""
    condition = (
        rpc.Compare(key=bytes_of(never), result=rpc.Compare.EQUAL, target=rpc.Compare.CREATE, create_revision=2**62),
    )
    request = rpc.TxnRequest(compare=condition if never else (), success=requests)
    try:
        with store.connection.call("probe of etcd's roles") as client:
            client.kvstub.Txn(request, store.timeout_s)
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


def refuse(store: EtcdStore, security: Security, own: str = keys.PREFIX, foreign_lease: int = 0) -> tuple[str, ...]:
    """Returns a sentence for each open hole that the security file accepts. Raises Fatal if it accepts none.

    Without TLS to etcd there are no users to hold, and `root` may do everything. The rest is as in `open_holes`.
    """
    if not store.connection.encrypted or read_certificate(security).name == ROOT:
        return ()
    found = open_holes(store, own, foreign_lease)
    sentences = tuple(hole.sentence for hole in found)
    if not found or security.accepts_holes:
        return sentences
    raise Fatal(
        f"etcd does not hold its users to their roles: {'; '.join(sentences)}. {mend(found)}; or write `insecure = true` "
        "into the security file if every node may do so (docs/SECURITY.md)"
    )


def mend(found: Collection[Hole]) -> str:
    """Returns what a person can do about these holes."""
    if NO_CHECKS in found:
        return "Run `supervisor init-auth` with the certificate of `root`"
    return f"Use etcd {MENDED} or newer, or an older one into which the mend was ported"
