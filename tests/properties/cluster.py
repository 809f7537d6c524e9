"""The simulator's world, with what its seeds lack: warnings of an engine, persons, checks, GPUs, the program's own bugs.

Nothing here is drawn by a seed of the simulator, whose plans stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from fault_injection.sim import faults
from fault_injection.sim.checks import Checks
from fault_injection.sim.engine import SHARED, SimEngine, host_of
from fault_injection.sim.faults import Fault
from fault_injection.sim.gates import Lighthouse
from fault_injection.sim.nodes import Node, Trainer
from fault_injection.sim.run import listening, state
from fault_injection.sim.store import SimStore
from fault_injection.sim.training import Step, Training
from fault_injection.sim.world import MORE_HOSTS, World
from fault_injection.sim.world import spec as of_nodes
from supervisor.core.evidence import gpu_faults
from supervisor.core.model.decision import Decision
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import Grant, Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import RunSpec, SlurmSpec
from supervisor.core.policy.ladder import first_rung
from supervisor.ports.engine import Request, RequestRefused
from supervisor.shell.control import cordons
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import client, hosts
from supervisor.wire import keys
from supervisor.wire.checks import CheckResult
from supervisor.wire.records import Control, Cordon, Fact, Health, NodeCheck, encode
from tests.helpers.reasons import codes, passed

WARN_S = 80
"""Seconds from the warning of a time limit to the end of the allocation."""
GRACE_S = 48.0
"""Seconds from a preemption to the end of the allocation."""
CHECKS_S = 2.0
"""Seconds of the checks of a new node, where they take any time."""
FACTS = ("checkpoint", "fence", "uncordon", "hold", "let_go")
"""Actions that only note an observation; a paused run may take them."""


def spec(groups: int = 3, mode: Literal["act", "observe"] = "act", size: int = 1, **budget: int) -> RunSpec:
    """A run with one spare, groups of `size` nodes and the simulator's short times."""
    made = of_nodes(groups * size + 1, nodes_per_group=size)
    if mode == "observe":  # the group that writes checkpoints may be lost, and no other takes that over
        made = replace(made, titan=replace(made.titan, checkpoint_interval_steps=1000))
    policy = replace(made.policy, mode=mode, budget=replace(made.policy.budget, **budget))
    return replace(made, policy=policy, allocation=replace(made.allocation, slurm=SlurmSpec(warn_s=WARN_S)))


class Scheduler(SimEngine):
    """Warns before it takes an allocation away, drains hosts, and refuses requests."""

    refusing = False

    def __init__(self, world: World, hosts: int) -> None:
        super().__init__(world, hosts)
        self.leaving: dict[str, str] = {}
        """Maps an allocation to why it will be taken away."""
        self.ends: dict[str, float] = {}
        """Maps an allocation to when that is, where it is known."""
        self.drained: set[str] = set()

    def takes_away(self, key: str) -> bool:
        return key in self.ends

    def granted(self) -> list[str]:
        return [key for key, held in self.held.items() if held.state == "granted"]

    def acquire(self, request: Request) -> None:
        if self.refusing and request.key not in self.held:
            raise RequestRefused("no quota")
        super().acquire(request)

    def list(self) -> Sequence[Grant]:
        now = self.world.clock.now
        return [
            replace(
                fact, leaving=why, leaves_in_s=max(0.1, self.ends[fact.key] - now) if fact.key in self.ends else 0.0
            )
            if (why := self.leaving.get(fact.key)) and fact.state == "granted"
            else fact
            for fact in super().list()
        ]

    def _grant(self, key: str) -> None:
        kept = [host for host in self.free if host in self.drained]
        self.free = [host for host in self.free if host not in self.drained]
        super()._grant(key)
        self.free += kept

    def end_after(self, key: str, seconds: float, reason: str) -> None:
        self.world.clock.after(seconds, lambda: self.end(key, reason))


class Machine(Node):
    """A node with a GPU, whose checks may take a while before its first rank."""

    gpus: tuple[Fact, ...] = ()
    _gpus_told: tuple[Fact, ...] = ()

    def _health(self) -> Health:
        return replace(super()._health(), facts=self.gpus)

    def _report(self) -> None:
        super()._report()
        if self.gpus != self._gpus_told:
            self.client.put(keys.health(self.name), encode(self._health()))
            self._gpus_told = self.gpus


class Program(Training):
    """A program that may raise at a step, crash on any node, never start, or never end a step."""

    lost = 0
    """Steps that were committed a second time, because the first was lost."""
    bug_at: int | None = None
    """The step from which on the program raises, on any node."""
    bug = ""
    segfaults: int | None = None
    """A group that ends by SIGSEGV a few steps after each start, on any node."""
    stillborn: int | None = None
    """A group that raises before its first step, on any node."""
    spinning: Trainer | None = None
    """A trainer that heartbeats and is in the quorum, but never ends a step."""

    def _look(self, gate: Lighthouse) -> None:
        if gate.up and self.spinning in gate.members():
            self.world.clock.after(self.world.pace.gate_tick_s, lambda: self._look(gate))
        else:
            super()._look(gate)

    def _begin(self, gate: Lighthouse, members: list[Trainer]) -> float:
        for member in members:
            if member.group == self.stillborn and not member.commits:
                member.end(code=1, error="ValueError: no shard")
        living = [member for member in members if member.ended is None]
        return super()._begin(gate, living) if living else self.world.pace.gate_tick_s

    def _commit(self, made: Step) -> None:
        before = self.newest
        super()._commit(made)
        self.lost += self.newest == before

    def _commit_one(self, made: Step, trainer: Trainer, step: int, healed: bool, place: int) -> None:
        super()._commit_one(made, trainer, step, healed, place)
        if trainer.group == self.segfaults and trainer.commits >= 3:
            trainer.end(signal=11)
        if self.bug_at is not None and step >= self.bug_at:
            trainer.end(code=1, error=f"{self.bug} at 0x{id(trainer):x}")


class Rules(Checks):
    """The simulator's checks, and what must hold of each committed decision about nodes and allocations."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.acted: set[str] = set()
        self.successors: set[str] = set()
        """Leaving allocations for which another was requested."""
        self.renewed: set[str] = set()

    def _committed(self, by: SimStore | None) -> None:
        before = self.memory
        super()._committed(by)
        writer = next(s for s in self.world.supervisors if s.store is by)
        assert writer.decided is not None
        observed, decision = writer.decided
        self._actions(observed, before, decision)
        self._acquired(observed, before, decision)
        for incident in decision.incidents:
            if incident.decided == observed.now:
                for rung in range(first_rung(incident.kind, self.world.spec.policy), incident.rung):
                    name = Rung(rung).name.lower()
                    if name not in passed(incident.considered):
                        self.broke(f"rung: {incident.id} ({incident.kind}) is at {incident.rung!r}, {name} skipped")
                if incident.kind == Kind.GPU:
                    self._moved_for_its_gpu(observed, before, incident.group)

    def _actions(self, observed: Observed, before: Memory, decision: Decision) -> None:
        spec, drains = self.world.spec, decision.memory.phase not in ("new", "running")
        for action in decision.actions:
            node = observed.nodes.get(action.node)
            if action.verb == "place" and node is not None and gpu_faults.unfit(node, spec):
                self.broke(f"gpu: {action.key} on {action.node}: {gpu_faults.unfit(node, spec)}")
            if action.verb == "start" and node is not None and node.failed:
                self.broke(f"checks: {action.key} again on {action.node}: {node.failed}")
            if action.verb in ("start", "place", "fence", "move", "acquire", "release"):
                if action.key in self.acted:
                    self.broke(f"stale: {action.key} is done twice")
                self.acted.add(action.key)
            if observed.control.paused and action.verb not in FACTS and not drains:
                self.broke(f"paused: {action.key} ({action.reason})")

    def _moved_for_its_gpu(self, observed: Observed, before: Memory, group: int) -> None:
        """Checks that no group moves for another generation's GPU failure."""
        was = before.groups[group]
        facts = [fact for node in was.nodes for fact in observed.nodes[node].gpus]
        its_own = ((group, was.generation) in f.during and f.xid != 13 if f.during is not None else True for f in facts)
        if not was.left_out and not any(its_own):  # one that is tried again was judged when it was left out
            self.broke(f"gpu: group {group} moves in generation {was.generation}, and only {facts} was said")

    def _acquired(self, observed: Observed, before: Memory, decision: Decision) -> None:
        """Checks that each allocation is paid for, or stands for one that leaves, and that a spare is renewed once."""
        acquired = [a for a in decision.actions if a.verb == "acquire"]
        replaced = sum(i.decided == observed.now and i.rung == Rung.REPLACE for i in decision.incidents)
        if sum(a.rung == Rung.REPLACE for a in acquired) > replaced:
            self.broke(f"acquired: more refills than the {replaced} replacements that pay for them")
        for action in acquired:
            code, of = action.reason.code, action.reason.about.get("allocation")
            for is_one, had in ((Code.IN_PLACE_OF_LEAVING, self.successors), (Code.IN_PLACE_OF, self.renewed)):
                if code == is_one:
                    if of in had:
                        self.broke(f"acquired: {action.reason}: a second time")
                    had.add(str(of))
            if code == Code.IN_PLACE_OF:
                self._renewed(str(of), observed, before)
            elif action.rung is None and code != Code.IN_PLACE_OF_LEAVING and not _is_free(action.reason):
                self.broke(f"acquired: {action} is paid by no budget, and nothing left")

    def _renewed(self, key: str, observed: Observed, before: Memory) -> None:
        """Checks that a spare is renewed only when it is gone for long, of no use, or will not come."""
        grant, known = observed.grants.get(key), before.allocations[key]
        late = observed.now >= known.since + self.world.spec.policy.allocation_timeout_s
        held = {host for host, cordon in observed.cordons.items() if cordon.ours or cordon.why}
        if grant is None or grant.state == "pending":
            if held.issuperset(known.exclude):
                self.broke(f"acquired: {key} may still come, leaves out no host that is free, and is renewed")
        elif grant.state == "gone":
            if not late:
                self.broke(f"acquired: spare {key} went and is asked for again too soon")
        elif known.unheard_since is None:
            views = [observed.nodes[node] for node in grant.nodes if node in observed.nodes]
            if not any(
                v.machine in held.union(before.cordons) or gpu_faults.unfit(v, self.world.spec) or v.failed or v.unsure
                for v in views
            ):
                self.broke(f"acquired: spare {key} is of use and is renewed")
        if any(seat.allocation == key for g in before.groups.values() if g.phase != "finished" for seat in g.seats):
            self.broke(f"acquired: {key} is renewed as a spare, and a group lives on it")


class Cluster(World):
    """The world of one example. Its time passes in `run` and `until` alone, until something is broken."""

    engine: Scheduler
    checks: Rules
    training: Program

    def __init__(self, spec: RunSpec, seed: int, hosts: int | None = None) -> None:
        super().__init__(spec, seed)
        nodes = spec.allocation.nodes + spec.allocation.spares
        self.engine = Scheduler(self, nodes + MORE_HOSTS if hosts is None else hosts)
        self.checks, self.training = Rules(self), Program(self)
        self.etcd.written[:] = [self.checks.written]
        self.person = SimStore(self.etcd, "person")
        self.cause: bool | None = None
        """True: a shared cause fails the checks of idle machines. False: it is over, and they check again."""
        self.helpful = False
        """True while a person reads what is waited for, and asks once more."""
        self.fired: set[str] = set()
        """Faults that found something to hit."""
        self._meanwhile()

    @property
    def memory(self) -> Memory:
        return self.checks.memory

    @property
    def kinds(self) -> set[Kind]:
        return {incident.kind for incident in self.checks.incidents.values()}

    def add_node(self, name: str, allocation: str) -> None:
        node = self.nodes[name] = Machine(self, name, allocation, "trainer")
        self._connect(node)
        if self.etcd.up and self.dice.random() < 0.3:
            self.check(name, "pending")
            self.clock.after(CHECKS_S, lambda: self.check(name, "passed"))

    def machines(self) -> list[Machine]:
        return [node for node in self.nodes.values() if isinstance(node, Machine) and node.power]

    def trainer(self, group: int) -> Trainer:
        return next(t for t in self.trainers() if t.group == group and t.lives)

    def mirror(self) -> Mirror:
        return Mirror(self.etcd.snapshot(keys.PREFIX))

    def held(self) -> list[str]:
        """Returns the keys of all that is held against hosts."""
        return [item.key for item in self.etcd.snapshot(keys.CORDONS).items]

    def drained_by_a_person(self) -> set[str]:
        """Returns the nodes whose host a person drains."""
        held = cordons.by_host(self.mirror())
        return {h + SHARED for h, each in held.items() if each.person is not None and each.person.drain}

    # --- time ---

    def run(self, seconds: float) -> None:
        self.until(lambda: False, seconds)

    def until(self, reached: Callable[[], bool], seconds: float) -> bool:
        with listening(self):
            self.clock.run_until(self.clock.now + seconds, lambda: bool(self.checks.broken) or reached())
        assert not self.checks.broken, self.checks.broken[:3]
        return reached()

    def gets_well(self, within_s: float = 300.0) -> None:
        assert self.until(self.healthy, within_s), state(self)

    def _meanwhile(self) -> None:
        """Does every second what persons and idle machines do by themselves."""
        self.clock.after(1.0, self._meanwhile)
        if self.helpful and self.etcd.up:
            self._help()
        for machine in self.machines() if self.cause is not None and self.etcd.up else ():
            if machine.known_at < self.clock.now and not list(machine.living()) and self.dice.random() < 0.7:
                failed = host_of(machine.name) in {
                    h for h, held in cordons.by_host(self.mirror()).items() if held.failed
                }
                if self.cause or failed:
                    self.check(machine.name, "failed" if self.cause else "passed")

    def _help(self) -> None:
        leader = next((s for s in self.supervisors if s.leads and s.decided is not None), None)
        waits = leader.decided[1].waits if leader is not None and leader.decided is not None else ()
        for group, memory in self.memory.groups.items():
            if not memory.seats and any(_asks_for(group, wait) for wait in waits):
                self.ask_for(group, only_once=True)
        if self.memory.phase == "halted" and codes(self.memory.halt_reason) & {Code.REFUSED, Code.ALL_REFUSED}:
            self.control(lambda control: client.resumed(control, "a person looked"))

    def lead(self) -> None:
        """Has etcd answer, and waits for a supervisor that leads."""
        with listening(self):
            self.etcd.start()
        assert self.until(lambda: any(s.leads and s.loop is not None for s in self.supervisors), 60.0)

    # --- persons ---

    def control(self, change: Callable[[Control], Control]) -> Control:
        return client.change_control(self.person, self.spec.name, change)

    def ask_for(self, group: int, only_once: bool = False) -> None:
        done = self.memory.restarts_done.get(group, 0)

        def asked(control: Control) -> Control:
            so_far = control.restarts.get(group, 0)
            waits = only_once and so_far > done
            return control if waits else replace(control, restarts={**control.restarts, group: so_far + 1})

        self.control(asked)

    def check(self, name: str, found: Literal["pending", "failed", "passed", "unknown"]) -> None:
        """Writes the outcome of a node's checks."""
        if self.etcd.up:
            told = () if found == "pending" else (CheckResult(name="disk", outcome=found, evidence="it is a disk"),)
            record = NodeCheck(
                node=name, host=host_of(name), state=found, why="by hand", began=self.etcd.revision, results=told
            )
            self.person.put(keys.check(name), encode(record))

    # --- faults ---

    def fault(self, kind: str, target: int) -> None:
        """Causes one fault by name; `target` picks the victim, and how long it lasts."""
        with listening(self):
            hit = (
                OWN[kind](self, target)
                if kind in OWN
                else faults.inject(self, Fault(self.clock.now, kind, target, 1.0 + target % 15))
            )
        if hit:
            self.fired.add(kind)

    def heal(self) -> None:
        """Ends all faults: what is broken for good stays broken, the rest comes back."""
        with listening(self):
            faults.heal(self)
        _undrain(self, 0)
        self.engine.refusing, self.training.spinning = False, None
        self.control(lambda control: replace(control, paused=False))
        while held := cordons.by_host(self.mirror()):
            hosts.uncordon(self.person, self.mirror(), *held)


Hits = Callable[[Cluster, int], bool]


def _picked(things: Sequence[Any], target: int) -> Any:
    return things[target % len(things)] if things else None


def _gpu(kind: str) -> Hits:
    """A GPU that is lost, or an Xid that may need a reset, of all generations that have run there."""

    def hits(c: Cluster, target: int) -> bool:
        machine = _picked(c.machines(), target)
        if machine is None:
            return False
        said, xid = f"{kind} on {machine.name} at {c.clock.now:g}", (13, 48, 79)[target % 3] if kind == "gpu_xid" else 0
        during = tuple(f"run.{t.group}.{t.generation}" for t in machine.trainers.values()) if xid else None
        machine.gpus += (Fact(kind=kind, subject="gpu 0", evidence=said, xid=xid, during=during),)
        machine.wake()
        return True

    return hits


def _mend_gpus(c: Cluster, target: int) -> bool:
    broken = [machine for machine in c.machines() if machine.gpus]
    for machine in broken:
        machine.gpus = tuple(fact for fact in machine.gpus if fact.kind == "gpu_xid")
        machine.wake()
    return bool(broken)


def _leaves(reason: str, seconds: float, everything: bool = False) -> Hits:
    """One allocation, or all of them, will be taken away; a time limit is announced to the shim, else to the engine."""

    def hits(c: Cluster, target: int) -> bool:
        granted = c.engine.granted()
        chosen = granted if everything else [_picked(granted, target)] if granted else []
        for key in chosen:
            node = c.nodes.get(c.engine.held[key].host)
            if reason == "preempted" and key not in c.engine.ends:
                c.engine.leaving[key], c.engine.ends[key] = reason, c.clock.now + seconds
                c.engine.end_after(key, seconds, reason)
            elif reason != "preempted" and node is not None and not node.leaving:
                node.leaving = "its time limit is near"
                node.wake()
                c.engine.end_after(key, seconds, reason)
        return bool(chosen)

    return hits


def _drain(c: Cluster, target: int) -> bool:
    key = _picked(c.engine.granted(), target)
    if key is not None and key not in c.engine.leaving:
        c.engine.leaving[key] = "drained by an administrator"
        c.engine.drained.add(c.engine.held[key].host)
    return key is not None


def _undrain(c: Cluster, target: int) -> bool:
    drained = [key for key in c.engine.leaving if key not in c.engine.ends]
    c.engine.drained.clear()
    for key in drained:
        del c.engine.leaving[key]
    return bool(drained)


def _cordon(drain: bool) -> Hits:
    def hits(c: Cluster, target: int) -> bool:
        machine = _picked(c.machines(), target)
        if machine is not None and c.etcd.up:
            host = host_of(machine.name)
            record = Cordon(host=host, why="disk", by="ann@login", at_unix_s=0.0, drain=drain)
            c.person.put(keys.cordon(host), encode(record))
        return machine is not None and c.etcd.up

    return hits


def _uncordon(c: Cluster, target: int) -> bool:
    """A person frees a host of everything held against it."""
    host = _picked(sorted(cordons.by_host(c.mirror())), target)
    if host is not None and c.etcd.up:
        hosts.uncordon(c.person, c.mirror(), host)
    return host is not None and c.etcd.up


def _fail_check(c: Cluster, target: int) -> bool:
    machine = _picked([m for m in c.machines() if m.registered], target)
    if machine is not None:
        c.check(machine.name, "unknown" if target % 4 == 3 else "failed")
    return machine is not None


def _pass_check(c: Cluster, target: int) -> bool:
    """A check by hand passes on any host: the leader frees it at once."""
    host = _picked(sorted(cordons.by_host(c.mirror())), target)
    if host is not None:
        c.check(host + SHARED, "passed")
    return host is not None


def _asked(change: Callable[[Cluster, int], object]) -> Hits:
    def hits(c: Cluster, target: int) -> bool:
        if c.etcd.up:
            change(c, target)
        return c.etcd.up

    return hits


def _spin(c: Cluster, target: int) -> bool:
    c.training.spinning = _picked([t for t in c.trainers() if t.commits and t.lives], target)
    return c.training.spinning is not None


def _refuse(c: Cluster, target: int) -> bool:
    c.engine.refusing = True
    return True


OWN: dict[str, Hits] = {
    "lose_gpu": _gpu("gpu_lost"),
    "mend_gpus": _mend_gpus,
    "xid": _gpu("gpu_xid"),
    "limit": _leaves("TIMEOUT", WARN_S),
    "limit_all": _leaves("TIMEOUT", WARN_S, everything=True),
    "preempt": _leaves("preempted", GRACE_S),
    "preempt_all": _leaves("preempted", GRACE_S, everything=True),
    "drain": _drain,
    "undrain": _undrain,
    "cordon": _cordon(drain=False),
    "drain_host": _cordon(drain=True),
    "uncordon": _uncordon,
    "fail_check": _fail_check,
    "pass_check": _pass_check,
    "pause": _asked(lambda c, _: c.control(lambda control: replace(control, paused=True))),
    "resume": _asked(lambda c, _: c.control(lambda control: replace(control, paused=False))),
    "restart": _asked(lambda c, target: c.ask_for(target % c.spec.groups.count)),
    "spin": _spin,
    "refuse": _refuse,
}


def _is_free(why: Reason) -> bool:
    """Tells if an allocation draws on no budget: the run begins, or a person asks."""
    asked = why.about["reason"] if why.code == Code.FOR_INCIDENT else why
    free = (Code.RUN_STARTS, Code.EVERYTHING_GONE, Code.GONE_AGAIN, Code.ASKED_ONCE_MORE)
    return isinstance(asked, Reason) and asked.code in free


def _asks_for(group: int, wait: Reason) -> bool:
    """Tells if only a person brings the group back."""
    why = wait.about.get("why") if wait.code == Code.ABOUT_GROUP else wait
    if not isinstance(why, Reason) or why.about.get("group") != group:
        return False
    return why.code == Code.FEWER_GO_ON or (why.code == Code.STAYS_OUT and not why.about["spent"])
