"""Joins the output of all ranks of a run into one log, across generations, with ends and incidents in place.

`Joined` reads what this machine has: the ranks' logs, the histories of their shims, and the run's journal. `remote_logs`
asks the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from supervisor.core.model.reason import of_json
from supervisor.core.report.words import say
from supervisor.wire.log_follower import Followed, begun
from supervisor.wire.node_logs import FIRST_BYTES, Event, NodeLog, bodies, first_bytes, order, rank_of

FIRST_JOURNAL_BYTES = 16 * 2**20
"""Bytes read from the end of an existing journal: an earlier incident appears from its next change on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of a rank's log, or an event of the rank or its group."""

    t: float
    """Unix seconds, by the writer's clock. A line without a time has that of the line before."""
    what: Literal["line", "start", "end", "incident"]
    run: str
    group: int
    generation: int
    rank: int | None
    """None for an event of the whole group."""
    node: str
    incident: str
    """Incident that was open for the group; empty if none was."""
    text: str
    over: bool = False
    """True for an incident that is over."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Which lines are wanted; None: all groups, ranks, times, and as many as there are."""

    group: int | None
    rank: int | None
    since: float | None
    """Unix seconds."""
    tail: int | None
    grep: str

    def chosen(self, found: Iterable[Entry]) -> list[Entry]:
        """Returns the newest of those with the text, from the time on."""
        kept = [entry for entry in found if (self.since is None or entry.t >= self.since) and self.grep in entry.text]
        return kept if self.tail is None else kept[max(0, len(kept) - self.tail) :]


@dataclass(slots=True)
class Incidents:
    """The incidents of a run as far as they were shown: each change is an entry, and entries name the open one."""

    run: str
    group: int | None = None
    _open: dict[int, str] = field(default_factory=dict)
    """Open incident of each group."""
    _shown: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def changed(self, t: float, i: Mapping[str, Any], why: str) -> Iterator[Entry]:
        """Yields an entry if an incident is new, or its state, rung or kind is. `i`: its fields; `why`: its reason as a
        sentence."""
        state = (i.get("state"), i.get("rung"), i.get("kind"))
        if self.group in (None, i["group"]) and self._shown.get(i["id"]) != state:
            self._shown[i["id"]] = state
            yield Entry(
                t=t, what="incident", run=self.run, group=i["group"], generation=i["generation_after"], rank=None,
                node=i.get("node", ""), incident=i["id"], over=i.get("state") in ("recovered", "halted"),
                text=f"incident {i['id']} {i.get('state')}: {i['kind']}, rung {i['rung']}: {why or 'not decided'}",
            )  # fmt: skip

    def within(self, entries: Iterable[Entry]) -> list[Entry]:
        """Returns entries ordered by time, each with the incident that was open for its group."""
        return [self._with_incident(entry) for entry in sorted(entries, key=order)]

    def _with_incident(self, entry: Entry) -> Entry:
        if entry.what == "incident":
            self._open[entry.group] = "" if entry.over else entry.incident
            return entry
        return replace(entry, incident=self._open.get(entry.group, ""))


@dataclass(slots=True)
class Joined:
    """The joined log of a run, or of one of its groups or ranks, from the files of this machine. Each call of `new` returns
    what came since."""

    system: Path
    run: str
    run_dir: Path
    group: int | None = None
    rank: int | None = None
    most: int = FIRST_BYTES
    """Bytes read from the end of each log that is there at first."""
    since: float | None = None
    grep: str = ""
    """Only entries from that time on, and with this text."""
    _nodes: dict[str, NodeLog] | None = None
    _journal: Followed | None = None
    _incidents: Incidents = field(init=False)

    def __post_init__(self) -> None:
        self._incidents = Incidents(self.run, self.group)

    def new(self, whole: bool = False) -> list[Entry]:
        """Returns new entries, ordered by time. A rank's lines come before its end. `whole`: unfinished last lines too."""
        wanted = Wish(group=self.group, rank=self.rank, since=self.since, tail=None, grep=self.grep)
        return wanted.chosen(self._incidents.within([*self._of_nodes(whole), *self._of_journal()]))

    def _of_nodes(self, whole: bool) -> Iterator[Entry]:
        most = self.most if self._nodes is None else None
        nodes = self._nodes = self._nodes or {}
        for folder in sorted(self.system.glob("nodes/*")):
            if folder.name not in nodes:
                nodes[folder.name] = NodeLog(folder, self.run, self.group, self.rank, most)
        newest: dict[int, int] = {}
        for log in nodes.values():
            newest |= {group: max(generation, newest.get(group, 0)) for group, generation in log.newest().items()}
        for node, log in nodes.items():
            yield from (entry(self.run, node, event) for event in log.new(newest, whole=whole))

    @property
    def behind(self) -> bool:
        """True if more is there already than was read."""
        return any(log.behind for log in (self._nodes or {}).values())

    @property
    def empty(self) -> bool:
        """True if no log was found yet."""
        return all(log.empty for log in (self._nodes or {}).values())

    def _of_journal(self) -> Iterator[Entry]:
        self._journal = self._journal or begun(self.run_dir / "journal.jsonl", FIRST_JOURNAL_BYTES)
        for body in bodies(self._journal):
            for i in body.get("incidents", ()):
                yield from self._incidents.changed(body["t"], i, say(of_json(i.get("reason", ""))))


def is_here(system: Path, run: str, group: int | None, rank: int | None) -> bool:
    """Returns true if this machine has a log of the run, or of the group and rank of it."""
    found = (rank_of(path.parent.name, run) for path in system.glob("nodes/*/ranks/*/output.log"))
    return any(who is not None and group in (None, who[0]) and rank in (None, who[2]) for who in found)


def of_this_machine(system: Path, run: str, run_dir: Path, wish: Wish) -> list[Entry] | None:
    """Returns all that this machine has of the groups and ranks that are wanted, for `Wish.chosen`; None: it has no log of
    them."""
    joined = Joined(system, run, run_dir, wish.group, wish.rank, first_bytes(wish.tail, wish.since, wish.grep))
    found = joined.new(whole=True)
    while joined.behind:
        found += joined.new(whole=True)
    # ordered over all looks: a long log takes several
    return None if joined.empty else Incidents(run, wish.group).within(found)


def entry(run: str, node: str, event: Event) -> Entry:
    """Returns an event of a node as an entry of the run's log."""
    return Entry(
        t=event.t, what=event.what, run=run, group=event.group, generation=event.generation, rank=event.rank, node=node,
        incident="", text=event.text,
    )  # fmt: skip


def label(group: int, generation: int, rank: int | None) -> str:
    """Returns the name of a rank before its lines: `g1.gen2.r0`."""
    return f"g{group}.gen{generation}.r{rank}"


def render(entry: Entry) -> str:
    """Renders one terminal line. Times are in UTC, as in `incidents` and `explain`, whatever zone the log uses."""
    at = f"{datetime.fromtimestamp(entry.t, UTC):%H:%M:%S}.{int(entry.t % 1 * 10)}Z"
    if entry.what == "incident":
        return f"{at} **** group {entry.group}: {entry.text}"
    if entry.what == "line":
        return f"{at} {label(entry.group, entry.generation, entry.rank)} | {entry.text}"
    mark = "====" if entry.what == "end" else "----"
    who = f"group {entry.group} generation {entry.generation} rank {entry.rank} on {entry.node}"
    return f"{at} {mark} {who} {entry.text}"
