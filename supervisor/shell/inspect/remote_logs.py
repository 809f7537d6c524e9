"""Reads the logs of a run's ranks from their nodes, and merges their lines by time."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field

from supervisor.ports.store import Store
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import asking
from supervisor.shell.inspect.merged_log import Entry
from supervisor.wire.node_requests import Item, NodeRequest
from supervisor.wire.person import who

LIMIT_S = 60.0
"""Seconds that a node may take."""


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


@dataclass(slots=True)
class Found:
    """The newest lines, the oldest first, and the nodes that did not give all of theirs, with the reason."""

    entries: list[Entry] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def read(store: Store, mirror: Mirror, wish: Wish) -> Found:
    """Asks every node of the run. Times are those of each node's own clock. Raises PortError."""
    requests = {
        node: NodeRequest(
            node=node, what="logs", by=who(), limit_s=LIMIT_S, run=wish.run, group=wish.group, rank=wish.rank,
            lines=wish.lines, since_s=wish.since_s, grep=wish.grep,
        )
        for node in asking.nodes_of(mirror, wish.run)
    }  # fmt: skip
    found = Found()
    with closing(asking.ask(store, mirror, requests)) as answers:
        for said in answers:
            try:
                found.entries += [_entry(wish.run, said.node, item) for item in said.items]
            except (KeyError, TypeError, ValueError):
                found.missing[said.node] = asking.NOT_READ
            if said.error:
                found.missing[said.node] = said.error
            if said.last:  # a stable sort: lines of one rank keep their order
                found.entries = sorted(found.entries, key=lambda entry: (entry.t, entry.node))[-wish.lines :]
    return found


def none_found(wish: Wish) -> str:
    """Returns the sentence for no line at all."""
    gone = ": the nodes that ran it are gone; their folders may still be on their machines"
    return f"no node has {'such lines' if wish.chosen else 'logs'} of run {wish.run}{'' if wish.chosen else gone}"


def _entry(run: str, node: str, item: Item) -> Entry:
    group, generation, rank = (int(item[name]) for name in ("group", "generation", "rank"))
    return Entry(
        t=float(item["t"]), what="line", run=run, group=group, generation=generation, rank=rank, node=node, incident="",
        text=str(item["text"]),
    )  # fmt: skip
