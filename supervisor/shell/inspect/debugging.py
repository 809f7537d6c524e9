"""Ranks that stand in the debugger: which, and the way to talk to one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from supervisor.core.evidence.error_text import printable
from supervisor.ports.errors import Fatal
from supervisor.ports.store import Store
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import asking
from supervisor.wire import keys
from supervisor.wire.node_requests import NodeRequest
from supervisor.wire.person import who
from supervisor.wire.records import NodeObserved

LIMIT_S = 30.0
"""Seconds for one command of the debugger; what takes longer goes on, and the next look shows its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A rank that stands in the debugger."""

    run: str
    group: int
    rank: int
    generation: int
    node: str
    function: str
    file: str
    line: int
    since_unix_s: float
    """Unix seconds, by its node's clock."""

    @property
    def name(self) -> str:
        """GROUP.RANK, as the commands take it."""
        return f"{self.group}.{self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The debugger's answer to one command."""

    output: str
    stopped: bool
    """False: the rank goes on, or has ended."""
    error: str = ""


def stopped(mirror: Mirror, run: str) -> list[Stopped]:
    """Returns the ranks of a run that stand in the debugger, by group and rank."""
    found = []
    for node in mirror.nodes():
        seen = mirror.record(keys.observed(node), NodeObserved)
        for trainer in seen.trainers if seen is not None else ():
            at = trainer.progress.debugging if trainer.progress is not None else None
            if trainer.run == run and trainer.state != "exited" and at is not None:
                found.append(
                    Stopped(
                        run=run, group=trainer.group, rank=trainer.rank, generation=trainer.generation, node=node,
                        function=printable(at.function), file=printable(at.file), line=at.line,
                        since_unix_s=at.since_unix_s,
                    )
                )  # fmt: skip
    return sorted(found, key=lambda each: (each.group, each.rank))


def sentences(mirror: Mirror, run: str, others_wait: bool) -> tuple[str, ...]:
    """Returns a sentence for each of them, for the status of its run."""
    others = "wait for it" if others_wait else "go on without its group"
    return tuple(
        f"group {each.group}: a person has rank {each.rank} in the debugger, in {each.function} "
        f"({PurePath(each.file).name}:{each.line}) on {each.node}; the others {others}: "
        f"supervisor debug {run} attach {each.name}"
        for each in stopped(mirror, run)
    )


def table(found: Sequence[Stopped]) -> RenderableType:
    """Renders a row for each."""
    if not found:
        return Text("no rank is stopped in the debugger")
    made = Table(box=None, pad_edge=False)
    for title in ("run", "rank", "node", "where", "since"):
        made.add_column(title, overflow="fold")
    for each in found:
        where = f"{each.function} ({each.file}:{each.line})"
        made.add_row(each.run, each.name, each.node, where, _instant(each.since_unix_s))
    return made


def _instant(unix_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S}Z"
    except (OverflowError, OSError, ValueError):  # a node may report any number
        return "unknown"


def chosen(found: Sequence[Stopped], names: str) -> list[Stopped]:
    """Returns the stopped ranks of a list such as `0.0,1.2`, or all for an empty list or `all`. Raises Fatal if one of
    them is not stopped, or none is."""
    if not found:
        raise Fatal("no rank is stopped in the debugger")
    if names in ("", "all"):
        return list(found)
    wanted = names.split(",")
    by_name = {each.name: each for each in found}
    for name in wanted:
        if not re.fullmatch(r"\d+\.\d+", name):
            raise Fatal(f"{name!r} is no rank: give GROUP.RANK, as in 0.1, several by commas, or `all`")
        if name not in by_name:
            raise Fatal(f"rank {name} is not stopped in the debugger; stopped: {', '.join(by_name)}")
    return [by_name[name] for name in wanted]


def tell(store: Store, mirror: Mirror, at: Stopped, line: str | None) -> Reply:
    """Gives the debugger of a rank a line, or (None) looks at its output. Raises PortError if etcd is away."""
    request = NodeRequest(
        node=at.node, what="debug", by=who(), limit_s=LIMIT_S, run=at.run, group=at.group, rank=at.rank, text=line
    )
    output, goes_on, error = "", False, ""
    with closing(asking.ask(store, mirror, {at.node: request})) as answers:
        for said in answers:
            error = said.error
            for item in said.items:
                output += str(item.get("output", ""))
                goes_on = item.get("stopped") is False
    return Reply(output=output, stopped=not goes_on, error=error)
