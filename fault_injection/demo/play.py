"""Plays the demo: starts the whole system, breaks it three ways, and reports what it cost."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from fault_injection.checkers import consistency
from fault_injection.demo import door, live, report
from fault_injection.demo.memory import Peak
from fault_injection.demo.scenario import Story
from fault_injection.faults import acts
from fault_injection.testbed import netns
from fault_injection.testbed.netns import Network
from supervisor.core.model.spec import AllocationSpec, GroupsSpec, PolicySpec, RunSpec, TitanSpec, TorchFTSpec
from supervisor.shell.dev import up as up_module
from supervisor.shell.etcd import connect
from supervisor.shell.history import account, files
from supervisor.shell.history.goodput import Span
from supervisor.shell.inspect import client
from supervisor.wire.printer import Printer
from supervisor.wire.security import VARIABLE, Security

NODES = 4
"""Two for the groups, a spare, and a replacement of the lost node, for when the group's allocation is taken."""


def spec(name: str) -> RunSpec:
    """Returns the run that the demo makes: TorchTitan's Llama 3 debug model, two groups, one spare."""
    return RunSpec(
        name=name,
        titan=TitanSpec(steps=100_000, checkpoint_interval_steps=25, digest_interval_steps=10),
        groups=GroupsSpec(count=2),
        allocation=AllocationSpec(nodes=2, spares=1),
        torchft=TorchFTSpec(),
        policy=PolicySpec(),
    )


def run(name: str, home: Path, cold: bool, network: Network | None, easier: str) -> int:
    """Plays the demo and returns its exit code. `easier`: why a node is lost by killing its processes; empty with a network, whose hub this process is in."""
    os.environ.pop(VARIABLE, None)
    # Output that is no terminal gets a width that keeps the tables whole.
    console = Printer(width=None if sys.stdout.isatty() else 150)
    console.print(_introduction(easier), soft_wrap=True)
    names = [f"n{i + 1}" for i in range(NODES)]
    nodes = netns.pool(names, network)
    address = network.hub_address if network is not None else "127.0.0.1"
    began = time.time()
    security = netns.in_plain(home / name) if network is not None else Security()
    options = up_module.Options(address=address, cold=cold, security=security)
    up = up_module.up(home / name, nodes, options, say=console.print)
    with Peak() as peak, up as started:
        page = door.opened(started.page)
        console.print(f"Watch it in a browser: {page}", soft_wrap=True)
        store = connect([started.endpoint], security=security)
        try:
            record = client.launch(store, spec(name), home)
            lose = _lose_node(network, names, started.home)
            with live.view(console, page) as show:
                story = Story(store, record, started.home, lose, show, started.dead)
                injected = story.tell()
        finally:
            store.close()
    return _finish(console, record, started.home, injected, _Played(easier, began, peak))


def _introduction(easier: str) -> str:
    how = f"by killing its processes ({easier})" if easier else "by taking its network link down"
    return f"A supervisor, etcd, a lighthouse and up to {NODES} nodes on this machine; a node will be lost {how}."


def _lose_node(network: Network | None, names: Sequence[str], system: Path) -> Any:
    def lose(group: int, node: str) -> acts.Injected:
        if network is None:
            return acts.kill_node(group, node, system)
        return acts.cut_node(group, node, lambda: network.cut(names.index(node)))

    return lose


@dataclass(frozen=True, slots=True)
class _Played:
    """How the demo was played."""

    easier: str
    """Why a node was lost by killing its processes; empty: its link went down."""
    began_unix_s: float
    peak: Peak


def _finish(console: Printer, record: Any, system: Path, injected: list[acts.Injected], played: _Played) -> int:
    run_dir = Path(record.run_dir)
    read = files.read(record.spec.name, run_dir, system)
    span = account.from_start_to_end(run_dir, Span(record.launched_unix_s, time.time()))
    body = report.build(read, injected, span, record.spec.groups.count, consistency.check(read))
    body["node_lost_by"] = "killed processes (the easier case)" if played.easier else "silent link"
    body["memory_peak_bytes"] = played.peak.bytes
    body["wall_s"] = round(time.time() - played.began_unix_s, 1)
    (run_dir / "report.json").write_text(json.dumps(body, indent=2) + "\n")
    console.print(_table(body))
    _sentences(console, body, run_dir)
    wrong = report.verdict(body, record.spec.torchft.heartbeat_timeout_ms / 1000)
    for sentence in wrong:
        console.print(f"FAILED: {sentence}", style="bold red", soft_wrap=True)
    return 1 if wrong else 0


def _table(body: dict[str, Any]) -> Table:
    table = Table(title="What was broken, and what it cost (seconds since the fault)", box=None, pad_edge=False)
    for column in (
        "fault",
        "incident",
        "rung",
        "generation",
        "detected",
        "decided",
        "acted",
        "recovered",
        "others' steps",
        "stall",
    ):
        table.add_column(column)
    for i in body["incidents"]:
        if i["id"] is None:
            table.add_row(i["fault"], "none", *["-"] * 8)
            continue
        seconds = [
            ("-" if i[f"{k}_s"] is None else f"{i[f'{k}_s']:.2f}")
            for k in ("detected", "decided", "acted", "recovered")
        ]
        table.add_row(
            i["fault"], f"{i['id']} {i['kind']}", str(i["rung"]), f"{i['generation_before']} -> {i['generation_after']}",
            *seconds, str(i["others_steps"]), f"{i['others_longest_stall_s']:.2f}",
        )  # fmt: skip
    return table


def _sentences(console: Printer, body: dict[str, Any], run_dir: Path) -> None:
    badput = ", ".join(f"{k} {v:.1%}" for k, v in sorted(body["badput"].items(), key=lambda kv: -kv[1]) if v >= 0.001)
    passed = sum(1 for c in body["checkers"].values() if c["answer"] == "pass")
    for line in (
        f"{body['steps_committed']} steps, {body['samples']} samples in {body['seconds']:.0f} s; loss {body['loss_first']} -> {body['loss_last']}",
        f"ETTR {body['ettr']:.1%}; badput: {badput}",
        f"parameters, optimizer and learning rate equal on all groups: {body['digests_equal']} (compared at steps {body['digests_compared_at']})",
        f"history checkers: {passed} of {len(body['checkers'])} pass; peak memory {body['memory_peak_bytes'] / 2**30:.1f} GiB",
        f"report: {run_dir / 'report.json'}",
    ):
        console.print(line, soft_wrap=True)
