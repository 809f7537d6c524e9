"""The supervisor's copy of everything under our prefix, at one revision, with its unreadable records."""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

from supervisor.ports.store import Changes, Item, Snapshot
from supervisor.shell.control.bounds import bounded
from supervisor.wire import keys
from supervisor.wire.records import RecordError, decode

T = TypeVar("T")

_ADDRESS = re.compile(r"[0-9A-Za-z_.:%\[\]-]*")
"""An address or name, with a port or without: Prometheus gets it as a target, and trainers as their gate."""

_BY_RUN = ("gate", "gate-presence")
"""A node's records of which it has one for each run."""

_LAST = "\U0010ffff"
"""Sorts after anything that may follow a prefix."""


@lru_cache(maxsize=1 << 17)
def sort_of(key: str) -> str:
    """Returns a key's sort: the record's name for a node or run (`check`, `spec`), or else the first part of the key
    (`cordons`). Records of which a run has many are a sort of their own (`runs/RUN/grants`), and so are all keys below a
    record of a node, which only a compromised node writes."""
    parts = key.removeprefix(keys.PREFIX).split("/", 3)
    if parts[0] == "nodes" and len(parts) > 3 and parts[2] not in _BY_RUN:
        return "below"
    if parts[0] == "runs" and len(parts) > 3:
        return "/".join(parts[:3])
    return parts[2] if parts[0] in ("nodes", "runs") and len(parts) > 2 else parts[0]


@lru_cache(maxsize=1 << 17)
def _node_of(key: str) -> str:
    """Returns the node of a key; empty if it belongs to none."""
    return key[len(keys.NODES) :].split("/", 1)[0] if key.startswith(keys.NODES) else ""


def _hold_to_key(key: str, record: Any) -> None:
    """Raises RecordError for a node's record that names another node, host or run than its key, or an address that is none:
    a node may write its own keys with any content. Its host is called as the node is, or the node is `HOST.JOB` (Slurm's shared hosts)."""
    name = _node_of(key)
    host, run = getattr(record, "host", ""), key.removeprefix(f"{keys.NODES}{name}/").partition("/")[2]
    if getattr(record, "node", name) != name:
        raise RecordError(f"it names the node {record.node!r}, and its key {name!r}")
    if host and host != name and not name.startswith(f"{host}."):
        raise RecordError(f"it names the host {host!r}, which is not that of node {name!r}")
    if not _ADDRESS.fullmatch(getattr(record, "address", "")):
        raise RecordError(f"its address {record.address!r} is none")
    if run and getattr(record, "run", run) != run:
        raise RecordError(f"it names the run {record.run!r}, and its key {run!r}")


class Mirror:
    """Keys, values and their decoded records. An unreadable record is reported and left alone."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.revision = snapshot.revision
        self.items: dict[str, Item] = {item.key: item for item in snapshot.items}
        self.unreadable: dict[str, str] = {}
        self._decoded: dict[str, tuple[int, Any]] = {}
        self._fresh = set(self.items)
        self._of_sort: dict[str, set[str]] = {}
        self._order: list[str] = sorted(self.items)
        self._made: dict[str, dict[str, tuple[tuple[int, tuple[str, ...]], Any]]] = {}
        self._changes: dict[str, int] = {}
        self._derived: dict[Callable[[Mirror], Any], tuple[tuple[int, ...], Any]] = {}
        self._tables: dict[tuple[str, str], dict[str, Any]] = {}
        self._stale: dict[str, list[tuple[str, set[str]]]] = {}
        """By sort: the prefix of each of its tables, and the keys that the table must read again."""
        self._of_node: dict[str, int] = {}
        self._keys_of: dict[str, int] = {}
        """Number of keys of each node."""
        self._nodes: list[str] | None = None
        for key in self.items:
            self._count(key)
            self._known_node(key, 1)

    def apply(self, changes: Changes) -> None:
        """Applies changes; skips those older than our copy, which may already hold our own write."""
        if changes.reset:
            for key in self.items:
                self._count(key, there=False)
                self._known_node(key, -1)
            # a store that lost revisions reuses their numbers: nothing read under them is kept
            self.items, self._order, self.unreadable, self._decoded = {}, [], {}, {}
        for item in changes.puts:
            known = self.items.get(item.key)
            if known is not None and known.mod_revision == item.mod_revision:
                self.items[item.key] = item  # our own write comes back: nothing is new
            elif known is None or known.mod_revision < item.mod_revision:
                self._put(item)
                self._forget(item.key)
                self._fresh.add(item.key)
        for key in changes.deletes:
            known = self.items.get(key)
            if known is not None and known.mod_revision <= changes.revision:
                self._remove(key)
                self.unreadable.pop(key, None)
        self.revision = max(self.revision, changes.revision)

    def _forget(self, key: str) -> None:
        """Clears a decoding error, so that it is reported again if the record is still unreadable."""
        if self.unreadable.pop(key, None) is not None:
            self._decoded.pop(key, None)

    def fresh(self) -> set[str]:
        """Returns keys that others changed since the last call."""
        fresh, self._fresh = self._fresh & self.items.keys(), set()
        return fresh

    def wrote(self, puts: dict[str, bytes], revision: int) -> None:
        """Applies our own transaction, before the watch brings it back."""
        for key, value in puts.items():
            old = self.items.get(key)
            self._put(Item(key, value, old.create_revision if old else revision, revision))
            self._forget(key)

    def _put(self, item: Item) -> None:
        if item.key not in self.items:
            insort(self._order, item.key)
            self._known_node(item.key, 1)
        self.items[item.key] = item
        self._count(item.key)

    def _remove(self, key: str) -> None:
        del self.items[key]
        del self._order[bisect_left(self._order, key)]
        self._count(key, there=False)
        self._known_node(key, -1)

    def _known_node(self, key: str, more: int) -> None:
        if node := _node_of(key):
            before = self._keys_of.get(node, 0)
            self._keys_of[node] = before + more
            if not before or not before + more:
                self._nodes = None

    def _count(self, key: str, there: bool = True) -> None:
        sort = sort_of(key)
        self._changes[sort] = self._changes.get(sort, 0) + 1
        of_sort = self._of_sort.setdefault(sort, set())
        (of_sort.add if there else of_sort.discard)(key)
        for begins, stale in self._stale.get(sort, ()):
            if key.startswith(begins):
                stale.add(key)
        if node := _node_of(key):
            self._of_node[node] = self._of_node.get(node, 0) + 1

    def table(self, begins: str, kind: type[T], sort: str = "") -> dict[str, T]:
        """Returns, sorted by key, every readable record whose key begins so, of one sort (by default that of `begins`).
        Reads only changed records again, and returns the same dict until then. Callers must not change it."""
        about = (sort or sort_of(begins), begins)
        known: dict[str, T] | None = self._tables.get(about)
        if known is None:
            waiting = self._stale.setdefault(about[0], [])
            waiting.append((begins, {key for key in self._of_sort.get(about[0], ()) if key.startswith(begins)}))
            known = self._tables[about] = {}
        stale = next(stale for other, stale in self._stale[about[0]] if other == begins)
        if not stale:
            return known
        news = {key: record for key in stale if (record := self.record(key, kind)) is not None}
        table = {**known, **news}
        if news.keys() - known.keys() or len(news) < len(stale):
            gone = stale - news.keys()
            table = {key: table[key] for key in sorted(table.keys() - gone)}
        stale.clear()
        self._tables[about] = table
        return table

    def of_sort(self, sort: str) -> list[str]:
        """Returns all keys of a sort (`sort_of`), sorted."""
        return sorted(self._of_sort.get(sort, ()))

    def derived(self, make: Callable[[Mirror], T], *sorts: str) -> T:
        """Returns what `make` derives from the records of these sorts. Recomputes it only if one of them changed, since
        a round looks at ten thousand nodes. Callers must not change it."""
        changes = tuple(self._changes.get(sort, 0) for sort in sorts)
        known = self._derived.get(make)
        if known is None or known[0] != changes:
            known = self._derived[make] = (changes, make(self))
        made: T = known[1]
        return made

    def nodes(self) -> list[str]:
        """Returns the nodes that have a key of their own, sorted. Callers must not change it."""
        if self._nodes is None:
            self._nodes = sorted(node for node, keys_ in self._keys_of.items() if keys_)
        return self._nodes

    def of_each(self, about: str, nodes: Iterable[tuple[str, ...]], make: Callable[..., T]) -> dict[str, T]:
        """Returns, by node, what `make` derives from the node's tuple and its records. Recomputes it only if one of
        these changed, since of ten thousand nodes few change. Callers must not change the results."""
        known, changes, found = self._made.setdefault(about, {}), self._of_node, dict[str, T]()
        for node in nodes:
            stamp = (changes.get(node[0], 0), node)
            seen = known.get(node[0])
            if seen is None or seen[0] != stamp:
                seen = known[node[0]] = (stamp, make(*node))
            found[node[0]] = seen[1]
        return found

    def record(self, key: str, kind: type[T]) -> T | None:
        """Returns the record at a key; None if it is absent or unreadable (then it is in `unreadable`)."""
        item = self.items.get(key)
        if item is None:
            self.unreadable.pop(key, None)
            return None
        cached = self._decoded.get(key)
        if cached is not None and cached[0] == item.mod_revision:
            value: T | None = cached[1]
            return value
        try:
            record: T | None = decode(item.value, kind)
            if key.startswith(keys.NODES):
                record = bounded(record, len(item.value))
                _hold_to_key(key, record)
            self.unreadable.pop(key, None)
        except RecordError as error:
            record = None
            self.unreadable[key] = str(error)
        self._decoded[key] = (item.mod_revision, record)
        return record

    def records(self, prefix: str, kind: type[T]) -> Iterator[tuple[str, T]]:
        """Yields (rest of the key, record) of every readable record under a prefix."""
        for key in self.keys(prefix):
            record = self.record(key, kind)
            if record is not None:
                yield key[len(prefix) :], record

    def keys(self, prefix: str) -> list[str]:
        """Returns the keys under a prefix, sorted."""
        return self._order[bisect_left(self._order, prefix) : bisect_left(self._order, prefix + _LAST)]
