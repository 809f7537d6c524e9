"""The command line: parses and calls. Exit codes: 0 done, 1 failed, 2 wrong usage."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from supervisor.core.explain import explain as explain_lines
from supervisor.ports.errors import PortError
from supervisor.shell import auth, bundle, client, doctor, failpoints, logs, render, runfile, service, status, views
from supervisor.shell import backup as backups
from supervisor.shell import up as up_module
from supervisor.shell.engines.local import PoolNode
from supervisor.shell.mirror import Mirror
from supervisor.shell.store import EtcdStore, connect
from supervisor.wire import keys
from supervisor.wire.records import Control, RecordError
from supervisor.wire.security import VARIABLE, SecurityError, checked, host_and_port

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
console = Console(soft_wrap=True)


def _endpoints(context: typer.Context, given: str) -> str:
    """Refuses what is no list of endpoints; also an empty one that was written out, as by a script without its variable."""
    source = context.get_parameter_source("etcd")
    if given or (source is not None and source.name == "COMMANDLINE"):
        for endpoint in given.split(","):
            try:
                host_and_port(endpoint)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
    return given


Etcd = Annotated[
    str,
    typer.Option(
        envvar="SUPERVISOR_ETCD",
        callback=_endpoints,
        help="HOST:PORT of etcd, several with commas. Default: that of the `supervisor up` in --home.",
    ),
]
Home = Annotated[Path, typer.Option(envvar="SUPERVISOR_HOME", help="Folder of the runs.")]
Run = Annotated[str, typer.Option("--run", "-r", help="Name of the run. Default: the newest.")]
SecurityFile = Annotated[
    str,
    typer.Option("--security", envvar=VARIABLE, help="The security file (docs/SECURITY.md). Default: that of `up`."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
HOME = Path("runs")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@app.callback()
def _root() -> None:
    """Supervises fault-tolerant pretraining runs of TorchTitan and TorchFT."""


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """A user's mistake or a missing part is a sentence and exit code 1 (2: what was given), never a traceback."""
    try:
        yield
    except (SecurityError, failpoints.FailpointError) as error:
        typer.echo(f"supervisor: {error}", err=True)
        raise typer.Exit(2) from None
    except (PortError, RecordError, views.Unreadable) as error:
        typer.echo(f"supervisor: {error}", err=True)
        raise typer.Exit(1) from None
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        typer.echo(f"supervisor: {error.strerror or error}{where}", err=True)
        raise typer.Exit(1) from None


@contextlib.contextmanager
def _store(etcd: str, home: Path, security: str = "") -> Iterator[EtcdStore]:
    with sentences():
        endpoints = (etcd or up_module.endpoints_of(home) or "127.0.0.1:2379").split(",")
        store = connect(endpoints, security=checked(security or up_module.security_of(home), endpoints))
        try:
            yield store
        finally:
            store.close()


@contextlib.contextmanager
def _mirror(etcd: str, home: Path, security: str = "") -> Iterator[Mirror]:
    with _store(etcd, home, security) as store:
        yield Mirror(store.list(keys.PREFIX))


def _print(value: Any, as_json: bool, table: Any) -> None:
    if as_json:
        typer.echo(json.dumps(status.as_json(value), indent=2))
    else:
        console.print(table)


@app.command(epilog="Example: supervisor up --nodes 4")
def up(
    nodes: Annotated[int, typer.Option(min=1, help="How many local nodes the engine may give.")] = 4,
    etcd: Annotated[
        str,
        typer.Option(
            envvar="SUPERVISOR_ETCD", callback=_endpoints, help="HOST:PORT of an etcd; without it one is started."
        ),
    ] = "",
    home: Home = HOME,
    cold: Annotated[bool, typer.Option("--cold", help="No warm processes: slower starts, less memory.")] = False,
    security: Annotated[
        str,
        typer.Option(envvar=VARIABLE, help="The security file; those of the nodes, node-NAME.toml, are beside it."),
    ] = "",
) -> None:
    """Start etcd (if none is given), a supervisor and a pool of local nodes; stay until Ctrl-C, then end them all."""
    pool = [PoolNode(name=f"n{i + 1}") for i in range(nodes)]

    def say(sentence: str) -> None:
        typer.echo(sentence, err=True)

    with contextlib.ExitStack() as stack:
        stack.enter_context(sentences())
        failpoints.armed()
        checked_file = checked(security, [e for e in etcd.split(",") if e])
        started = stack.enter_context(up_module.up(home, pool, etcd=etcd, cold=cold, security=checked_file, say=say))
        typer.echo(f"up: etcd {started.endpoint}, {nodes} local nodes, folder {home}. Now: supervisor launch RUN.toml")
        up_module.watch_over(started, say)


@app.command(epilog="Example: supervisor run --etcd 10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379")
def run(
    etcd: Annotated[
        str,
        typer.Option(envvar="SUPERVISOR_ETCD", callback=_endpoints, help="HOST:PORT of etcd, several with commas."),
    ],
    home: Annotated[Path, typer.Option(envvar="SUPERVISOR_HOME", help="Folder of the runs, as for `up`.")] = HOME,
    lease_s: Annotated[
        int, typer.Option(min=2, help="A dead leader blocks the standby for this long.")
    ] = service.LEASE_S,
    metrics_address: Annotated[str, typer.Option(help="Where /metrics listens.")] = "127.0.0.1",
    metrics_port: Annotated[int, typer.Option(help="Its port; 0 takes a free one.")] = 0,
    security: SecurityFile = "",
) -> None:
    """One supervisor: leads, or stands by until the leader is gone. `up` starts one for you."""
    with sentences():
        endpoints, metrics = etcd.split(","), (metrics_address, metrics_port)
        read = checked(security, endpoints, [("the metrics port", metrics_address)])
        service.main(endpoints, up_module.system_folder(home), lease_s, metrics, read)


@app.command(epilog="Example: supervisor launch examples/debug.toml")
def launch(
    file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file (docs/RUN_FILE.md).")],
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    check: Annotated[bool, typer.Option("--check", help="Only check the run file.")] = False,
) -> None:
    """Check a run file and start the run."""
    try:
        spec = runfile.load(file)
        problems = client.check_titan(spec)
        if problems:
            raise runfile.RunFileError(problems)
    except runfile.RunFileError as error:
        for problem in error.problems:
            typer.echo(f"supervisor: {file}: {problem}", err=True)
        raise typer.Exit(2) from None
    if check:
        typer.echo(f"{file}: run {spec.name!r} is right")
        return
    with _store(etcd, home, security) as store:
        record = client.launch(store, spec, home)
    typer.echo(f"launched {spec.name}; folder {record.run_dir}. Look: supervisor status --run {spec.name}")


@app.command("status", epilog="Example: supervisor status --run demo --json")
def status_command(
    run: Run = "", etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "", as_json: Json = False
) -> None:
    """How the run does: groups, steps, loss, quorum, spares, budgets."""
    with _store(etcd, home, security) as store:
        found = status.overview(Mirror(store.list(keys.PREFIX)), run)
        found = replace(found, warnings=(*status.alarms(store), *found.warnings))
        _print(found, as_json, render.run(found))


@app.command(epilog="Example: supervisor nodes --json")
def nodes(etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "", as_json: Json = False) -> None:
    """The nodes, what runs on them and how they are."""
    with _mirror(etcd, home, security) as mirror:
        found = status.node_status(mirror)
        _print(found, as_json, render.nodes(found))


@app.command(epilog="Example: supervisor incidents --run demo")
def incidents(
    run: Run = "", etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "", as_json: Json = False
) -> None:
    """Every failure so far, what was done and why."""
    with _mirror(etcd, home, security) as mirror:
        found = client.incidents(mirror, client.choose_run(mirror, run).spec.name)
        _print(found, as_json, render.incidents(found))


@app.command(epilog="Example: supervisor explain i2 --run demo")
def explain(
    incident: Annotated[str, typer.Argument(metavar="INCIDENT", help="Its id, as `supervisor incidents` prints it.")],
    run: Run = "",
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:
    """One incident in plain words: what was seen, what was done, why, and what else was considered."""
    with _mirror(etcd, home, security) as mirror:
        record = client.choose_run(mirror, run)
        found = {i.id: i for i in client.incidents(mirror, record.spec.name)}
        if incident not in found:
            typer.echo(
                f"supervisor: run {record.spec.name} has no incident {incident!r}; known: {', '.join(found) or 'none'}",
                err=True,
            )
            raise typer.Exit(1)
        _print(found[incident], as_json, "\n".join(explain_lines(found[incident])))


@app.command("logs", epilog="Example: supervisor logs --group 1 --lines 50")
def logs_command(
    run: Run = "",
    group: Annotated[int | None, typer.Option(help="Only this group.")] = None,
    rank: Annotated[int, typer.Option(help="Rank within the group.")] = 0,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Lines of each log.")] = 20,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:
    """The newest lines that the trainers of this machine printed, newest generation of each group last."""
    with _mirror(etcd, home, security) as mirror:
        name = client.choose_run(mirror, run).spec.name
    found = logs.tails(up_module.system_folder(home), name, group, rank, lines)
    if not found:
        typer.echo(f"supervisor: no logs of run {name} below {home}: they are on the nodes that ran it", err=True)
        raise typer.Exit(1)
    _print(found, as_json, logs.render(found))


@app.command(epilog="Example: supervisor pause --run demo")
def pause(run: Run = "", etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """Observe everything and do nothing: no restart, no move. Training goes on."""
    _control(run, etcd, home, security, "pause", "paused", lambda c: replace(c, paused=True))


@app.command(epilog='Example: supervisor resume demo --because "the data set is mended"')
def resume(
    name: Annotated[str, typer.Argument(metavar="[RUN]", help="Name of the run, as with --run.")] = "",
    run: Run = "",
    because: Annotated[str, typer.Option(help="Why a halted run may go on: it is kept in the journal.")] = "",
    they_are_down: Annotated[
        bool,
        typer.Option(
            "--they-are-down",
            help="Nothing runs any more on the nodes of the halted run that nobody hears: you have looked.",
        ),
    ] = False,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Act again after `pause`; or let a run out of a halt (rung 4): it starts again from its newest checkpoint."""
    with _store(etcd, home, security) as store:
        mirror = Mirror(store.list(keys.PREFIX))
        record = client.choose_run(mirror, name or run)
        if status.run_status(mirror, record).phase == "halted" and not because.strip():
            typer.echo(
                f"supervisor: run {record.spec.name} is halted; say why it may go on: "
                f'supervisor resume {record.spec.name} --because "..." (what happened: supervisor incidents)',
                err=True,
            )
            raise typer.Exit(2)
        typer.echo(client.resume(store, mirror, record, because.strip(), they_are_down))


@app.command(epilog="Example: supervisor stop --run demo")
def stop(run: Run = "", etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """End the run cleanly: all groups stop after the same step, and its nodes are given back."""
    _control(run, etcd, home, security, "stop", "stopping", lambda c: replace(c, stop=True))


def _control(
    run: str, etcd: str, home: Path, security: str, wish: str, said: str, change: Callable[[Control], Control]
) -> None:
    with _store(etcd, home, security) as store:
        mirror = Mirror(store.list(keys.PREFIX))
        record = client.choose_run(mirror, run)
        client.refuse_ended(mirror, record, wish)
        client.change_control(store, record.spec.name, change)
        typer.echo(f"{record.spec.name}: {said}")


@app.command(epilog="Example: supervisor restart 1 --run demo")
def restart(
    group: Annotated[int, typer.Argument(metavar="GROUP", help="Number of the replica group.")],
    run: Run = "",
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Start a group's processes again where they are; the others go on. Draws on no budget."""
    with _store(etcd, home, security) as store:
        mirror = Mirror(store.list(keys.PREFIX))
        record = client.choose_run(mirror, run)
        client.refuse_ended(mirror, record, "restart")
        client.restart(store, record, group)
        typer.echo(f"{record.spec.name}: group {group} will be restarted")


@app.command("doctor", epilog="Example: supervisor doctor")
def doctor_command(etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "", as_json: Json = False) -> None:
    """Check this machine and the live system, and say what to do about each finding."""
    endpoints = etcd or up_module.endpoints_of(home)
    findings = doctor.examine(endpoints, home, security or up_module.security_of(home))
    _print(findings, as_json, doctor.render(findings))
    if any(f.level == "bad" for f in findings):
        raise typer.Exit(1)


@app.command(
    "init-auth", epilog="Example: supervisor init-auth --security certs/root.toml --node n1 --node n2 --node host"
)
def init_auth_command(
    node: Annotated[list[str] | None, typer.Option(help="A node to make a user for; give it once for each.")] = None,
    etcd: Etcd = "",
    security: Annotated[
        str, typer.Option("--security", envvar=VARIABLE, help="The security file with the certificate of `root`.")
    ] = "",
) -> None:
    """Make etcd's users and roles, and have it check them. Run it again for more nodes."""
    with sentences():
        endpoints = (etcd or "https://127.0.0.1:2379").split(",")
        for sentence in auth.init_auth(endpoints, checked(security, endpoints), node or []):
            typer.echo(sentence)


@app.command("support-bundle", epilog="Example: supervisor support-bundle --run demo --out demo.tar.gz")
def support_bundle(
    run: Run = "",
    out: Annotated[Path, typer.Option(help="The archive to write.")] = Path("support-bundle.tar.gz"),
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """One archive with state, journal and logs, without secrets, to send to somebody."""
    with _mirror(etcd, home, security) as mirror:
        record = client.choose_run(mirror, run)
        members = bundle.write(out, mirror, record, up_module.system_folder(home))
    typer.echo(f"wrote {out} ({out.stat().st_size // 1024} KiB, {members} files)")


@app.command(epilog="Example: supervisor backup --out /backups/supervisor-monday.json.gz")
def backup(
    out: Annotated[Path, typer.Option(help="The file to write; with .gz at its end it is compressed.")] = Path(
        "supervisor-backup.json.gz"
    ),
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """All that the supervisors know, in one file: for the day on which etcd's data is lost."""
    with _store(etcd, home, security) as store:
        made = backups.take(store)
        backups.write(made, out)
    runs = f"runs {', '.join(made.runs)}" if made.runs else "no run"
    typer.echo(f"wrote {out}: {len(made.records)} records at revision {made.revision}, {runs}")


@app.command(epilog="Example: supervisor restore /backups/supervisor-monday.json.gz")
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `supervisor backup` wrote.")],
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Bring a backup's state into an etcd that has none. Stop every supervisor first; unfinished runs start again from
    their newest checkpoints once one leads."""
    with sentences():
        backup = backups.read(file)
    with _store(etcd, home, security) as store:
        plan = backups.restore(store, backup, file)
    for sentence in plan.sentences:
        typer.echo(sentence)
    typer.echo(
        f"restored {len(plan.records)} records of {backup.made} (revision {backup.revision}). Now: supervisor run"
    )


def _add_commands() -> None:
    """Sub-commands of the other packages: they import us, we never import them."""
    for point in sorted(entry_points(group="supervisor.commands"), key=lambda p: p.name):
        point.load()(app)


def _log_level() -> str:
    """What SUPERVISOR_LOG says; exits 2 when that is no level."""
    level = os.environ.get("SUPERVISOR_LOG") or "WARNING"
    if level not in LEVELS:
        typer.echo(f"supervisor: SUPERVISOR_LOG = {level!r}: it is one of {', '.join(LEVELS)}", err=True)
        sys.exit(2)
    return level


def main() -> None:
    logging.basicConfig(level=_log_level(), format="supervisor: %(message)s")
    _add_commands()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(1)


if __name__ == "__main__":
    main()
