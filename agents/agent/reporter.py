"""Writes the agent's reports to etcd: its registration under a lease, what runs, and the machine's health.

A thread, because the store blocks. Only the newest of each record is ever written: the next report replaces one that
could not be sent.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from agents.agent.desired import Wanted, anew
from agents.gate.round_trips import Trip
from agents.health.checks.neighbours import neighbours
from agents.health.checks.network import Peer
from supervisor.ports.errors import Fenced, PortError
from supervisor.ports.store import Expect, Item, Lease, Store
from supervisor.shell.etcd.threads import EtcdThread
from supervisor.wire import keys
from supervisor.wire.aside import Aside
from supervisor.wire.records import (
    Health,
    NodeCheck,
    NodeObserved,
    RecordError,
    Registration,
    SecondAgent,
    decode,
    encode,
)
from supervisor.wire.security import Security

log = logging.getLogger(__name__)

R = TypeVar("R", NodeObserved, Health)

MARKED_WITHIN_S = 1.0
"""Seconds that a registration waits for the disk that its lease is noted on."""
SURE_AFTER = 2.0
"""Times the lease: a lease that no one renews has lapsed by then."""
LOOK_S = 0.5
"""Seconds between two looks at the lease when there is nothing to write."""


@dataclass
class Standing:
    """Standing with etcd, for metrics and health."""

    store_up: bool = False
    lease_held: bool = False
    written: int = 0
    failures: int = 0
    registered: bool = False
    """True after the first registration. Until then this agent may be a second one of its name, and does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Functions that the reporter calls, in its own thread."""

    written: Callable[[int], None] = lambda ticket: None
    """Takes the ticket of each observed record that has reached etcd."""
    checked: Callable[[NodeCheck, int, Sequence[Peer]], None] = lambda record, revision, peers: None
    """Takes each record of checks that has reached etcd, its revision, and the other nodes. The revision is 0 for a record
    that must not be written any more."""
    took: Callable[[float], None] = lambda seconds: None
    """Takes the seconds that etcd took for each observed record, written or not."""
    read: Callable[[tuple[int, Wanted]], None] = lambda answer: None
    """Takes the ticket of an observed record that asked for it, and the desired records. They are read after that record
    was written and while the registration stands."""
    second: Callable[[str], None] = lambda sentence: None
    """Takes a sentence, once, when another live agent has this name."""


class Reporter(EtcdThread):
    """Writes this node's records, and keeps its registration under a lease."""

    def __init__(
        self,
        registration: Registration,
        folder: Path,
        etcd: Sequence[str],
        lease_s: int,
        calls: Callbacks,
        security: Security | None = None,
    ) -> None:
        super().__init__("reporter", "etcd takes our reports again", etcd, security)
        self._registration = registration
        self._mark = folder / "lease.json"
        self._lease_s = lease_s
        self._calls = calls
        self._observed: tuple[int, NodeObserved] | None = None
        self._health: Health | None = None
        self._check: tuple[NodeCheck, bool] | None = None
        self._tickets = 0
        self._to_read = 0
        """Last ticket that asked for the desired records and has no answer yet; 0: none."""
        self._give_back = False
        self._lease: Lease | None = None
        self._first: tuple[int, float] = (0, 0.0)
        """Lease of another agent of this name, and since when it has been seen."""
        self._first_told = False
        self._second_lease: Lease | None = None
        self._own_lease: int | None = None
        """Our last lease; None: an earlier agent may have noted one."""
        self._disk = Aside("lease")
        self._sequences: dict[str, int] = {}
        self._ever_observed = False
        self._trip = Trip()
        """Times of reports to etcd."""
        self.standing = Standing()

    # --- from the agent's thread ---

    def observed(self, record: NodeObserved, then_read: bool = False) -> int:
        """Has this written, with its sequence filled in. Returns the ticket that `written` gets (or a later one); with
        `then_read`, `read` gets one too."""
        with self._some:
            self._tickets += 1
            self._observed = (self._tickets, record)
            if then_read:
                self._to_read = self._tickets
            self._some.notify()
            return self._tickets

    def health(self, record: Health) -> None:
        """Has this written, with its sequence filled in."""
        with self._some:
            self._health = record
            self._some.notify()

    def check(self, record: NodeCheck, only_if_bad: bool = False) -> None:
        """Has this written, and before the registration if the node has none yet. `only_if_bad`: only where etcd has
        this node's checks as not passed, so that a person who freed it meanwhile is not overruled."""
        with self._some:
            self._check = (record, only_if_bad)
            self._some.notify()

    def stop(self, give_back: bool = False) -> None:
        """Writes once what is left, and ends. `give_back`: the node is gone at once, not when its lease lapses."""
        self._give_back = give_back
        super().stop()

    # --- the thread ---

    def _turn(self, store: Store) -> None:
        self.standing.lease_held = self._lease is not None and not self._lease.lost
        with self._some:
            quiet = not (self._observed or self._health or self._check or self._to_read)
            if quiet and not self._stop_now.is_set():
                self._some.wait(LOOK_S)
        self._write(store)
        self.standing.store_up = True
        self._said.well()

    def _failed(self, error: PortError) -> None:
        self.standing.store_up = isinstance(error, Fenced)  # etcd answers, and refuses
        self.standing.failures += 1

    def _finish(self, store: Store) -> None:
        try:
            self._write(store)
            self._no_second()
            if self._give_back and self._lease is not None:
                self._lease.revoke()
        except PortError as error:
            log.info("the last report was not written: %s", error)

    def _write(self, store: Store) -> None:
        """Writes what is pending. What runs comes first: a reader of the registration may rely on it."""
        with self._some:
            observed, health, check, to_read = self._observed, self._health, self._check, self._to_read
        if not self.standing.registered and not self._stop_now.is_set():
            self._may_register(store)  # before anything is written in the name of this node
        if observed is not None:
            ticket, record = observed
            value, began = self._numbered(store, keys.observed(record.node), record), time.monotonic()
            try:
                store.put(keys.observed(record.node), value)
            finally:  # a record that was not written took its time too
                took = time.monotonic() - began
                self._calls.took(took)
            self._trip.note(took)
            self._ever_observed = True
            with self._some:
                if self._observed is observed:
                    self._observed = None
            self.standing.written += 1
            self._calls.written(ticket)
        if check is not None:
            said, only_if_bad = check
            revision = _repeated(store, said) if only_if_bad else store.put(keys.check(said.node), encode(said))
            with self._some:
                if self._check is check:
                    self._check = None
            peers = neighbours(store, said.node) if said.state == "pending" and revision else ()
            self._calls.checked(said, revision, peers)
        if self._ever_observed and not self._stop_now.is_set() and (self._lease is None or self._lease.lost):
            self._register(store)
        if to_read and self._lease is not None and not self._lease.lost:
            # in this order a later withdrawal of a start sees what was written, and an earlier one is seen here
            wanted = anew(store, self._registration.node)
            with self._some:
                if self._to_read == to_read:
                    self._to_read = 0
            self._calls.read((to_read, wanted))
        if health is not None:
            told = replace(health, store_ms=self._trip.ms, unix_s=round(time.time(), 1))
            store.put(keys.health(health.node), self._numbered(store, keys.health(health.node), told))
            self.standing.written += 1
            with self._some:
                if self._health is health:
                    self._health = None

    def _numbered(self, store: Store, key: str, record: R) -> bytes:
        """Encodes with the next sequence, which continues that of an earlier agent."""
        if key not in self._sequences:
            found = store.get(key)
            try:
                self._sequences[key] = decode(found.value, type(record)).sequence if found is not None else 0
            except RecordError:
                self._sequences[key] = 0
        self._sequences[key] += 1
        return encode(replace(record, sequence=self._sequences[key]))

    def _may_register(self, store: Store) -> int:
        """Returns the revision of the registration that this agent may replace; 0: there is none. Raises Fenced while
        another agent of this node's name holds it: never two of one name."""
        found = store.get(keys.registration(self._registration.node))
        if found is None:
            return 0
        if found.lease not in (0, self._own_last_lease()):
            self._wait_as_second(store, found)
            raise Fenced(
                f"another agent is registered as node {self._registration.node}: waiting for its lease to expire (a "
                "node's name must be given to one --home only)"
            )
        return found.mod_revision

    def _wait_as_second(self, store: Store, first: Item) -> None:
        """Reports at both ends that the first agent lives, once it has surely renewed its lease."""
        now = time.monotonic()
        if first.lease != self._first[0]:
            self._first = (first.lease, now)
        if now - self._first[1] < SURE_AFTER * self._lease_s:
            return
        node = self._registration.node
        if not self._first_told:
            self._first_told = True
            self._calls.second(
                f"{_who(first, node)}, and lives: nothing is started here; end one of the two, or give this one another --node"
            )
        if self._second_lease is None or self._second_lease.lost:
            lease = store.lease(self._lease_s)
            record = SecondAgent(
                node=node, machine=socket.gethostname(), address=self._registration.address, folder=str(self._mark.parent),
                pid=self._registration.agent_pid,
            )  # fmt: skip
            store.put(keys.second(node), encode(record), lease=lease.id)
            self._second_lease = lease

    def _register(self, store: Store) -> None:
        revision = self._may_register(store)
        if self._lease is not None:
            log.warning("the lease of node %s was lost; registering again", self._registration.node)
        lease = store.lease(self._lease_s)
        try:
            # noted before it is used: an agent that dies in between must recognise its own registration
            self._own_lease = lease.id
            self._disk.ask(partial(self._mark.write_text, json.dumps({"lease": lease.id}))).result(MARKED_WITHIN_S)
        except OSError as error:  # or a TimeoutError: an agent whose disk stalls has no successor before it answers
            log.warning("cannot write %s: %s", self._mark, str(error) or "its disk does not answer")
        key = keys.registration(self._registration.node)
        try:
            store.commit({key: encode(self._registration)}, expect=[Expect(key, mod_revision=revision)], lease=lease.id)
        except PortError:
            lease.revoke()
            raise
        self._lease = lease
        self.standing.registered = True
        self._no_second()

    def _no_second(self) -> None:
        if self._second_lease is not None:
            self._second_lease.revoke()
            self._second_lease = None

    def _own_last_lease(self) -> int:
        if self._own_lease is not None:
            return self._own_lease
        try:
            return int(json.loads(self._mark.read_text())["lease"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1


def _who(first: Item, node: str) -> str:
    try:
        found = decode(first.value, Registration)
    except RecordError:
        return f"another agent is registered as node {node}"
    return f"another agent (pid {found.agent_pid}, at {found.address}) is registered as node {node}"


def _repeated(store: Store, check: NodeCheck) -> int:
    """Writes the result of repeated checks; until they end, their last result stands. Returns the revision, or 0 if
    there is nothing to repeat. Raises Fenced when someone wrote in between."""
    key = keys.check(check.node)
    item = store.get(key)
    try:
        before = decode(item.value, NodeCheck) if item is not None else None
    except RecordError:
        before = None
    if item is None or before is None or before.stands not in ("failed", "unknown"):
        return 0
    record = check
    if check.state == "pending":
        record = replace(check, results=before.results)
    elif check.state == "unknown" and before.stands == "failed":
        record = replace(before, state="failed")  # an unknown result takes nothing back
    return store.commit({key: encode(record)}, expect=[Expect(key, mod_revision=item.mod_revision)])
