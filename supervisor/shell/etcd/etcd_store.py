"""The store on etcd: keys, transactions and lease grants through etcd3; watch and keepalive are our own."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cache

from supervisor.ports.errors import Fatal, Fenced, Retryable
from supervisor.ports.store import MAX_OPERATIONS, Expect, Item, Snapshot
from supervisor.shell.etcd import convert
from supervisor.shell.etcd.connection import Connection
from supervisor.shell.etcd.errors import is_denied
from supervisor.shell.etcd.lease import EtcdLease, boot_time
from supervisor.shell.etcd.status import StoreStatus, check_version, read_status
from supervisor.shell.etcd.stubs import rpc
from supervisor.shell.etcd.watch import EtcdWatch
from supervisor.wire.security import Security, trouble

_log = logging.getLogger(__name__)


def connect(endpoints: Sequence[str], timeout_s: float = 3.0, security: Security | None = None) -> EtcdStore:
    """Returns a store on the etcd at `endpoints` (HOST:PORT or https://HOST:PORT each); every call has `timeout_s`
    seconds.

    Raises Retryable if none of them answers, Fatal if one is malformed or not etcd, or would be unencrypted off
    loopback.
    """
    connection = Connection(endpoints, timeout_s, security)
    reasons: list[str] = []
    for _ in connection.endpoints:
        asked, endpoint = connection.client, connection.endpoint
        try:
            with connection.call(f"connect to {endpoint}") as client:
                version = client.maintenancestub.Status(rpc.StatusRequest(), timeout_s).version
        except Retryable as error:
            reasons.append(str(error))
            connection.suspect(asked, silent=True)
            continue
        except Fatal as error:
            if is_denied(error):
                return EtcdStore(connection)
            connection.close()
            raise Fatal(f"what answers at {endpoint} is not an etcd that accepts us: {error}") from error
        warning = check_version(version)
        if warning:
            _warn(f"etcd at {endpoint}: {warning}")
        return EtcdStore(connection)
    connection.close()
    expired = trouble(connection.security)
    if expired:
        reasons.append(expired)
    where = ", ".join(f"{host}:{port}" for host, port in connection.endpoints)
    raise Retryable(
        f"no etcd answers at {where} ({'; '.join(reasons)}): give --etcd, or set SUPERVISOR_ETCD, to the etcd of the runs; "
        "for a first run, `supervisor up` starts one"
    )


@cache
def _warn(sentence: str) -> None:
    """Warns once, however often a command connects."""
    _log.warning(sentence)


class EtcdStore:
    """Implements ports.store.Store on etcd. Threads may share it. Created by `connect`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: weakref.WeakSet[EtcdWatch | EtcdLease] = weakref.WeakSet()
        self._lock = threading.Lock()

    @property
    def connection(self) -> Connection:
        """For what the port lacks: users and roles."""
        return self._connection

    @property
    def timeout_s(self) -> float:
        """Deadline of each call, in seconds."""
        return self._connection.timeout_s

    def get(self, key: str) -> Item | None:
        with self._connection.call(f"get {key}") as client:
            found = client.get_response(convert.bytes_of(key)).kvs
        return convert.item_of(found[0]) if found else None

    def list(self, prefix: str, *, after: str = "", limit: int = 0) -> Snapshot:
        start, end = convert.range_of(prefix)
        start = max(start, convert.bytes_of(after) + b"\0") if after else start
        with self._connection.call(f"list {prefix}") as client:
            # etcd3's get_range accepts a limit but sends none
            answer = client.kvstub.Range(rpc.RangeRequest(key=start, range_end=end, limit=limit), self.timeout_s)
        return Snapshot(answer.header.revision, tuple(convert.item_of(kv) for kv in answer.kvs))

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        with self._connection.call(f"put {key}", writes=True, size=len(value)) as client:
            return int(client.put(convert.bytes_of(key), value, lease=lease).header.revision)

    def commit(
        self, puts: Mapping[str, bytes], deletes: Sequence[str] = (), expect: Sequence[Expect] = (), lease: int = 0
    ) -> int:
        operations = len(puts) + len(deletes)
        count = max(operations, sum(len(convert.compares(e)) for e in expect))
        if count > MAX_OPERATIONS:
            raise ValueError(f"{count} operations or expectations in a transaction; at most {MAX_OPERATIONS}")
        request = rpc.TxnRequest(
            compare=[compare for e in expect for compare in convert.compares(e)],
            success=[convert.put(key, value, lease) for key, value in puts.items()]
            + [convert.delete(key) for key in deletes],
        )
        what = f"transaction of {operations} operations on {', '.join([*puts, *deletes][:3])}"
        with self._connection.call(what, writes=True, size=request.ByteSize()) as client:
            # etcd3's transaction() drops the answer's header, and with it the revision
            answer = client.kvstub.Txn(request, self.timeout_s)
        if not answer.succeeded:
            raise Fenced(f"{what}: does not hold any more: {', '.join(map(convert.words, expect))}")
        return int(answer.header.revision)

    def watch(self, prefix: str, after_revision: int) -> EtcdWatch:
        watch = EtcdWatch(self._connection, prefix, after_revision, self.list)
        self._keep(watch)
        return watch

    def lease(self, ttl_s: int) -> EtcdLease:
        sent = boot_time()
        with self._connection.call(f"lease of {ttl_s} s") as client:
            granted = client.lease(ttl_s)
        lease = EtcdLease(self._connection, int(granted.id), float(granted.ttl), sent)
        self._keep(lease)
        return lease

    def status(self) -> StoreStatus:
        """Returns version, size, leader, alarms and members, for people. Raises Retryable if no member answers."""
        return read_status(self._connection)

    def compact(self, revision: int) -> None:
        """Drops the history before `revision`; watches that have not reached it get a reset."""
        with self._connection.call(f"compact to {revision}") as client:
            client.compact(revision, physical=True)

    def close(self) -> None:
        """Ends watches and keepalives. Does not revoke leases: callers may do so before."""
        with self._lock:
            open_now = list(self._open)
        for each in open_now:
            each.close()
        self._connection.close()

    def __enter__(self) -> EtcdStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self, each: EtcdWatch | EtcdLease) -> None:
        with self._lock:
            self._open.add(each)
