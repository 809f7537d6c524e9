"""Starts a whole system on this machine, with toys or real trainers: etcd, supervisors, the service host and local nodes, each a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fault_injection.checkers import consistency
from fault_injection.doubles.toys import TOYS, WARM_TORCH
from fault_injection.testbed.etcds import Cluster
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.incident import Incident
from supervisor.core.model.spec import AllocationSpec, GroupsSpec, PolicySpec, RunSpec, TitanSpec, TorchFTSpec
from supervisor.ports.errors import Retryable
from supervisor.ports.store import Snapshot
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.dev.etcd_server import EtcdServer, start_etcd
from supervisor.shell.engines.local import LocalEngine, Pool, PoolNode
from supervisor.shell.etcd import EtcdStore, connect
from supervisor.shell.history import files as history
from supervisor.shell.inspect import client, status
from supervisor.shell.inspect.status import RunStatus
from supervisor.shell.processes import is_running, start_ticks
from supervisor.wire import keys
from supervisor.wire.records import Control, NodeObserved, RunRecord, TrainerObserved
from supervisor.wire.security import Security

LEASE_S = 2
"""Leases of the toys' nodes and of the supervisors: etcd's least."""

TORCHFT = TorchFTSpec(
    heartbeat_timeout_ms=1000,
    join_timeout_ms=5000,
    process_group_timeout_ms=5000,
    quorum_timeout_ms=120_000,
    quorum_retries=1000,
)
"""Timeouts of toys that step in a real quorum."""


def toy_spec(name: str = "toy", groups: int = 2, spares: int = 1, **policy: Any) -> RunSpec:
    """A spec of toys, which write no checkpoint: none is due."""
    return RunSpec(
        name=name,
        titan=TitanSpec(steps=10**6, checkpoint_interval_steps=10**6),
        groups=GroupsSpec(count=groups),
        allocation=AllocationSpec(nodes=groups, spares=spares),
        torchft=TorchFTSpec(),
        policy=PolicySpec(**{"node_lease_s": LEASE_S, "term_grace_s": 1.0, **policy}),
    )


class World:
    """The running parts of a system, with ways to look at it and break it."""

    def __init__(
        self,
        folder: Path,
        etcd: EtcdServer | Cluster,
        nodes: int,
        environment: dict[str, str],
        security: Security | None = None,
        places: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        """`places`: node or service host -> (network namespace, address); the others are here, on loopback. Trainers are
        forked from warm processes if `environment` has WARM_TORCH."""
        self.places = places or {}
        self.security = security.path if security is not None else ""
        self.runs = folder / "runs"
        self.system = self.runs / ".supervisor"
        self.etcd = etcd
        self.environment = {**os.environ, **environment}
        self.toys = "SUPERVISOR_PROGRAMS" in environment
        self.supervisors: list[subprocess.Popen[bytes]] = []
        pool = tuple(self._pool_node(f"n{i + 1}") for i in range(nodes))
        Pool(nodes=pool, etcd=etcd.endpoint, cold=WARM_TORCH not in environment, security=self.security).save(
            self.system
        )
        self.host = self.start_host()
        self.hosts = {"host": self.host}
        self.store: EtcdStore = connect(etcd.endpoint.split(","), security=security)

    def _pool_node(self, name: str) -> PoolNode:
        namespace, address = self.places.get(name, ("", "127.0.0.1"))
        return PoolNode(name, address=address, netns=namespace)

    def _spawn(self, log: str, *arguments: str, netns: str = "", **environment: str) -> subprocess.Popen[bytes]:
        self.system.mkdir(parents=True, exist_ok=True)
        inside = ["ip", "netns", "exec", netns] if netns else []
        with (self.system / f"{log}.log").open("ab") as file:
            return subprocess.Popen(
                [*inside, sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**self.environment, **environment},
                start_new_session=True,
            )

    def start_host(self, name: str = "host") -> subprocess.Popen[bytes]:
        namespace, address = self.places.get(name, ("", "127.0.0.1"))
        return self._spawn(
            name,
            *["-m", "agents.cli", "run", "--node", name, "--home", str(self.system), "--etcd", self.etcd.endpoint],
            *["--role", "service", "--slots", "0", "--cold", "--report-s", "1", "--address", address],
            *(["--security", self.security] if self.security else []),
            netns=namespace,
        )

    def second_host(self) -> None:
        """Starts another service host, to which the lighthouse may move."""
        self.hosts["other"] = self.start_host("other")

    def stop_all_but_etcd(self) -> None:
        """Stops everything as `supervisor up` does: the supervisor first, then the nodes, then the service host."""
        for process in (*self.supervisors,):
            process.terminate()
            _reap(process)
        assert LocalEngine(self.system).stop_all(20) == []
        self.host.terminate()
        _reap(self.host)

    def pull_the_power(self) -> None:
        """Kills all but etcd at once."""
        shims = [grant.engine_id.rpartition(":")[2] for grant in LocalEngine(self.system).list()]
        pids = [*(p.pid for p in self.supervisors if p.poll() is None), *map(int, shims), self.host.pid]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for process in (*self.supervisors, self.host):
            _reap(process)
        eventually(lambda: not any(map(start_ticks, pids)), 10, "all have ended")

    def supervisor(
        self, failpoint: str = "", etcd: str = "", home: Path | None = None, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Starts a supervisor; at a failpoint it will kill (or stop) itself. `home`: another folder of runs than
        ours."""
        process = self._spawn(
            "supervisor",
            *["-m", "supervisor.cli", "run", "--etcd", etcd or self.etcd.endpoint, "--home", str(home or self.runs)],
            *["--lease-s", str(LEASE_S)],
            *(["--security", self.security] if self.security else []),
            SUPERVISOR_FAILPOINT=failpoint,
            **environment,
        )
        self.supervisors.append(process)
        return process

    def launch(self, spec: RunSpec) -> RunRecord:
        eventually(self.led, 30, "a supervisor leads")
        return client.launch(self.store, spec, self.runs)

    def led(self) -> bool:
        """True if there is a leader."""
        return keys.LEADER in self.mirror().items

    def mirror(self) -> Mirror:
        """Returns all keys of etcd. Waits where a busy disk keeps etcd away for seconds."""

        def read() -> Snapshot | None:
            try:
                return self.store.list(keys.PREFIX)
            except Retryable:
                return None

        return Mirror(eventually(read, 30, "etcd answers"))

    def status(self, record: RunRecord) -> RunStatus:
        return status.run_status(self.mirror(), record)

    def incidents(self, record: RunRecord) -> list[Incident]:
        return client.incidents(self.mirror(), record.spec.name)

    def running(self, record: RunRecord, *generations: int) -> Callable[[], bool]:
        """Returns a predicate: all groups run, at these generations if given."""

        def look() -> bool:
            groups = self.status(record).groups
            right = not generations or tuple(g.generation for g in groups) == generations
            return right and all(g.phase == "running" for g in groups)

        return look

    def trainer(self, record: RunRecord, group: int) -> TrainerObserved:
        """Returns rank 0 of the group's current generation, as its node reports it."""
        state = self.status(record).groups[group]
        seen = self.mirror().record(keys.observed(state.node), NodeObserved)
        assert seen is not None
        return next(t for t in seen.trainers if (t.group, t.generation, t.rank) == (group, state.generation, 0))

    def kill_trainer(self, record: RunRecord, group: int, by: signal.Signals = signal.SIGKILL) -> int:
        pid = self.trainer(record, group).pid
        assert pid > 0, "it does not run"
        os.kill(pid, by)
        return pid

    def shim_pid(self, node: str) -> int:
        return int((self.system / "nodes" / node / "shim.lock").read_text())

    def shim_history(self, node: str) -> list[dict[str, Any]]:
        """Returns the journal of the node's shim."""
        text = (self.system / "nodes" / node / "shim.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def host_processes(self) -> list[str]:
        """Returns the names of the processes on the service host."""
        found = []
        for path in (self.system / "nodes" / "host" / "processes").glob("*.json"):
            record = json.loads(path.read_text())
            if not record["exited"] and record["pid"]:
                found.append(str(record["name"]))
        return found

    def kill_host_process(self, name: str) -> None:
        record = json.loads((self.system / "nodes" / "host" / "processes" / f"{name}.json").read_text())
        os.kill(record["pid"], signal.SIGKILL)

    def kill_node(self, node: str) -> None:
        """Kills everything of a node at once."""
        pid = self.shim_pid(node)
        ticks = start_ticks(pid)
        assert ticks is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not is_running(pid, ticks), 5, "the shim ends")

    def allocation_of(self, record: RunRecord, group: int) -> str:
        node = self.status(record).groups[group].node
        return next(n.allocation for n in status.node_status(self.mirror()) if n.node == node)

    def take_away(self, key: str) -> None:
        LocalEngine(self.system).take_away(key, "taken by the test")

    def control(self, record: RunRecord, **change: Any) -> None:
        def changed(control: Control) -> Control:
            return replace(control, **change)

        client.change_control(self.store, record.spec.name, changed)

    def history(self, record: RunRecord) -> history.History:
        return history.read(record.spec.name, Path(record.run_dir), self.system)

    def check(self, record: RunRecord, stepped: bool = True) -> None:
        """Runs the history checkers, which every test must pass. Where no group has made a step (`stepped`), those that
        read step records answer unknown."""
        verdicts = consistency.check(self.history(record))
        assert verdicts
        excused: tuple[str, ...] = () if stepped else ("single_owner", "steps_not_lost", "one_quorum_per_step")
        if record.spec.titan.overrides.get("toy.mode", "idle") == "idle" and self.toys:
            excused += ("one_quorum_per_step",)  # idle toys know no quorum: that checker answers unknown
        wrong = [v for v in verdicts if v.answer != "pass"]
        assert [v for v in wrong if v.answer == "fail" or v.checker not in excused] == []

    def close(self) -> None:
        hosts = {id(p): p for p in (self.host, *self.hosts.values())}.values()
        for process in (*self.supervisors, *hosts):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.supervisors:
            _reap(process)
        left = LocalEngine(self.system).stop_all(20)
        for host in hosts:
            _reap(host)
        self.store.close()
        assert left == []


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def equal_digests(w: World, record: RunRecord, since: float) -> list[int]:
    """Returns the steps since then at which every rank wrote the same digest as its counterparts in all other groups.
    Raises AssertionError when two differ."""
    found: dict[tuple[int, int], set[str]] = {}
    told: dict[int, set[tuple[int, int]]] = {}
    for steps in w.history(record).steps:
        for line in steps.lines:
            if line.get("event") == "digest" and line["t"] > since:
                found.setdefault((line["step"], steps.rank), set()).add(line["value"])
                told.setdefault(line["step"], set()).add((steps.group, steps.rank))
    assert all(len(values) == 1 for values in found.values()), found
    every = record.spec.groups.count * record.spec.groups.ranks_per_group
    return [step for step, ranks in told.items() if len(ranks) == every]


@contextmanager
def world(folder: Path, nodes: int = 4, toys: bool = True, warm_torch: bool = False) -> Iterator[World]:
    """Yields a system without a supervisor: the caller starts those. `warm_torch`: as world_on."""
    server = start_etcd(folder / "etcd")
    try:
        with world_on(server, folder, nodes, toys, warm_torch) as made:
            yield made
    finally:
        server.stop()


@contextmanager
def world_on(
    etcd: EtcdServer | Cluster, folder: Path, nodes: int = 4, toys: bool = True, warm_torch: bool = False
) -> Iterator[World]:
    """Yields a world on an etcd that the caller ends. `warm_torch`: trainers are forked from processes that have TorchFT."""
    environment = {"SUPERVISOR_PROGRAMS": json.dumps(TOYS)} if toys else {}
    if warm_torch:
        environment |= {WARM_TORCH: "1"}
    made = World(folder, etcd, nodes, environment)
    try:
        yield made
    finally:
        made.close()
