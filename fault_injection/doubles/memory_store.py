"""Stands for the store: one process, no time of its own. It passes the contract tests of EtcdStore."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from supervisor.ports.errors import Fatal, Fenced, PortError, Retryable
from supervisor.ports.store import MAX_OPERATIONS, Changes, Expect, Item, Snapshot
from supervisor.shell.etcd.errors import LeaseLost
from supervisor.shell.etcd.status import StoreStatus


@dataclass
class _Failure:
    error: PortError
    applied: bool


class MemoryStore:
    """ports.store.Store in memory.

    Faults: `away = True` (every call raises Retryable and watches are silent), `fail_next`, `expire`, `compact`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._items: dict[str, Item] = {}
        self._history: list[Changes] = []
        self._compacted = 0
        self._leases: dict[int, MemoryLease] = {}
        self._last_lease = 0
        self._failures: list[_Failure] = []
        self._away_since: float | None = None
        self._closed = False
        self.revision = 1
        self.alarms: tuple[str, ...] = ()
        """Alarms that `status` reports."""
        self.commits: list[Mapping[str, bytes]] = []
        """The puts of each transaction that was applied, in order."""

    # faults

    @property
    def away(self) -> bool:
        """While True the store is out of reach."""
        return self._away_since is not None

    @away.setter
    def away(self, away: bool) -> None:
        with self._changed:
            self._away_since = self._clock() if away else None
            self._changed.notify_all()

    def fail_next(self, n: int, error: type[PortError] | PortError = Retryable, applied: bool = False) -> None:
        """Makes the next `n` calls raise `error`. With `applied` a write takes effect all the same: an unknown outcome."""
        raised = error if isinstance(error, PortError) else error("injected")
        self._failures.extend(_Failure(raised, applied) for _ in range(n))

    def expire(self, lease: int) -> None:
        """Ends a lease: its keys vanish and its holder sees `lost`."""
        with self._changed:
            held = self._leases.pop(lease, None)
            if held is not None:
                held._lost = True
            self._apply({}, [key for key, item in self._items.items() if item.lease == lease], 0)

    def compact(self, revision: int) -> None:
        """Forgets the history before `revision`."""
        with self._changed:
            self._compacted = max(self._compacted, revision)
            self._history = [changes for changes in self._history if changes.revision >= self._compacted]

    # the port

    def get(self, key: str) -> Item | None:
        with self._changed:
            self._read()
            return self._items.get(key)

    def list(self, prefix: str, *, after: str = "", limit: int = 0) -> Snapshot:
        with self._changed:
            self._read()
            found = self._snapshot(prefix)
            items = [item for item in found.items if item.key > after]
            return Snapshot(found.revision, tuple(items[:limit] if limit else items))

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return self._write({key: value}, [], [], lease)

    def commit(
        self, puts: Mapping[str, bytes], deletes: Sequence[str] = (), expect: Sequence[Expect] = (), lease: int = 0
    ) -> int:
        if max(len(puts) + len(deletes), len(expect)) > MAX_OPERATIONS:
            raise ValueError(f"{len(puts) + len(deletes)} operations; at most {MAX_OPERATIONS}")
        return self._write(puts, deletes, expect, lease)

    def watch(self, prefix: str, after_revision: int) -> MemoryWatch:
        return MemoryWatch(self, prefix, after_revision)

    def lease(self, ttl_s: int) -> MemoryLease:
        with self._changed:
            self._read()
            self._last_lease += 1
            lease = self._leases[self._last_lease] = MemoryLease(self, self._last_lease, ttl_s)
            return lease

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def status(self) -> StoreStatus:
        with self._changed:
            self._read()
            return StoreStatus(endpoint="memory", version="3.5.16", db_size=0, has_leader=True, alarms=self.alarms)

    # inside

    def _read(self) -> None:
        failure = self._failure()
        if failure is not None:
            raise failure.error

    def _failure(self) -> _Failure | None:
        if self._closed:
            raise Fatal("this store was closed")
        if self.away:
            raise Retryable("the store is away (injected)")
        return self._failures.pop(0) if self._failures else None

    def _write(self, puts: Mapping[str, bytes], deletes: Sequence[str], expect: Sequence[Expect], lease: int) -> int:
        with self._changed:
            failure = self._failure()
            if failure is not None and not failure.applied:
                raise failure.error
            if len({*puts, *deletes}) < len(puts) + len(deletes):
                raise Fatal("a key twice in one transaction")
            for e in expect:
                self._check(e)
            if lease and lease not in self._leases and puts:
                raise LeaseLost("the lease is gone")
            self._apply(puts, deletes, lease)
            self.commits.append(dict(puts))
            if failure is not None:
                raise failure.error
            return self.revision

    def _check(self, expect: Expect) -> None:
        item = self._items.get(expect.key)
        created, modified = (item.create_revision, item.mod_revision) if item else (0, 0)
        if expect.create_revision not in (None, created) or expect.mod_revision not in (None, modified):
            raise Fenced(f"{expect} does not hold: created at {created}, modified at {modified}")

    def _apply(self, puts: Mapping[str, bytes], deletes: Sequence[str], lease: int) -> None:
        gone = tuple(sorted(key for key in deletes if key in self._items))
        if not puts and not gone:
            return
        self.revision += 1
        for key in gone:
            del self._items[key]
        for key, value in puts.items():
            old = self._items.get(key)
            created = old.create_revision if old else self.revision
            self._items[key] = Item(key, value, created, self.revision, lease)
        items = tuple(self._items[key] for key in puts)
        self._history.append(Changes(self.revision, items, gone))
        self._changed.notify_all()

    def _snapshot(self, prefix: str) -> Snapshot:
        items = tuple(self._items[key] for key in sorted(self._items) if key.startswith(prefix))
        return Snapshot(self.revision, items)

    def _next_changes(self, prefix: str, after: int) -> Changes | None:
        if after + 1 < self._compacted:
            snapshot = self._snapshot(prefix)
            return Changes(snapshot.revision, snapshot.items, reset=True)
        for changes in self._history:
            puts = tuple(item for item in changes.puts if item.key.startswith(prefix))
            deletes = tuple(key for key in changes.deletes if key.startswith(prefix))
            if changes.revision > after and (puts or deletes):
                return Changes(changes.revision, puts, deletes)
        return None


class MemoryLease:
    """Alive until `store.expire(lease.id)` or `revoke`."""

    def __init__(self, store: MemoryStore, lease_id: int, ttl_s: int) -> None:
        self._store = store
        self._id = lease_id
        self.ttl_s = ttl_s
        self._lost = False

    @property
    def id(self) -> int:
        return self._id

    @property
    def lost(self) -> bool:
        return self._lost

    def lapse(self) -> None:
        """Marks it as lost by the holder's own clock, while the store still holds its keys."""
        self._lost = True

    def revoke(self) -> None:
        self._lost = True
        if not self._store.away:
            self._store.expire(self._id)


class MemoryWatch:
    """A place in the store's history."""

    def __init__(self, store: MemoryStore, prefix: str, after_revision: int) -> None:
        self._store = store
        self._prefix = prefix
        self._after = after_revision
        self._closed = False

    def poll(self, timeout_s: float) -> Changes | None:
        store = self._store
        end = time.monotonic() + timeout_s
        with store._changed:
            while not self._closed and not store._closed:
                changes = None if store.away else store._next_changes(self._prefix, self._after)
                if changes is not None:
                    self._after = changes.revision
                    return changes
                left = end - time.monotonic()
                if left <= 0:
                    break
                store._changed.wait(left)
            return None

    @property
    def silent_s(self) -> float:
        since = self._store._away_since
        return 0.0 if since is None else self._store._clock() - since

    def close(self) -> None:
        with self._store._changed:
            self._closed = True
            self._store._changed.notify_all()
