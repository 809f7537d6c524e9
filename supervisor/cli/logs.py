"""`supervisor logs`: from the files of this machine, or from the nodes and the leader."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from supervisor.cli.common import (
    HOME,
    Etcd,
    Home,
    Json,
    Run,
    SecurityFile,
    duration_option,
    one_name,
    opened_store,
    seconds_of,
    sentences,
    show,
    text_option,
)
from supervisor.wire import command_line, keys
from supervisor.wire.printer import print_block, print_line

if TYPE_CHECKING:
    from supervisor.ports.store import Store
    from supervisor.shell.control.state_cache import Mirror
    from supervisor.shell.inspect.logs import HookTail, Tail
    from supervisor.shell.inspect.merged_log import Entry, Joined
    from supervisor.shell.inspect.remote_logs import Follower, Wish

commands = command_line.commands()


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(commands)


FOLLOW_S = 0.25
"""Seconds between two looks of `--follow` at this machine's files."""
ASK_S = 1.0
"""The same where it asks the nodes: each look is a few writes of etcd for each node."""


NameOrFolder = Annotated[
    str, typer.Argument(metavar="RUN", help="Name of the run, as with --run, or the folder of a past run: runs/demo.")
]


@commands.command("logs", epilog="Example: supervisor logs demo --group 1 --since 10m --grep loss")
def logs_command(
    name: NameOrFolder = "",
    run: Run = "",
    group: Annotated[int | None, typer.Option(help="Show only this group.")] = None,
    rank: Annotated[
        int | None,
        typer.Option(help="Show only this rank of each group."),
    ] = None,
    lines: Annotated[
        int,
        typer.Option(
            "--lines", "--tail", "-n", min=1, max=100_000,
            help="Lines of all logs together; with --hooks, of each.",
        ),
    ] = 20,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Follow what comes until Ctrl-C.",
        ),
    ] = False,
    hooks: Annotated[bool, typer.Option("--hooks", help="Show the output of the run's hooks instead.")] = False,
    remote: Annotated[
        bool, typer.Option("--remote", help="Ask the nodes, also where this machine has the logs.")
    ] = False,
    since: Annotated[
        str, typer.Option(metavar="TIME", callback=duration_option, help="Only lines of the last 90s, 10m, 2h or 1d.")
    ] = "",
    grep: Annotated[
        str, typer.Option(metavar="TEXT", callback=text_option, help="Only lines that have this text.")
    ] = "",
    supervisor: Annotated[
        bool, typer.Option("--supervisor", help="Show the log of the supervisor instead: of this machine's, else the leader's.")
    ] = False,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Print the newest lines of the trainers' logs. All ranks and generations are one log, by time. It reads the files of
    this machine, with process ends and incidents; where it has none it asks the nodes. Of a folder, as runs/demo, it reads
    the files, and asks no etcd."""
    if (wrong := _together(hooks, follow, supervisor, bool(since), group is not None or rank is not None)) is not None:
        _note(wrong)
        raise typer.Exit(2)
    from supervisor.shell.inspect import logs, past_logs, remote_logs

    name = one_name(name, run)
    wish = remote_logs.Wish(run="", group=group, rank=rank, lines=lines, since_s=seconds_of(since), grep=grep)
    if past_logs.is_folder(name):
        if follow or remote or supervisor:
            _note(
                f"{name} is a folder, whose files are read once: it takes no --follow, --remote or --supervisor; a run's name does"
            )
            raise typer.Exit(2)
        if hooks and grep:
            _note("--hooks of a folder takes no --grep")
            raise typer.Exit(2)
        with sentences():
            _of_folder(Path(name), wish, hooks, as_json)
        return
    searches, system = bool(since or grep), logs.kept_in(home)
    if supervisor and not (remote or searches) and (own := logs.of_supervisors(system, lines)):
        _print_tails(own, as_json)
        return
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import client, merged_log

        mirror = Mirror(store.list(keys.PREFIX))
        if supervisor:
            _print_tails([remote_logs.of_leader(store, mirror, wish)], as_json)
            return
        record = client.choose_run(mirror, name)
        wish = replace(wish, run=record.spec.name)
        if hooks:
            tails = [] if remote or grep else logs.of_hooks(system, wish.run, lines)
            _print_tails(tails or _hooks_of_nodes(store, mirror, wish), as_json)
            return
        if remote or not merged_log.is_here(system, wish.run, group, rank):
            client.require(record, group, rank)
            (_follow_nodes if follow else _lines_of_nodes)(store, mirror, wish, as_json)
            return
        for node in remote_logs.nodes_not_here(mirror, wish.run, system):
            _note(f"{node}: its files are not below {system}: --remote asks it")
    run_dir, wanted = Path(record.run_dir), wish.by(time.time())
    if follow:
        from supervisor.wire.node_logs import first_bytes

        most = first_bytes(lines, wanted.since, grep)
        log = merged_log.Joined(system, wish.run, run_dir, group, rank, most, wanted.since, grep)
        _follow(log, wish, as_json, FOLLOW_S)
    else:
        _print_merged(wanted.chosen(merged_log.of_this_machine(system, wish.run, run_dir, wanted) or ()), wish, as_json)


def _together(hooks: bool, follow: bool, supervisor: bool, since: bool, chosen: bool) -> str | None:
    """Returns why these options exclude each other; None if they do not."""
    if hooks and (follow or chosen or since):
        return "--hooks takes no --follow, --group, --rank or --since: a hook is of a node, and its lines may have no times"
    if supervisor and (hooks or follow or chosen):
        return "--supervisor is the supervisor's own log: it takes no --hooks, --follow, --group or --rank"
    return None


def _note(sentence: str) -> None:
    print_line(f"supervisor: {sentence}", err=True)


def _of_folder(folder: Path, wish: Wish, hooks: bool, as_json: bool) -> None:
    from supervisor.shell.inspect import past_logs

    past = past_logs.opened(folder)
    for node in past.away:
        _note(f"node {node}: its files are not below {past.system}")
    if hooks:
        _print_tails(past.hooks(wish.lines), as_json)
    else:
        _print_merged(past.entries(wish.by(time.time())), replace(wish, run=past.run), as_json)


def _lines_of_nodes(store: Store, mirror: Mirror, wish: Wish, as_json: bool) -> None:
    from supervisor.shell.inspect import remote_logs

    entries, missing = remote_logs.read(store, mirror, wish)
    _note_missing(missing)
    _print_merged(entries, wish, as_json)


def _hooks_of_nodes(store: Store, mirror: Mirror, wish: Wish) -> list[HookTail]:
    from supervisor.shell.inspect import remote_logs

    tails, missing = remote_logs.hooks(store, mirror, wish)
    _note_missing(missing)
    if not tails:
        _note(f"no node has output of a hook of run {wish.run}")
        raise typer.Exit(1)
    return tails


def _follow_nodes(store: Store, mirror: Mirror, wish: Wish, as_json: bool) -> None:
    from supervisor.shell.inspect import remote_logs

    with contextlib.closing(remote_logs.Follower(store, mirror, wish, _note)) as log:
        _follow(log, wish, as_json, ASK_S)


def _note_missing(missing: Mapping[str, str]) -> None:
    for node, why in missing.items():
        _note(f"{node}: {why}")


def _none_found(wish: Wish) -> NoReturn:
    from supervisor.shell.inspect import remote_logs

    _note(remote_logs.none_found(wish))
    raise typer.Exit(1)


def _follow(log: Joined | Follower, wish: Wish, as_json: bool, every_s: float) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        entries = log.new()[-wish.lines :]
        if log.empty:
            _none_found(wish)
        while True:
            _print_entries(entries, as_json)
            if not log.behind:
                threading.Event().wait(every_s)
            entries = log.new()


def _print_merged(entries: Sequence[Entry], wish: Wish, as_json: bool) -> None:
    from supervisor.shell.inspect import status

    if as_json:
        print_line(json.dumps([status.as_json(entry) for entry in entries], indent=2))
    else:
        _print_entries(entries, as_json)
    if not entries:
        _none_found(wish)


def _print_entries(entries: Sequence[Entry], as_json: bool) -> None:
    from supervisor.shell.inspect import merged_log, status

    for entry in entries:
        print_line(json.dumps(status.as_json(entry)) if as_json else merged_log.render(entry))


def _print_tails(found: Sequence[Tail], as_json: bool) -> None:
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


def _with_lines(tail: Tail) -> dict[str, Any]:
    names = ("node", "hook", "path")
    about = {name: getattr(tail, name) for name in names if hasattr(tail, name)}
    return {**about, "lines": list(tail.lines())}
