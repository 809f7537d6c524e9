"""Follows the node's desired records, which the leader writes, in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from supervisor.ports.store import Changes, Item, Store
from supervisor.shell.etcd.threads import EtcdThread
from supervisor.wire import keys
from supervisor.wire.records import NodeDesired, RecordError, TrainerDesired, decode
from supervisor.wire.security import Security

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """The desired records by run. A run is missing while its record is unknown: a wiped etcd says nothing of any run,
    and no training stops for that. A run that must no longer run here has a record that says so."""

    by_run: Mapping[str, NodeDesired] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def has(self, desired: TrainerDesired) -> bool:
        """Returns true if this generation is desired here, and may start."""
        node, way = self.by_run.get(desired.run), (desired.group, desired.generation)
        there = () if node is None else node.trainers
        return any((trainer.group, trainer.generation) == way and not trainer.hold for trainer in there)


def anew(store: Store, node: str) -> Wanted:
    """Reads what is desired of this node now, because a watch may be late. Raises PortError."""
    desired, snapshot = Desired(node), store.list(keys.desired(node, ""))
    desired.take(Changes(snapshot.revision, snapshot.items, reset=True))
    return desired.wanted(set())


class Desired:
    """Keeps the newest readable records up to date from changes. Not thread-safe."""

    def __init__(self, node: str) -> None:
        self._prefix = keys.desired(node, "")
        self._by_run: dict[str, NodeDesired] = {}
        self._problems: dict[str, str] = {}

    def take(self, changes: Changes) -> None:
        """Applies changes. A record that cannot be read leaves its run as it was, and is reported."""
        if changes.reset:
            kept = {item.key for item in changes.puts}
            for run in [run for run in self._by_run if self._prefix + run not in kept]:
                self._forget(run)
        for item in changes.puts:
            self._read(item)
        for key in changes.deletes:
            self._forget(key.removeprefix(self._prefix))

    def unknown_of(self, runs: set[str]) -> set[str]:
        return {run for run in runs if run not in self._by_run and run not in self._problems}

    def wanted(self, unknown: set[str]) -> Wanted:
        lost = [
            f"run {run} runs here but etcd holds no desired record for it on this node: left alone"
            for run in sorted(unknown)
        ]
        return Wanted(dict(self._by_run), (*(self._problems[run] for run in sorted(self._problems)), *lost))

    def _read(self, item: Item) -> None:
        run = item.key.removeprefix(self._prefix)
        try:
            record = decode(item.value, NodeDesired)
        except RecordError as error:
            self._problems[run] = f"the desired record {item.key} cannot be read ({error}): what runs is left alone"
            log.warning("%s", self._problems[run])
            return
        self._problems.pop(run, None)
        self._by_run[run] = record

    def _forget(self, run: str) -> None:
        self._by_run.pop(run, None)
        self._problems.pop(run, None)


class DesiredWatch(EtcdThread):
    """Calls `changed` from this thread at every change, as long as it lives. While etcd is away nothing changes."""

    def __init__(
        self,
        node: str,
        etcd: Sequence[str],
        runs_here: Callable[[], set[str]],
        changed: Callable[[Wanted], None],
        security: Security | None = None,
    ) -> None:
        super().__init__("desired", "the watch of the desired state goes on", etcd, security)
        self._node = node
        self._runs_here = runs_here
        self._changed = changed

    def _turn(self, store: Store) -> None:
        prefix = keys.desired(self._node, "")
        snapshot = store.list(prefix)
        self._said.well()
        desired = Desired(self._node)
        changes: Changes | None = Changes(snapshot.revision, snapshot.items, reset=True)
        watch = store.watch(prefix, snapshot.revision)
        asked: set[str] | None = None
        try:
            while not self._stop_now.is_set():
                if changes is not None:
                    desired.take(changes)
                unknown = desired.unknown_of(self._runs_here())
                if changes is not None or unknown != asked:
                    asked = unknown
                    self._changed(desired.wanted(unknown))
                changes = watch.poll(0.5)
        finally:
            watch.close()
