"""Follows etcd with a mirror of its own, on every supervisor, and feeds the browsers from it."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from supervisor.core.model.memory import Memory
from supervisor.core.remediation.restore import ENDED
from supervisor.ports.errors import PortError
from supervisor.ports.store import Changes, Store, Watch
from supervisor.shell.control import codes, observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.metrics.http_sd import Kept, Target, known
from supervisor.shell.web.feed import Feed
from supervisor.shell.web.history import History, Since
from supervisor.shell.web.snapshot import Live, drawn, newest_point, snapshot
from supervisor.wire import keys
from supervisor.wire.records import Account, RunRecord

log = logging.getLogger(__name__)

READERS = 64
"""Most concurrent browsers, over all runs: each has a thread."""

EVERY_S = 1.0
"""Seconds between looks while someone reads."""

UNREAD_EVERY_S = 10.0
"""The same while no one reads: only the history needs it."""

SHARE = 10.0
"""The pause after a look is at least this many times its length: the leader decides in this process."""

POLL_S = 0.5
"""Seconds until a new reader is noticed."""

SILENCE_S = 3.0
"""A watch that is silent for longer means that etcd does not answer."""

AGAIN_S = 2.0
"""Seconds before all of etcd is read again."""

AFTER_A_BUG_S = 30.0
"""The same after an unforeseen error, which may recur: all of etcd is read, in the process that may lead."""

TAIL = 65536
"""Bytes of a journal's end in which the newest decision is sought."""


class Full(Exception):
    """READERS browsers are connected."""


class Page:
    """Feeds by run. `reading` is safe from any thread; the rest belongs to its own thread."""

    def __init__(
        self,
        store: Store,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        alarms: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`alarms` returns etcd's alarms as sentences; it is called at every look while etcd answers."""
        self._store, self._alarms = store, alarms
        self._wall, self._monotonic = wall, monotonic
        self._since = wall()
        self._lock = threading.Lock()
        self._feeds: dict[str, Feed] = {"": Feed()}
        self._runs: frozenset[str] = frozenset()
        self._histories: dict[str, History] = {}
        self._leaderless: defaultdict[str, Since] = defaultdict(Since)
        self._unlit: defaultdict[str, Since] = defaultdict(Since)
        self._clock_at: dict[str, float] = {}
        self._heard: dict[str, tuple[float, float]] = {}
        """By run, the last run clock heard, and when, by this machine's monotonic clock."""
        self._watch: Watch | None = None
        self._mirror: Mirror | None = None
        """The newest read, with the changes since."""
        self._kept = Kept(monotonic)
        self.targets: tuple[Target, ...] | None = None
        """Targets that Prometheus must scrape. None if etcd has not answered yet."""
        self.granted: frozenset[str] = frozenset()
        """Nodes that an engine has given to a run or pool."""
        self.codes: frozenset[str] | None = None
        """Versions of the code that a run or pool uses. None if etcd has not answered yet."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="page", daemon=True)
        self._cost_s = 0.0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread and waits up to 5 s for it, if it was ever started."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    @property
    def silent_s(self) -> float:
        """Seconds for which etcd has sent nothing, not even a progress notice."""
        return self._watch.silent_s if self._watch is not None else self._wall() - self._since

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    @contextlib.contextmanager
    def reading(self, run: str) -> Iterator[Feed]:
        """Yields the feed of a run, or of the newest if `run` is empty, while it is read. Raises KeyError if there is
        no such run, Full if there are READERS."""
        with self._lock:
            if run and run not in self._runs:
                raise KeyError(run)
            if sum(feed.readers for feed in self._feeds.values()) >= READERS:
                raise Full
            feed = self._feeds.setdefault(run, Feed())
            feed.readers += 1
        try:
            yield feed
        finally:
            with self._lock:
                feed.readers -= 1

    def begin(self) -> Mirror:
        """Looks once at all that etcd holds now. Raises PortError if it does not answer."""
        mirror = Mirror(self._store.list(keys.PREFIX))
        for record in observe.runs(mirror).values():
            self._learn(record.spec.name, clock_in(Path(record.run_dir) / "journal.jsonl"))
        self._note_users(mirror)
        self.look(mirror)
        self._mirror = mirror
        return mirror

    def _note_users(self, mirror: Mirror) -> None:
        """Publishes what may be asked of the code, and by whom, without the delay of a look."""
        self.granted, self.codes = observe.granted(mirror), codes.in_use(mirror)

    def _run(self) -> None:
        said, away_since = "", 0.0
        while not self._stop.is_set():
            asked, watch = self._wall(), None
            try:
                try:
                    mirror = self.begin()
                    watch = self._store.watch(keys.PREFIX, mirror.revision)
                    with contextlib.closing(watch):
                        said, away_since, self._watch = "", 0.0, watch
                        self._follow(mirror, watch)
                except PortError as error:
                    if str(error) != said:
                        log.warning("the page is not fed: %s", error)
                    said = str(error)
                    if watch is None and self._mirror is not None:  # no watch can report the silence now
                        away_since = away_since or asked
                        self.look(self._mirror, away_since)
                    self._stop.wait(AGAIN_S)
            except Exception as error:  # a bug: readers and scrapers must still get the rest
                if repr(error) != said:
                    log.exception("the page is not fed")
                said = repr(error)
                self._stop.wait(AFTER_A_BUG_S)

    def _follow(self, mirror: Mirror, watch: Watch) -> None:
        due, away_since = self._monotonic() + self._pause_s(), 0.0
        while not self._stop.is_set():
            changes = watch.poll(max(0.0, min(POLL_S, due - self._monotonic())))
            while changes is not None:
                mirror.apply(changes)
                self._note_clocks(mirror, changes)
                changes = watch.poll(0.0)
            self._note_users(mirror)
            # someone may have come while no one read
            due = min(due, self._monotonic() + self._pause_s())
            if self._monotonic() < due:
                continue
            silent_s = watch.silent_s
            away_since = (away_since or self._wall() - silent_s) if silent_s > SILENCE_S else 0.0
            self.look(mirror, away_since)
            due = self._monotonic() + self._pause_s()

    def _pause_s(self) -> float:
        read = any(feed.readers for feed in list(self._feeds.values()))
        return max(EVERY_S if read else UNREAD_EVERY_S, SHARE * self._cost_s)

    def look(self, mirror: Mirror, away_since: float = 0.0) -> None:
        """Publishes the current state to every feed."""
        began = self._monotonic()
        runs = observe.runs(mirror)
        grants = (f"runs/{run}/grants" for run in runs)
        self.targets = self._kept(mirror.derived(known, "leader", "registration", *grants))
        runs = {name: record for name, record in runs.items() if not record.spec.is_pool}
        newest = max(runs.values(), key=lambda r: r.launched_unix_s, default=None)
        with self._lock:
            self._runs = frozenset(runs)
            self._feeds = {name: feed for name, feed in self._feeds.items() if not name or feed.readers}
            feeds = dict(self._feeds)
        self._histories = {name: h for name, h in self._histories.items() if name in runs}
        if newest is None:
            feeds[""].publish(snapshot(mirror, None, Live(now=self._wall(), since=self._since, store_since=away_since)))
        for name, record in runs.items():
            to = [feeds[of] for of in ("", name) if of in feeds and (of or record is newest)]
            if to or not _ended(mirror, name):
                self._tell(mirror, record, to, away_since)
        self._cost_s = self._monotonic() - began

    def _tell(self, mirror: Mirror, record: RunRecord, to: list[Feed], away_since: float) -> None:
        run, now = record.spec.name, self._wall()
        history = self._histories.setdefault(run, History(now))
        live = Live(
            now=now,
            clock_at=self._clock_at,
            clocks={of: clock + self._monotonic() - at for of, (clock, at) in self._heard.items()},
            still_s=history.still_s(now),
            leaderless_s=self._leaderless[run].lasts_s(now),
            unlit_s=self._unlit[run].lasts_s(now),
            alarms=() if away_since else self._alarms(),
            since=self._since,
            store_since=away_since,
            every_s=round(max(EVERY_S, SHARE * self._cost_s)),
        )
        found = snapshot(mirror, record, live)
        if "groups" in found:
            self._leaderless[run].look(not found["numbers"]["leader"], now)
            self._unlit[run].look(not found["numbers"]["lit"], now)
            groups = found["groups"].values()
            if not any(group["generation"] for group in groups) or any("b" in group["ranks"] for group in groups):
                history.nothing_to_step(now)
        point = newest_point(found, now)
        if point is not None:
            history.add(point)
        found["history"] = drawn(history.points())
        for feed in to:
            feed.publish(found)

    def _note_clocks(self, mirror: Mirror, changes: Changes) -> None:
        """Notes each run's clock from a memory or account just written. A new leader resets all: its clocks may show
        less."""
        if changes.reset:
            return
        for item in changes.puts:
            run, _, what = item.key.removeprefix(keys.RUNS).partition("/")
            said: Memory | Account | None = None
            if item.key == keys.LEADER:
                self._heard.clear()
            elif what == "memory/run":
                said = mirror.record(item.key, Memory)
            elif what == "account":
                said = mirror.record(item.key, Account)
            if said is not None and said.clock:
                self._heard[run] = (said.clock, self._monotonic())
                self._learn(run, self._wall() - said.clock)

    def _learn(self, run: str, clock_at: float | None) -> None:
        if clock_at is not None:
            self._clock_at[run] = clock_at


def clock_in(journal: Path) -> float | None:
    """Returns the offset from a run's clock to the wall clock, from the newest decision in its journal. None if the
    journal holds none, or is not on this machine."""
    try:
        with journal.open("rb") as file:
            file.seek(max(0, journal.stat().st_size - TAIL))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            body = json.loads(line)
            return float(body["t"]) - float(body["now"])
        except (ValueError, KeyError, TypeError):
            continue
    return None


def _ended(mirror: Mirror, run: str) -> bool:
    memory = mirror.record(keys.memory(run, "run"), Memory)
    return memory is not None and memory.phase in ENDED
