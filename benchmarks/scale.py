"""Measures the control plane by the number of nodes: a real etcd, two real supervisors, and light agents: one process that
writes the records of all nodes and of the gate as real ones do, under a lease each, and trains nothing.

One group a node. `start_s`: from the launch until each group's order to start has reached its node; `registered_s`: until
the last agent had registered, which is the light agents' own part. `failure`: seconds from a process's end, as its agent
begins to write it, until the order to start it again reaches the node; `at_once`: of a hundred groups that end together;
`leader_killed`: of a group that ends just as the leader is killed. `steady`: what etcd and the leader do meanwhile, with
reports every five seconds.

The agents take a part of the same two processors, which a thousand machines would not.

`python -m benchmarks.scale [--sizes 10 100 1000]` writes benchmarks/results/scale.json.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from benchmarks.decide import machine
from fault_injection.sim.lane import commit
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import AllocationSpec, BudgetSpec, GroupsSpec, PolicySpec, RunSpec, TitanSpec
from supervisor.ports.engine import Request
from supervisor.shell import service
from supervisor.shell.dev.etcd_server import start_etcd
from supervisor.shell.engines import registry
from supervisor.shell.etcd import connect
from supervisor.shell.etcd.stubs import rpc
from supervisor.wire import keys
from supervisor.wire.records import (
    ExitObserved,
    GateGroup,
    GateObserved,
    GatePresence,
    Health,
    LeaderRecord,
    LighthouseObserved,
    NodeObserved,
    Progress,
    Registration,
    RunRecord,
    TrainerObserved,
    decode,
    encode,
)
from supervisor.wire.security import Security

RESULTS = Path(__file__).parent / "results" / "scale.json"
RUN, HOST = "scale", "host"
SIZES = (10, 100, 1000)
FAILURES, AT_ONCE = 20, 100
STEADY_S = 30.0
REPORT_S, LEASE_S = 5.0, 5
GATE_S = 0.05
"""Least seconds between two reports of the gate."""
WRITERS = 4
BEGIN_S, BACK_S = 300.0, 60.0
GOALS = {"failure_p99_s": 1.0, "start_s": 30.0}
GIVEN = "given.jsonl"


# --- the supervisors ---


class Given:
    """An engine that gives each node at once. Implements ports.engine.Engine; the next leader reads what was given."""

    name = "local"
    poll_s = 0.25

    def __init__(self, home: Path) -> None:
        self._file = home / GIVEN
        self._held: dict[str, Grant] = {}
        self._changed: Callable[[], None] = lambda: None
        self._count = 0
        if self._file.exists():
            for line in self._file.read_text().splitlines():
                self._hold(json.loads(line))

    def _hold(self, key: str) -> None:
        self._held[key] = Grant(key=key, state="granted", nodes=(f"n{self._count:05}",), engine_id=key)
        self._count += 1

    def acquire(self, request: Request) -> None:
        if request.key not in self._held:
            with self._file.open("a") as file:
                file.write(json.dumps(request.key) + "\n")
            self._hold(request.key)
            self._changed()

    def replace(self, key: str, request: Request, because: str) -> None:
        self.acquire(request)
        self.release(key)

    def release(self, key: str) -> None:
        self._held.pop(key, None)

    def list(self) -> Sequence[Grant]:
        return list(self._held.values())

    def events(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def knows(self, grant: Grant) -> bool:
        return True


def lead(etcd: str, home: Path) -> None:
    """Runs a supervisor whose local engine is `Given`."""

    def build(context: registry.Context) -> registry.OfTerm:
        return lambda system: Given(home)

    cast(dict[str, registry.Row], registry.ENGINES)["local"] = registry.Row(build=build)
    service.main([etcd], home, LEASE_S, ("127.0.0.1", 0), Security())


# --- the light agents ---


@dataclass
class Light:
    """One node, with at most one rank."""

    name: str
    allocation: str
    lease: int = 0
    group: int = -1
    generation: int = 0
    runs: bool = False
    commits: int = 0
    sequence: int = 0


@dataclass
class Agents:
    """All nodes and the gate of the run."""

    endpoint: str
    nodes: dict[str, Light] = field(default_factory=dict)
    ordered: dict[tuple[int, int], float] = field(default_factory=dict)
    """When the order to start a group's generation reached its node."""
    generations: dict[int, int] = field(default_factory=dict)
    at: dict[int, str] = field(default_factory=dict)
    """Node of each group."""
    registered_at: float = 0.0
    gate: dict[str, Any] = field(default_factory=dict)
    """The newest order of the lighthouse."""

    def __post_init__(self) -> None:
        self.store = connect([self.endpoint])
        self._writers = ThreadPoolExecutor(WRITERS)
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._due: list[tuple[float, int]] = []
        """When each lease must be renewed."""
        self._renewals: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._gate_said: GateObserved | None = None
        self._of_gate = self._next = 0
        for work in (self._watch, self._renew, self._keep_gate, *[self._report] * WRITERS):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()
        self._register(Light(HOST, ""), "service")

    def close(self) -> None:
        self._stop.set()
        self._renewals.put(None)
        self._writers.shutdown(wait=True, cancel_futures=True)
        self.store.close()

    # --- leases ---

    def _lease(self) -> int:
        granted = self.store.connection.client.lease(LEASE_S)
        with self._lock:
            heapq.heappush(self._due, (time.monotonic() + LEASE_S / 3 * random.uniform(0.8, 1.0), int(granted.id)))
        return int(granted.id)

    def _renew(self) -> None:
        """Renews all leases over one stream: an agent has one each, and a machine of its own."""
        client = self.store.connection.client
        answers = client.leasestub.LeaseKeepAlive(self._requests())
        threading.Thread(target=lambda: [None for _ in answers], daemon=True).start()
        while not self._stop.wait(0.02):
            with self._lock:
                while self._due and self._due[0][0] <= time.monotonic():
                    _, lease = heapq.heappop(self._due)
                    heapq.heappush(self._due, (time.monotonic() + LEASE_S / 3, lease))
                    self._renewals.put(lease)

    def _requests(self) -> Iterator[Any]:
        while (lease := self._renewals.get()) is not None:
            yield rpc.LeaseKeepAliveRequest(ID=lease)

    # --- orders ---

    def _watch(self) -> None:
        watched = [
            (self.store.watch(keys.DESIRED, 0), self._ordered),
            (self.store.watch(keys.grant(RUN, ""), 0), self._given),
        ]
        while not self._stop.is_set():
            for watch, take in watched:
                changes = watch.poll(0.002)
                for item in changes.puts if changes is not None else ():
                    take(item.key, json.loads(item.value))

    def _given(self, key: str, grant: dict[str, Any]) -> None:
        for name in grant.get("nodes", ()):
            if name not in self.nodes:
                node = self.nodes[name] = Light(name, grant["key"])
                self._writers.submit(self._register, node, "trainer")

    def _register(self, node: Light, role: Any) -> None:
        node.lease = self._lease()
        record = Registration(
            node=node.name, address="127.0.0.1", role=role, allocation=node.allocation, slots=1, agent_pid=1, version="light",
        )  # fmt: skip
        self._well(node)
        self.store.put(keys.registration(node.name), encode(record), lease=node.lease)
        self.registered_at = time.monotonic()

    def _ordered(self, key: str, desired: dict[str, Any]) -> None:
        name = key.removeprefix(keys.DESIRED).partition("/")[0]
        if name == HOST:
            self.gate = next((light for light in desired.get("lighthouses", ()) if not light.get("close")), {})
            return
        node = self.nodes[name]
        for trainer in desired.get("trainers", ()):
            way = trainer["group"], trainer["generation"]
            if trainer.get("hold") or way in self.ordered:
                continue
            self.ordered[way] = time.monotonic()
            self.generations[way[0]], self.at[way[0]] = way[1], name
            node.group, node.generation, node.runs, node.commits = *way, True, 1
            self._writers.submit(self.observed, node)

    # --- reports ---

    def observed(self, node: Light) -> None:
        """Writes what runs on a node."""
        node.sequence += 1
        progress = Progress(
            run=RUN, group=node.group, generation=node.generation, rank=0, pid=1, sequence=node.commits, phase="step",
            step=node.commits, commits=node.commits, step_s=1.0, quorum_id=1, participants=len(self.generations),
        )  # fmt: skip
        end = ExitObserved(signal=signal.SIGSEGV, told="", oom=False, ended_s=time.time()) if not node.runs else None
        trainer = TrainerObserved(
            run=RUN, group=node.group, generation=node.generation, rank=0, pid=1, progress=progress,
            state="running" if node.runs else "exited", exit=end, gate="host:1", reaches_gate=True,
        )  # fmt: skip
        record = NodeObserved(node=node.name, sequence=node.sequence, trainers=(trainer,) if node.group >= 0 else ())
        self.store.put(keys.observed(node.name), encode(record))

    def _well(self, node: Light) -> None:
        record = Health(
            node=node.name, sequence=node.sequence, warm="ready", disk_free_bytes=1 << 40,
            memory_available_bytes=1 << 37, load_1m=1.0,
        )  # fmt: skip
        self.store.put(keys.health(node.name), encode(record))

    def _report(self) -> None:
        """Reports one node after another: late where the machine is busy, and nothing waits behind it."""
        while not self._stop.wait(REPORT_S * WRITERS / max(1, len(self.nodes))):
            with self._lock:
                if not self.nodes:
                    continue
                self._next = (self._next + 1) % len(self.nodes)
                node = list(self.nodes.values())[self._next]
            node.commits += node.runs
            self.observed(node)
            self._well(node)

    def _keep_gate(self) -> None:
        while not self._stop.wait(GATE_S):
            light = self.gate
            if not light:
                continue
            if light["generation"] != self._of_gate:
                self._of_gate = light["generation"]
                presence = GatePresence(run=RUN, node=HOST, generation=self._of_gate)
                self.store.put(keys.gate_presence(HOST, RUN), encode(presence), lease=self._lease())
                here = LighthouseObserved(run=RUN, generation=self._of_gate, state="running", address="host:1")
                self.store.put(keys.observed(HOST), encode(NodeObserved(node=HOST, sequence=1, lighthouses=(here,))))
            groups = tuple(self._heard(int(group), order["generation"]) for group, order in light["admitted"].items())
            said = GateObserved(
                run=RUN, node=HOST, generation=self._of_gate, address="host:1", groups=groups, quorum_id=1
            )
            if said != self._gate_said:
                self._gate_said = said
                self.store.put(keys.gate(HOST, RUN), encode(said))

    def _heard(self, group: int, generation: int) -> GateGroup:
        node = self.nodes.get(self.at.get(group, ""))
        if node is None or node.generation != generation:
            return GateGroup(group=group, generation=generation, hearing="absent")
        return GateGroup(group=group, generation=generation, hearing="beating" if node.runs else "gone")

    # --- faults ---

    def fail(self, groups: Sequence[int]) -> dict[int, float]:
        """Ends the processes of groups, and returns the seconds until each group's next order came."""
        before, began = {group: self.generations[group] for group in groups}, {}
        for group in groups:
            node = self.nodes[self.at[group]]
            node.runs, began[group] = False, time.monotonic()
            self._writers.submit(self.observed, node)
        eventually(
            lambda: all(self.generations[group] > before[group] for group in groups), BACK_S, "the groups start again"
        )
        return {group: self.ordered[group, self.generations[group]] - began[group] for group in groups}


# --- what it takes ---


def taken(pid: int) -> tuple[float, float]:
    """Returns a process's processor seconds, and its resident MB."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"), int(stat[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def counted(endpoint: str) -> dict[str, float]:
    """Returns etcd's counters of puts and of bytes from and to its clients."""
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=10) as answer:
        lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#"))
    names = {
        "puts": "etcd_mvcc_put_total",
        "received": "etcd_network_client_grpc_received_bytes_total",
        "sent": "etcd_network_client_grpc_sent_bytes_total",
        "database": "etcd_mvcc_db_total_size_in_bytes",
    }
    return {name: float(lines[metric]) for name, metric in names.items()}


def steady(endpoint: str, pids: dict[str, int]) -> dict[str, float]:
    """Returns what etcd and the leader do while nothing fails."""
    before, cpu = counted(endpoint), {name: taken(pid)[0] for name, pid in pids.items()}
    began = time.monotonic()
    time.sleep(STEADY_S)
    took_s, after = time.monotonic() - began, counted(endpoint)
    found = {
        "etcd_puts_per_s": (after["puts"] - before["puts"]) / took_s,
        "etcd_received_kb_per_s": (after["received"] - before["received"]) / took_s / 1e3,
        "etcd_sent_kb_per_s": (after["sent"] - before["sent"]) / took_s / 1e3,
        "etcd_database_mb": after["database"] / 1e6,
    }
    for name, pid in pids.items():
        seconds, megabytes = taken(pid)
        found |= {f"{name}_cpu_percent": 100 * (seconds - cpu[name]) / took_s, f"{name}_mb": megabytes}
    return {name: round(value, 2) for name, value in found.items()}


def spread(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "n": len(ordered),
        "median_s": round(statistics.median(ordered), 4),
        "p99_s": round(ordered[max(0, -(-99 * len(ordered) // 100) - 1)], 4),
        "most_s": round(ordered[-1], 4),
    }


def measure(size: int, folder: Path, after: ExitStack) -> dict[str, Any]:
    """Measures a run of that many groups."""
    never, dice = 10**6, random.Random(size)
    etcd = start_etcd(folder / "etcd")
    after.callback(etcd.stop)
    leaders = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scale", "--lead", etcd.endpoint, "--home", str(folder)],
            stdout=(folder / f"supervisor{number}.log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        for number in range(2)
    ]
    for leader in leaders:
        after.callback(leader.wait)
        after.callback(leader.kill)
    agents = Agents(etcd.endpoint)
    after.callback(agents.close)

    def leading() -> int:
        item = agents.store.get(keys.LEADER)
        return decode(item.value, LeaderRecord).pid if item is not None else 0

    eventually(leading, BEGIN_S, "a supervisor leads")
    spec = RunSpec(
        name=RUN,
        titan=TitanSpec(recipe="llama3-debug-small", steps=never),
        groups=GroupsSpec(count=size),
        allocation=AllocationSpec(nodes=size, spares=1),
        policy=PolicySpec(
            budget=BudgetSpec(restart=never, replace=never, reallocate=never),
            backoff_first_s=0.0,
            backoff_max_s=0.0,
            node_lease_s=LEASE_S,
        ),
    )
    began, cpu = time.monotonic(), taken(leading())[0]
    agents.store.put(
        keys.spec(RUN), encode(RunRecord(spec=spec, run_dir=str(folder / RUN), launched_unix_s=time.time()))
    )
    eventually(lambda: len(agents.generations) == size, BEGIN_S, "all groups are to start")
    found: dict[str, Any] = {
        "registered_s": round(agents.registered_at - began, 2),
        "start_s": round(max(agents.ordered.values()) - began, 2),
        "start_leader_cpu_s": round(taken(leading())[0] - cpu, 2),
    }
    time.sleep(2 * REPORT_S)
    found["steady"] = steady(etcd.endpoint, {"etcd": etcd.pid, "leader": leading()})
    print(size, found, flush=True)
    singles: list[float] = []
    for _ in range(FAILURES):
        singles += agents.fail([dice.randrange(size)]).values()
        time.sleep(0.5)
    found["failure"] = spread(singles)
    if size > AT_ONCE:
        found["at_once"] = spread(list(agents.fail(dice.sample(range(size), AT_ONCE)).values()))
    os.kill(leading(), signal.SIGKILL)
    found["leader_killed"] = round(max(agents.fail([0]).values()), 2)
    print(size, found, flush=True)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="GROUPS")
    options.add_argument("--out", type=Path, default=RESULTS)
    options.add_argument("--lead", default="", help=argparse.SUPPRESS)
    options.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.lead:
        lead(given.lead, given.home)
        return
    load_before, sizes = os.getloadavg()[0], dict[str, Any]()
    for size in given.sizes:
        with tempfile.TemporaryDirectory(prefix="ev", dir="/tmp") as folder, ExitStack() as after:
            sizes[str(size)] = measure(size, Path(folder), after)
    made = {
        "about": "python -m benchmarks.scale", "at": time.strftime("%Y-%m-%d"), "commit": commit(),
        "machine": machine(), "load_before": round(load_before, 1), "lease_s": LEASE_S, "report_s": REPORT_S,
        "goals": GOALS, "sizes": sizes,
    }  # fmt: skip
    given.out.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
