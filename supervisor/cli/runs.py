"""Commands that control a run that was launched."""

from __future__ import annotations

import math
import time
from typing import Annotated

import typer

from supervisor.cli.common import (
    HOME,
    Etcd,
    Home,
    Name,
    Run,
    SecurityFile,
    one_name,
    opened_store,
    run_to_change,
    text_option,
)
from supervisor.wire import command_line, keys
from supervisor.wire.printer import print_line

commands = command_line.commands()


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(commands)


def _goal(given: str) -> str:
    """Refuses what cannot be waited for."""
    from supervisor.shell.inspect.follow import Goal

    try:
        Goal.of(given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return given


@commands.command(epilog="Example: supervisor wait demo --for step=100 --timeout-s 600")
def wait(
    goal: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="running|step=N|finished",
            callback=_goal,
            help="running: groups.min_groups groups have committed a step.",
        ),
    ],
    name: Name = "",
    timeout_s: Annotated[
        float, typer.Option(min=0, help="Longest wait in seconds. Default: no limit.", show_default=False)
    ] = math.inf,
    run: Run = "",
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Wait until a run trains, has made a step, or is finished. Exits 1 if it ends otherwise, or is not there in time."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.inspect import follow

        reached, sentence = follow.wait(
            store,
            one_name(name, run),
            follow.Goal.of(goal),
            time.monotonic() + timeout_s,
            lambda said: print_line(f"supervisor: {said}", err=True),
        )
        print_line(sentence if reached else f"supervisor: {sentence}", err=not reached)
        if not reached:
            raise typer.Exit(1)


@commands.command(epilog="Example: supervisor pause demo")
def pause(name: Name = "", run: Run = "", etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """Watch a run without acting on it; training goes on. No group is restarted or moved until `resume`."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import client

        mirror = Mirror(store.list(keys.PREFIX))
        print_line(client.pause(store, mirror, run_to_change(mirror, one_name(name, run), "pause")))


@commands.command(epilog='Example: supervisor resume demo --because "the data set is repaired"')
def resume(
    name: Name = "",
    run: Run = "",
    because: Annotated[
        str, typer.Option(callback=text_option, help="Why a halted run may go on; the journal records it.")
    ] = "",
    they_are_down: Annotated[
        bool,
        typer.Option(
            "--they-are-down",
            help="Confirm that you have checked: nothing runs any more on the silent nodes of the run.",
        ),
    ] = False,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Act again after `pause`, or restart a halted run. A halted run (rung 4) starts again from its newest checkpoint."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import client

        mirror = Mirror(store.list(keys.PREFIX))
        record = run_to_change(mirror, one_name(name, run), "resume", resumable=True)
        if why := client.lacks_reason(mirror, record, because.strip()):
            print_line(f"supervisor: {why}", err=True)
            raise typer.Exit(2)
        print_line(client.resume(store, mirror, record, because.strip(), they_are_down))


@commands.command(epilog="Example: supervisor stop demo")
def stop(name: Name = "", run: Run = "", etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """Stop a run: all groups end after the same step. Its nodes are released. Prints how long it can take."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import client

        mirror = Mirror(store.list(keys.PREFIX))
        print_line(client.stop(store, mirror, run_to_change(mirror, one_name(name, run), "stop")))


@commands.command(epilog="Example: supervisor rm demo --files")
def rm(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.")],
    files: Annotated[
        bool, typer.Option("--files", help="Delete its folder too: journal, checkpoints and results.")
    ] = False,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Remove a run that has ended; its name can be used again. Keeps its folder, unless --files is given, and what its
    incidents hold against hosts. Repeat it to complete a removal that was interrupted."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.inspect import removal

        for sentence in removal.remove(store, name, files):
            print_line(sentence)


@commands.command(epilog="Example: supervisor restart 1 --run demo")
def restart(
    group: Annotated[int, typer.Argument(metavar="GROUP", help="Number of the replica group.")],
    run: Run = "",
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Restart the processes of a group on its node. The other groups go on, and no budget is charged."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import client

        mirror = Mirror(store.list(keys.PREFIX))
        record = run_to_change(mirror, run, f"restart {group}")
        client.refuse_ended(mirror, record, "restart")
        print_line(client.restart(store, record, group))
