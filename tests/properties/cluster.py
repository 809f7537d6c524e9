"""A model cluster around the real `decide`. Its machines' processes outlive their leases, its agents obey late and by
their last view, and its gate takes admissions late. Its engine has few nodes, its store goes away, and its supervisor
dies between deciding and committing.

The model reads nothing back from the supervisor's own opinion: the truth (which process can enter a quorum) is kept
apart from the reports. One tick is half a second.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from supervisor.core import invariants
from supervisor.core.decide import decide
from supervisor.core.evidence import gpu_faults
from supervisor.core.evidence.group_failure import GATE_ETCD_SILENCE_S
from supervisor.core.model.decision import Decision
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import (
    Checkpoint,
    ControlView,
    GateView,
    GpuFact,
    Grant,
    NodeView,
    Observed,
    RankView,
)
from supervisor.core.model.reason import ONE_CAUSE, Code, Reason
from supervisor.core.model.spec import AllocationSpec, BudgetSpec, GroupsSpec, PolicySpec, RunSpec, SlurmSpec
from supervisor.core.policy import budgets
from supervisor.core.policy.ladder import first_rung
from supervisor.core.report.words import said, say
from supervisor.ports.store import Item, Snapshot
from supervisor.shell.control import cordons, projection
from supervisor.shell.control import observe as views
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.checks import CheckResult
from supervisor.wire.records import Cordon, NodeCheck, NodeDesired, TrainerDesired, decode, encode

TICK_S = 0.5
HOST = "host"
OTHER = "other"
"""The name of a second service host."""
GATE_LEASE_S = 5.0
WARN_S = 80
LIMIT_TICKS = int(WARN_S / TICK_S)
"""Ticks from the warning of a time limit to the end of the allocation."""
GRACE_S = 48
"""Ticks from a preemption to the end of the allocation."""
CHECKS_S = 2.0
"""Seconds of the checks of a new node, where they take any time."""

FACTS = ("checkpoint", "fence", "uncordon", "hold", "let_go")
"""Actions that only note an observation; a paused run may take them."""


def spec(groups: int = 3, spares: int = 1, mode: Literal["act", "observe"] = "act", **budget: Any) -> RunSpec:
    """A run with short times: a lease of 2 s, a silence of 5 s, a start of 20 s."""
    return RunSpec(
        name="run",
        groups=GroupsSpec(count=groups),
        allocation=AllocationSpec(nodes=groups, spares=spares, slurm=SlurmSpec(warn_s=WARN_S)),
        policy=PolicySpec(
            mode=mode,
            budget=BudgetSpec(**{"restart": 500, "replace": 500, "reallocate": 500, "window_s": 60.0, **budget}),
            backoff_first_s=0.5,
            backoff_max_s=2.0,
            healthy_after_s=10.0,
            silent_timeout_s=5.0,
            start_timeout_s=20.0,
            node_lease_s=2,
            allocation_timeout_s=40.0,
        ),
    )


@dataclass
class Process:
    """One rank; a group has one."""

    group: int
    generation: int
    machine: str
    resume: str
    stop_at: int | None = None
    writer: bool = False
    saved: Checkpoint | None = None
    age: int = 0
    boot: int = 2
    frozen: bool = False
    spinning: bool = False
    """It heartbeats and is in the quorum, but never ends a step: the others wait for it."""
    ending: int | None = None
    """Ticks until a TERM takes effect."""
    exit_code: int | None = None
    signal: int | None = None
    error: str = ""
    commits: int = 0
    step: int = 0
    alone: int = 0
    reported: bool = False
    """True once its end has reached the store."""

    @property
    def exited(self) -> bool:
        return self.exit_code is not None or self.signal is not None

    @property
    def built(self) -> bool:
        return not self.exited and self.age >= self.boot

    def end(self, code: int | None = None, signal: int | None = None, error: str = "") -> None:
        if not self.exited:
            self.exit_code, self.signal, self.error = code, signal, error

    def stepped(self, step: int) -> None:
        self.commits += 1
        self.step = step
        last = self.stop_at is not None and step >= self.stop_at
        if self.writer and (last or step % 5 == 4):
            self.saved = Checkpoint(step, f"s{step}", self.group, self.generation)
        if last:
            self.end(code=0)

    def view(self, gate: str | None, reaches: bool) -> RankView:
        return RankView(
            group=self.group,
            generation=self.generation,
            rank=0,
            state="exited" if self.exited else "running" if self.commits else "starting",
            exit_code=self.exit_code,
            signal=self.signal,
            error=self.error,
            step=self.step,
            commits=self.commits,
            phase="finished" if self.exit_code == 0 else "step",
            step_s=TICK_S,
            checkpoint=self.saved,
            gate=gate,
            reaches_gate=reaches,
        )


@dataclass
class Machine:
    """A node of an allocation. `wanted` is its agent's last view of the desired trainers."""

    name: str
    allocation: str
    power: bool = True
    linked: bool = True
    agent: bool = True
    lease_until: float = -1.0
    said_something: bool = False
    checked_at: float = 0.0
    """The time at which the checks before its first rank end."""
    leaving: str = ""
    """The notice that its shim got."""
    wanted: tuple[TrainerDesired, ...] = ()
    gpu_lost: bool = False
    xids: tuple[GpuFact, ...] = ()
    processes: dict[tuple[int, int], Process] = field(default_factory=dict)
    begun: set[tuple[int, int]] = field(default_factory=set)
    ways: dict[tuple[int, int], str] = field(default_factory=dict)
    """(group, generation) -> the gate that its forwarder passes on to."""

    @property
    def host(self) -> str:
        return f"h{self.name}"

    def gpus(self) -> tuple[GpuFact, ...]:
        """GPU facts that its agent reports."""
        lost = (GpuFact(kind="gpu_lost", evidence=f"the GPU of {self.name} is lost"),) if self.gpu_lost else ()
        return (*lost, *self.xids)

    def live(self) -> list[Process]:
        return [p for p in self.processes.values() if not p.exited] if self.power else []


@dataclass
class Host:
    """A service host."""

    name: str
    power: bool = True
    lease_until: float = 1e9
    wanted: NodeDesired | None = None
    ended: set[int] = field(default_factory=set)
    """Generations of lighthouses whose end its shim knows."""
    begun: set[int] = field(default_factory=set)


@dataclass
class Gate:
    """The truth about a lighthouse and its gate."""

    host: str
    generation: int
    up: bool = True
    frozen: bool = False
    retired: bool = False
    closed: bool = False
    present_until: float = -1.0
    etcd_at: float = 0.0
    told: GateView | None = None
    admitted: dict[int, int] = field(default_factory=dict)
    came: set[tuple[int, int]] = field(default_factory=set)
    heard: dict[int, float] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.generation}"

    @property
    def serves(self) -> bool:
        return self.up and not (self.frozen or self.retired or self.closed)


@dataclass
class Allocation:
    """The engine's own knowledge of an allocation."""

    key: str
    state: str = "pending"
    node: str = ""
    reason: str = ""
    kill_in: int | None = None
    limit_in: int | None = None
    """Ticks until its time is over."""
    leaving: str = ""
    """Why it is leaving: its host was drained."""
    grace_s: float = 0.0
    """Seconds from its preemption to its end."""


class Cluster:
    """The world and its supervisor. `broken` collects every property that was seen not to hold."""

    def __init__(self, spec: RunSpec, seed: int = 0, pool: int = 20, engine_notices: bool = True) -> None:
        self.spec = spec
        self.dice = random.Random(seed)
        self.engine_notices = engine_notices
        self.now = 50.0
        self.stable_since = 0.0
        self.store_up = True
        self.hosts = {name: Host(name) for name in (HOST, OTHER)}
        self.gates: list[Gate] = []
        self.island: frozenset[str] = frozenset()
        """Hosts and machines that reach each other, but neither the store nor any other."""
        self.machines: dict[str, Machine] = {}
        self.ghosts: list[Machine] = []
        """Machines that the engine has written off, whose processes may live on."""
        self.reported: dict[str, tuple[RankView, ...]] = {}
        self.reported_leaving: dict[str, str] = {}
        self.reported_gpus: dict[str, tuple[GpuFact, ...]] = {}
        self.drained: set[str] = set()
        self.cause: bool | None = None
        """True: a shared cause fails the checks of idle machines. False: it is over, and they check again. None: no
        machine checks again."""
        self.refusing = 0
        """1 while the engine refuses requests, else 0."""
        self.stalled = 0
        """Ticks for which it grants nothing."""
        self.helpful = False
        """True while a person reads what is waited for, and asks once more."""
        self.free = [f"n{i:02}" for i in range(pool)]
        self.engine: dict[str, Allocation] = {}
        self.grants: dict[str, Grant] = {}
        self.control = ControlView()
        self.records: dict[str, bytes] = {}
        self.held: dict[str, bytes] = {}
        """Suspicions and cordons against hosts: the leader's records and a person's."""
        self.memory = Memory()
        self.desired: dict[str, NodeDesired] = {}
        self.leaderless = 0
        self.calm = False
        """True once nothing is late any more, and nothing dies."""
        self.steps = 0
        """The number of steps of quorums."""
        self.newest = 0
        """The newest step that was ever committed."""
        self.bug_at: int | None = None
        """The step from which on the program raises, on any node."""
        self.bug = "ValueError: no batch"
        self.segfaults: int | None = None
        """A group that ends by SIGSEGV a few steps after each start, on any node."""
        self.stillborn: int | None = None
        """A group that raises before its first step, on any node."""
        self.placed: dict[tuple[int, int], str] = {}
        """(group, generation) -> the allocation by which it was placed."""
        self.not_ours = 0
        """Starts that an agent left alone, because they were wanted of another allocation."""
        self.lost = 0
        """Steps that were committed a second time, because the first was lost."""
        self.broken: list[str] = []
        self.decided: list[tuple[Observed, Memory, Decision]] = []
        self.committed_keys: set[str] = set()
        self.successors: set[str] = set()
        self.renewed: set[str] = set()
        """Leaving allocations for which another was requested."""
        self.draws: dict[str, list[float]] = {}
        self.fired: set[str] = set()
        """Faults that found something to hit."""

    # --- chance ---

    def luck(self, chance: float) -> bool:
        return self.calm or self.dice.random() < chance

    # --- one tick ---

    def tick(self) -> None:
        self.now += TICK_S
        self._engine()
        if self.helpful:
            self._help()
        for machine in [*self.machines.values(), *self.ghosts]:
            self._agent(machine)
            self._processes(machine)
        for host in self.hosts.values():
            self._host(host)
        for gate in self.gates:
            self._gate(gate)
        self._quorum()
        self._check_owners()
        if self.leaderless:
            self.leaderless -= 1
        elif self.store_up and self.luck(0.8):
            self._supervise()
            self._check_owners()

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()

    # --- the world ---

    def _engine(self) -> None:
        self.stalled = max(0, self.stalled - 1)
        if not self.store_up:
            return
        for key, wanted in self.memory.allocations.items():
            known = self.engine.get(key)
            if wanted.state == "wanted":
                if known is None:
                    known = self.engine[key] = Allocation(key)
                if known.state == "pending" and self.refusing:
                    known.state, known.reason = "refused", "no quota"
                elif known.state == "pending" and not self.stalled and self.luck(0.5):
                    self._grant(known, wanted.exclude)
            elif known is not None and known.state != "gone":
                known.state, known.reason, known.kill_in = "gone", "given back", self.dice.randrange(4)
        for known in self.engine.values():
            machine = self.machines.get(known.node)
            if machine is None or machine.allocation != known.key:
                machine = None
            if known.state == "granted" and machine is not None and not machine.power and self.engine_notices:
                known.state, known.reason, known.kill_in = "gone", "node failed", 0
            if known.state == "granted" and known.limit_in is not None:
                known.limit_in -= 1
                if known.limit_in <= 0:
                    known.state, known.reason, known.kill_in = "gone", "TIMEOUT", 0
            if known.kill_in is not None and machine is not None:
                known.kill_in -= 1
                if known.kill_in <= 0:
                    self._give_up(machine)
                    known.kill_in = None
            fact = Grant(
                key=known.key,
                state=known.state,  # type: ignore[arg-type]
                nodes=(known.node,) if known.node else (),
                engine_id=f"e-{known.key}",
                reason=known.reason,
                leaving="preempted" if known.grace_s else known.leaving,
                leaves_in_s=known.grace_s,
                ended=known.state == "gone" and known.reason != "node failed" and not self._lives(known.key),
            )
            if self.luck(0.7):
                self.grants[known.key] = fact

    def _lives(self, key: str) -> bool:
        machines = [*self.machines.values(), *self.ghosts]
        return any(m.allocation == key and m.power for m in machines)

    def _grant(self, known: Allocation, exclude: tuple[str, ...]) -> None:
        names = [n for n in self.free if f"h{n}" not in exclude and n not in self.drained]
        if names:
            known.state, known.node = "granted", names[0]
            self.free.remove(names[0])
            self.machines[names[0]] = Machine(names[0], known.key)

    def _give_up(self, machine: Machine) -> None:
        """The engine ends what it can reach; a machine out of its reach lives on for itself, and its name with it."""
        del self.machines[machine.name]
        if (machine.linked and machine.name not in self.island) or not machine.power:
            for process in machine.live():
                process.end(signal=9)
            machine.power = False
            self.free.append(machine.name)
        else:
            self.ghosts.append(machine)

    def registered(self, machine: Machine) -> bool:
        return machine.name in self.machines and self.now < machine.lease_until

    def _agent(self, machine: Machine) -> None:
        if not machine.power or not machine.agent:
            return
        if machine.linked and self.store_up and machine.name not in self.island:
            if self.luck(0.6):
                wanted = self.desired.get(machine.name)
                ours = machine.name in self.machines
                machine.wanted = wanted.trainers if wanted is not None and ours else ()
            if self.luck(0.6) and machine.name in self.machines:
                self.reported[machine.name] = tuple(
                    p.view(machine.ways.get(key, ""), any(self._connected(g, p, machine) for g in self.gates))
                    for key, p in machine.processes.items()
                )
                self.reported_leaving[machine.name] = machine.leaving
                self.reported_gpus[machine.name] = machine.gpus()
                if not machine.said_something and self.luck(0.3):
                    machine.checked_at = self.now + CHECKS_S
                machine.said_something = True
                for process in machine.processes.values():
                    process.reported = process.reported or process.exited
                if self.cause is not None:
                    self._check_again(machine)
            if machine.said_something:
                machine.lease_until = self.now + self.spec.policy.node_lease_s
        if self.luck(0.7):
            self._obey(machine)

    def _obey(self, machine: Machine) -> None:
        """Acts as agents.agent.reconcile: never two generations at once, each started once, an end kept until it is
        reported."""
        newest = {t.group: t for t in machine.wanted}
        machine.ways |= {(t.group, t.generation): t.gate for t in machine.wanted}
        for process in machine.live():
            wanted = newest.get(process.group)
            if process.ending is None and (wanted is None or wanted.generation > process.generation):
                process.ending = 1 + (0 if self.calm else self.dice.randrange(4))
            elif wanted is not None and wanted.generation == process.generation:
                process.stop_at, process.writer = wanted.stop_at_step, wanted.writer
        for key, process in list(machine.processes.items()):
            wanted = newest.get(process.group)
            if process.exited and process.reported and (wanted is None or wanted.generation > process.generation):
                del machine.processes[key]
        for group, wanted in newest.items():
            key = (group, wanted.generation)
            others = [p for p in machine.live() if p.group == group]
            if wanted.allocation not in ("", machine.allocation):
                self.not_ours += 1
            elif (
                key not in machine.begun
                and not others
                and max((g for q, g in machine.begun if q == group), default=0) < wanted.generation
            ):
                machine.begun.add(key)
                if self.placed[key] != machine.allocation:
                    self.broken.append(f"agent: {key} of {self.placed[key]} begins on {machine.allocation}")
                machine.processes[key] = Process(
                    group, wanted.generation, machine.name, wanted.resume, wanted.stop_at_step, wanted.writer,
                    boot=1 if self.calm else 1 + self.dice.randrange(5),
                    step=wanted.checkpoint.step if wanted.checkpoint is not None else 0,
                )  # fmt: skip

    def _processes(self, machine: Machine) -> None:
        for process in machine.live():
            if process.ending is not None:
                process.ending -= 1
                if process.ending <= 0:
                    process.end(signal=15)
            elif not process.frozen:
                process.age += 1

    def everywhere(self) -> list[tuple[Machine, Process]]:
        return [(m, p) for m in [*self.machines.values(), *self.ghosts] for p in m.processes.values()]

    def _same_side(self, machine: Machine, gate: Gate) -> bool:
        """True if the machine's packets reach the gate's host."""
        both = (machine.name in self.island) == (gate.host in self.island)
        return both and machine.power and machine.linked and self.hosts[gate.host].power

    def _connected(self, gate: Gate, process: Process, machine: Machine) -> bool:
        """True if its forwarder has a connection to this gate."""
        way = machine.ways.get((process.group, process.generation))
        return gate.up and not gate.frozen and way == gate.address and self._same_side(machine, gate)

    def _reaches_gate(self, gate: Gate, process: Process, machine: Machine) -> bool:
        return self._connected(gate, process, machine) and process.built and not process.frozen

    def _host(self, host: Host) -> None:
        """Acts as the host's agent: starts, ends and reports lighthouses."""
        if not host.power:
            return
        if self.store_up and host.name not in self.island:
            host.lease_until = self.now + self.spec.policy.node_lease_s
            if self.luck(0.6):
                host.wanted = self.desired.get(host.name)
            if self.luck(0.6):
                host.ended |= {g.generation for g in self.gates if g.host == host.name and not g.up}
        own = [g for g in self.gates if g.host == host.name and g.up]
        for gate in own:
            if gate.frozen and self.luck(0.2):
                gate.up = False
        for light in host.wanted.lighthouses if host.wanted is not None else ():
            for gate in own:
                if (gate.generation < light.generation or light.close) and self.luck(0.5):
                    gate.up = False
            if not (light.close or light.generation in host.begun or any(g.up for g in own)) and self.luck(0.5):
                host.begun.add(light.generation)
                self.gates.append(Gate(host.name, light.generation, etcd_at=self.now))

    def _gate(self, gate: Gate) -> None:
        if not gate.up or gate.frozen:
            return
        if self.store_up and gate.host not in self.island:
            gate.etcd_at = self.now
            # its lease may have been renewed up to a third of it ago
            gate.present_until = self.now + GATE_LEASE_S - (0 if self.calm else self.dice.random() * GATE_LEASE_S / 3)
            if self.luck(0.5):
                self._read_orders(gate)
            if self.luck(0.6):
                hearing = {g: self._hearing(gate, g, n) for g, n in gate.admitted.items()}
                gate.told = GateView(
                    node=gate.host,
                    generation=gate.generation,
                    address=gate.address,
                    admitted=dict(gate.admitted),
                    hearing=hearing,
                )
        for machine, process in self.everywhere():
            if self._same_side(machine, gate) and not process.exited:
                gate.came.add((process.group, process.generation))
            if self._reaches_gate(gate, process, machine) and gate.admitted.get(process.group) == process.generation:
                gate.heard[process.group] = self.now
        late_s = self.spec.torchft.heartbeat_timeout_ms / 1000
        deaf = any(self.now - gate.heard.get(g, -1e9) > late_s for g in gate.admitted)
        if self.now - gate.etcd_at > GATE_ETCD_SILENCE_S and deaf:
            gate.closed = True

    def _read_orders(self, gate: Gate) -> None:
        wanted = self.desired.get(gate.host)
        if wanted is None:
            return
        own = [light for light in wanted.lighthouses if light.generation == gate.generation]
        if not own or own[0].close:
            gate.retired, gate.up = True, False
            return
        gate.closed = False
        for group, admission in own[0].admitted.items():
            gate.admitted[group] = max(admission.generation, gate.admitted.get(group, 0))

    def _hearing(self, gate: Gate, group: int, generation: int) -> str:
        if (group, generation) not in gate.came:
            return "absent"
        for machine, process in self.everywhere():
            if (process.group, process.generation) == (group, generation):
                here = self._same_side(machine, gate)
                if self._reaches_gate(gate, process, machine):
                    return "beating"
                if process.exited and here:
                    return "gone"
                if here and not process.built and not process.exited:
                    return "holding"
                return "silent"
        return "gone"

    def able(self, only: Gate | None = None) -> list[tuple[Machine, Process]]:
        """Processes that can enter a quorum now, with their machines."""
        return [
            (m, p)
            for gate in self.gates
            if gate.serves and only in (None, gate)
            for m, p in self.everywhere()
            if self._reaches_gate(gate, p, m) and gate.admitted.get(p.group) == p.generation
        ]

    def _quorum(self) -> None:
        for _, process in self.able():
            if process.group == self.stillborn and not process.commits:
                process.end(code=1, error="ValueError: no shard")
        members = [p for _, p in self.able() if not p.exited]
        if not members or any(p.spinning for p in members):
            return
        alone = members[0] if len(members) == 1 else None
        if alone is not None and alone.resume == "peers" and not alone.commits:
            alone.alone += 1
            if alone.alone > 3:
                alone.end(code=75)
            return
        self.steps += 1
        step = max(p.step for p in members) + 1
        self.lost += step <= self.newest
        self.newest = max(self.newest, step)
        for process in members:
            process.stepped(step)
            if process.group == self.segfaults and process.commits >= 3:
                process.end(signal=11)
            if self.bug_at is not None and step >= self.bug_at:
                process.end(code=1, error=f"{self.bug} at 0x{id(process):x}")

    # --- faults ---

    def fault(self, name: str, target: int) -> None:
        """Causes one fault by name; `target` picks the victim."""
        before = self._picture()
        getattr(self, f"_{name}")(target)
        if self._picture() != before:
            self.fired.add(name)

    def _picture(self) -> str:
        return repr(
            (
                self.machines,
                self.ghosts,
                self.gates,
                self.hosts,
                self.island,
                self.engine,
                self.control,
                self.store_up,
                self.leaderless,
                self.refusing,
                self.stalled,
                self.held,
            )
        )

    def _pick(self, target: int) -> Machine | None:
        names = sorted(self.machines)
        return self.machines[names[target % len(names)]] if names else None

    def _pick_process(self, target: int) -> Process | None:
        found = [p for m in self.machines.values() for p in m.live()]
        return found[target % len(found)] if found else None

    def _kill(self, target: int) -> None:
        if (process := self._pick_process(target)) is not None:
            process.end(signal=9)

    def _spin(self, target: int) -> None:
        if (process := self._pick_process(target)) is not None:
            process.spinning = True

    def _raise(self, target: int) -> None:
        if (process := self._pick_process(target)) is not None:
            process.end(code=1, error=f"error no {round(self.now / TICK_S)}")  # each another one

    def _freeze(self, target: int) -> None:
        if (process := self._pick_process(target)) is not None:
            process.frozen = True

    def _thaw(self, target: int) -> None:
        for _, process in self.everywhere():
            process.frozen = False

    def _unlink(self, target: int) -> None:
        if (machine := self._pick(target)) is not None:
            machine.linked = False

    def _link(self, target: int) -> None:
        for machine in [*self.machines.values(), *self.ghosts]:
            machine.linked = True

    def _power_off(self, target: int) -> None:
        if (machine := self._pick(target)) is not None:
            machine.power = False

    def _lose_gpu(self, target: int) -> None:
        if (machine := self._pick(target)) is not None:
            machine.gpu_lost = True

    def _mend_gpus(self, target: int) -> None:
        for machine in self.machines.values():
            machine.gpu_lost = False

    def _xid(self, target: int) -> None:
        """An Xid that needs a reset, of all generations that have run there. It stays reported beside later ones."""
        if (machine := self._pick(target)) is not None:
            code = (13, 48, 79)[target % 3]
            said = f"Xid {code} on {machine.name} at {self.now:g}"
            fact = GpuFact(kind="gpu_xid", evidence=said, xid=code, during=frozenset(machine.processes))
            machine.xids = (*machine.xids, fact)

    def _kill_agent(self, target: int) -> None:
        if (machine := self._pick(target)) is not None:
            machine.agent = False

    def _revive_agents(self, target: int) -> None:
        for machine in self.machines.values():
            machine.agent = True

    def _take_away(self, target: int) -> None:
        granted = sorted(k for k, a in self.engine.items() if a.state == "granted")
        if granted:
            allocation = self.engine[granted[target % len(granted)]]
            allocation.state, allocation.reason, allocation.kill_in = "gone", "preempted", target % 12

    def _granted(self, target: int) -> Allocation | None:
        granted = sorted(k for k, a in self.engine.items() if a.state == "granted")
        return self.engine[granted[target % len(granted)]] if granted else None

    def _warn(self, allocation: Allocation) -> None:
        if allocation.limit_in is None and allocation.node in self.machines:
            allocation.limit_in = LIMIT_TICKS
            self.machines[allocation.node].leaving = "its time limit is near"

    def _limit(self, target: int) -> None:
        if (allocation := self._granted(target)) is not None:
            self._warn(allocation)

    def _limit_all(self, target: int) -> None:
        for allocation in self.engine.values():
            if allocation.state == "granted":
                self._warn(allocation)

    def _preempt(self, target: int) -> None:
        if (allocation := self._granted(target)) is not None:
            self._preempted(allocation)

    def _preempt_all(self, target: int) -> None:
        for allocation in self.engine.values():
            if allocation.state == "granted":
                self._preempted(allocation)

    def _preempted(self, allocation: Allocation) -> None:
        if not allocation.grace_s:
            left = allocation.limit_in if allocation.limit_in is not None else LIMIT_TICKS
            allocation.limit_in = min(left, int(GRACE_S / TICK_S))
            allocation.grace_s = allocation.limit_in * TICK_S

    def _drain(self, target: int) -> None:
        if (allocation := self._granted(target)) is not None:
            allocation.leaving = "drained by an administrator"
            self.drained.add(allocation.node)

    def _undrain(self, target: int) -> None:
        self.drained.clear()
        for allocation in self.engine.values():
            allocation.leaving = ""

    def _cordon(self, target: int, drain: bool = False) -> None:
        if (machine := self._pick(target)) is not None:
            record = Cordon(host=machine.host, why="disk", by="ann@login", at_unix_s=0.0, drain=drain)
            self.held[keys.cordon(machine.host)] = encode(record)

    def _drain_host(self, target: int) -> None:
        self._cordon(target, drain=True)

    def _uncordon(self, target: int) -> None:
        """A person frees a host of everything held against it."""
        against = cordons.by_host(_mirror(self.held))
        if against:
            gone = against[sorted(against)[target % len(against)]].keys
            self.held = {key: value for key, value in self.held.items() if key not in gone}

    def _fail_check(self, target: int) -> None:
        if (machine := self._pick(target)) is not None:
            self._tell_check(machine.name, "unknown" if target % 4 == 3 else "failed")

    def _pass_check(self, target: int) -> None:
        """A check by hand passes on any host: the leader frees it at once."""
        against = sorted(cordons.by_host(_mirror(self.held)))
        if against:
            self._tell_check(against[target % len(against)].removeprefix("h"), "passed")
            self.held |= {key: encode(s) for key, s in cordons.freed_by_checks(_mirror(self.held)).items()}

    def _tell_check(self, name: str, state: Literal["failed", "passed", "unknown"]) -> None:
        said = CheckResult(name="disk", outcome=state, evidence="it is a disk")
        record = NodeCheck(node=name, host=f"h{name}", state=state, why="by hand", began=1, results=(said,))
        self.held[keys.check(name)] = encode(record)

    def _check_again(self, machine: Machine) -> None:
        """The effect of a shared cause on the checks of an idle machine, and that machine's next try afterwards."""
        if machine.wanted or not all(p.exited for p in machine.processes.values()) or not self.luck(0.2):
            return
        if self.cause:
            self._tell_check(machine.name, "failed")
        elif self._check_of(machine.name, "failed"):
            self._tell_check(machine.name, "passed")
            self.held |= {key: encode(s) for key, s in cordons.freed_by_checks(_mirror(self.held)).items()}

    def _refuse(self, target: int) -> None:
        self.refusing = 1

    def _accept(self, target: int) -> None:
        self.refusing = 0

    def _stall_engine(self, target: int) -> None:
        """Stalls for less than an allocation may be waited for, else the run begins with fewer or halts."""
        self.stalled = 1 + target % 20

    def _seated(self) -> list[Gate]:
        return [g for g in self.gates if g.up]

    def _gate_down(self, target: int) -> None:
        for gate in self._seated()[-1:]:
            gate.up = False

    def _gate_frozen(self, target: int) -> None:
        for gate in self._seated()[-1:]:
            gate.frozen = True

    def _host_down(self, target: int) -> None:
        host = self.hosts[(HOST, OTHER)[target % 2]]
        host.power = False
        for gate in self.gates:
            if gate.host == host.name:
                gate.up = False

    def _hosts_up(self, target: int) -> None:
        for host in self.hosts.values():
            host.power = True

    def _split(self, target: int) -> None:
        """Splits off a service host, and some machines with it."""
        machines = [name for number, name in enumerate(sorted(self.machines)) if (target >> (number + 1)) % 2]
        self.island = frozenset([(HOST, OTHER)[target % 2], *machines])

    def _unsplit(self, target: int) -> None:
        self.island = frozenset()

    def _store_down(self, target: int) -> None:
        self.store_up = False

    def _store_back(self, target: int) -> None:
        """Brings the store back; many leases may have lapsed at once."""
        if not self.store_up:
            self.store_up = True
            self.stable_since = self.now
            for number, machine in enumerate(self.machines.values()):
                machine.lease_until = self.now if (target >> number) % 2 else self.now + 1.5

    def _pause(self, target: int) -> None:
        self.control = replace(self.control, paused=True)

    def _resume(self, target: int) -> None:
        self.control = replace(self.control, paused=False)

    def _restart(self, target: int) -> None:
        group = target % self.spec.groups.count
        asked = self.control.restarts.get(group, 0) + 1
        self.control = replace(self.control, restarts={**self.control.restarts, group: asked})

    def _kill_supervisor(self, target: int) -> None:
        self.leaderless = 1 + target % 10

    def heal(self) -> None:
        """Ends all faults: what is broken for good stays broken, the rest comes back."""
        self.calm = True
        self.leaderless = 0
        self._store_back(0)
        self._hosts_up(0)
        self._unsplit(0)
        self._revive_agents(0)
        self._resume(0)
        self._undrain(0)
        self.held.clear()
        self._accept(0)
        self.stalled = 0

    def _help(self) -> None:
        waits = self.decided[-1][2].waits if self.decided else ()
        for group, memory in self.memory.groups.items():
            if memory.seats or self.control.restarts.get(group, 0) > self.memory.restarts_done.get(group, 0):
                continue
            if any(_asks_for(group, wait) for wait in waits):
                self._restart(group)
        if self.memory.phase == "halted" and "refused" in say(self.memory.halt_reason):
            self.control = replace(self.control, resumes=self.memory.resumes_done + 1, because="a person looked")

    # --- the supervisor ---

    def observe(self) -> Observed:
        given = {
            node: g.key
            for g in self.grants.values()
            if g.key in self.memory.allocations and self.memory.allocations[g.key].state == "wanted"
            for node in g.nodes
        }
        held = {seat.node for g in self.memory.groups.values() for seat in (*g.seats, *g.left)}
        nodes = {
            host.name: NodeView(
                name=host.name,
                registered=self.now < host.lease_until,
                role="service",
                lighthouses_ended=tuple(sorted(host.ended)),
            )
            for host in self.hosts.values()
        }
        for name in sorted(set(given) | held):
            machine = self.machines.get(name)
            here = machine is not None and self.registered(machine)
            nodes[name] = NodeView(
                name=name,
                registered=here,
                host=machine.host if machine is not None and here else "",
                leaving=self.reported_leaving.get(name, "") if here else "",
                gpus=self.reported_gpus.get(name, ()) if here else (),
                allocation=machine.allocation if machine is not None and here else given.get(name, ""),
                slots=1 if here else 0,
                checking=machine is not None and here and self.now < machine.checked_at,
                failed=self._check_of(name, "failed") if here else "",
                unsure=self._check_of(name, "unknown") if here else "",
                # it comes and goes, for no known reason
                warm=here and (int(self.now // 4) + int(name[1:])) % 3 == 0,
                ranks=self.reported.get(name, ()),
            )
        return Observed(
            revision=len(self.decided),
            now=self.now,
            store_stable_s=self.now - self.stable_since,
            nodes=nodes,
            gate=self._gate_view(),
            grants=dict(self.grants),
            control=self.control,
            cordons=cordons.seen_by(_mirror(self.held), self.spec.name) if self.held else {},
        )

    def _check_of(self, name: str, stands: str) -> str:
        value = self.held.get(keys.check(name))
        check = decode(value, NodeCheck) if value is not None else None
        return cordons.failure(check) if check is not None and check.stands == stands else ""

    def _gate_view(self) -> GateView | None:
        seat = self.memory.lighthouse
        for gate in self.gates:
            if (gate.host, gate.generation) == (seat.node, seat.generation) and gate.told is not None:
                return replace(gate.told, present=self.now < gate.present_until)
        return None

    def _supervise(self) -> None:
        observed = self.observe()
        before = self.memory
        decision = decide(observed, self.spec, before)
        self.decided.append((observed, before, decision))
        self.broken += [f"invariant {v}" for v in invariants.violations(before, decision.memory, observed, self.spec)]
        if not self.luck(0.9):
            return  # killed before the commit: none of it ever happened
        self._check_decision(observed, before, decision)
        self._commit(decision)

    def _commit(self, decision: Decision) -> None:
        self.records |= projection.memory_records(self.spec, decision.memory, decision.incidents)
        self.held |= projection.suspicion_records(decision.suspicions)
        for key in projection.acquitted(self.spec.name, decision.acquitted):
            self.held.pop(key, None)
        read = views.memory(_mirror(self.records), "run")
        if read != decision.memory:
            self.broken.append(f"round trip: {decision.memory} came back as {read}")
        self.memory = read
        self.placed |= {
            (g.group, g.generation): g.seats[0].allocation for g in read.groups.values() if g.phase == "starting"
        }
        self.desired = projection.desired(self.spec, "/runs/run", read)

    # --- properties ---

    def _check_owners(self) -> None:
        """Checks that there are never two owners, and never two lighthouses."""
        serving = [gate.address for gate in self.gates if self.able(gate)]
        if len(serving) > 1:
            self.broken.append(f"lighthouses: {' and '.join(serving)} serve at once")
        able: dict[int, list[str]] = {}
        for machine, process in self.able():
            able.setdefault(process.group, []).append(f"generation {process.generation} on {machine.name}")
        self.broken += [f"owners: group {g} may step as {' and as '.join(p)}" for g, p in able.items() if len(p) > 1]
        for machine, process in self.everywhere():
            group = self.memory.groups.get(process.group)
            if group is None or process.exited or not machine.power or group.phase not in ("starting", "running"):
                continue
            here = group.holds(machine.name) and machine.name in self.machines
            admitted = any(g.serves and g.admitted.get(process.group) == process.generation for g in self.gates)
            if process.generation < group.generation and not here and admitted:
                self.broken.append(
                    f"owners: generation {group.generation} of group {process.group} was started on {group.first_node} while "
                    f"generation {process.generation} lives on {machine.name} and is admitted"
                )

    def _check_decision(self, observed: Observed, before: Memory, decision: Decision) -> None:
        for action in decision.actions:
            if not say(action.reason):
                self.broken.append(f"reason: {action} says no reason")
            if action.group is not None and action.generation is not None:
                current = decision.memory.groups[action.group].generation
                if action.generation != current:
                    self.broken.append(f"stale: {action} while the generation is {current}")
            node = observed.nodes.get(action.node)
            barred = node is not None and (
                node.machine in decision.memory.cordons or self._person_bars(observed, node.machine)
            )
            if action.verb == "place" and node is not None and barred:
                self.broken.append(f"cordon: {action.key} on {action.node} of the cordoned host {node.machine}")
            if action.verb == "place" and node is not None and gpu_faults.unfit(node, self.spec):
                self.broken.append(f"gpu: {action.key} on {action.node}: {gpu_faults.unfit(node, self.spec)}")
            if action.verb == "place" and node is not None and (node.failed or node.unsure):
                self.broken.append(f"checks: {action.key} on {action.node}: {node.failed or node.unsure}")
            if action.verb == "start" and node is not None and node.failed:
                self.broken.append(f"checks: {action.key} again on {action.node}: {node.failed}")
            if action.verb in ("start", "place", "fence", "move", "acquire", "release"):
                if action.key in self.committed_keys:
                    self.broken.append(f"stale: {action.key} is done twice")
                self.committed_keys.add(action.key)
            drains = decision.memory.phase not in ("new", "running")
            if observed.control.paused and action.verb not in FACTS and not drains:
                self.broken.append(f"paused: {action.key} ({say(action.reason)})")
        self._check_budgets(decision, observed, before)
        self._check_rungs(decision)
        self._check_gpus(decision, observed, before)

    def _check_gpus(self, decision: Decision, observed: Observed, before: Memory) -> None:
        """Checks that no group moves for another generation's GPU failure."""
        for incident in decision.incidents:
            if incident.kind != Kind.GPU or incident.decided != self.now:
                continue
            if before.groups[incident.group].left_out:
                continue  # tried again: it was judged when it was left out
            now = (incident.group, before.groups[incident.group].generation)
            facts = observed.nodes[before.groups[incident.group].first_node].gpus
            if not any(f.during is None or (now in f.during and f.xid != 13) for f in facts):
                self.broken.append(f"gpu: {incident.id} of generation {now[1]}, and only {facts} was said")

    def _person_bars(self, observed: Observed, host: str) -> bool:
        return host in observed.cordons and bool(observed.cordons[host].why)

    def _check_renewed(self, key: str, observed: Observed, before: Memory) -> None:
        """Checks that a spare is renewed once, and not in a loop."""
        if key in self.renewed:
            self.broken.append(f"acquired: spare {key} is renewed twice")
        self.renewed.add(key)
        grant = observed.grants.get(key)
        if grant is None or grant.state == "pending":
            held = {h for h, cordon in observed.cordons.items() if cordon.ours or cordon.why}
            if held.issuperset(before.allocations[key].exclude):
                self.broken.append(f"acquired: {key} may still come, leaves out no host that is free, and is renewed")
            return
        if grant.state == "gone":
            if observed.now < before.allocations[key].since + self.spec.policy.allocation_timeout_s:
                self.broken.append(f"acquired: spare {key} went and is asked for again too soon")
        elif all(
            observed.nodes[node].machine in before.cordons or self._person_bars(observed, observed.nodes[node].machine)
            for node in grant.nodes
            if node in observed.nodes
        ):
            pass  # its host was cordoned meanwhile
        elif any(
            gpu_faults.unfit(view, self.spec) or view.failed or view.unsure
            for node in grant.nodes
            if (view := observed.nodes.get(node)) is not None
        ):
            pass
        elif (since := before.allocations[key].unheard_since) is not None:
            if observed.now < since + self.spec.policy.allocation_timeout_s:
                self.broken.append(f"acquired: spare {key} may still come and is renewed")
        else:
            self.broken.append(f"acquired: spare {key} is of use and is renewed")
        if any(seat.allocation == key for g in before.groups.values() if g.phase != "finished" for seat in g.seats):
            self.broken.append(f"acquired: {key} is renewed as a spare, and a group lives on it")

    def _check_budgets(self, decision: Decision, observed: Observed, before: Memory) -> None:
        drawn = [
            budgets.scope(i.rung, i.group)
            for i in decision.incidents
            if i.decided == self.now
            and i.rung in (Rung.RESTART, Rung.REPLACE)
            and i.kind not in (Kind.REQUESTED, Kind.LEAVING)
            and not (i.reason is not None and i.reason.code in ONE_CAUSE)
        ]
        acquired = [a for a in decision.actions if a.verb == "acquire"]
        drawn += ["reallocate" for a in acquired if a.rung == Rung.REALLOCATE]
        replaced = sum(scope == "replace" for scope in drawn)
        if sum(a.rung == Rung.REPLACE for a in acquired) > replaced:
            self.broken.append(f"acquired: more refills than the {replaced} replacements that pay for them")
        for action in acquired:
            # A run of which nothing is left is begun again, which is no failure to budget.
            leaving = action.reason.code == Code.IN_PLACE_OF_LEAVING
            spare = action.reason.code == Code.IN_PLACE_OF
            if spare:
                self._check_renewed(action.reason.about["allocation"], observed, before)
            if action.rung is None and not (leaving or spare or _is_free(action.reason)):
                self.broken.append(f"acquired: {action} is paid by no budget, and nothing left")
            if leaving and action.reason.about["allocation"] in self.successors:
                self.broken.append(f"acquired: {say(action.reason)}: a second time")
            if leaving:
                self.successors.add(action.reason.about["allocation"])
        for scope in drawn:
            instants = self.draws.setdefault(scope, [])
            instants.append(self.now)
            recent = [t for t in instants if self.now - t < self.spec.policy.budget.window_s]
            rung = Rung.RESTART if ":" in scope else Rung[scope.upper()]
            if len(recent) > budgets.allowed(self.spec.policy.budget, rung):
                self.broken.append(f"budget: {scope} was used {len(recent)} times in the window")

    def _check_rungs(self, decision: Decision) -> None:
        for incident in decision.incidents:
            if incident.decided != self.now:
                continue
            for passed in range(first_rung(incident.kind, self.spec.policy), incident.rung):
                name = Rung(passed).name.lower()
                if not any(say(why).startswith(f"{name}: ") for why in incident.considered):
                    self.broken.append(f"rung: {incident.id} ({incident.kind}) is at {incident.rung!r}, {name} skipped")

    def healthy(self) -> bool:
        """True if every group steps, and nothing is open."""
        stepping = {p.group for m, p in self.able() if self.memory.groups[p.group].generation == p.generation}
        return (
            len(self.memory.groups) == self.spec.groups.count
            and all(g.phase == "running" for g in self.memory.groups.values())
            and stepping == set(self.memory.groups)
            and not self.memory.incidents
        )

    def until(self, predicate: Callable[[], bool], ticks: int) -> bool:
        for _ in range(ticks):
            if predicate():
                return True
            self.tick()
        return predicate()

    def state(self) -> str:
        """The state, for a failure's message."""
        groups = {
            g: f"{m.phase} gen {m.generation} on {m.first_node or '-'} (before {m.last_node or '-'})"
            for g, m in self.memory.groups.items()
        }
        waits = said(self.decided[-1][2].waits) if self.decided else ()
        return f"{self.memory.phase} {say(self.memory.halt_reason)}; {groups}; incidents {list(self.memory.incidents.values())}; waits {waits}"


def _is_free(why: Reason) -> bool:
    """Tells if an allocation draws on no budget: the run begins, or a person asks."""
    asked = why.about["reason"] if why.code == Code.FOR_INCIDENT else why
    return asked.code in (Code.RUN_STARTS, Code.EVERYTHING_GONE, Code.GONE_AGAIN, Code.ASKED_ONCE_MORE)


def _asks_for(group: int, wait: Reason) -> bool:
    """Tells if only a person brings the group back."""
    why = wait.about.get("why") if wait.code == Code.ABOUT_GROUP else wait
    ours = isinstance(why, Reason) and why.about.get("group") == group
    return ours and (why.code == Code.FEWER_GO_ON or (why.code == Code.STAYS_OUT and not why.about["spent"]))


def _mirror(records: dict[str, bytes]) -> Mirror:
    return Mirror(Snapshot(1, tuple(Item(k, v, 1, 1) for k, v in records.items())))
