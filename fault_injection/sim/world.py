"""The model world of one run, around the real `decide`, the real loop and the real engine driver.

One thread, virtual time, one source of chance. docs/adr/0011-simulator.md lists which parts are real and which are
models."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agents.agent.names import LighthouseName
from fault_injection.sim.checks import Checks
from fault_injection.sim.clock import Clock
from fault_injection.sim.engine import SimEngine
from fault_injection.sim.gates import Lighthouse
from fault_injection.sim.leaders import Supervisor
from fault_injection.sim.nodes import Node, Trainer
from fault_injection.sim.pace import Pace, pace
from fault_injection.sim.store import Etcd, SimStore
from fault_injection.sim.training import Training
from supervisor.core.model.spec import AllocationSpec, BudgetSpec, GroupsSpec, PolicySpec, RunSpec, TitanSpec
from supervisor.wire import keys
from supervisor.wire.records import LighthouseDesired, RunRecord, encode

if TYPE_CHECKING:  # it imports this module
    from fault_injection.sim.faults import Fault

START_S = 50.0
"""Virtual time at the launch: not 0, which records take for unknown."""
TELL_S = 10.0
"""Seconds between two reports of a node on its trainer's progress, if nothing else has changed."""
FOUND_S = (5.0, 20.0)
"""Seconds from the return of a node that the scheduler had given up until it ends what runs there."""
MORE_HOSTS, MORE_SHARE = 12, 1 / 4
"""Hosts of the cluster that the run does not have: a least number, and a share of its nodes. As many may be lost at
once without counting as one cause ([policy.breaker] share). Their hosts stay suspect until a person, or a check, clears
them."""


def spec(nodes: int, tight: bool = False, nodes_per_group: int = 1) -> RunSpec:
    """Returns a run of that many nodes, at least a twelfth of them spares, with short times. `tight`: budgets soon
    spent. Groups on several nodes have two ranks on each."""
    count = (nodes - max(1, nodes // 12)) // nodes_per_group
    spares, slots = nodes - count * nodes_per_group, 1 if nodes_per_group == 1 else 2
    many = {} if tight else {"restart": 500, "replace": 500, "reallocate": 500}
    few = {"restart": 1, "replace": 1, "reallocate": 1} if tight else {}
    return RunSpec(
        name="run",
        titan=TitanSpec(checkpoint_interval_steps=10),
        groups=GroupsSpec(
            count=count, ranks_per_group=nodes_per_group * slots, nodes_per_group=nodes_per_group, ranks_per_node=slots
        )
        if nodes_per_group > 1
        else GroupsSpec(count=count),
        allocation=AllocationSpec(engine="slurm", nodes=nodes - spares, spares=spares),
        policy=PolicySpec(
            budget=BudgetSpec(**many, **few, window_s=60.0),
            backoff_first_s=0.5,
            backoff_max_s=2.0,
            healthy_after_s=10.0,
            silent_timeout_s=5.0,
            start_timeout_s=20.0,
            node_lease_s=2,
            allocation_timeout_s=40.0,
        ),
    )


class World:
    """Everything that exists. `spec.name` is the one run."""

    def __init__(self, spec: RunSpec, seed: int, at: Pace | None = None) -> None:
        self.spec = spec
        self.pace = at or pace()
        self.dice = random.Random(seed)
        self.clock = Clock(START_S)
        self.launched_at = self.clock.now
        self.delay_s = self.pace.delay_s
        self.etcd = Etcd(self.clock, self.dice, self.delay_s)
        self.checks = Checks(self)
        self.etcd.written.append(self.checks.written)
        self.journal: list[dict[str, Any]] = []
        self.shims: dict[str, list[dict[str, Any]]] = {}
        """Maps a node to the lines of its shims' histories."""
        self._pid = 0
        self.victims: list[tuple[int, str]] = []
        """Groups whose processes a fault has ended, each with the node of one."""
        self.struck_at: dict[Fault, float] = {}
        """When those faults struck that had waited until their victim trained again."""
        self.island: frozenset[str] = frozenset()
        """Nodes and hosts that reach each other, and no others."""
        self.nodes: dict[str, Node] = {}
        self.ran_on: dict[tuple[int, int], str] = {}
        """Maps a group and a rank to the node on which it was last started."""
        self._port = 0
        self.ghosts: list[Node] = []
        """Nodes that the scheduler has given up and does not reach; their processes may live."""
        self.gates: list[Lighthouse] = []
        self.training = Training(self)
        nodes = spec.allocation.nodes + spec.allocation.spares
        hosts = nodes + max(MORE_HOSTS, int(MORE_SHARE * nodes))
        self.engine = SimEngine(self, hosts)
        self.hosts = {name: Node(self, name, "", "service") for name in ("host-a", "host-b")}
        self.supervisors: list[Supervisor] = []
        for name in ("supervisor-a", "supervisor-b"):
            self._start_supervisor(name, 1)
        launched = RunRecord(spec=spec, run_dir="/runs/run", launched_unix_s=0.0)
        SimStore(self.etcd, "launch").put(keys.spec(spec.name), encode(launched))
        self._tell()
        self._look()

    def _start_supervisor(self, name: str, life: int) -> None:
        self.supervisors = [s for s in self.supervisors if not s.dead]

        def ended() -> None:
            self.clock.after(self.dice.uniform(*self.pace.back_s), lambda: self._start_supervisor(name, life + 1))

        self.supervisors.append(Supervisor(self, f"{name}.{life}", ended))

    def next_pid(self) -> int:
        self._pid += 1
        return self._pid

    def next_port(self) -> int:
        self._port += 1
        return self._port

    # --- nodes and trainers ---

    def trainers(self) -> Iterator[Trainer]:
        """Returns all trainers whose end may still matter, wherever they are."""
        return (t for node in (*self.nodes.values(), *self.ghosts) for t in node.trainers.values())

    def same_side(self, one: Node, other: Node) -> bool:
        """Returns true if packets of one reach the other."""
        if not (one.power and other.power and one.linked and other.linked):
            return False
        return not self.island or (one.name in self.island) == (other.name in self.island)

    def add_node(self, name: str, allocation: str) -> None:
        node = self.nodes[name] = Node(self, name, allocation, "trainer")
        self._connect(node)

    def open_gate(self, node: Node, name: LighthouseName, desired: LighthouseDesired) -> Lighthouse:
        self.gates = [gate for gate in self.gates if gate.up]
        self.gates.append(Lighthouse(self, node, name, desired))
        self.training.follow(self.gates[-1])
        self.connect()
        return self.gates[-1]

    def lives(self, host: str, allocation: str) -> bool:
        """Returns true if a node of this allocation may still run something."""
        return any(
            n.name == host and n.allocation == allocation and n.power for n in (*self.nodes.values(), *self.ghosts)
        )

    def give_up(self, host: str, allocation: str) -> None:
        """Ends what the scheduler reaches there."""
        node = self.nodes.get(host)
        if node is None or node.allocation != allocation:
            return
        del self.nodes[host]
        if node.power and (not node.linked or node.name in self.island):
            self.ghosts.append(node)
        else:
            self._empty(node)

    def _empty(self, node: Node) -> None:
        broken = not node.power
        for trainer in node.trainers.values():
            trainer.end(signal=9)
        node.power_off()
        if not broken:
            self.engine.free.append(node.name)

    # --- the network ---

    def connect(self) -> None:
        """Connects everything to etcd that can reach it."""
        for node in (*self.nodes.values(), *self.hosts.values(), *self.ghosts):
            self._connect(node)
        for gate in self.gates:
            node = gate.node
            online = node.power and node.linked and node.name not in self.island
            _join(gate.client, online and gate.up and not gate.frozen)
        self.gates_changed()

    def _connect(self, node: Node) -> None:
        online = node.power and node.linked and node.name not in self.island
        before = node.client.linked
        _join(node.client, online and node.agent and node.etcd_linked)
        if node.client.linked and not before:
            node.wake()
        if online and node in self.ghosts and not node.found:
            node.found = True
            self._end_soon(node)

    def _end_soon(self, node: Node) -> None:
        """Ends what runs on a node that had been given up and is back, after a while."""

        def end() -> None:
            self.ghosts.remove(node)
            self._empty(node)

        self.clock.after(self.dice.uniform(*FOUND_S), end)

    def gates_changed(self) -> None:
        """Wakes the agents whose forwarders lose their gate, or find it."""
        for node in self.nodes.values():
            if any(t.reaches_gate() != t.reached for t in node.trainers.values()):
                node.wake()

    def calm(self) -> None:
        """Disarms every fault that still waits."""
        for supervisor in self.supervisors:
            supervisor.store.on_commit = None
        self.training.on_heal = None

    def _tell(self) -> None:
        self.clock.after(TELL_S, self._tell)
        for node in self.nodes.values():
            self.clock.after(self.dice.uniform(0, TELL_S), node.wake)

    def _look(self) -> None:
        self.clock.after(self.pace.step_s, self._look)
        self.checks.obeyed()
        if self.spec.groups.nodes_per_group > 1:
            self.training.lose_peers()

    def healthy(self) -> bool:
        """Returns true if every group commits, by its current generation, and no incident is open."""
        memory, now = self.checks.memory, self.clock.now
        return (
            len(memory.groups) == self.spec.groups.count
            and all(g.phase == "running" for g in memory.groups.values())
            and not memory.incidents
            and all(now - self.training.stepped_at.get(g, 0.0) <= 2 * self.pace.step_s for g in memory.groups)
        )


def _join(client: SimStore, reaches: bool) -> None:
    if reaches:
        client.link()
    else:
        client.cut()
