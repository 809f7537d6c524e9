"""Reads a run's logs from its nodes, and merges their lines by time; the output of its hooks, and the leader's own log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from supervisor.core.model.memory import Memory
from supervisor.core.remediation.restore import ENDED
from supervisor.core.report.durations import wall_clock
from supervisor.core.report.words import say
from supervisor.ports.errors import Fatal, Retryable
from supervisor.ports.store import Store
from supervisor.shell.control import observe
from supervisor.shell.control.leader import leader
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import asking, client, merged_log, status
from supervisor.shell.inspect.logs import HookTail, SupervisorTail
from supervisor.shell.inspect.merged_log import Entry, Incidents, entry
from supervisor.wire import keys
from supervisor.wire.node_logs import Event, Position
from supervisor.wire.node_requests import LEADER, Item, NodeRequest
from supervisor.wire.person import who

LIMIT_S = 60.0
"""Seconds that a node may take."""
FOLLOWED_LIMIT_S = 10.0
"""The same for a part that a follower asks for."""
ALL_LINES = 100_000
"""Most lines that a node gives of what it had before it was first asked."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Which lines are wanted. None: all groups, ranks or times; an empty `grep`: all texts."""

    run: str
    group: int | None = None
    rank: int | None = None
    lines: int = 20
    since_s: float | None = None
    grep: str = ""

    @property
    def chosen(self) -> bool:
        """True if not all lines are wanted, so that there may be none."""
        return self.group is not None or self.rank is not None or bool(self.grep) or self.since_s is not None

    def by(self, now: float) -> merged_log.Wish:
        """Returns the same wish to files of this machine. `now`: Unix seconds."""
        since = None if self.since_s is None else now - self.since_s
        return merged_log.Wish(group=self.group, rank=self.rank, since=since, tail=self.lines, grep=self.grep)

    def request(self, node: str, what: Literal["logs", "follow", "hooks"]) -> NodeRequest:
        limit_s = FOLLOWED_LIMIT_S if what == "follow" else LIMIT_S
        return NodeRequest(node=node, what=what, by=who(), limit_s=limit_s, **asdict(self))


def nodes_not_here(mirror: Mirror, run: str, system: Path) -> list[str]:
    """Returns the run's nodes that have no folder on this machine. `system`: the folder that holds `nodes/`."""
    return sorted(node for node in asking.nodes_of(mirror, run) if not (system / "nodes" / node).is_dir())


def nodes_of(mirror: Mirror, run: str) -> list[str]:
    """Returns the nodes to ask: those of the run, and of its pool, since a group may have left one of these; of a run that
    has none, as after its end, all."""
    record, alive, there = observe.runs(mirror).get(run), asking.registered(mirror), asking.nodes_of(mirror, run)
    pool = record.spec.allocation.pool if record is not None and there else ""
    left = [node for node in asking.nodes_of(mirror, pool) if node in alive] if pool else []
    return sorted({*there, *left}) or sorted(alive)


def read(store: Store, mirror: Mirror, wish: Wish) -> tuple[list[Entry], dict[str, str]]:
    """Asks every node of the run. Returns the newest lines, the oldest first, and the nodes that did not give all of theirs,
    with the reason. Times are those of each node's own clock. Raises PortError."""
    entries: list[Entry] = []
    missing: dict[str, str] = {}
    requests = {node: wish.request(node, "logs") for node in nodes_of(mirror, wish.run)}
    for node, items in asking.answers(store, mirror, requests, missing):
        try:
            entries += [entry(wish.run, node, _event(item)) for item in items]
        except (KeyError, TypeError, ValueError):
            missing[node] = asking.NOT_READ
        # a stable sort: lines of one rank keep their order
        entries = sorted(entries, key=lambda entry: (entry.t, entry.node))[max(0, len(entries) - wish.lines) :]
    return entries, missing


def hooks(store: Store, mirror: Mirror, wish: Wish) -> tuple[list[HookTail], dict[str, str]]:
    """Asks every node of the run for its hooks' newest lines. Returns them by node, `before` first, and the nodes that did
    not give all, with the reason. Raises PortError."""
    missing: dict[str, str] = {}
    found: dict[tuple[str, str], HookTail] = {}
    requests = {node: wish.request(node, "hooks") for node in nodes_of(mirror, wish.run)}
    for node, items in asking.answers(store, mirror, requests, missing):
        for item in items:
            hook, path, text = str(item["hook"]), str(item["path"]), str(item["text"])
            known = found.get((node, hook)) or HookTail(node=node, hook=hook, path=path)
            found[node, hook] = replace(known, given=known.given + text)
    return sorted(found.values(), key=lambda tail: (tail.node, tail.hook != "before")), missing


def of_leader(store: Store, mirror: Mirror, wish: Wish) -> SupervisorTail:
    """Asks the leader for its own log. Raises Fatal with a sentence if it does not give it; PortError."""
    leads, missing, given = leader(mirror), dict[str, str](), list[Item]()
    for _, items in asking.answers(store, mirror, {LEADER: wish.request(LEADER, "logs")}, missing):
        given = items
    if leads is None or missing:
        where = f"the supervisor on {leads.host}" if leads is not None else "the leader"
        raise Fatal(f"{where} gives no log: {missing.get(LEADER, 'no supervisor leads')}")
    text = "".join(str(item["text"]) for item in given)
    return SupervisorTail(node=leads.host, path=str(given[0]["path"]), given=text)


class Follower:
    """The joined log of a run from its nodes. Each call of `new` asks them for what came since; no line is lost or comes
    twice, since a node goes on from the byte of each log at which its answer before ended."""

    def __init__(self, store: Store, mirror: Mirror, wish: Wish, note: Say) -> None:
        """`note` gets a sentence when a node or etcd does not answer, and when it does again."""
        self._store, self._mirror, self._wish, self._note = store, mirror, wish, note
        self._watch = store.watch(keys.PREFIX, mirror.revision)
        self._positions: dict[str, Position] = {}
        self._incidents = Incidents(wish.run, wish.group)
        self._at_first: frozenset[str] | None = None
        """Nodes that the run had when it was first asked for; None: it was not yet."""
        self._began = time.monotonic()
        self._got: list[Entry] = []
        self._missing: dict[str, str] = {}
        """Nodes that did not answer the last time, with the reason."""
        self._noted: set[str] = set()
        self._away = False
        self._have: set[str] = set()
        """Nodes that have logs of the run."""
        self.behind = False
        """True if more is there already than was read."""

    @property
    def empty(self) -> bool:
        """True if no node has a log of the run, and none will have."""
        return not (self._have or self._missing or self._away) and self._over()

    def _over(self) -> bool:
        run = self._wish.run
        memory = self._mirror.record(keys.memory(run, "run"), Memory)
        return keys.spec(run) not in self._mirror.items or (memory is not None and memory.phase in ENDED)

    def close(self) -> None:
        self._watch.close()

    def new(self) -> list[Entry]:
        """Returns new entries, ordered by time. Returns none while etcd is away. Raises Fatal."""
        try:
            while (changes := self._watch.poll(0.0)) is not None:
                self._mirror.apply(changes)
                self._got += self._changed()  # an incident may be over before the next look
            self._ask()
        except Retryable as error:
            if not self._away:
                self._note(f"{error}; this goes on once etcd answers")
            self._away = True
        else:
            if self._away:
                self._note("etcd answers again")
            self._away = False
        # what nodes gave before etcd went away, too: they go on behind it
        found, self._got = [*self._got, *self._changed()], []
        return [e for e in self._incidents.within(found) if self._wish.grep in e.text]

    def _ask(self) -> None:
        """Asks each node, and keeps what it gives with its new position, or neither."""
        run, again = self._wish.run, self._at_first is not None
        here = {*(asking.nodes_of(self._mirror, run) if again else nodes_of(self._mirror, run))}
        here |= self._have & asking.registered(self._mirror).keys()  # last words
        if self._at_first is None:
            self._at_first = frozenset(here)
        self.behind, missing = False, dict[str, str]()
        requests = {node: self._request(node) for node in sorted(here)}
        for node, items in asking.answers(self._store, self._mirror, requests, missing):
            if node in missing:
                continue
            try:
                *events, end = items
                given = [entry(run, node, _event(item)) for item in events]
                self._positions[node], behind, empty = end["position"], bool(end["behind"]), bool(end["empty"])
            except (KeyError, TypeError, ValueError):
                missing[node] = asking.NOT_READ
                continue
            self._got += given
            self.behind = self.behind or behind
            if not empty:
                self._have.add(node)
        self._note_missing(missing)
        if not (self._have or again or self.empty):
            self._note(f"no node has a log of run {run} yet: this goes on until one has")

    def _request(self, node: str) -> NodeRequest:
        request = self._wish.request(node, "follow")
        if node in self._positions:
            return replace(request, position=self._positions[node], since_s=None)
        if node in (self._at_first or ()):
            return request
        # it came later: what it has is new, but for logs of an earlier time of the run there
        return replace(request, lines=ALL_LINES, since_s=time.monotonic() - self._began)

    def _note_missing(self, missing: dict[str, str]) -> None:
        for node, why in missing.items():
            if node in self._missing and node not in self._noted:  # once may be an agent that has just started
                self._noted.add(node)
                self._note(f"{node}: {why}")
        for node in sorted(self._noted - missing.keys()):
            self._noted.discard(node)
            if node in self._positions:
                self._note(f"{node}: it answers again")
        self._missing = missing

    def _changed(self) -> Iterator[Entry]:
        """Yields the incidents whose state has changed, at the newest time that they have."""
        clocks = status.account(self._mirror, self._wish.run).clocks
        for i in client.incidents(self._mirror, self._wish.run):
            at = wall_clock(max(t for t in (i.opened, i.decided, i.acted, i.recovered) if t is not None), clocks)
            about = {
                "id": i.id, "state": i.state, "rung": i.rung.value, "kind": i.kind.value, "group": i.group, "node": i.node,
                "generation_after": i.generation_after,
            }  # fmt: skip
            yield from self._incidents.changed(time.time() if at is None else at, about, say(i.reason))


def none_found(wish: Wish) -> str:
    """Returns the sentence for no line at all."""
    if wish.chosen:
        return f"run {wish.run} has no such lines"
    return f"no node has logs of run {wish.run}: the nodes that ran it are gone; their folders may still be on their machines"


def _event(item: Item) -> Event:
    """Raises KeyError, TypeError or ValueError if it is none."""
    group, generation, rank = (int(item[name]) for name in ("group", "generation", "rank"))
    what = item.get("what", "line")
    if what not in ("line", "start", "end"):
        raise ValueError(what)
    return Event(t=float(item["t"]), what=what, group=group, generation=generation, rank=rank, text=str(item["text"]))
