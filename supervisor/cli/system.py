"""Commands that run the system and keep its state."""

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
    app,
    endpoints_option,
    opened_store,
    sentences,
    text_option,
)
from supervisor.shell import auth, failpoints, service, submit
from supervisor.shell import backup as backups
from supervisor.shell import up as up_module
from supervisor.shell.engines.local import PoolNode
from supervisor.shell.engines.slurm_commands import Commands
from supervisor.shell.signals import Terminal
from supervisor.wire.address import AUTO
from supervisor.wire.printer import print_line
from supervisor.wire.security import VARIABLE, checked

Nodes = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Local nodes that the engine may give: 4, or those of the home's pool; more than those of an `up` that runs: "
        "its pool is raised. 0: only a supervisor and a service host.",
        show_default=False,
    ),
]


@app.command(epilog="Example: supervisor up --nodes 4")
def up(
    nodes: Nodes = None,
    etcd: Annotated[
        str,
        typer.Option(
            envvar="SUPERVISOR_ETCD", callback=endpoints_option, help="HOST:PORT of an etcd; without it one is started."
        ),
    ] = "",
    home: Home = HOME,
    name: Annotated[
        str, typer.Option(callback=text_option, help="Node name of the service host, unique in the etcd.")
    ] = "host",
    address: Annotated[
        str,
        typer.Option(
            help="Where the others reach the service host and, with --nodes 0, the page; auto: as they reach the first etcd."
        ),
    ] = "127.0.0.1",
    node_folder: Annotated[
        Path | None, typer.Option(help="Folder of this machine for the service host's records. Default: in --home.")
    ] = None,
    cold: Annotated[bool, typer.Option("--cold", help="No warm processes: slower starts, less memory.")] = False,
    security: Annotated[
        str,
        typer.Option(envvar=VARIABLE, help="The security file; those of the nodes, node-NAME.toml, are beside it."),
    ] = "",
    with_prometheus: Annotated[
        bool, typer.Option("--with-prometheus", help="Start a Prometheus too, where one is installed.")
    ] = False,
) -> None:
    """Start etcd (if none is given), a supervisor and a pool of local nodes, and adopt what an `up` that was killed has left.
    Stay until Ctrl-C or TERM, then stop the runs with a last checkpoint and end all; `up` again goes on with them. A terminal
    that is closed ends nothing: `supervisor down` does."""
    count = nodes if nodes is not None else up_module.pool_size(home) or 4
    if not etcd and (count == 0 or address == AUTO):
        what = "--nodes 0" if count == 0 else f"--address {AUTO}"
        raise typer.BadParameter(f"{what} needs the --etcd of the system that it is a part of", param_hint="--etcd")
    pool = [PoolNode(name=f"n{i + 1}") for i in range(count)]
    terminal = Terminal(up_module.system_folder(home) / "up.log")
    on_notice = (lambda: submit.succeed(Commands(), os.environ)) if submit.VARIABLE in os.environ else None
    with contextlib.ExitStack() as stack:
        stack.enter_context(sentences())
        failpoints.armed()
        checked_file = checked(security, [e for e in etcd.split(",") if e])
        if done := up_module.raised(home, pool):
            print_line(done)
            return
        started = stack.enter_context(
            up_module.up(
                home,
                pool,
                etcd=etcd,
                address=address,
                name=name,
                node_folder=node_folder,
                cold=cold,
                security=checked_file,
                with_prometheus=with_prometheus,
                say=terminal.say,
                on_notice=on_notice,
            )
        )
        stack.enter_context(terminal.outlived())
        what = f"{count} local nodes" if count else f"service host {name}"
        page = f", page {started.page}" if started.page else ""
        kept = f", Prometheus {started.prometheus.url}" if started.prometheus is not None else ""
        print_line(f"up: etcd {started.endpoint}, {what}, folder {home}{page}{kept}. Now: supervisor launch RUN.toml")
        up_module.watch_over(started, terminal.say)


@app.command(epilog="Example: supervisor down --home runs")
def down(home: Home = HOME) -> None:
    """End the `supervisor up` of this home as Ctrl-C does: its runs are stopped with a last checkpoint, then all parts end.
    Also what an `up` that was killed has left."""
    with sentences():
        up_module.down(home, Terminal(up_module.system_folder(home) / "up.log").say)
    print_line(f"down: nothing of `supervisor up` runs in {home} any more")


@app.command(epilog="Example: supervisor run --etcd 10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379")
def run(
    etcd: Annotated[
        str,
        typer.Option(
            envvar="SUPERVISOR_ETCD", callback=endpoints_option, help="HOST:PORT of etcd, several with commas."
        ),
    ],
    home: Annotated[Path, typer.Option(envvar="SUPERVISOR_HOME", help="Folder of the runs, as for `up`.")] = HOME,
    lease_s: Annotated[
        int, typer.Option(min=2, help="A dead leader blocks the standby for this long.")
    ] = service.LEASE_S,
    metrics_address: Annotated[str, typer.Option(help="Where the page and /metrics listen.")] = "127.0.0.1",
    metrics_port: Annotated[
        int, typer.Option(help="Its port; 0: the one of the last start in this home, else a free one.")
    ] = 0,
    security: SecurityFile = "",
) -> None:
    """One supervisor: leads, or stands by until the leader is gone. `up` starts one for you. With SUPERVISOR_LOG_FORMAT=json its
    log is JSON lines, as are those of agents and gates that have it in their environment."""
    with sentences():
        endpoints, metrics = etcd.split(","), (metrics_address, metrics_port)
        read = checked(security, endpoints, [("the page and metrics port", metrics_address)])
        service.main(endpoints, up_module.system_folder(home), lease_s, metrics, read)


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
            print_line(sentence)


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
    with opened_store(etcd, home, security) as store:
        made = backups.take(store)
        backups.write(made, out)
    runs = f"runs {', '.join(made.runs)}" if made.runs else "no run"
    print_line(f"wrote {out}: {len(made.records)} records at revision {made.revision}, {runs}")


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
    with opened_store(etcd, home, security) as store:
        plan = backups.restore(store, backup, file)
    for sentence in plan.sentences:
        print_line(sentence)
    print_line(
        f"restored {len(plan.records)} records of {backup.made} (revision {backup.revision}). Now: supervisor run"
    )
