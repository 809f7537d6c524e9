"""Commands that only look."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text

from supervisor.cli.common import (
    HOME,
    Etcd,
    Home,
    Json,
    Run,
    SecurityFile,
    app,
    opened_mirror,
    opened_store,
    sentences,
    show,
)
from supervisor.core.lasted import incident_s, wall_clock
from supervisor.core.model import Incident
from supervisor.shell import bundle, client, doctor, joined, logs, render, status, top
from supervisor.shell import up as up_module
from supervisor.shell import why as why_module
from supervisor.shell.mirror import Mirror
from supervisor.shell.signals import ended_by_signals
from supervisor.wire import keys
from supervisor.wire.printer import Printer, print_block, print_line

FOLLOW_S = 0.25
"""How often `logs --follow` looks."""


@app.command("status", epilog="Example: supervisor status --run demo --json")
def status_command(
    run: Run = "", etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "", as_json: Json = False
) -> None:
    """How the run does: groups, steps, loss, quorum, spares, budgets."""
    with opened_store(etcd, home, security) as store:
        found = status.overview(Mirror(store.list(keys.PREFIX)), run)
        found = replace(found, warnings=(*status.alarms(store), *found.warnings))
        show(found, as_json, render.run(found, time.time()))


@app.command("top", epilog="Example: supervisor top --run demo")
def top_command(run: Run = "", etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """Live in a terminal, until Ctrl-C: whether it trains, whether a person has to get up, groups, incidents, nodes, budgets. Into
    a pipe: once."""
    with opened_store(etcd, home, security) as store, ended_by_signals():
        top.top(store, run, Printer())


@app.command(epilog="Example: supervisor nodes --json")
def nodes(etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "", as_json: Json = False) -> None:
    """The nodes, what runs on them and how they are."""
    with opened_mirror(etcd, home, security) as mirror:
        found = status.node_status(mirror)
        show(found, as_json, render.nodes(found))


@app.command(epilog="Example: supervisor incidents --run demo --shadow")
def incidents(
    run: Run = "",
    shadow: Annotated[
        bool,
        typer.Option("--shadow", help="Only what would have been done (policy.mode = observe), and what came of it."),
    ] = False,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:
    """Every failure so far, what was done and why."""
    with opened_mirror(etcd, home, security) as mirror:
        record = client.choose_run(mirror, run)
        found = client.incidents(mirror, record.spec.name)
        if shadow:
            found = [incident for incident in found if incident.shadow]
        account = status.account(mirror, record.spec.name)
        seen: dict[str, float | None] = {**why_module.seen(Path(record.run_dir) / "journal.jsonl")}
        if account.clocks:
            seen = {i.id: wall_clock(i.opened, account.clocks) for i in found}
        told = [
            {
                **status.as_json(i),
                "seen_unix_s": seen.get(i.id),
                "recovered_unix_s": wall_clock(i.recovered, account.clocks) if i.recovered is not None else None,
                "lasted_s": incident_s(i, account.stood),
            }
            for i in found
        ]
        table = render.shadows if shadow else render.incidents
        show(told, as_json, table(found, seen, account.stood))


@app.command(
    epilog="Example: supervisor explain i2 --run demo. Exit code 0: decide gives the same answer today; 1: another, or not known."
)
def explain(
    incident: Annotated[str, typer.Argument(metavar="INCIDENT", help="Its id, as `supervisor incidents` prints it.")],
    run: Run = "",
    journal: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read this journal alone, and no etcd: of a run whose etcd is gone."),
    ] = None,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:
    """One incident in plain words: what was seen and done, when, why, what else was considered; and whether the same would be
    done today."""
    if journal is not None and run:
        raise typer.BadParameter("a journal is of one run: leave --run out", param_hint="--run")
    with sentences():
        if journal is not None:
            found = _named(incident, why_module.incidents(journal), f"the journal {journal}")
            told = why_module.why(found, journal)
        else:
            with opened_mirror(etcd, home, security) as mirror:
                record = client.choose_run(mirror, run)
                known = {i.id: i for i in client.incidents(mirror, record.spec.name)}
                digests = why_module.digests(mirror, record.spec.name, incident)
                stood = status.account(mirror, record.spec.name).stood
            found = _named(incident, known, f"run {record.spec.name}")
            told = why_module.why(found, Path(record.run_dir) / "journal.jsonl", digests, stood)
    show(why_module.as_json(told), as_json, Text("\n".join(why_module.page(told))))
    if not told.same:
        raise typer.Exit(1)


def _named(incident: str, known: dict[str, Incident], where: str) -> Incident:
    if incident not in known:
        print_line(f"supervisor: {where} has no incident {incident!r}; known: {', '.join(known) or 'none'}", err=True)
        raise typer.Exit(1)
    return known[incident]


@app.command("logs", epilog="Example: supervisor logs -f --group 1 --lines 50")
def logs_command(
    run: Run = "",
    group: Annotated[int | None, typer.Option(help="Only this group.")] = None,
    rank: Annotated[int | None, typer.Option(help="Rank within the group. Default: 0; with --follow all.")] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, help="Lines of each log; with --follow of all together.")
    ] = 20,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="All ranks in one log, across generations, with ends and incidents; until interrupted.",
        ),
    ] = False,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:
    """The newest lines that the trainers of this machine printed, newest generation of each group last."""
    with opened_mirror(etcd, home, security) as mirror:
        record = client.choose_run(mirror, run)
        client.require(record, group, rank)
    name, system = record.spec.name, logs.kept_in(home)
    if follow:
        _follow(joined.Joined(system, name, Path(record.run_dir), group, rank), lines, as_json)
        return
    found = logs.tails(system, name, group, rank or 0, lines)
    if not found:
        _no_logs(name, home)
    if as_json:
        show([_with_lines(tail) for tail in found], True, None)
        return
    for tail in found:
        print_line(logs.head(tail))
        end = "\n"
        for block in filter(None, tail.text()):
            print_block(block)
            end = block[-1]
        if end != "\n":
            print_line("")


def _with_lines(tail: logs.LogTail) -> dict[str, Any]:
    about = {name: getattr(tail, name) for name in ("node", "group", "generation", "rank", "path")}
    return {**about, "lines": list(tail.lines())}


def _no_logs(name: str, home: Path) -> NoReturn:
    print_line(
        f"supervisor: no logs of run {name} below {home}: they are on the nodes that ran it, each in its agent's --home",
        err=True,
    )
    raise typer.Exit(1)


def _follow(log: joined.Joined, lines: int, as_json: bool) -> None:
    entries = log.new()[-lines:]
    if log.empty:
        _no_logs(log.run, log.system.parent)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            for entry in entries:
                print_line(json.dumps(status.as_json(entry)) if as_json else joined.render(entry))
            if not log.behind:
                threading.Event().wait(FOLLOW_S)
            entries = log.new()


@app.command("doctor", epilog="Example: supervisor doctor")
def doctor_command(etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "", as_json: Json = False) -> None:
    """Check this machine and the live system, and say what to do about each finding."""
    endpoints = etcd or up_module.endpoints_of(home)
    findings = doctor.examine(endpoints, home, security or up_module.security_of(home))
    show(findings, as_json, doctor.render(findings))
    if any(f.level == "bad" for f in findings):
        raise typer.Exit(1)


@app.command("support-bundle", epilog="Example: supervisor support-bundle --run demo --out demo.tar.gz")
def support_bundle(
    run: Run = "",
    out: Annotated[Path, typer.Option(help="The archive to write.")] = Path("support-bundle.tar.gz"),
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """One archive with state, journal and logs, without secrets, to send to somebody."""
    with opened_mirror(etcd, home, security) as mirror:
        record = client.choose_run(mirror, run)
        members = bundle.write(out, mirror, record, up_module.system_folder(home))
    print_line(f"wrote {out} ({out.stat().st_size // 1024} KiB, {members} files)")
