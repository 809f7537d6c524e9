"""`supervisor-agent check`: runs the checks by hand and, for a node that ran here, writes their result to etcd."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agents.health.checks.neighbours import neighbours
from agents.health.checks.network import Peer
from agents.health.checks.node import arguments, collect, outcome
from supervisor.ports.store import Store
from supervisor.shell.etcd import connect
from supervisor.wire import environment, keys
from supervisor.wire.checks import CheckResult
from supervisor.wire.person import who
from supervisor.wire.records import NodeCheck, NodeObserved, RecordError, Registration, decode, encode
from supervisor.wire.security import Security

_COLOUR = {"passed": "green", "skipped": "yellow", "failed": "red", "unknown": "red"}


class NoSuchNode(ValueError):
    """No node of that name ever ran on this machine; the text names it."""


class NodeInUse(ValueError):
    """A rank runs on that node: a check beside it proves nothing about the machine, or takes what the rank needs."""


def by_hand(
    home: Path, node: str, ranks: int, etcd: Sequence[str], security: Security
) -> tuple[list[CheckResult], str]:
    """Returns the results and a sentence on what follows from them; the sentence is empty if etcd was not written.

    `home` is the folder whose disk is checked. With `node` it is that node's folder, which must exist: else a mistyped
    name would free another host. Raises NoSuchNode, NodeInUse, and PortError when there is no etcd at `etcd`.
    """
    folder = home / "nodes" / node if node else home
    if not folder.is_dir():
        what = f"no node {node} ran here" if node else "nothing can be written there"
        raise NoSuchNode(f"{what}: {folder} is not a folder (--home is that of the node)")
    if not etcd:
        return _run(folder, ranks, ()), ""
    with closing(connect(etcd, security=security)) as store:
        if node:
            _refuse_beside_ranks(store, node)
        began = store.list(keys.check(node)).revision
        results = _run(folder, ranks, neighbours(store, node))
        return results, _tell(store, node, results, began) if node else ""


def _run(folder: Path, ranks: int, peers: Sequence[Peer]) -> list[CheckResult]:
    env = environment.decided(os.environ)
    with subprocess.Popen(arguments(folder, ranks, peers), stdout=subprocess.PIPE, text=True, env=env) as child:
        return collect(child)


def _tell(store: Store, node: str, results: Sequence[CheckResult], began: int) -> str:
    state = outcome(results)
    host, before = _host(store, node), _before(store, node)
    if state == "unknown" and before is not None and before.stands == "failed":
        return f"this result changes nothing for host {host}: its earlier checks failed, and that stands"
    record = NodeCheck(
        node=node,
        host=host,
        state=state,
        why=f"by hand, {who()}",
        began=began,
        results=tuple(results),
    )
    store.put(keys.check(node), encode(record))
    if state == "unknown":
        return f"this result proves nothing about host {host}: no group is placed on node {node} until it passes"
    if state == "failed":
        return f"no group is placed on host {host} until it passes, or a person runs: supervisor uncordon {host}"
    return f"the supervisor clears the incidents held against host {host} until now, at most once a day"


def _refuse_beside_ranks(store: Store, node: str) -> None:
    """Raises NodeInUse if ranks run on the node. Only a registered node counts: an agent's last report outlives it."""
    item = store.get(keys.observed(node)) if store.get(keys.registration(node)) is not None else None
    try:
        ranks = decode(item.value, NodeObserved).trainers if item is not None else ()
    except RecordError:
        return
    runs = sorted({f"group {rank.group} of run {rank.run}" for rank in ranks if rank.state != "exited"})
    if runs:
        raise NodeInUse(
            f"node {node} runs {', '.join(runs)}: a check beside them takes memory of their devices and proves nothing; "
            f"first: supervisor drain {node} --because WHY"
        )


def _before(store: Store, node: str) -> NodeCheck | None:
    item = store.get(keys.check(node))
    try:
        return decode(item.value, NodeCheck) if item is not None else None
    except RecordError:
        return None


def _host(store: Store, node: str) -> str:
    """Returns the node's host as its agent registers it, or as the last check named it."""
    registration, before = store.get(keys.registration(node)), _before(store, node)
    try:
        if registration is not None:
            return decode(registration.value, Registration).host or node
    except RecordError:
        return node
    return before.host if before is not None else node


def render(results: Sequence[CheckResult], follows: str) -> RenderableType:
    """Returns a table with one row for each check, and the sentence that follows."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for result in results:
        table.add_row(
            Text(result.outcome, _COLOUR[result.outcome]), result.name, result.evidence, f"{result.took_s:.2f} s"
        )
    return Group(table, follows) if follows else table
