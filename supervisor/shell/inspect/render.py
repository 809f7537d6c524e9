"""Renders runs, nodes and incidents as tables for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from supervisor.core.model.incident import Incident
from supervisor.core.report import explain
from supervisor.core.report.durations import incident_s
from supervisor.core.report.words import say
from supervisor.shell.control.cordons import failure
from supervisor.shell.inspect.pools import PoolNodeStatus, PoolStatus
from supervisor.shell.inspect.specs import RunLine
from supervisor.shell.inspect.status import GroupStatus, NodeStatus, RunStatus
from supervisor.shell.web.terminal import lasted

_COLOUR = {"running": "green", "starting": "yellow", "placing": "yellow", "fencing": "yellow", "finished": "cyan"}


CLOCKS_S = 5.0
"""Synchronized clocks of machines differ by less."""


def run(status: RunStatus, now: float) -> RenderableType:
    """Renders a run: two lines for the whole, a row for each group, then problems. `now`: the wall clock."""
    state = status.phase + (" (paused)" if status.paused else "")
    state += f", to go on by spec {status.next_spec}" if status.next_spec else ""
    head = Text.assemble(
        ("run ", "dim"), (status.run, "bold"), ("  ", ""), (state, "bold"), *_step(status),
        _ago(status.stepped_unix_s, now), "\n",
        ("leader ", "dim"), status.leader or "none", ("  epoch ", "dim"), str(status.epoch),
        ("  lighthouse ", "dim"), str(status.lighthouse),
    )  # fmt: skip
    titles = ("group", "phase", "node", "generation", "step", "loss", "s/step", "quorum", "size", "gate")
    rows = [
        (
            str(g.group),
            Text(g.phase + (f" ({g.incident})" if g.incident else ""), _COLOUR.get(g.phase, "")),
            g.where or "-",
            str(g.generation),
            *(_training(g) if g.quorum_id >= 0 else ["-"] * 5),
            g.hearing,
        )
        for g in status.groups
    ]
    spares = ", ".join(status.spares) or "none"
    left = ", ".join(f"{k} {v}" for k, v in status.budgets_left.items())
    checkpoint = "none yet" if status.checkpoint_step is None else f"step {status.checkpoint_step}"
    lines: list[RenderableType] = [
        head,
        *_columns(titles, rows, numbers=("group", "generation", "step", "loss", "s/step", "quorum", "size")),
        Text(f"spares {spares}; checkpoint {checkpoint}; budgets left: {left}", "dim"),
    ]
    if status.code:
        lines.append(Text(status.code, "dim"))
    if status.resumed:
        lines.append(Text(f"started from {status.resumed}", "dim"))
    lines += [Text(f"group {g.group} {g.healing}", "dim") for g in status.groups if g.healing]
    if status.page:
        lines.append(Text(f"page {status.page}", "dim"))
    lines += [Text(f"cordoned {host}: {why}", "yellow") for host, why in status.cordons.items()]
    lines += [Text(f"leaving {node}: {why}", "yellow") for node, why in status.leaving.items()]
    if status.handover_at_step is not None:
        lines.append(
            Text(f"handing over: all groups end after step {status.handover_at_step}, and continue elsewhere", "yellow")
        )
    lines += [Text(sentence, "yellow") for sentence in status.waiting]
    if status.halt_reason:
        lines.append(Text(f"halted: {status.halt_reason}", "bold red"))
    lines += [Text(f"warning: {warning}", "bold yellow") for warning in status.warnings]
    lines += [Text(f"cannot be read, left alone: {problem}", "red") for problem in status.problems]
    return Group(*lines)


def _training(g: GroupStatus) -> tuple[str, ...]:
    loss = "-" if g.loss is None else f"{g.loss:.3f}"
    return str(g.step), loss, f"{g.step_s:.2f}", str(g.quorum_id), str(g.participants)


def _step(status: RunStatus) -> tuple[tuple[str, str] | str, ...]:
    return (("  step ", "dim"), str(status.step)) if status.reports_steps else (("  last output", "dim"),)


def _ago(unix_s: float, now: float) -> str:
    if not unix_s:
        return ""
    if unix_s > now + CLOCKS_S:
        return f", at {datetime.fromtimestamp(unix_s, UTC):%H:%M:%S} UTC by a node's clock that is ahead of this one"
    return f", {lasted(max(0.0, now - unix_s))} ago"


def nodes(found: Sequence[NodeStatus]) -> RenderableType:
    """Renders a row for each node, with what runs there and its problems below. At the end come facts on their
    machines, each once with its nodes."""
    titles = ("node", "agent", "role", "address", "allocation", "warm", "disk free", "memory free")
    rows = [
        (
            _named(n),
            Text("alive", "green") if n.alive else Text("silent" if n.node else "-", "red"),
            n.role or "-",
            n.address or "-",
            (n.allocation or "-") + (f" ({n.lent_to})" if n.lent_to else ""),
            n.warm + (f", {n.standbys} built" if n.standbys else ""),
            _gib(n.disk_free_bytes),
            _gib(n.memory_available_bytes),
        )
        for n in found
    ]
    head, *others = _columns(titles, rows, numbers=("disk free", "memory free"))
    lines = [head]
    for line, n in zip(others, found, strict=True):
        lines += [line, *(Text(f"    {said}" if n.alive else f"    last reported: {said}") for said in n.runs)]
        lines += [Text(f"    {said}", "yellow") for said in (*_kept_away(n), *n.problems)]
    holds: dict[str, list[str]] = {}
    for n in found:
        for fact in n.facts:
            holds.setdefault(fact, []).append(_named(n))
    return Group(*lines, *(Text(f"{', '.join(on)}: {fact}", "yellow") for fact, on in holds.items()))


def pools(found: Sequence[PoolStatus], now: float) -> RenderableType:
    """Renders a row for each pool. `now`: the wall clock."""
    if not found:
        return "no pools: supervisor hold --nodes 4 makes one"
    titles = ("pool", "phase", "engine", "nodes", "used by", "idle since (UTC)", "ends (UTC)")
    rows = [
        (
            p.pool,
            p.phase,
            p.engine,
            _there(p),
            ", ".join(f"{run} ({count})" for run, count in sorted(p.used_by.items())) or "-",
            _at(p.idle_since_unix_s, now),
            _at(p.ends_unix_s, now),
        )
        for p in found
    ]
    return Group(*_columns(titles, rows))


def pool(status: PoolStatus, now: float) -> RenderableType:
    """Renders one pool: its row, a row for each of its nodes, then what it waits for and warnings."""
    titles = ("node", "host", "allocation", "state", "used by")
    rows = [(n.node or "-", n.host or "-", n.allocation, n.state, _user(n)) for n in status.nodes]
    lines: list[RenderableType] = [pools([status], now), "", *_columns(titles, rows)]
    lines += [Text(status.code, "dim")] if status.code else []
    lines += [Text(f"cordoned {host}: {why}", "yellow") for host, why in status.cordons.items()]
    lines += [Text(f"leaving {node}: {why}", "yellow") for node, why in status.leaving.items()]
    lines += [Text(sentence, "yellow") for sentence in status.waiting]
    lines += [Text(f"warning: {warning}", "bold yellow") for warning in status.warnings]
    lines += [Text(f"cannot be read, left alone: {problem}", "red") for problem in status.problems]
    return Group(*lines)


def _user(node: PoolNodeStatus) -> str:
    return node.run or (f"the mesh of {node.mesh}" if node.mesh else "-")


def _there(status: PoolStatus) -> str:
    there = sum(n.state == "granted" for n in status.nodes)
    return str(status.wanted) if there == status.wanted or not status.nodes else f"{there} of {status.wanted}"


def _at(unix_s: float | None, now: float) -> str:
    if unix_s is None:
        return "-"
    return f"{_instant(unix_s)} ({lasted(abs(now - unix_s))} {'ago' if unix_s <= now else 'left'})"


def _named(n: NodeStatus) -> str:
    return n.node if n.host == n.node else f"{n.node or 'no node'} on {n.host}"


def _kept_away(n: NodeStatus) -> list[str]:
    """Returns why the node is left, and why nothing is placed there; only once, if a person's drain is both."""
    found = [f"leaving: {n.leaving}"] if n.leaving else []
    found += [f"being checked ({n.check.why})"] if n.alive and n.check and n.check.state == "pending" else []
    said = failure(n.check) if n.alive and n.check is not None else ""
    found += [f"given no group: {said}"] if said and said != n.cordon else []
    return found + ([f"cordoned: {n.cordon}"] if n.cordon and n.cordon != n.leaving else [])


def runs(found: Sequence[RunLine]) -> RenderableType:
    """Renders the list of runs."""
    if not found:
        return "no runs: start one with `supervisor launch RUN.toml`"
    rows = [
        (
            line.run,
            Text(line.phase, _COLOUR.get(line.phase, "")),
            f"{line.spec}" + (f" -> {line.next_spec}" if line.next_spec else ""),
            str(line.groups),
            "none yet" if line.checkpoint_step is None else f"step {line.checkpoint_step}",
            _instant(line.launched_unix_s),
            line.run_dir,
        )
        for line in found
    ]
    titles = ("run", "phase", "spec", "groups", "checkpoint", "launched (UTC)", "folder")
    return Group(*_columns(titles, rows, numbers=("groups",)))


def incidents(
    found: Sequence[Incident], seen: Mapping[str, float | None] | None = None, stood: Sequence[tuple[float, float]] = ()
) -> RenderableType:
    """Renders two lines for each incident, within 80 columns; the costs are left to `explain`. `seen`: when each was
    detected, by id, in Unix seconds; None omits that column. `stood` as in Account.stood."""
    rows: list[tuple[str, ...]] = [("id", "seen (UTC)", "kind", "group", "node", "state", "lasted")]
    for i in found:
        seconds = incident_s(i, stood)
        at = _instant((seen or {}).get(i.id))
        rows.append(
            (i.id, at, i.kind.value, str(i.group), i.node or "-", i.state, "-" if seconds is None else lasted(seconds))
        )
    if seen is None:
        rows = [(row[0], *row[2:]) for row in rows]
    head, *others = _columns(rows[0], rows[1:])
    lines = [head]
    for line, i in zip(others, found, strict=True):
        rung = f"rung {i.rung.value} {i.rung.name.lower()}" + (" (shadow)" if i.shadow else "")
        told = f"{rung}, generation {i.generation_before} -> {i.generation_after}: {say(i.reason)}"
        if i.decided is None and not i.shadow:
            told = explain.not_done(i) or told
        lines += [line, Text(f"    {told}")]
    return Group(*lines)


def _columns(titles: Sequence[str], rows: Sequence[Sequence[str | Text]], numbers: Collection[str] = ()) -> list[Text]:
    """Returns the lines of a table, titles first; `numbers` names the right-aligned columns. Rich's own tables cut what
    is wider than the terminal, but a reader needs a node's whole name."""
    cells = [[Text(title, "bold") for title in titles], *([Text.assemble(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        for title, cell, width in zip(titles, row, widths, strict=True):
            cell.align("right" if title in numbers else "left", width)
    lines = [Text("  ").join(row) for row in cells]
    for line in lines:
        line.rstrip()
    return lines


def _instant(unix_s: float | None) -> str:
    return "-" if unix_s is None else f"{datetime.fromtimestamp(unix_s, UTC):%m-%d %H:%M:%S}"


def shadows(
    found: Sequence[Incident], seen: Mapping[str, float | None] | None = None, stood: Sequence[tuple[float, float]] = ()
) -> RenderableType:
    """Renders what would have been done, and how much of it was not needed. Arguments as in `incidents`."""
    if not found:
        return "no shadow incidents: no failure was only observed (policy.mode, policy.observe)"
    lines = [
        f"{len(found)} would have been acted on, {_by_itself(found)} recovered by themselves, {_open(found)} still open"
    ]
    for kind in sorted({i.kind.value for i in found}):
        of_kind = [i for i in found if i.kind.value == kind]
        lines.append(f"  {kind}: {len(of_kind)}, {_by_itself(of_kind)} by themselves, {_open(of_kind)} still open")
    return Group(incidents(found, seen, stood), "", *lines)


def _by_itself(found: Sequence[Incident]) -> int:
    return sum(i.state == "recovered" for i in found)


def _open(found: Sequence[Incident]) -> int:
    return sum(i.state == "open" for i in found)


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**30:.1f} GiB"
