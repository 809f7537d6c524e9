"""The command `supervisor demo`: runs the whole system on one machine and breaks it three ways."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Annotated

import typer

from supervisor.cli.common import HOME, Home, sentences
from supervisor.ports.errors import Fatal


def register(app: typer.Typer) -> None:
    """Adds `demo` to the command line."""
    app.command(epilog="Example: supervisor demo")(demo)


def demo(
    name: Annotated[str, typer.Option(help="Name of the run. Default: demo, or the next free one, as demo-2.")] = "",
    home: Home = HOME,
    cold: Annotated[bool, typer.Option("--cold", help="Use no warm processes: slower recoveries.")] = False,
    easy: Annotated[
        bool, typer.Option("--easy", help="Lose the node by killing its processes, even where its network can be cut.")
    ] = False,
) -> None:
    """Train a small Llama 3 here and break it three ways. It trains on four local nodes; a trainer is killed, a node is lost, and
    an allocation is taken away."""
    from fault_injection.demo import door, play
    from fault_injection.testbed import netns
    from supervisor.shell.runfile import parse
    from supervisor.wire.version import misfits

    with sentences():
        if why := misfits():
            raise Fatal(f"the demo trains, which cannot be done here: {why}")
        name = name or _free_name(home)
        wrong = parse.contradictions(play.spec(name))
        if wrong:
            raise typer.BadParameter(wrong[0], param_hint="--name")
        if (home / name).exists():
            raise Fatal(f"{home / name} already exists: choose another --name, or remove it")
        inside = netns.entered()
        easier = "" if inside is not None else "asked for by --easy" if easy else netns.available()
        if inside is not None or easier:
            raise typer.Exit(play.run(name, home, cold, inside, easier))
        with netns.network(play.NODES) as network, door.made() as listener:
            again = [sys.executable, "-m", "supervisor.cli", *sys.argv[1:]]
            environment = {**netns.environment(network), **door.environment(listener.fileno())}
            raise typer.Exit(netns.run_inside(network, again, environment, fds=[listener.fileno()]))


def _free_name(home: Path) -> str:
    names = ("demo" if n == 1 else f"demo-{n}" for n in itertools.count(1))
    return next(name for name in names if not (home / name).exists())


__all__ = ["demo", "register"]
