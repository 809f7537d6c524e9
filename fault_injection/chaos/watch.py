"""Notes what etcd shows of a run, as it changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from supervisor.core.model.incident import Incident
from supervisor.core.model.memory import GroupMemory
from supervisor.ports.store import Item, Store
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.history.files import Seen
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord, RecordError, decode


class Follower(threading.Thread):
    """Follows everything under our prefix, also through an outage of the store."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        super().__init__(name="watcher", daemon=True)
        self._clock = clock
        snapshot = store.list(keys.PREFIX)
        self._mirror = Mirror(snapshot)
        self._watch = store.watch(keys.PREFIX, snapshot.revision)
        self._lock = threading.Lock()
        self._stop_now = threading.Event()

    def run(self) -> None:
        while not self._stop_now.is_set():
            changes = self._watch.poll(0.1)
            at = self._clock()
            if changes is None:
                continue
            with self._lock:
                self._mirror.apply(changes)
                for item in changes.puts:
                    self._note(item, at)

    @contextmanager
    def mirror(self) -> Iterator[Mirror]:
        """Yields all that is known, which does not change within the block."""
        with self._lock:
            yield self._mirror

    def stop(self) -> None:
        self._stop_now.set()
        if self.is_alive():
            self.join()
        self._watch.close()

    def _note(self, item: Item, at: float) -> None:
        """Takes an item that was written. `at`: when it came."""
        raise NotImplementedError


class Watcher(Follower):
    """Notes the run's groups, incidents and leaders in `seen`."""

    def __init__(self, store: Store, run: str) -> None:
        super().__init__(store)
        self._incidents, self._groups = keys.incident(run, ""), keys.memory(run, "group-")
        self.seen: list[Seen] = []
        for item in self._mirror.items.values():
            self._note(item, time.time())

    def _note(self, item: Item, at: float) -> None:
        says = self._says(item)
        newest = next((s for s in reversed(self.seen) if says and (s.what, s.subject) == says[:2]), None)
        if says is not None and (newest is None or newest.says != says[2]):
            self.seen.append(Seen(t=at, what=says[0], subject=says[1], says=says[2]))

    def _says(self, item: Item) -> tuple[str, str, dict[str, Any]] | None:
        try:
            if item.key.startswith(self._incidents):
                incident = decode(item.value, Incident)
                body = {
                    "kind": incident.kind.value, "group": incident.group, "rank": incident.rank, "node": incident.node,
                    "state": incident.state, "rung": int(incident.rung), "generation_after": incident.generation_after,
                }  # fmt: skip
                return "incident", incident.id, body
            if item.key.startswith(self._groups):
                group = decode(item.value, GroupMemory)
                return "group", str(group.group), {
                    "phase": group.phase, "generation": group.generation, "node": group.first_node,
                }  # fmt: skip
            if item.key == keys.LEADER:
                leader = decode(item.value, LeaderRecord)
                return "leader", "", {"host": leader.host, "pid": leader.pid}
        except RecordError:
            pass  # the run's own status reports it
        return None
