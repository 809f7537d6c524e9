"""Commands that change nothing. Each imports what it needs, most of it only after etcd has answered."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from supervisor.cli.common import (
    HOME,
    Etcd,
    Home,
    Json,
    Name,
    Run,
    SecurityFile,
    duration_option,
    one_name,
    opened_mirror,
    opened_store,
    seconds_of,
    sentences,
    show,
    text_option,
)
from supervisor.shell.dev.home import endpoints_of, security_of, system_folder
from supervisor.wire import command_line, keys
from supervisor.wire.printer import Printer, print_block, print_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.shell.inspect import remote_logs
    from supervisor.shell.inspect.logs import HookTail, LogTail, SupervisorTail
    from supervisor.shell.inspect.merged_log import Joined

commands = command_line.commands()


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(commands)


FOLLOW_S = 0.25
"""Seconds between two looks of `logs --follow`."""


@commands.command("status", epilog="Example: supervisor status demo --json")
def status_command(
    name: Name = "",
    run: Run = "",
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:
    """Show a run's groups, steps, loss, quorum and budgets. Also shows spares, problems, and what the run waits for. Of a
    pool, shows its nodes and who uses them."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import client, pools, render, status

        mirror = Mirror(store.list(keys.PREFIX))
        if pool := pools.named(mirror, one_name(name, run)):
            of_pool = pools.pool_status(mirror, pool, status.alarms(store))
            show(of_pool, as_json, render.pool(of_pool, time.time()))
            return
        found = status.status_now(store, mirror, client.choose_run(mirror, one_name(name, run)))
        show(found, as_json, render.run(found, time.time()))


@commands.command("top", epilog="Example: supervisor top demo")
def top_command(
    name: Name = "", run: Run = "", etcd: Etcd = "", home: Home = HOME, security: SecurityFile = ""
) -> None:
    """Show a run live in the terminal. Shows first if it trains and if a person must act; then groups, incidents, nodes and
    budgets. Ctrl-C ends it. In a pipe, it prints once."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.signals import ended_by_signals
        from supervisor.shell.web import top

        with ended_by_signals():
            top.top(store, one_name(name, run), Printer())


@commands.command(epilog="Example: supervisor nodes --json")
def nodes(etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "", as_json: Json = False) -> None:
    """List the nodes, their health and what runs on them."""
    with opened_mirror(etcd, home, security) as mirror:
        from supervisor.shell.inspect import render, status

        found = status.node_status(mirror)
        show(found, as_json, render.nodes(found))


@commands.command(epilog="Example: supervisor incidents demo --shadow")
def incidents(
    name: Name = "",
    run: Run = "",
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow", help="List only what observe mode (policy.mode) would have done, and how each failure ended."
        ),
    ] = False,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:
    """List a run's failures: what was done, and why."""
    with opened_mirror(etcd, home, security) as mirror:
        from supervisor.shell.inspect import client, incident_times, render, status

        record = client.choose_run(mirror, one_name(name, run))
        found = client.incidents(mirror, record.spec.name)
        if shadow:
            found = [incident for incident in found if incident.shadow]
        account = status.account(mirror, record.spec.name)
        times = incident_times.times(found, account, Path(record.run_dir) / "journal.jsonl")
        told = [{**status.as_json(i), **asdict(times[i.id])} for i in found]
        seen = {name: of.seen_unix_s for name, of in times.items()}
        table = render.shadows if shadow else render.incidents
        show(told, as_json, table(found, seen, account.stood))


@commands.command(
    epilog="Example: supervisor explain i2 --run demo. Exit code 0: the decision would be the same today; 1: it would differ, or is unknown."
)
def explain(
    incident: Annotated[str, typer.Argument(metavar="INCIDENT", help="Id, as `supervisor incidents` prints it.")],
    run: Run = "",
    journal: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read this journal instead of etcd, for a run whose etcd is gone."),
    ] = None,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:
    """Explain an incident: what was seen and done, and why. Also shows the times, the alternatives, and if the same decision
    would be made today."""
    from rich.text import Text

    from supervisor.shell.inspect import client
    from supervisor.shell.inspect import decision_replay as why_module

    if journal is not None and run:
        raise typer.BadParameter("a journal holds one run: leave out --run", param_hint="--run")
    with sentences():
        if journal is not None:
            told = why_module.of_journal_file(journal, incident)
        else:
            with opened_mirror(etcd, home, security) as mirror:
                record = client.choose_run(mirror, run)
                told = why_module.of_run(mirror, record, client.incidents(mirror, record.spec.name), incident)
    show(why_module.as_json(told), as_json, Text(str(told)))
    if not told.same:
        raise typer.Exit(1)


@commands.command("logs", epilog="Example: supervisor logs demo --group 1 --since 10m --grep loss")
def logs_command(
    name: Name = "",
    run: Run = "",
    group: Annotated[int | None, typer.Option(help="Show only this group.")] = None,
    rank: Annotated[
        int | None,
        typer.Option(help="Rank within the group. Default: 0; with --follow, or from the nodes, all ranks."),
    ] = None,
    lines: Annotated[
        int,
        typer.Option(
            "--lines", "--tail", "-n", min=1, max=100_000,
            help="Lines of each log; with --follow, or from the nodes, of all logs together.",
        ),
    ] = 20,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Follow all ranks and generations as one log, with process ends and incidents, until Ctrl-C.",
        ),
    ] = False,
    hooks: Annotated[bool, typer.Option("--hooks", help="Show the output of the run's hooks instead.")] = False,
    remote: Annotated[
        bool, typer.Option("--remote", help="Ask the nodes, also where this machine has the logs.")
    ] = False,
    since: Annotated[
        str, typer.Option(metavar="TIME", callback=duration_option, help="Only lines of the last 90s, 10m, 2h or 1d; asks the nodes.")
    ] = "",
    grep: Annotated[
        str, typer.Option(metavar="TEXT", callback=text_option, help="Only lines that have this text; asks the nodes.")
    ] = "",
    supervisor: Annotated[
        bool, typer.Option("--supervisor", help="Show the log of the supervisor of this machine instead.")
    ] = False,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Print the newest lines of the trainers' logs. Reads the logs on this machine; each group's newest generation comes
    last. Where this machine has none it asks the nodes, and merges the lines of all ranks by time."""
    asks = remote or bool(since) or bool(grep)
    if (wrong := _together(hooks, follow, supervisor, asks, group is not None or rank is not None)) is not None:
        print_line(f"supervisor: {wrong}", err=True)
        raise typer.Exit(2)
    if supervisor:
        _supervisors_log(home, lines, as_json)
        return
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import client, logs, merged_log, remote_logs

        mirror = Mirror(store.list(keys.PREFIX))
        record = client.choose_run(mirror, one_name(name, run))
        client.require(record, group, rank)
        name, system = record.spec.name, logs.kept_in(home)
        if not (hooks or follow) and (asks or not logs.tails(system, name, group, rank or 0, 1)):
            wish = remote_logs.Wish(run=name, group=group, rank=rank, lines=lines, since_s=seconds_of(since), grep=grep)
            _from_nodes(remote_logs.read(store, mirror, wish), wish, as_json)
            return
    if follow:
        _follow(merged_log.Joined(system, name, Path(record.run_dir), group, rank), lines, as_json)
        return
    of_ranks = logs.tails(system, name, group, rank or 0, lines)
    found: Sequence[LogTail | HookTail] = logs.of_hooks(system, name, lines) if hooks else of_ranks
    if not found:
        _no_logs(name, home)
    _print_tails(found, as_json)


def _together(hooks: bool, follow: bool, supervisor: bool, asks: bool, chosen: bool) -> str | None:
    """Returns why these options exclude each other; None if they do not."""
    if hooks and (follow or chosen):
        return "--hooks takes neither --follow nor --group nor --rank: a hook is of a node"
    if (hooks or follow) and asks:
        return "--follow and --hooks read the logs on this machine: leave out --remote, --since and --grep"
    if supervisor and (hooks or follow or chosen or asks):
        return "--supervisor is the supervisor's own log, on this machine: only --lines and --json go with it"
    return None


def _supervisors_log(home: Path, lines: int, as_json: bool) -> None:
    from supervisor.shell.inspect import logs

    found = logs.of_supervisors(logs.kept_in(home), lines)
    if not found:
        print_line(
            f"supervisor: no log of a supervisor below {home}: look on the machine that `supervisor status` names as "
            "leader, with its --home",
            err=True,
        )
        raise typer.Exit(1)
    _print_tails(found, as_json)


def _from_nodes(found: remote_logs.Found, wish: remote_logs.Wish, as_json: bool) -> None:
    from supervisor.shell.inspect import merged_log, remote_logs, status

    for node, why in found.missing.items():
        print_line(f"supervisor: {node}: {why}", err=True)
    if as_json:
        print_line(json.dumps([status.as_json(entry) for entry in found.entries], indent=2))
    for entry in [] if as_json else found.entries:
        print_line(merged_log.render(entry))
    if not found.entries:
        print_line(f"supervisor: {remote_logs.none_found(wish)}", err=True)
        raise typer.Exit(1)


def _print_tails(found: Sequence[LogTail | HookTail | SupervisorTail], as_json: bool) -> None:
    from supervisor.shell.inspect import logs

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


def _with_lines(tail: LogTail | HookTail | SupervisorTail) -> dict[str, Any]:
    names = ("node", "group", "generation", "rank", "hook", "path")
    about = {name: getattr(tail, name) for name in names if hasattr(tail, name)}
    return {**about, "lines": list(tail.lines())}


def _no_logs(name: str, home: Path) -> NoReturn:
    from supervisor.shell.inspect import logs

    print_line(f"supervisor: {logs.none_below(home, name)}", err=True)
    raise typer.Exit(1)


def _follow(log: Joined, lines: int, as_json: bool) -> None:
    from supervisor.shell.inspect import merged_log, status

    entries = log.new()[-lines:]
    if log.empty:
        _no_logs(log.run, log.system.parent)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            for entry in entries:
                print_line(json.dumps(status.as_json(entry)) if as_json else merged_log.render(entry))
            if not log.behind:
                threading.Event().wait(FOLLOW_S)
            entries = log.new()


@commands.command("doctor", epilog="Example: supervisor doctor")
def doctor_command(etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "", as_json: Json = False) -> None:
    """Check this machine and the live system for problems. Each finding says what to do."""
    from supervisor.shell.inspect import doctor

    findings = doctor.examine(etcd or endpoints_of(home), home, security or security_of(home))
    show(findings, as_json, doctor.render(findings))
    if any(f.level == "bad" for f in findings):
        raise typer.Exit(1)


@commands.command("support-bundle", epilog="Example: supervisor support-bundle demo --out demo.tar.gz")
def support_bundle(
    name: Name = "",
    run: Run = "",
    out: Annotated[Path, typer.Option(help="The archive to write.")] = Path("support-bundle.tar.gz"),
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Pack a run's state, journal and logs into an archive. It holds no secrets, so it can be shared."""
    with opened_mirror(etcd, home, security) as mirror:
        from supervisor.shell.inspect import bundle, client

        record = client.choose_run(mirror, one_name(name, run))
        members = bundle.write(out, mirror, record, system_folder(home))
    print_line(f"wrote {out} ({out.stat().st_size // 1024} KiB, {members} files)")
