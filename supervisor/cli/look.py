"""Commands that change nothing. Each imports what it needs, most of it only after etcd has answered."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from supervisor.cli.common import (
    HOME,
    Etcd,
    Home,
    Json,
    Name,
    Run,
    SecurityFile,
    one_name,
    opened_mirror,
    opened_store,
    sentences,
    show,
)
from supervisor.shell.dev.home import endpoints_of, security_of, system_folder
from supervisor.wire import command_line, keys
from supervisor.wire.printer import Printer, print_line

commands = command_line.commands()


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(commands)


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
