"""Commands about pools: nodes that are held for runs (docs/POOLS.md)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from supervisor.cli.checks import note_of_engine, read_run_file
from supervisor.cli.common import HOME, Etcd, Home, Json, SecurityFile, opened_mirror, opened_store, show
from supervisor.wire import command_line, keys
from supervisor.wire.printer import print_line

commands = command_line.commands()


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(commands)


def _duration(given: str) -> str:
    """Refuses what is no duration."""
    from supervisor.shell.inspect import pools

    try:
        if given:
            pools.seconds_of(given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return given


@commands.command(epilog="Example: supervisor hold run.toml --name lab --nodes 4 --for 8h")
def hold(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN.toml",
            help="A run file, for its engine, the ranks of a node, and [hold]. Default: local nodes of one rank each.",
        ),
    ] = None,
    name: Annotated[str, typer.Option("--name", metavar="POOL", help="Name of the pool.")] = "pool",
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", min=1, help="Nodes to hold. Default: those of the run and its spares.", show_default=False
        ),
    ] = None,
    for_: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="8h",
            callback=_duration,
            help="Give the nodes back after this time, once no run uses them.",
        ),
    ] = "",
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Hold nodes for runs, as a pool. They stay, with their agents and warm processes, until `release`. `launch --on`
    trains on them."""
    from supervisor.shell.inspect import client, pools
    from supervisor.shell.runfile import parse

    if problem := parse.name_problem(name):
        raise typer.BadParameter(problem, param_hint="--name")
    run = read_run_file(file, name) if file is not None else parse.parse({"name": name})
    with opened_store(etcd, home, security) as store:
        spec = pools.spec_of(run, nodes, pools.seconds_of(for_) if for_ else None)
        client.refuse_name(store, name)
        note_of_engine(spec, etcd, home, security)
        record = client.launch(store, spec, home, print_line)
    held = spec.allocation.nodes
    print_line(
        f"pool {name} holds {held} node{'s' if held > 1 else ''}; folder {record.run_dir}. Look: supervisor status {name}. "
        f"Train on it: supervisor launch RUN.toml --on {name}"
    )


@commands.command(epilog="Example: supervisor release lab")
def release(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="Name of the pool.")],
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Give all nodes of a pool back to the engine. Refused while a run uses it."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import pools

        print_line(pools.release(store, Mirror(store.list(keys.PREFIX)), pool))


@commands.command("pools", epilog="Example: supervisor pools --json")
def pools_command(etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "", as_json: Json = False) -> None:
    """List the pools, who uses them and when they end. `supervisor status POOL` shows the nodes of one."""
    with opened_mirror(etcd, home, security) as mirror:
        from supervisor.shell.inspect import pools, render

        found = pools.every(mirror)
        show(found, as_json, render.pools(found, time.time()))
