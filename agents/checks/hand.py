"""`supervisor-agent check`: the checks by a person's hand, and, for a node that ran here, its outcome told to etcd."""

from __future__ import annotations

import getpass
import socket
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agents.checks.neighbours import neighbours
from agents.checks.network import Peer
from agents.checks.node import arguments, collect
from supervisor.ports.store import Store
from supervisor.shell.store import connect
from supervisor.wire import keys
from supervisor.wire.checks import CheckResult
from supervisor.wire.records import NodeCheck, RecordError, Registration, decode, encode
from supervisor.wire.security import Security

_COLOUR = {"passed": "green", "skipped": "yellow", "failed": "red"}


class NoSuchNode(ValueError):
    """Nobody of that name ever ran on this machine; the text says so."""


def by_hand(
    home: Path, node: str, ranks: int, etcd: Sequence[str], security: Security
) -> tuple[list[CheckResult], str]:
    """What the checks say, and a sentence on what follows from it; empty: nothing, since etcd was told nothing.

    `home` is the folder whose disk is used; with `node` that of the node, which has to be there: else a slip of the
    finger would free another host. Raises NoSuchNode, and PortError when there is no etcd at `etcd`.
    """
    folder = home / "nodes" / node if node else home
    if not folder.is_dir():
        what = f"no node {node} ran here" if node else "nothing can be written there"
        raise NoSuchNode(f"{what}: {folder} is no folder (--home is the node's own)")
    if not etcd:
        return _run(folder, ranks, ()), ""
    with closing(connect(etcd, security=security)) as store:
        began = store.list(keys.check(node)).revision
        results = _run(folder, ranks, neighbours(store, node))
        return results, _tell(store, node, results, began) if node else ""


def _run(folder: Path, ranks: int, peers: Sequence[Peer]) -> list[CheckResult]:
    with subprocess.Popen(arguments(folder, ranks, peers), stdout=subprocess.PIPE, text=True) as child:
        return collect(child)


def _tell(store: Store, node: str, results: Sequence[CheckResult], began: int) -> str:
    failed = any(result.outcome == "failed" for result in results)
    host = _host(store, node)
    record = NodeCheck(
        node=node,
        host=host,
        state="failed" if failed else "passed",
        why=f"by hand, {_who()}",
        began=began,
        results=tuple(results),
    )
    store.put(keys.check(node), encode(record))
    if failed:
        return f"no group is placed on host {host} until it passes, or a person says: supervisor uncordon {host}"
    return f"the supervisor frees host {host} from what incidents held against it until now, once a day"


def _host(store: Store, node: str) -> str:
    """As its agent says, or said."""
    registration, check = store.get(keys.registration(node)), store.get(keys.check(node))
    try:
        if registration is not None:
            return decode(registration.value, Registration).host or node
        return decode(check.value, NodeCheck).host if check is not None else node
    except RecordError:
        return node


def render(results: Sequence[CheckResult], follows: str) -> RenderableType:
    """A row a check, and what follows."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for result in results:
        table.add_row(
            Text(result.outcome, _COLOUR[result.outcome]), result.name, result.evidence, f"{result.took_s:.2f} s"
        )
    return Group(table, follows) if follows else table


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"  # a container's user may have no name
    return f"{user}@{socket.gethostname()}"
