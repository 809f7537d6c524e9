"""Where the ranks of a run are now, as the agents of their nodes read it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from supervisor.ports.store import Store
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import asking
from supervisor.wire.node_requests import Item, NodeRequest
from supervisor.wire.person import who

LIMIT_S = 60.0
"""Seconds that nodes may take to read stacks."""
FRAMES = 4
"""Innermost frames in the table."""


@dataclass(slots=True, kw_only=True)
class RankStacks:
    """The stacks of one rank's threads, the main thread first."""

    group: int
    generation: int
    rank: int
    node: str
    pid: int = 0
    threads: list[dict[str, Any]] = field(default_factory=list)
    """Each has thread (its name), main, holds_lock (the interpreter's), frames (function, file, line; innermost first)."""
    unknown: str = ""
    """Why they are not known; empty: they are."""
    answered: bool = False


def read(
    store: Store, mirror: Mirror, run: str, group: int | None, rank: int | None, limit_s: float
) -> list[RankStacks]:
    """Asks for the stacks of all running ranks, ordered by group and rank. Raises PortError."""
    found = {key: RankStacks(group=key[0], generation=gen, rank=key[1], node=node, unknown="no answer")
             for key, (node, gen) in asking.ranks(mirror, run, group, rank).items()}  # fmt: skip
    nodes = {each.node for each in found.values()}
    requests = {
        node: NodeRequest(node=node, what="stacks", by=who(), limit_s=limit_s, run=run, group=group, rank=rank)
        for node in nodes
    }
    with closing(asking.ask(store, mirror, requests)) as answers:
        for said in answers:
            try:
                for item in said.items:
                    _take(found, said.node, item)
            except (KeyError, TypeError, ValueError):
                _miss(found, said.node, asking.NOT_READ)
            if said.last:
                _miss(found, said.node, said.error or "it does not run there any more")
    return [found[key] for key in sorted(found)]


def _take(found: dict[tuple[int, int], RankStacks], node: str, item: Item) -> None:
    key = int(item["group"]), int(item["rank"])
    known = found.get(key)
    if known is None or known.node != node or known.generation > item["generation"]:
        return
    unknown = str(item.get("unknown", ""))
    thread = {name: item[name] for name in ("thread", "main", "holds_lock", "frames")} if not unknown else None
    known.answered = True
    known.generation, known.pid, known.unknown = int(item["generation"]), int(item.get("pid", 0)), unknown
    if thread is not None:
        known.threads.insert(0 if thread["main"] else len(known.threads), thread)


def _miss(found: dict[tuple[int, int], RankStacks], node: str, why: str) -> None:
    for each in found.values():
        if each.node == node and not each.answered:
            each.unknown, each.answered = why, True


def table(found: Sequence[RankStacks]) -> RenderableType:
    """Renders a row for each rank: the innermost calls of its main thread."""
    made = Table(box=None, pad_edge=False)
    for title in ("rank", "node", "where"):
        made.add_column(title, overflow="fold")
    for each in found:
        made.add_row(f"g{each.group}.gen{each.generation}.r{each.rank}", each.node, _where(each))
    return made


def _where(each: RankStacks) -> str:
    if each.unknown or not each.threads:
        return f"unknown: {each.unknown}"
    main = each.threads[0]
    calls = [f"{f['function']} ({PurePath(f['file']).name}:{f['line']})" for f in main["frames"]]
    more = f" < {len(calls) - FRAMES} more" if len(calls) > FRAMES else ""
    held = next((t for t in each.threads if t["holds_lock"] and not t["main"]), None)
    lock = "; it holds the interpreter's lock" if main["holds_lock"] else ""
    other = (
        f"; the thread {held['thread'] or 'without a name'} holds the interpreter's lock" if held is not None else ""
    )
    return (" < ".join(calls[:FRAMES]) or "no Python") + more + lock + other
