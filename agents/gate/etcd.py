"""The gate's two threads to etcd: one watches the leader's orders, the other reports and asks for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from supervisor.ports.errors import PortError
from supervisor.ports.store import Item, Lease, Store, Watch
from supervisor.shell.etcd.threads import EtcdThread
from supervisor.wire import keys
from supervisor.wire.records import Admission, GateObserved, GatePresence, NodeDesired, RecordError, decode, encode
from supervisor.wire.security import Security

log = logging.getLogger(__name__)

GATE_LEASE_S = 5
"""Seconds of the presence's lease. It lapses 3.3 to 5 s after the last sign of life, which is later than
lighthouse_child.FROZEN_S. A gate that thaws after that has ended before it was replaced."""
LOOK_S = 0.5


@dataclass(frozen=True)
class Orders:
    """The leader's orders for this gate. `retired`: another has its seat, or it must close."""

    admitted: Mapping[int, Admission]
    retired: bool
    asked: int
    """Number of the last `read_again` that this answers."""


class OrdersWatch(EtcdThread):
    """Calls `changed` (in this thread) with the orders of one lighthouse, at first and at every change."""

    def __init__(
        self,
        node: str,
        run: str,
        generation: int,
        etcd: Sequence[str],
        changed: Callable[[Orders], None],
        security: Security | None = None,
    ) -> None:
        super().__init__("orders", "the watch of the gate's orders goes on", etcd, security)
        self._key = keys.desired(node, run)
        self._generation = generation
        self._changed = changed
        self._watch: Watch | None = None
        self._heard = time.monotonic()
        self._asked = 0

    def read_again(self) -> int:
        """Has the orders read again. Returns the number that `Orders.asked` reaches once they are read."""
        self._asked += 1
        return self._asked

    @property
    def silent_s(self) -> float:
        """Seconds since etcd was last heard."""
        watch = self._watch
        return watch.silent_s if watch is not None else time.monotonic() - self._heard

    def _turn(self, store: Store) -> None:
        asked = self._asked
        snapshot = store.list(self._key)
        self._heard = time.monotonic()
        self._said.well()
        self._tell(snapshot.items, asked)
        self._watch = store.watch(self._key, snapshot.revision)
        try:
            while not self._stop_now.is_set() and asked == self._asked:
                changes = self._watch.poll(0.2)
                if changes is not None:
                    self._tell(changes.puts, asked)
        finally:
            self._heard = time.monotonic() - self._watch.silent_s
            self._watch.close()
            self._watch = None

    def _tell(self, items: Iterable[Item], asked: int) -> None:
        for item in items:
            orders = read_orders(item, self._key, self._generation, asked)
            if orders is not None:
                self._changed(orders)


def read_orders(item: Item | None, key: str, generation: int, asked: int = 0) -> Orders | None:
    """Returns the orders in a desired record; None if the key is missing (a wiped etcd) or cannot be read."""
    if item is None or item.key != key:
        return None
    try:
        record = decode(item.value, NodeDesired)
    except RecordError as error:
        log.warning("the orders in %s cannot be read and are left alone: %s", item.key, error)
        return None
    own = [light for light in record.lighthouses if light.generation == generation]
    return Orders(own[0].admitted if own else {}, not own or own[0].close, asked)


@dataclass(frozen=True)
class Answer:
    """etcd's answer to the question of that number and to all before, with the orders that it holds now."""

    number: int
    orders: Orders | None


class Publisher(EtcdThread):
    """Keeps the gate's presence under a lease, writes the newest GateObserved until it is written, and asks etcd for
    the current orders. It calls `answered` in this thread."""

    def __init__(
        self,
        presence: GatePresence,
        etcd: Sequence[str],
        answered: Callable[[Answer], None],
        alive: Callable[[], bool],
        security: Security | None = None,
    ) -> None:
        super().__init__("publisher", "etcd takes the gate's reports again", etcd, security)
        self._presence = presence
        self._answered = answered
        self._alive = alive
        self._asked = self._told = 0
        self._lease: Lease | None = None
        self._newest: GateObserved | None = None

    def publish(self, observed: GateObserved) -> None:
        """Has this written, in place of any report that is not written yet."""
        with self._some:
            self._newest = observed
            self._some.notify()

    def ask(self) -> int:
        """Asks etcd for the current orders; returns the number of this question."""
        with self._some:
            self._asked += 1
            self._some.notify()
            return self._asked

    def _turn(self, store: Store) -> None:
        with self._some:
            if self._newest is None and self._asked == self._told and not self._stop_now.is_set():
                self._some.wait(LOOK_S)
            observed, asked = self._newest, self._asked
        if asked > self._told:
            # a quorum of etcd's members answers this read
            key = keys.desired(self._presence.node, self._presence.run)
            orders = read_orders(store.get(key), key, self._presence.generation)
            self._told = asked
            self._answered(Answer(asked, orders))
        if observed is not None or self._lease is not None:
            self._be_present(store)
        if observed is not None:
            store.put(keys.gate(observed.node, observed.run), encode(observed))
            with self._some:
                if self._newest is observed:
                    self._newest = None
        self._said.well()

    def _finish(self, store: Store) -> None:
        if self._lease is not None:
            self._lease.revoke()

    def _be_present(self, store: Store) -> None:
        """Keeps the presence, and begins it before the first report: a report without a presence is that of a gate
        whose lease lapsed. A gate whose event loop hangs is not present, whatever this thread still does."""
        if not self._alive():
            if self._lease is not None and not self._lease.lost:
                log.error("the gate's event loop stands still: giving up its presence")
                self._lease.revoke()
            return
        if self._stop_now.is_set() or (self._lease is not None and not self._lease.lost):
            return
        lease = store.lease(GATE_LEASE_S)
        try:
            key = keys.gate_presence(self._presence.node, self._presence.run)
            store.put(key, encode(self._presence), lease.id)
        except PortError:
            lease.revoke()
            raise
        self._lease = lease
