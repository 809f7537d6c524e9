"""Commands that run the system and save its state. Each imports what it needs: a backup needs no supervisor."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from supervisor.cli.common import (
    HOME,
    Etcd,
    Home,
    SecurityFile,
    endpoints_option,
    opened_store,
    sentences,
    text_option,
)
from supervisor.ports.errors import Fatal
from supervisor.ports.store import LEASE_S
from supervisor.shell import failpoints
from supervisor.shell.dev.home import system_folder
from supervisor.wire import command_line
from supervisor.wire.address import AUTO
from supervisor.wire.printer import print_line
from supervisor.wire.security import UNIX, VARIABLE, checked, secret_in
from supervisor.wire.version import misfits

commands = command_line.commands()


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(commands)


Nodes = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Number of local nodes. Default: 4, or as many as this home had. A number above that of a running `up` "
        "enlarges its pool. 0: only a supervisor and a service host.",
        show_default=False,
    ),
]


@commands.command(epilog="Example: supervisor up --nodes 4")
def up(
    nodes: Nodes = None,
    etcd: Annotated[
        str,
        typer.Option(
            envvar="SUPERVISOR_ETCD", callback=endpoints_option, help="HOST:PORT of an etcd. Default: start one."
        ),
    ] = "",
    home: Home = HOME,
    name: Annotated[
        str, typer.Option(callback=text_option, help="Node name of the service host, unique in the etcd.")
    ] = "host",
    address: Annotated[
        str,
        typer.Option(
            help="Address of the service host and, with --nodes 0, of the page. auto: the address that faces the first etcd."
        ),
    ] = "127.0.0.1",
    node_folder: Annotated[
        Path | None, typer.Option(help="Folder on this machine for the service host's records. Default: in --home.")
    ] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Use no warm processes: slower starts, less memory.")] = False,
    security: Annotated[
        str,
        typer.Option(envvar=VARIABLE, help="Security file. The nodes' files, node-NAME.toml, are beside it."),
    ] = "",
    with_prometheus: Annotated[
        bool, typer.Option("--with-prometheus", help="Start a Prometheus too, where one is installed.")
    ] = False,
) -> None:
    """Start etcd, a supervisor and a pool of local nodes. With --etcd, no etcd is started. What a killed `up` has left
    running is adopted.

    `up` stays until Ctrl-C or TERM. Then it stops the runs with a last checkpoint and ends all its parts; the next `up` goes
    on with the runs. Closing the terminal ends nothing: `supervisor down` does."""
    from supervisor.shell.dev import up as up_module
    from supervisor.shell.engines.local import PoolNode
    from supervisor.shell.engines.slurm import control_plane
    from supervisor.shell.engines.slurm.commands import Commands
    from supervisor.shell.signals import Terminal

    with sentences():
        count = nodes if nodes is not None else up_module.pool_size(home) or 4
    if not etcd and (count == 0 or address == AUTO):
        what = "--nodes 0" if count == 0 else f"--address {AUTO}"
        raise typer.BadParameter(f"{what} needs --etcd: the etcd of the system to join", param_hint="--etcd")
    pool = [PoolNode(name=f"n{i + 1}") for i in range(count)]
    terminal = Terminal(system_folder(home) / "up.log")
    on_notice = (
        (lambda: control_plane.succeed(Commands(), os.environ)) if control_plane.VARIABLE in os.environ else None
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(sentences())
        failpoints.armed()
        if why := misfits():
            raise Fatal(f"`up` starts nodes and a lighthouse, which cannot run here: {why}")
        checked_file = checked(security, [e for e in etcd.split(",") if e])
        if done := up_module.raised(home, pool):
            print_line(done)
            return
        options = up_module.Options(
            etcd=etcd,
            address=address,
            name=name,
            node_folder=node_folder,
            cold=cold,
            security=checked_file,
            with_prometheus=with_prometheus,
        )
        started = stack.enter_context(up_module.up(home, pool, options, say=terminal.say, on_notice=on_notice))
        stack.enter_context(terminal.outlived())
        what = f"{count} local nodes" if count else f"service host {name}"
        page = f", page {started.page}" if started.page else ""
        kept = f", Prometheus {started.prometheus.url}" if started.prometheus is not None else ""
        at = "" if started.endpoint.startswith(UNIX) else f"etcd {started.endpoint}, "
        print_line(f"up: {at}{what}, folder {home}{page}{kept}. Now: supervisor launch RUN.toml")
        up_module.watch_over(started, terminal.say)


@commands.command(epilog="Example: supervisor down --home runs")
def down(home: Home = HOME) -> None:
    """End what `up` started, after a last checkpoint. Acts like Ctrl-C on the `supervisor up` of this home, and ends what
    a killed `up` has left behind."""
    from supervisor.shell.dev import up as up_module
    from supervisor.shell.signals import Terminal

    with sentences():
        up_module.down(home, Terminal(system_folder(home) / "up.log").say)
    print_line(f"down: nothing of `supervisor up` runs in {home} any more")


@commands.command(epilog="Example: supervisor run --etcd 10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379")
def run(
    etcd: Annotated[
        str,
        typer.Option(
            envvar="SUPERVISOR_ETCD", callback=endpoints_option, help="HOST:PORT of etcd; separate several by commas."
        ),
    ],
    home: Annotated[Path, typer.Option(envvar="SUPERVISOR_HOME", help="Folder of the runs, as for `up`.")] = HOME,
    lease_s: Annotated[
        int, typer.Option(min=2, help="Seconds after which a standby replaces a dead leader.")
    ] = LEASE_S,
    metrics_address: Annotated[str, typer.Option(help="Address on which the page and /metrics listen.")] = "127.0.0.1",
    metrics_port: Annotated[
        int,
        typer.Option(
            help="Port of the page and /metrics. 0: the port of the last start in this home, else a free one."
        ),
    ] = 0,
    security: SecurityFile = "",
) -> None:
    """Run one supervisor: it leads, or stands by. A standby leads once the leader is gone. `up` starts one for you.

    SUPERVISOR_LOG_FORMAT=json in its environment makes its log JSON lines, and those of agents and gates."""
    from supervisor.shell import service

    with sentences():
        endpoints, metrics = etcd.split(","), (metrics_address, metrics_port)
        read = checked(security, endpoints, [("the page and metrics port", metrics_address)])
        service.main(endpoints, system_folder(home), lease_s, metrics, read)


@commands.command(
    "init-auth", epilog="Example: supervisor init-auth --security certs/root.toml --node n1 --node n2 --node host"
)
def init_auth_command(
    node: Annotated[
        list[str] | None, typer.Option(help="Node that gets a user. Repeat the option for more nodes.")
    ] = None,
    remove_node: Annotated[
        list[str] | None,
        typer.Option(
            help="Node whose user goes: its certificate opens etcd no more. Repeat the option for more nodes."
        ),
    ] = None,
    etcd: Annotated[
        str,
        typer.Option(
            envvar="SUPERVISOR_ETCD",
            callback=endpoints_option,
            help="https://HOST:PORT of etcd; separate several by commas. Default: 127.0.0.1:2379.",
        ),
    ] = "",
    security: Annotated[
        str, typer.Option("--security", envvar=VARIABLE, help="Security file with the certificate of `root`.")
    ] = "",
) -> None:
    """Create etcd's users and roles and enable its checks. Run it again for more nodes, or to remove some."""
    from supervisor.shell.etcd import auth

    with sentences():
        endpoints = (etcd or "https://127.0.0.1:2379").split(",")
        for sentence in auth.init_auth(endpoints, checked(security, endpoints), node or [], remove_node or []):
            print_line(sentence)


Key = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A secret that only you can read. `backup` signs the file with it; `restore` then refuses what another changed.",
        show_default=False,
    ),
]


@commands.command(epilog="Example: supervisor backup --out /backups/supervisor-monday.json.gz")
def backup(
    out: Annotated[Path, typer.Option(help="The file to write. A name ending in .gz compresses it.")] = Path(
        "supervisor-backup.json.gz"
    ),
    key: Key = None,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Save the state of all runs to a file. `restore` loads it after etcd has lost its data."""
    from supervisor.shell.etcd import backup as backups

    with sentences():
        secret = secret_in(key) if key is not None else b""
    with opened_store(etcd, home, security) as store:
        made = backups.take(store)
        backups.write(made, out, secret)
    runs = f"runs {', '.join(made.runs)}" if made.runs else "no run"
    print_line(f"wrote {out}: {len(made.records)} records at revision {made.revision}, {runs}")


@commands.command(epilog="Example: supervisor restore /backups/supervisor-monday.json.gz")
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `supervisor backup` wrote.")],
    key: Key = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be restored, and write nothing. Asks no etcd.")
    ] = False,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Load a backup into an etcd that holds no state. Stop every supervisor first. Once one leads again, unfinished runs
    start from their newest checkpoints."""
    from supervisor.shell.etcd import backup as backups

    with sentences():
        backup = backups.read(file, secret_in(key) if key is not None else b"")
        for line in backups.commands(backup):
            print_line(line)
        if key is None:
            print_line(
                f"{file} has no digest by a key: nothing shows that no one changed it (`supervisor backup --key`)"
            )
        if dry_run:
            for sentence in backups.plan(backup).sentences:
                print_line(sentence)
            print_line(f"nothing is written: this was a dry run of a backup of {backup.made}")
            return
    with opened_store(etcd, home, security) as store:
        plan = backups.restore(store, backup, file)
    for sentence in plan.sentences:
        print_line(sentence)
    print_line(
        f"restored {len(plan.records)} records of {backup.made} (revision {backup.revision}). Now: supervisor run"
    )
