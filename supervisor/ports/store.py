"""The store port: what the program needs of etcd. One real implementation, `supervisor.shell.store`; fakes are held to
the same contract tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


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
    """What changed up to `revision`, in order. A reset says that the watch lost its place (compaction): `puts` is then
    the whole prefix, and whatever is not in it is gone."""

    revision: int
    puts: tuple[Item, ...] = ()
    deletes: tuple[str, ...] = ()
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Expect:
    """A condition of a transaction: the key's create revision or mod revision is this. 0 means that it does not exist."""

    key: str
    create_revision: int | None = None
    mod_revision: int | None = None


class Lease(Protocol):
    """A lease that a thread of ours keeps alive."""

    @property
    def id(self) -> int: ...

    @property
    def lost(self) -> bool:
        """True once the lease's time ran out by our own clock without a renewal, or the server said that it is gone.
        It never turns False again."""
        ...

    def revoke(self) -> None:
        """Give it back: its keys vanish at once. Never raises."""
        ...


class Watch(Protocol):
    """A resumable watch: survives lost streams, a frozen leader, lost quorum and compaction."""

    def poll(self, timeout_s: float) -> Changes | None:
        """The next changes, or None after `timeout_s` seconds."""
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
        """In the order of keys; only those behind `after`, and so many (0: all)."""
        ...

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Returns the revision."""
        ...

    def commit(
        self, puts: Mapping[str, bytes], deletes: Sequence[str] = (), expect: Sequence[Expect] = (), lease: int = 0
    ) -> int:
        """One transaction; returns its revision. Raises Fenced when an expectation does not hold, and ValueError when
        it has more operations than the store takes (MAX_OPERATIONS)."""
        ...

    def watch(self, prefix: str, after_revision: int) -> Watch:
        """Changes of all keys under `prefix` since `after_revision` (exclusive)."""
        ...

    def lease(self, ttl_s: int) -> Lease: ...

    def close(self) -> None: ...


MAX_OPERATIONS = 100
"""Operations of one transaction; etcd's default limit is 128 (--max-txn-ops)."""

__all__ = ["MAX_OPERATIONS", "Changes", "Expect", "Item", "Lease", "Snapshot", "Store", "Watch"]


class Term(Protocol):
    """A term as leader."""

    epoch: int

    @property
    def lost(self) -> bool:
        """It is over, as far as is known here. For the one thread that owns the term."""
        ...

    @property
    def lapsed(self) -> bool:
        """Its lease ran out by our own clock. For any thread."""
        ...

    def expect(self) -> Expect:
        """What every transaction of this leader has to expect."""
        ...
