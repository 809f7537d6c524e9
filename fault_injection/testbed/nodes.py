"""Starts real nodes: shims with their agents as processes, toys in the place of titan_actor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from agents.shim import process
from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import TitanSpec, TorchFTSpec
from supervisor.ports.store import Store
from supervisor.shell.processes import is_running
from supervisor.wire import keys
from supervisor.wire.records import (
    GateObserved,
    LighthouseDesired,
    NodeDesired,
    NodeObserved,
    ProcessRecord,
    Progress,
    Registration,
    TrainerDesired,
    TrainerObserved,
    decode,
    encode,
)

RUN = "toy"


class Node:
    """One shim, a child of this process."""

    def __init__(self, home: Path, name: str, etcd: str, *options: str, **environment: str) -> None:
        self.name = name
        self.folder = home / "nodes" / name
        arguments = [f"--node={name}", f"--home={home}", f"--etcd={etcd}", "--lease-s=2", "--report-s=1", *options]
        self.output = home / f"{name}.out"
        with self.output.open("ab") as output:
            self.shim = subprocess.Popen(
                [sys.executable, "-m", "agents.shim", *arguments],
                stdout=output,
                stderr=output,
                env={**os.environ, "SUPERVISOR_PROGRAMS": json.dumps(TOYS), **environment},
            )

    def records(self) -> dict[str, ProcessRecord]:
        found = {}
        for path in (self.folder / "processes").glob("*.json"):
            try:
                found[path.stem] = decode(path.read_bytes(), ProcessRecord)
            except FileNotFoundError:  # forgotten while we looked
                continue
        return found

    def pid(self, name: str) -> int:
        """Returns the pid of a process; 0 if it does not run."""
        record = self.records().get(name)
        if record is None or record.exited or not is_running(record.pid, record.start_ticks):
            return 0
        return record.pid

    def progress(self, name: str) -> Progress | None:
        try:
            return decode((self.folder / "ranks" / name / "progress.json").read_bytes(), Progress)
        except FileNotFoundError:
            return None

    def steps(self, name: str) -> list[dict[str, Any]]:
        try:
            lines = (self.folder / "ranks" / name / "steps.jsonl").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def history(self) -> list[dict[str, Any]]:
        try:
            text = (self.folder / "shim.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def warm_ready(self) -> bool:
        return any(line["event"] == "warm" and line["state"] == "ready" for line in self.history())

    def left(self) -> list[process.Stat]:
        """Returns everything that runs for this node, the shim excepted."""
        return process.marked(str(self.folder))

    def end(self) -> None:
        if self.shim.poll() is None:
            self.shim.kill()
        self.shim.wait()
        assert process.kill_and_wait(self.left(), 5.0)


class Nodes:
    """Makes nodes, and ends their processes at the end of the block."""

    def __init__(self, home: Path, etcd: str) -> None:
        self.home = home
        self.etcd = etcd
        self._made: list[Node] = []

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._made:
            node.end()

    def start(self, name: str = "n0", *options: str, etcd: str = "", **environment: str) -> Node:
        node = Node(self.home, name, etcd or self.etcd, *options, **environment)
        self._made.append(node)
        return node

    def cold(self, name: str = "n0", *options: str, etcd: str = "", **environment: str) -> Node:
        return self.start(name, "--cold", *options, etcd=etcd, **environment)


def trainer(group: int = 0, generation: int = 1, **fields: Any) -> TrainerDesired:
    """Returns a desired group; keys with `toy_` become the toy's options."""
    options = {f"toy.{key.removeprefix('toy_')}": fields.pop(key) for key in list(fields) if key.startswith("toy_")}
    defaults: dict[str, Any] = {
        "run": RUN,
        "group": group,
        "generation": generation,
        "world_size": 1,
        "groups": 1,
        "min_groups": 1,
        "gate": "",
        "run_dir": "/nonexistent",
        "titan": TitanSpec(overrides=options),
        "torchft": TorchFTSpec(),
        "term_grace_s": 2.0,
    }
    return TrainerDesired(**{**defaults, **fields})


def desire(
    store: Store,
    node: str,
    *trainers: TrainerDesired,
    lighthouses: tuple[LighthouseDesired, ...] = (),
) -> None:
    """Writes the node's desired record, as the leader would."""
    record = NodeDesired(node=node, trainers=trainers, lighthouses=lighthouses)
    store.put(keys.desired(node, RUN), encode(record))


def observed(store: Store, node: str) -> NodeObserved | None:
    item = store.get(keys.observed(node))
    return decode(item.value, NodeObserved) if item is not None else None


def registration(store: Store, node: str = "n0") -> Registration | None:
    item = store.get(keys.registration(node))
    return decode(item.value, Registration) if item is not None else None


def rank(store: Store, node: str, generation: int, group: int = 0, rank: int = 0) -> TrainerObserved | None:
    view = observed(store, node)
    wanted = (group, generation, rank)
    return next((t for t in view.trainers if (t.group, t.generation, t.rank) == wanted), None) if view else None


def gate(store: Store, node: str) -> GateObserved | None:
    item = store.get(keys.gate(node, RUN))
    return decode(item.value, GateObserved) if item is not None else None


def running(store: Store, node: Node, generation: int, group: int = 0, deadline_s: float = 15.0) -> int:
    """Waits until a rank is reported as running with steps; returns its pid."""

    def steps() -> int:
        found = rank(store, node.name, generation, group)
        return found.pid if found is not None and found.progress is not None and found.progress.commits else 0

    return eventually(steps, deadline_s, f"group {group} generation {generation} commits on {node.name}")


def kill(pid: int) -> None:
    assert pid > 0, "it does not run"
    os.kill(pid, signal.SIGKILL)
