"""The store port: what the program needs of etcd. `supervisor.shell.etcd` is the one real implementation; fakes pass
the same contract tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

LEASE_S = 5
"""Seconds for which a dead leader blocks a standby. Below 5 s a loaded machine loses leases (findings on etcd)."""


@dataclass(frozen=True, slots=True)
class Item:
    """A key with its value at some revision."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys of a prefix at one revision."""

    revision: int
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes up to `revision`, in order. After a reset (compaction made the watch lose its place), `puts` is the whole
    prefix, and any key missing there is gone."""

    revision: int
    puts: tuple[Item, ...] = ()
    deletes: tuple[str, ...] = ()
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Expect:
    """A condition of a transaction: the key has this create or mod revision. 0 means that the key does not exist."""

    key: str
    create_revision: int | None = None
    mod_revision: int | None = None


class Lease(Protocol):
    """A lease that a background thread keeps alive."""

    @property
    def id(self) -> int: ...

    @property
    def lost(self) -> bool:
        """True once the lease expired by our own clock, or the server reported it gone. It never turns False again."""
        ...

    def revoke(self) -> None:
        """Revokes the lease: its keys vanish at once. Never raises."""
        ...


class Watch(Protocol):
    """A resumable watch: survives lost streams, a frozen leader, lost quorum and compaction."""

    def poll(self, timeout_s: float) -> Changes | None:
        """Returns the next changes, or None after `timeout_s` seconds."""
        ...

    @property
    def silent_s(self) -> float:
        """Seconds since the server was last heard on this watch (progress notices count)."""
        ...

    def close(self) -> None: ...


class Store(Protocol):
    """Every call has a deadline and raises Retryable when the store is away, Fatal when it refuses for good."""

    def get(self, key: str) -> Item | None: ...

    def list(self, prefix: str, *, after: str = "", limit: int = 0) -> Snapshot:
        """Returns keys in order: only those after `after`, and at most `limit` of them (0: all)."""
        ...

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Writes the key. Returns the revision."""
        ...

    def commit(
        self, puts: Mapping[str, bytes], deletes: Sequence[str] = (), expect: Sequence[Expect] = (), lease: int = 0
    ) -> int:
        """Commits one transaction and returns its revision. Raises Fenced if an expectation fails, and ValueError if it
        has more than MAX_OPERATIONS operations."""
        ...

    def watch(self, prefix: str, after_revision: int) -> Watch:
        """Watches all keys under `prefix` after `after_revision` (exclusive)."""
        ...

    def lease(self, ttl_s: int) -> Lease: ...

    def close(self) -> None: ...


MAX_OPERATIONS = 120
"""Most operations of one transaction; etcd's default limit is 128 (--max-txn-ops)."""

__all__ = ["MAX_OPERATIONS", "Changes", "Expect", "Item", "Lease", "Snapshot", "Store", "Watch"]


class Term(Protocol):
    """A term as leader."""

    epoch: int

    @property
    def lost(self) -> bool:
        """True if the term is over, as far as this process knows. Only for the thread that owns the term."""
        ...

    @property
    def lapsed(self) -> bool:
        """True if the term's lease expired by our own clock. Safe from any thread."""
        ...

    def expect(self) -> Expect:
        """Returns the expectation that fences every transaction of this leader."""
        ...
