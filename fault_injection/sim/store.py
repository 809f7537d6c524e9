"""A model of etcd: revisions, transactions, leases that run out in virtual time, watches that are late or lose their
place.

It passes the contract tests of the real store (tests/system/store). `Etcd` is the server, `SimStore` one client's connection
to it: each can be cut off by itself."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice, takewhile

from fault_injection.sim.clock import Clock
from supervisor.ports.errors import Fatal, Fenced, Retryable
from supervisor.ports.store import MAX_OPERATIONS, Changes, Expect, Item, Snapshot
from supervisor.shell.etcd.errors import LeaseLost

PATIENCE_S = 2.0
"""Seconds for which a call waits for an etcd that does not answer."""


class Etcd:
    """The server. Its faults: `stop` and `start`, `compact`, a watch's `delay_s`, `SimWatch.lose_place`."""

    def __init__(
        self, clock: Clock, dice: random.Random | None = None, delay_s: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        self.clock = clock
        self.dice = dice or random.Random(0)
        self.delay_s = delay_s
        """Least and most seconds from a write to its watchers."""
        self.revision = 1
        self.items: dict[str, Item] = {}
        self.up = True
        self.down_since = self.up_since = 0.0
        self.clients: list[SimStore] = []
        self.leases: dict[int, SimLease] = {}
        self.written: list[Callable[[SimStore | None, Mapping[str, bytes], Sequence[str]], None]] = []
        """Callbacks for every write, just before it takes effect."""
        self._history: list[Changes] = []
        self._compacted = 0
        self._last_lease = 0
        self._watches: dict[str, list[SimWatch]] = {}
        self._order: list[str] = []
        """All keys, sorted."""
        self._of_lease: dict[int, set[str]] = {}

    # --- faults ---

    def stop(self) -> None:
        """Stops answering. Its leases stand still."""
        if self.up:
            self.up, self.down_since = False, self.clock.now
            for lease in list(self.leases.values()):
                lease.interrupted()

    def start(self, lapse: Callable[[SimLease], bool] = lambda lease: False) -> None:
        """Answers again. Every lease gets its whole time again, except those for which `lapse` is true: they run out
        before their holders reach it."""
        if not self.up:
            self.up, self.up_since = True, self.clock.now
            for lease in list(self.leases.values()):
                if lapse(lease):
                    self.expire(lease.id)
                else:
                    lease.resumed()
            for client in tuple(self.clients):
                client.heard_again()

    def compact(self, revision: int) -> None:
        """Forgets the history before `revision`."""
        self._compacted = max(self._compacted, revision)
        self._history = [c for c in self._history if c.revision >= self._compacted]

    def expire(self, lease: int) -> None:
        """Ends a lease: its keys vanish."""
        held = self.leases.pop(lease, None)
        if held is not None:
            held.over = True
            self.apply(None, {}, sorted(self._of_lease.pop(lease, ())), 0)

    # --- what clients do ---

    def grant(self, holder: SimStore, ttl_s: float) -> SimLease:
        self._last_lease += 1
        lease = self.leases[self._last_lease] = SimLease(self, holder, self._last_lease, ttl_s)
        return lease

    def check(self, expect: Expect) -> None:
        """Raises Fenced when it does not hold."""
        item = self.items.get(expect.key)
        created, modified = (item.create_revision, item.mod_revision) if item else (0, 0)
        if expect.create_revision not in (None, created) or expect.mod_revision not in (None, modified):
            raise Fenced(f"{expect} does not hold: created at {created}, modified at {modified}")

    def apply(self, by: SimStore | None, puts: Mapping[str, bytes], deletes: Sequence[str], lease: int) -> None:
        gone = tuple(sorted(key for key in deletes if key in self.items)) if deletes else ()
        if not puts and not gone:
            return
        for told in self.written:
            told(by, puts, gone)
        self.revision += 1
        for key in gone:
            self._bind(key, self.items.pop(key).lease, 0)
            del self._order[bisect_left(self._order, key)]
        for key, value in puts.items():
            old = self.items.get(key)
            if old is None:
                insort(self._order, key)
            before = old.lease if old else 0
            if before != lease:
                self._bind(key, before, lease)
            created = old.create_revision if old else self.revision
            self.items[key] = Item(key, value, created, self.revision, lease)
        changes = Changes(self.revision, tuple(self.items[key] for key in puts), gone)
        self._history.append(changes)
        for watch in self._watching(changes):
            watch.take(changes)

    def _bind(self, key: str, before: int, lease: int) -> None:
        self._of_lease.get(before, set()).discard(key)
        if lease:
            self._of_lease.setdefault(lease, set()).add(key)

    def snapshot(self, prefix: str) -> Snapshot:
        order = self._order
        here = islice(order, bisect_left(order, prefix), None)
        found = takewhile(lambda key: key.startswith(prefix), here)
        return Snapshot(self.revision, tuple(self.items[key] for key in found))

    # --- watches ---

    def open(self, watch: SimWatch, after: int) -> None:
        self._watches.setdefault(watch.prefix, []).append(watch)
        if after + 1 < self._compacted:
            watch.lose_place()
            return
        for changes in self._history[bisect_right(self._history, after, key=lambda c: c.revision) :]:
            watch.take(changes)

    def forget(self, watch: SimWatch) -> None:
        watches = self._watches.get(watch.prefix, [])
        if watch in watches:
            watches.remove(watch)

    def _watching(self, changes: Changes) -> list[SimWatch]:
        watched, prefixes = self._watches, set[str]()
        for key in (*[item.key for item in changes.puts], *changes.deletes):
            prefixes.update([prefix for prefix in _prefixes(key) if prefix in watched])
        return [watch for prefix in sorted(prefixes) for watch in self._watches[prefix]]


@lru_cache(maxsize=1 << 16)
def _prefixes(key: str) -> tuple[str, ...]:
    """Returns the prefixes of this key that a client may watch: up to each slash, or the whole key."""
    return ("", *(key[: at + 1] for at, letter in enumerate(key) if letter == "/"), key)


class SimStore:
    """Implements ports.store.Store: one client's connection."""

    def __init__(
        self,
        etcd: Etcd,
        name: str = "client",
        idle: Callable[[float], None] | None = None,
    ) -> None:
        """`idle` passes virtual time while a watch has nothing to report."""
        self.etcd = etcd
        self.name = name
        self.linked = True
        self.on_commit: Callable[[str], None] | None = None
        """Called with "before" and "after" as each transaction takes effect; it may raise, or let time pass."""
        self.woken: Callable[[], None] | None = None
        """Called whenever one of its watches has something to report."""
        self.lost = 0.0
        """Share of its requests, and of the answers to its writes, that get lost."""
        self.late_s = (0.0, 0.0)
        """Least and most delay of its requests, and of the answers to its writes."""
        self.idle = idle or etcd.clock.wait
        self._cut_at = 0.0
        self._closed = False
        self._watches: list[SimWatch] = []
        etcd.clients.append(self)

    # --- faults ---

    @property
    def reaches(self) -> bool:
        return self.linked and self.etcd.up

    @property
    def silent_s(self) -> float:
        """Returns the seconds for which it has heard nothing."""
        now, etcd = self.etcd.clock.now, self.etcd
        return max(0.0 if etcd.up else now - etcd.down_since, 0.0 if self.linked else now - self._cut_at)

    def cut(self) -> None:
        """Cuts it off from etcd: cut off, frozen or dead."""
        if self.linked:
            self.linked, self._cut_at = False, self.etcd.clock.now
            for lease in self._own_leases():
                lease.interrupted()

    def link(self) -> None:
        if not self.linked:
            self.linked = True
            for lease in self._own_leases():
                lease.resumed()
            self.heard_again()

    def heard_again(self) -> None:
        for watch in tuple(self._watches):
            watch.call()

    def _own_leases(self) -> list[SimLease]:
        return [lease for lease in self.etcd.leases.values() if lease.holder is self]

    # --- the port ---

    def get(self, key: str) -> Item | None:
        self._call()
        return self.etcd.items.get(key)

    def list(self, prefix: str, *, after: str = "", limit: int = 0) -> Snapshot:
        self._call()
        found = self.etcd.snapshot(prefix)
        items = [item for item in found.items if item.key > after]
        return Snapshot(found.revision, tuple(items[:limit] if limit else items))

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return self.commit({key: value}, lease=lease)

    def commit(
        self, puts: Mapping[str, bytes], deletes: Sequence[str] = (), expect: Sequence[Expect] = (), lease: int = 0
    ) -> int:
        if max(len(puts) + len(deletes), len(expect)) > MAX_OPERATIONS:
            raise ValueError(f"{len(puts) + len(deletes)} operations; at most {MAX_OPERATIONS}")
        self._hook("before")
        self._call()
        if len({*puts, *deletes}) < len(puts) + len(deletes):
            raise Fatal("a key twice in one transaction")
        for e in expect:
            self.etcd.check(e)
        if lease and lease not in self.etcd.leases and puts:
            raise LeaseLost("the lease is gone")
        self.etcd.apply(self, puts, deletes, lease)
        revision = self.etcd.revision
        self._hook("after")
        self._under_way("the answer")  # it is done
        return revision

    def watch(self, prefix: str, after_revision: int) -> SimWatch:
        watch = SimWatch(self, prefix)
        self._watches.append(watch)
        self.etcd.open(watch, after_revision)
        return watch

    def lease(self, ttl_s: int) -> SimLease:
        self._call()
        return self.etcd.grant(self, ttl_s)

    def close(self) -> None:
        self._closed = True

    def lose_places(self) -> None:
        """Makes all its watches lose their place, as after a compaction."""
        for watch in tuple(self._watches):
            watch.lose_place()

    def leave(self) -> None:
        """Stands for its death: its leases lapse."""
        self.cut()
        for watch in tuple(self._watches):
            watch.close()
        if self in self.etcd.clients:
            self.etcd.clients.remove(self)

    def dropped(self, watch: SimWatch) -> None:
        if watch in self._watches:
            self._watches.remove(watch)

    def _hook(self, when: str) -> None:
        if self.on_commit is not None:
            self.on_commit(when)

    def _call(self) -> None:
        if self._closed:
            raise Fatal("this store was closed")
        self._under_way("the request")
        if not self.reaches:
            self.etcd.clock.wait(PATIENCE_S)
            raise Retryable("etcd does not answer", after_s=0.0)  # the pause has passed in virtual time

    def _under_way(self, what: str) -> None:
        """Delays a message, or loses it."""
        dice = self.etcd.dice
        if self.late_s[1]:
            self.etcd.clock.wait(dice.uniform(*self.late_s))
        if self.lost and dice.random() < self.lost:
            self.etcd.clock.wait(PATIENCE_S)
            raise Retryable(f"{what} is lost", after_s=0.0)


class SimLease:
    """A lease, renewed while its holder reaches etcd. By its last renewal, it lapses up to a third of its time
    early."""

    def __init__(self, etcd: Etcd, holder: SimStore, lease_id: int, ttl_s: float) -> None:
        self.holder = holder
        self.ttl_s = ttl_s
        self.over = False
        self._etcd = etcd
        self._id = lease_id
        self._deadline: float | None = None
        """By its holder's clock, while it is not renewed."""
        self._interrupted = 0

    @property
    def id(self) -> int:
        return self._id

    @property
    def lost(self) -> bool:
        self.over = self.over or (self._deadline is not None and self._etcd.clock.now >= self._deadline)
        return self.over

    def revoke(self) -> None:
        self.over = True
        if self.holder.reaches:
            self._etcd.expire(self._id)

    def interrupted(self) -> None:
        """Stops renewing it."""
        if self._deadline is None:
            self._deadline = self._etcd.clock.now + self.ttl_s * self._etcd.dice.uniform(2 / 3, 1)
        if self._etcd.up:
            self._lapse_after(self._deadline - self._etcd.clock.now)
        else:
            self._interrupted += 1  # the server's clock of it stands still

    def resumed(self) -> None:
        """Resumes when its holder, or the server, is back. A lost lease stays lost: its holder has given up."""
        if self.holder.reaches and not self.lost:
            self._deadline = None
            self._interrupted += 1
        elif self._etcd.up and self._id in self._etcd.leases:
            self._lapse_after(self.ttl_s)

    def _lapse_after(self, seconds: float) -> None:
        self._interrupted += 1
        mine = self._interrupted

        def lapse() -> None:
            if self._interrupted == mine:
                self._etcd.expire(self._id)

        self._etcd.clock.after(seconds, lapse)


class SimWatch:
    """A watch that delivers each transaction whole, in order, and late."""

    def __init__(self, store: SimStore, prefix: str) -> None:
        self.prefix = prefix
        self._store = store
        self._closed = False
        self._coming: deque[tuple[float, Changes]] = deque()
        self._lost_place = False

    @property
    def silent_s(self) -> float:
        return self._store.silent_s

    def poll(self, timeout_s: float) -> Changes | None:
        changes = self._next()
        if changes is None and timeout_s > 0 and not self._closed:
            self._store.idle(timeout_s)
            changes = self._next()
        return changes

    def close(self) -> None:
        self._closed = True
        self._store.etcd.forget(self)
        self._store.dropped(self)

    # --- the server's side ---

    def take(self, changes: Changes) -> None:
        puts = tuple([item for item in changes.puts if item.key.startswith(self.prefix)])
        deletes = tuple([key for key in changes.deletes if key.startswith(self.prefix)])
        clock, etcd = self._store.etcd.clock, self._store.etcd
        late_s = etcd.dice.uniform(*etcd.delay_s) if etcd.delay_s[1] else 0.0
        due = max(clock.now + late_s, self._coming[-1][0] if self._coming else 0.0)
        self._coming.append((due, Changes(changes.revision, puts, deletes)))
        if self._store.woken is not None:
            clock.after(due - clock.now, self.call)

    def lose_place(self) -> None:
        """Loses its place, as after a compaction: it then reports the whole prefix."""
        self._lost_place = True
        self.call()

    def call(self) -> None:
        if self._store.woken is not None and not self._closed and self._store.reaches:
            self._store.woken()

    def _next(self) -> Changes | None:
        etcd = self._store.etcd
        if self._closed or not self._store.reaches:
            return None
        if self._lost_place:
            self._lost_place = False
            self._coming.clear()
            snapshot = etcd.snapshot(self.prefix)
            return Changes(snapshot.revision, snapshot.items, reset=True)
        if self._coming and self._coming[0][0] <= etcd.clock.now:
            return self._coming.popleft()[1]
        return None
