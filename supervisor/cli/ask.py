"""Commands that ask a run's nodes for something, through etcd: it does not matter where they are typed."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

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
    opened_store,
    show,
    text_option,
)
from supervisor.wire import command_line, keys
from supervisor.wire.printer import print_block, print_line

if TYPE_CHECKING:
    from supervisor.ports.store import Store
    from supervisor.shell.control.state_cache import Mirror
    from supervisor.shell.inspect.debugging import Stopped

commands = command_line.commands()


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(commands)


Group = Annotated[int | None, typer.Option(help="Ask only this group.")]
Rank = Annotated[int | None, typer.Option(help="Ask only this rank of each group.")]


@commands.command("stacks", epilog="Example: supervisor stacks demo --group 1")
def stacks_command(
    name: Name = "",
    run: Run = "",
    group: Group = None,
    rank: Rank = None,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:
    """Show where each rank of a run is now: its Python stack. Asks the nodes' agents; nothing is paused. Exit code 1 if a
    rank did not answer; --json has all threads."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import client, stacks

        mirror = Mirror(store.list(keys.PREFIX))
        record = client.choose_run(mirror, one_name(name, run))
        client.require(record, group, rank)
        found = stacks.read(store, mirror, record.spec.name, group, rank, stacks.LIMIT_S)
    show(found, as_json, stacks.table(found))
    if any(each.unknown for each in found):
        raise typer.Exit(1)


@commands.command("exec", epilog="Example: supervisor exec 0.1 --run demo -- nvidia-smi")
def exec_command(
    where: Annotated[
        str,
        typer.Argument(
            metavar="NODE|GROUP.RANK", help="A node; or a rank of the run: on its node, in its folder and environment."
        ),
    ],
    command: Annotated[
        list[str],
        typer.Argument(metavar="CMD...", callback=text_option, help="The command, after `--`. No shell reads it."),
    ],
    run: Run = "",
    limit_s: Annotated[
        float, typer.Option("--limit-s", min=0.1, max=3600.0, help="Seconds after which the command is ended.")
    ] = 60.0,
    limit_kib: Annotated[
        int, typer.Option("--limit-kib", min=1, max=8192, help="Output after which the command is ended.")
    ] = 1024,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:
    """Run a command on a node, and print its output. Exit code 0 if the command ended with 0; else 1, and the code is
    printed. The node logs who asked. Ctrl-C ends the command too."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import execution

        mirror = Mirror(store.list(keys.PREFIX))
        wanted = execution.request(mirror, where, run, command, limit_s, limit_kib)
        done = execution.execute(store, mirror, wanted, (lambda *_: None) if as_json else _print_text)
    if as_json:
        show(done, True, None)
    elif done.error:
        print_line(f"supervisor: {done.node}: {done.error}", err=True)
    elif done.code:
        how = f"ended with exit code {done.code}" if done.code > 0 else f"was ended by signal {-done.code}"
        print_line(f"supervisor: {done.node}: the command {how}", err=True)
    if done.code != 0:
        raise typer.Exit(1)


def _print_text(stream: str, text: str) -> None:
    print_block(text, err=stream == "stderr")


ACTIONS = ("attach", "cast", "continue")


@commands.command("debug", epilog="Example: supervisor debug demo attach 0.1")
def debug_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [attach GROUP.RANK | cast RANKS CMD... | continue [RANKS]]",
            callback=text_option,
            help="Without an action: list. RANKS: GROUP.RANK, several by commas, or `all`.",
        ),
    ] = None,
    run: Run = "",
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:
    """Talk to ranks that stand at a breakpoint(). Without an action, lists them. They are in Python's pdb. `attach` is interactive, or
    reads commands from a pipe; its end, or Ctrl-D, leaves the rank stopped. `cast` gives several ranks one command."""
    name, action, rest = _debug_words(words or [])
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import client, debugging

        mirror = Mirror(store.list(keys.PREFIX))
        record = client.choose_run(mirror, one_name(name, run))
        found = debugging.stopped(mirror, record.spec.name)
        if not action:
            show(found, as_json, debugging.table(found))
            return
        ranks = debugging.chosen(found, rest[0] if rest else "all")
        if action == "attach":
            well = _attach(store, mirror, ranks[0])
        else:
            well = _cast(store, mirror, ranks, " ".join(rest[1:]) if action == "cast" else "continue")
    if not well:
        raise typer.Exit(1)


def _debug_words(words: list[str]) -> tuple[str, str, list[str]]:
    """Returns the run, the action and its arguments; exits 2 for what is neither."""
    name = words.pop(0) if words and words[0] not in ACTIONS else ""
    action = words.pop(0) if words else ""
    wrong = (
        f"{action!r} is none of {', '.join(ACTIONS)}"
        if action and action not in ACTIONS
        else "attach takes one GROUP.RANK"
        if action == "attach" and (len(words) != 1 or not re.fullmatch(r"\d+\.\d+", words[0]))
        else "cast takes RANKS and a command"
        if action == "cast" and len(words) < 2
        else "continue takes one list of RANKS"
        if action == "continue" and len(words) > 1
        else ""
    )
    if wrong:
        raise typer.BadParameter(wrong)
    return name, action, words


def _cast(store: Store, mirror: Mirror, ranks: list[Stopped], line: str) -> bool:
    """Gives each rank the line; returns true if all took it."""
    from supervisor.shell.inspect import debugging

    well = True
    for at in ranks:
        reply = debugging.tell(store, mirror, at, line)
        well = well and not reply.error
        state = f"error: {reply.error}" if reply.error else "" if reply.stopped else "goes on"
        for text in [*reply.output.splitlines(), *filter(None, [state])]:
            print_line(f"{at.name} | {text}")
    return well


def _attach(store: Store, mirror: Mirror, at: Stopped) -> bool:
    """Passes lines to one rank's debugger until it goes on, or there are no more; returns true if it took them."""
    from supervisor.shell.inspect import debugging

    asked = sys.stdin.isatty()
    if asked:
        with suppress(ImportError):
            import readline  # noqa: F401 - gives `input` a history
    line: str | None = None
    while True:
        reply = debugging.tell(store, mirror, at, line)
        if reply.output:
            print_block(reply.output if reply.output.endswith("\n") else f"{reply.output}\n")
        if reply.error:
            print_line(f"supervisor: rank {at.name}: {reply.error}", err=True)
            return False
        if not reply.stopped:
            print_line(f"rank {at.name} goes on")
            return True
        try:
            line = input(f"(pdb {at.name}) " if asked else "")
        except (EOFError, KeyboardInterrupt):
            print_line(f"rank {at.name} stays stopped: supervisor debug {at.run} attach {at.name}, or continue")
            return True
