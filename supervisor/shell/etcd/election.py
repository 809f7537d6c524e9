"""Elects the leader: one key under a lease, whose create revision is the epoch that fences every write."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from supervisor.ports.errors import Fenced, Retryable
from supervisor.ports.store import Expect, Lease, Snapshot, Store, Watch

_log = logging.getLogger(__name__)

_LOOK_S = 0.25
"""Longest wait, in seconds, without a check of `stop`."""

_NOT_NOW_S = 2.0
"""Pause of a candidate that may not lead: it reads all of the state each time."""


class Leadership:
    """A term as leader. Created by `Election.campaign`; one thread owns it."""

    def __init__(self, key: str, epoch: int, lease: Lease, watch: Watch) -> None:
        self.key = key
        self.epoch = epoch
        self._lease = lease
        self._watch = watch
        self._replaced = False

    @property
    def lost(self) -> bool:
        """True once the lease expired, or the leader key is no longer ours; it never turns False again. Only a hint to
        stop early: `expect` in each transaction protects the store."""
        while not self._replaced and (changes := self._watch.poll(0.0)) is not None:
            ours = [item for item in changes.puts if item.key == self.key]
            gone = self.key in changes.deletes or (changes.reset and not ours)
            self._replaced = gone or any(item.create_revision != self.epoch for item in ours)
        return self._replaced or self._lease.lost

    @property
    def lapsed(self) -> bool:
        """True if the lease expired by our own clock, or the key was given back or lost. Safe from any thread."""
        return self._replaced or self._lease.lost

    @property
    def lease(self) -> int:
        """Id of the lease on the leader key."""
        return self._lease.id

    def expect(self) -> Expect:
        """Returns the expectation that fences every transaction of this leader."""
        return Expect(self.key, create_revision=self.epoch)

    def resign(self) -> None:
        """Gives the key back: a standby takes over at once. Never raises."""
        self._replaced = True
        self._watch.close()
        self._lease.revoke()


class Election:
    """One candidate for the leader key."""

    def __init__(
        self, store: Store, key: str, identity: bytes, ttl_s: int, may_lead: Callable[[], bool] = lambda: True
    ) -> None:
        """`identity` is the key's value, for people. `ttl_s`: how long a dead leader blocks the others. `may_lead` is
        called before each attempt; while it returns false, this candidate stands by."""
        self._store = store
        self._key = key
        self._identity = identity
        self._ttl_s = ttl_s
        self._may_lead = may_lead
        self._former: Lease | None = None
        """Lease of our last term."""

    def campaign(self, stop: threading.Event) -> Leadership | None:
        """Waits until it leads; None if `stop` was set first. Waits through a store outage. Raises Fatal."""
        lease: Lease | None = None
        try:
            while not stop.is_set():
                try:
                    if not self._may_lead():
                        stop.wait(_NOT_NOW_S)
                        continue
                    if lease is None or lease.lost:
                        lease = self._store.lease(self._ttl_s)
                    leadership = self._try(lease)
                    if leadership is not None:
                        # the leadership owns the lease from here on
                        self._former, lease = lease, None
                        return leadership
                    self._wait_for_gap(lease, stop)
                except Retryable as error:
                    _log.info("election: %s", error)
                    stop.wait(error.after_s)
            return None
        finally:
            if lease is not None:
                lease.revoke()

    def _try(self, lease: Lease) -> Leadership | None:
        """Makes one attempt. Raises Retryable if its outcome is unknown; the next attempt finds it out."""
        try:
            absent = Expect(self._key, create_revision=0)
            epoch = self._store.commit({self._key: self._identity}, expect=[absent], lease=lease.id)
        except Fenced:
            # There is a leader. It may be us: an attempt that timed out here may have been committed there.
            item = self._store.get(self._key)
            if item is not None and self._former is not None and item.lease == self._former.id and self._former.lost:
                # It is our own last term: its lease could not be revoked while etcd was away, and etcd extends leases
                # when it restarts. No one else may end it sooner.
                self._former.revoke()
                return None
            if item is None or item.lease != lease.id:
                return None
            epoch = item.create_revision
        return Leadership(self._key, epoch, lease, self._store.watch(self._key, epoch))

    def _wait_for_gap(self, lease: Lease, stop: threading.Event) -> None:
        """Waits until the leader key is gone, this lease is lost, or `stop` is set."""
        seen = self._store.list(self._key)
        if not self._taken(seen):
            return
        watch = self._store.watch(self._key, seen.revision)
        try:
            while not stop.is_set() and not lease.lost:
                changes = watch.poll(_LOOK_S)
                if changes is None:
                    continue
                gone = self._key in changes.deletes
                if gone or (changes.reset and not self._taken(Snapshot(changes.revision, changes.puts))):
                    return
        finally:
            watch.close()

    def _taken(self, snapshot: Snapshot) -> bool:
        return any(item.key == self._key for item in snapshot.items)
