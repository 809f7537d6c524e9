"""Commands about the specs of runs: relaunch a run with another, list runs, show and compare what they run by."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.checks import check_all, check_titan, context_of, read_run_file, refuse
from supervisor.cli.common import (
    HOME,
    Etcd,
    Home,
    Json,
    SecurityFile,
    credentials,
    opened_mirror,
    opened_store,
    person_asked,
    show,
    text_option,
)
from supervisor.wire import command_line, keys
from supervisor.wire.printer import print_line

if TYPE_CHECKING:
    from supervisor.core.model.spec import RunSpec
    from supervisor.shell.control.state_cache import Mirror
    from supervisor.wire.records import RunRecord

commands = command_line.commands()
of_runs = command_line.commands(help_="List the runs, show what one runs by, compare two.")
of_runs.info.no_args_is_help = False  # alone it lists them


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(commands)
    app.add_typer(of_runs, name="runs")


@commands.command(epilog="Example: supervisor relaunch demo --set titan.overrides.optimizer.lr=3e-4")
def relaunch(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="NEW.toml", help="Its new run file. Default: what it runs by now.", show_default=False),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", callback=text_option, help="Change one key of it; may be repeated."),
    ] = None,
    because: Annotated[str, typer.Option(callback=text_option, help="The reason, which the journal records.")] = "",
    from_memory: Annotated[
        bool,
        typer.Option(
            "--from-memory",
            help="Ranks keep their states in their nodes' memory; no checkpoint is written. For the same model and ranks.",
        ),
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only show the difference and check it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before it begins.")] = False,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Change what a run trains by, on the nodes that it has. Shows the difference, lets all groups end after one step with
    a checkpoint, and starts them again from that. A run that has ended asks for nodes again."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.code.local import tree_of
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import client
        from supervisor.shell.inspect import relaunch as of_run
        from supervisor.shell.runfile.changes import changed

        mirror = Mirror(store.list(keys.PREFIX))
        record = client.choose_run(mirror, name)
        if file is None and not changes and not of_run.new_code(mirror, name):
            print_line(
                "supervisor: nothing to change: give a run file, or --set KEY=VALUE, or new code (sync)", err=True
            )
            raise typer.Exit(2)
        pool = record.spec.allocation.pool
        given = read_run_file(file, name, pool) if file is not None else of_run.base(mirror, record)
        with _run_file(file or Path("--set")):
            after, notes = of_run.kept(mirror, record, changed(given, changes or []) if changes else given)
            _show_and_refuse(mirror, record, after)
        if from_memory:
            of_run.refuse_from_memory(mirror, record, after)
        for note in notes:
            print_line(f"supervisor: {note}", err=True)
        with tree_of(store, name, credentials(home, security)) as tree:
            if of_run.keeps_nodes(mirror, name):
                check_titan(file or Path("--set"), after, tree=tree)
            else:
                check_all(file or Path("--set"), after, etcd, home, security, tree)
        if check:
            return
        if not yes and person_asked() and not typer.confirm(f"Relaunch {name}?", err=True):
            raise typer.Exit(1)
        print_line(f"{name}: {of_run.relaunch(store, mirror, record, after, because.strip(), from_memory)}")


@commands.command(epilog="Example: supervisor scale demo --groups 4")
def scale(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.")],
    groups: Annotated[int | None, typer.Option(min=1, help="Number of replica groups. Default: as now.")] = None,
    spares: Annotated[int | None, typer.Option(min=0, help="Number of spare nodes. Default: as now.")] = None,
    because: Annotated[str, typer.Option(callback=text_option, help="The reason, which the journal records.")] = "",
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Change the number of groups or spares of a live run. The other groups train on: new ones heal from them, and those
    that are too many end after one step. Their nodes are given back."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.engines.registry import before_scale
        from supervisor.shell.inspect import client
        from supervisor.shell.inspect import relaunch as of_run

        mirror = Mirror(store.list(keys.PREFIX))
        record = client.choose_run(mirror, name)
        client.refuse_ended(mirror, record, "scale")
        with _run_file(Path("scale")):
            after, notes = of_run.kept(mirror, record, of_run.sized(of_run.base(mirror, record), groups, spares))
            _show_and_refuse(mirror, record, after)
        for note in filter(None, [*notes, before_scale(record.spec, after, context_of(etcd, home, security))]):
            print_line(f"supervisor: {note}", err=True)
        print_line(f"{name}: {of_run.relaunch(store, mirror, record, after, because.strip())}")


def _show_and_refuse(mirror: Mirror, record: RunRecord, after: RunSpec) -> None:
    """Prints how the spec differs from that in force, then raises what `relaunch.refuse` raises."""
    from supervisor.shell.inspect import relaunch
    from supervisor.shell.runfile.changes import differences

    for line in differences(record.spec, after):
        print_line(line)
    relaunch.refuse(mirror, record, after)


@contextlib.contextmanager
def _run_file(file: Path) -> Iterator[None]:
    """Exits 2 with the problems of a run file."""
    from supervisor.shell.runfile import parse

    try:
        yield
    except parse.RunFileError as error:
        refuse(file, error)


@of_runs.callback(invoke_without_command=True)
def list_runs(
    context: typer.Context,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:
    """List the runs, show what one runs by, compare two."""
    if context.invoked_subcommand is not None:
        return
    with opened_mirror(etcd, home, security) as mirror:
        from supervisor.shell.inspect import render, specs

        found = specs.runs(mirror)
        show(found, as_json, render.runs(found))


@of_runs.command("show", epilog="Example: supervisor runs show demo@1")
def show_run(
    which: Annotated[str, typer.Argument(metavar="RUN[@NUMBER]", help="A run, or one of its earlier specs.")],
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:
    """Show every key that a run runs by, or ran by before its relaunches."""
    with opened_mirror(etcd, home, security) as mirror:
        from supervisor.shell.inspect import codes, specs
        from supervisor.shell.runfile import changes, parse

        record = specs.found(mirror, which)
        code = codes.line(mirror, record.spec.name)
        head = [specs.head(record), *([f"# {code}"] if code else [])]
        lines = (f"{k} = {changes.text_of(v)}" for k, v in changes.flat(parse.document(record.spec)).items())
        show(record, as_json, "\n".join([*head, *lines]))


@of_runs.command("diff", epilog="Example: supervisor runs diff demo@1 demo")
def diff(
    first: Annotated[str, typer.Argument(metavar="A[@NUMBER]", help="A run, or one of its earlier specs.")],
    second: Annotated[str, typer.Argument(metavar="B[@NUMBER]", help="Another.")],
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Show the keys in which two runs, or two specs of one, differ. Exits 1 if they do, as diff does."""
    with opened_mirror(etcd, home, security) as mirror:
        from supervisor.shell.inspect import specs
        from supervisor.shell.runfile.changes import differences

        lines = [*differences(specs.found(mirror, first).spec, specs.found(mirror, second).spec)]
        for line in lines:
            print_line(line)
        if lines:
            raise typer.Exit(1)
