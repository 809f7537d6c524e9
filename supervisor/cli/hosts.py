"""Commands that keep groups away from hosts."""

from __future__ import annotations

from typing import Annotated

import typer

from supervisor.cli.common import HOME, Etcd, Home, SecurityFile, app, opened_store, text_option
from supervisor.shell import hosts
from supervisor.shell.mirror import Mirror
from supervisor.wire import keys
from supervisor.wire.printer import print_line

Because = Annotated[str, typer.Option(callback=text_option, help="Why: `supervisor nodes` and `status` show it.")]
Host = Annotated[
    str, typer.Argument(metavar="HOST", help="The host, or a node on it, as `supervisor nodes` names them.")
]
Hosts = Annotated[
    list[str], typer.Argument(metavar="HOST...", help="Hosts, or nodes on them, as `supervisor nodes` names them.")
]
Drained = Annotated[
    str, typer.Argument(metavar="NODE_OR_HOST", help="A node, or its host: all that is on the host leaves.")
]


@app.command(epilog='Example: supervisor cordon n2 --because "its disk is failing"')
def cordon(host: Host, because: Because, etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """Place no group of any run on a host any more, until `uncordon`. What runs there goes on."""
    _kept_away(host, because, etcd, home, security, drain=False)


@app.command(epilog='Example: supervisor drain n2 --because "it gets a new network card"')
def drain(host: Drained, because: Because, etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """As `cordon`, and the groups that are there leave in order: one at a time, once another node is there, at no budget."""
    _kept_away(host, because, etcd, home, security, drain=True)


@app.command(epilog="Example: supervisor uncordon n2 n7")
def uncordon(hosts_: Hosts, etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """Free hosts again for every run, whoever cordoned them: a person, incidents, or their checks."""
    with opened_store(etcd, home, security) as store:
        print_line(hosts.uncordon(store, Mirror(store.list(keys.PREFIX)), *hosts_))


def _kept_away(host: str, because: str, etcd: str, home: Home, security: str, *, drain: bool) -> None:
    if not because.strip():
        raise typer.BadParameter("say why: others will ask", param_hint="--because")
    with opened_store(etcd, home, security) as store:
        print_line(hosts.cordon(store, Mirror(store.list(keys.PREFIX)), host, because.strip(), drain))
