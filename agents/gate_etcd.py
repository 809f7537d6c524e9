"""The gate's two threads to the etcd: which generations are current, and what the gate has to say."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agents.patience import OneSentence, connect_patiently, pause_after
from supervisor.ports.errors import PortError
from supervisor.ports.store import Item, Store, Watch
from supervisor.shell.store import connect
from supervisor.wire import keys
from supervisor.wire.records import GateObserved, GroupAdmission, NodeObserved, RecordError, decode, encode

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Admitted:
    """group -> current generation, and the last `list_again` that this answers."""

    generations: Mapping[int, int]
    asked: int


class AdmissionWatch(threading.Thread):
    """Calls `changed` (in this thread) with what was admitted: all of it after each listing, then what changes."""

    def __init__(self, run: str, etcd: Sequence[str], changed: Callable[[Admitted], None]) -> None:
        super().__init__(name="admissions", daemon=True)
        self._prefix = f"{keys.RUNS}{run}/groups/"
        self._etcd = etcd
        self._changed = changed
        self._stop_now = threading.Event()
        self._watch: Watch | None = None
        self._heard = time.monotonic()
        self._asked = 0

    def list_again(self) -> int:
        """Have everything read again; returns the number that `Admitted.asked` will reach once it was."""
        self._asked += 1
        return self._asked

    @property
    def silent_s(self) -> float:
        """Since when etcd has not been heard."""
        watch = self._watch
        return watch.silent_s if watch is not None else time.monotonic() - self._heard

    def stop(self) -> None:
        self._stop_now.set()

    def run(self) -> None:
        store = connect_patiently(self._etcd, self._stop_now)
        if store is None:
            return
        said = OneSentence("the watch of the admissions goes on")
        while not self._stop_now.is_set():
            try:
                self._follow(store, said)
            except PortError as error:
                said.trouble(error)
                self._stop_now.wait(pause_after(error))
        store.close()

    def _follow(self, store: Store, said: OneSentence) -> None:
        asked = self._asked
        snapshot = store.list(self._prefix)
        self._heard = time.monotonic()
        said.well()
        self._changed(Admitted(_admissions(snapshot.items), asked))
        self._watch = store.watch(self._prefix, snapshot.revision)
        try:
            while not self._stop_now.is_set() and asked == self._asked:
                changes = self._watch.poll(0.2)
                if changes is not None and changes.puts:
                    self._changed(Admitted(_admissions(changes.puts), asked))
        finally:
            self._heard = time.monotonic() - self._watch.silent_s
            self._watch.close()
            self._watch = None


def _admissions(items: Iterable[Item]) -> dict[int, int]:
    found: dict[int, int] = {}
    for item in items:
        try:
            record = decode(item.value, GroupAdmission)
        except RecordError as error:
            log.warning("the admission %s cannot be read and is left alone: %s", item.key, error)
            continue
        found[record.group] = record.generation
    return found


def quorum_id_seen(etcd: Sequence[str], run: str) -> int:
    """The highest quorum id that any node has reported of a run; 0 when there is none, or etcd cannot be asked."""
    try:
        with connect(etcd) as store:
            items = store.list(keys.NODES).items
    except PortError as error:
        log.warning("the quorum ids so far are not known: %s", error)
        return 0
    highest = 0
    for item in items:
        if not item.key.endswith("/observed"):
            continue
        try:
            record = decode(item.value, NodeObserved)
        except RecordError:
            continue
        ids = [rank.progress.quorum_id for rank in record.trainers if rank.run == run and rank.progress is not None]
        highest = max([highest, *ids])
    return highest


class Publisher(threading.Thread):
    """Writes the newest GateObserved, as often as it takes."""

    def __init__(self, etcd: Sequence[str]) -> None:
        super().__init__(name="publisher", daemon=True)
        self._etcd = etcd
        self._some = threading.Condition()
        self._newest: GateObserved | None = None
        self._stop_now = threading.Event()

    def publish(self, observed: GateObserved) -> None:
        """Have this written, in the place of any that was not yet."""
        with self._some:
            self._newest = observed
            self._some.notify()

    def stop(self) -> None:
        with self._some:
            self._stop_now.set()
            self._some.notify()

    def run(self) -> None:
        store = connect_patiently(self._etcd, self._stop_now)
        if store is None:
            return
        said = OneSentence("etcd takes the gate's reports again")
        while not self._stop_now.is_set():
            with self._some:
                while self._newest is None and not self._stop_now.is_set():
                    self._some.wait()
                observed = self._newest
            if observed is None:
                break
            try:
                store.put(keys.gate(observed.node, observed.run), encode(observed))
                said.well()
                with self._some:
                    if self._newest is observed:
                        self._newest = None
            except PortError as error:
                said.trouble(error)
                self._stop_now.wait(pause_after(error))
        store.close()
