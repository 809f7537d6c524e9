"""Commands that keep groups away from hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from supervisor.cli.common import HOME, Etcd, Home, SecurityFile, opened_store, text_option
from supervisor.wire import command_line, keys
from supervisor.wire.printer import print_line

commands = command_line.commands()


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(commands)


Because = Annotated[
    str, typer.Option(callback=text_option, help="The reason, which `supervisor nodes` and `status` show.")
]
Host = Annotated[
    str, typer.Argument(metavar="HOST", help="The host, or a node on it, as `supervisor nodes` names them.")
]
Hosts = Annotated[
    list[str], typer.Argument(metavar="HOST...", help="Hosts, or nodes on them, as `supervisor nodes` names them.")
]
Drained = Annotated[
    str, typer.Argument(metavar="NODE_OR_HOST", help="A node, or its host: all groups on the host leave.")
]


@commands.command(epilog='Example: supervisor cordon n2 --because "its disk is failing"')
def cordon(host: Host, because: Because, etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """Place no more groups on a host; what runs there stays. Applies to every run until `uncordon`."""
    _kept_away(host, because, etcd, home, security, drain=False)


@commands.command(epilog='Example: supervisor drain n2 --because "it gets a new network card"')
def drain(host: Drained, because: Because, etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """Cordon a host and move its groups away one by one. Each leaves once another node is ready, and is charged to no budget."""
    _kept_away(host, because, etcd, home, security, drain=True)


@commands.command(epilog="Example: supervisor uncordon n2 n7")
def uncordon(hosts_: Hosts, etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """Allow groups on hosts again. Applies to every run, and to cordons by a person, by incidents and by failed checks."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import hosts

        print_line(hosts.uncordon(store, Mirror(store.list(keys.PREFIX)), *hosts_))


def _kept_away(host: str, because: str, etcd: str, home: Path, security: str, *, drain: bool) -> None:
    if not because.strip():
        raise typer.BadParameter("give a reason: `supervisor nodes` and `status` show it", param_hint="--because")
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import hosts

        print_line(hosts.cordon(store, Mirror(store.list(keys.PREFIX)), host, because.strip(), drain))
