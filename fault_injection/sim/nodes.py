"""A model node: a shim's processes, and an agent that follows, obeys and reports as the real one does.

Its decisions are real (`agents.agent.reconcile`, `agents.agent.desired`); their effects on processes are modelled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from agents.agent import reconcile as agent
from agents.agent.desired import Desired, anew
from agents.agent.names import LighthouseName, TrainerName
from fault_injection.sim.engine import host_of
from fault_injection.sim.gates import Lighthouse
from fault_injection.sim.store import SimLease, SimStore, SimWatch
from supervisor.ports.errors import Fenced, Retryable
from supervisor.ports.store import Changes, Expect
from supervisor.wire import keys
from supervisor.wire.records import (
    CheckpointMark,
    ExitObserved,
    Health,
    LighthouseObserved,
    NodeObserved,
    ProcessRecord,
    Progress,
    Registration,
    TrainerDesired,
    TrainerObserved,
    encode,
)

if TYPE_CHECKING:
    from fault_injection.sim.world import World

RENEW_S = 0.5
"""Seconds after which an agent tries again to register."""


@dataclass(eq=False)
class Trainer:
    """One process: a rank of a group."""

    name: TrainerName
    node: Node
    desired: TrainerDesired
    spawned: float
    built_at: float
    way: str = ""
    """The gate to which its forwarder connects."""
    step: int = 0
    commits: int = 0
    saved: CheckpointMark | None = None
    saved_told: CheckpointMark | None = None
    """The newest that is in etcd."""
    pid: int = 1
    well: bool = False
    """True if it could step when the run gave it up, or its shim ended it by itself."""
    frozen: bool = False
    ending: str | None = None
    """Why its shim is ending it."""
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    error: str = ""
    reached: bool = False
    """True if its forwarder had a gate when its agent last looked."""
    told: bool = False
    """True if its end is in etcd."""
    floor: int = 0
    """Step of the checkpoint that it was given."""
    group: int = field(init=False)
    generation: int = field(init=False)
    rank: int = field(init=False)
    said: str = field(init=False)
    """Its name."""

    def __post_init__(self) -> None:
        self.group, self.generation, self.said = self.name.group, self.name.generation, str(self.name)
        self.rank = self.name.rank

    @property
    def lives(self) -> bool:
        return self.ended is None and self.node.power

    def works(self, now: float) -> bool:
        """Returns true if it is built, and neither stopped nor over."""
        return self.lives and not self.frozen and now >= self.built_at

    def end(self, code: int | None = None, signal: int | None = None, error: str = "") -> None:
        if self.ended is None:
            self.ended = self.node.world.clock.now
            self.exit_code, self.signal, self.error = code, signal, error
            self.node.remember("exited", self, exit_code=code, signal=signal)
            self.node.wake()
            if code != 0 and self.desired.world_size > 1:
                self.node.world.training.lost_one(self)

    def record(self) -> ProcessRecord:
        return _record(self.said, self.ended is not None, self.exit_code, self.signal)

    def reaches_gate(self) -> bool:
        return any(gate.hears(self) for gate in self.node.world.gates)

    def observed(self) -> TrainerObserved:
        name, exited = self.name, self.ended is not None
        end = ExitObserved(
            exit_code=self.exit_code, signal=self.signal, error_file=self.error, told=self.ending or "", oom=False,
            ended_s=self.ended or 0.0,
        )  # fmt: skip
        progress = Progress(
            run=name.run, group=name.group, generation=name.generation, rank=name.rank, pid=1, sequence=self.commits,
            phase="finished" if self.exit_code == 0 else "step" if self.commits else "starting",
            step=self.step, commits=self.commits, step_s=self.node.world.pace.step_s, checkpoint=self.saved,
            quorum_id=self.node.world.training.quorum_id if self.commits else -1,
        )  # fmt: skip
        return TrainerObserved(
            run=name.run, group=name.group, generation=name.generation, rank=name.rank, pid=1,
            state="exited" if exited else "running" if self.commits else "starting",
            exit=end if exited else None, progress=progress, gate=self.way,
            reaches_gate=self.reached,
        )  # fmt: skip


def _record(name: str, exited: bool, code: int | None, signal: int | None) -> ProcessRecord:
    return ProcessRecord(
        name=name, pid=1, start_ticks=1, folder="", exited=exited, exit_code=code, signal=signal
    )  # fmt: skip


class Node:
    """One machine of an allocation, or a service host."""

    def __init__(self, world: World, name: str, allocation: str, role: Literal["trainer", "service"]) -> None:
        self.world = world
        self.name, self.allocation = name, allocation
        self.role: Literal["trainer", "service"] = role
        self.power = True
        self.linked = True
        """Its link to everything."""
        self.etcd_linked = True
        self.agent = True
        self.proved = False
        """True if a leader takes it for dead before its lease lapses, where no gate hears it."""
        self.leaving = ""
        """The notice that its shim got of the end of its allocation."""
        self.known_at = float("inf")
        """When it was registered."""
        self.found = False
        """True if the scheduler gave it up, and reached it again."""
        self.trainers: dict[str, Trainer] = {}
        self.kept: dict[int, tuple[int, int]] = {}
        """Group -> the relaunch for which its state is in the node's memory, and its step: of groups on one node."""
        self.lighthouses: dict[str, Lighthouse] = {}
        self.store = self._free_store()
        """The store that its agent offers to a group on several nodes."""
        self.client = SimStore(world.etcd, name)
        self.client.woken = self.wake
        self.history = world.shims.setdefault(name, [])
        """The lines of its shim's history."""
        self.history.append({"t": world.clock.now, "event": "shim_started", "allocation": allocation})
        self._desired = Desired(name)
        self._watch: SimWatch | None = None
        self._lease: SimLease | None = None
        self._said: NodeObserved | None = None
        self._at_rest: object = None
        """The wishes and processes at which the agent last had nothing left to do."""
        self.beats_lost = 0.0
        """Share of a gate's looks at which nothing of its trainers has arrived."""
        self.beats_late = (0.0, 0.0)
        """Least and most delay of their heartbeats, which keep their order."""
        self.beat_due = 0.0
        """When the last delayed heartbeat arrives."""
        self._due = False
        self._busy = self._missed = False
        self._sequence = 0
        self.wake()

    # --- faults ---

    def kill_agent(self) -> None:
        """Kills the agent. Its processes live on, and the shim starts it again."""
        self.agent = False
        self.world.connect()

    def start_agent(self) -> None:
        """Starts the agent, which reads everything again and recognizes its own registration."""
        if not self.agent:
            self.agent = True
            self._forget_watch()
            self._said = None
            self.world.connect()
            self.wake()

    def power_off(self) -> None:
        """Switches the node off for good: its processes are gone with it, and nothing reports that."""
        self.power = False
        self.client.leave()
        self.world.gates_changed()

    def switch(self, on: bool) -> None:
        """Switches a service host off, or on again: its shim then knows what it had run, and that it has ended."""
        if on == self.power:
            return
        self.power = on
        for lighthouse in self.lighthouses.values():
            lighthouse.end()
        self.agent = False
        self.world.connect()
        if on:
            self.start_agent()

    @property
    def is_hard_to_hear(self) -> bool:
        """Returns true if messages of its trainers to a gate get lost, or arrive late."""
        return self.beats_lost > 0 or self.beats_late[1] > 0

    def _forget_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch, self._desired = None, Desired(self.name)

    # --- the agent ---

    def wake(self) -> None:
        """Schedules its agent's next turn soon."""
        if not self._due:
            self._due = True
            self.world.clock.after(self.world.dice.uniform(*self.world.pace.lag_s), self._turn)

    def _turn(self) -> None:
        self._due = False
        if self._busy:  # it waits inside a call, and the world goes on around it
            self._missed = True
            return
        if not self.power or not self.agent:
            return
        self._busy = True
        try:
            self._take_turn()
        except Retryable:
            self.world.clock.after(RENEW_S, self.wake)
        self._busy = False
        if self._missed:
            self._missed = False
            self.wake()

    def _take_turn(self) -> None:
        if self.client.reaches:
            self._follow()
        self._obey()
        if self.client.reaches:
            self._report()
        elif self._watch is None:
            self.world.clock.after(
                RENEW_S, self.wake
            )  # begun while etcd is away: nothing but itself wakes it when etcd is back

    def _follow(self) -> None:
        if self._watch is None:
            prefix = keys.desired(self.name, "")
            found = self.client.list(prefix)
            self._desired.take(Changes(found.revision, found.items, reset=True))
            self._watch = self.client.watch(prefix, found.revision)
        while (changes := self._watch.poll(0.0)) is not None:
            self._desired.take(changes)

    def _obey(self) -> None:
        wanted = self._desired.wanted(set()).by_run
        there = [(t.said, t.ended) for t in self.trainers.values()], [(x, x.up) for x in self.lighthouses.values()]
        if (wanted, there) == self._at_rest:
            return  # reconcile is pure: it would return the same again
        records = [t.record() for t in self.trainers.values()] + [x.record() for x in self.lighthouses.values()]
        actions = agent.reconcile(wanted, records, self.allocation)
        over = all(isinstance(action, agent.Forward) for action in actions)
        self._at_rest = (wanted, there) if over else None
        for action in actions:
            match action:
                case agent.Start(desired=desired, ranks=ranks) if self.registered and anew(self.client, self.name).has(
                    desired
                ):
                    self._start(desired, ranks)
                case agent.StartLighthouse(desired=light):
                    name = LighthouseName(light.run, light.generation)
                    self.lighthouses[str(name)] = self.world.open_gate(self, name, light)
                    self.wake()
                case agent.Forward(desired=desired):
                    way = (desired.group, desired.generation)
                    own = [t for t in self.trainers.values() if (t.group, t.generation) == way]
                    changed = any(t.way != desired.gate for t in own)
                    for trainer in own:
                        trainer.way, trainer.desired = desired.gate, desired
                    if changed:
                        self.wake()  # to report it
                case agent.Stop(name=name_, why=why, at_once=at_once):
                    self._stop(name_, why, at_once)
                case agent.Forget(name=name_):
                    if name_ in self.trainers and self.trainers[name_].told:
                        del self.trainers[name_]
                case _:
                    pass

    def _start(self, desired: TrainerDesired, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._start_rank(desired, rank)
        if desired.store == self.store:
            self.store = self._free_store()
        self.wake()

    def _free_store(self) -> str:
        several = self.world.spec.groups.nodes_per_group > 1 and self.role == "trainer"
        return f"{self.name}:{self.world.next_port()}" if several else ""

    def _start_rank(self, desired: TrainerDesired, rank: int) -> None:
        now, name = self.world.clock.now, TrainerName(desired.run, desired.group, desired.generation, rank)
        pace, before = self.world.pace, self.world.ran_on.get((name.group, rank), self.name)
        self.world.ran_on[name.group, rank] = self.name
        start_s = self.world.dice.uniform(*(pace.start_s if before == self.name else pace.move_s))
        floor = desired.checkpoint.step if desired.checkpoint is not None else 0
        relaunch, kept = self.kept.get(name.group, (0, 0))
        takes = desired.resume == "disk" and 0 < relaunch == desired.from_memory and kept > floor
        self.trainers[str(name)] = trainer = Trainer(
            name, self, desired, now, now + start_s, way=desired.gate,
            step=kept if takes else floor, floor=floor, pid=self.world.next_pid(),
        )  # fmt: skip
        self.world.training.ranks.setdefault((name.group, name.generation), []).append(trainer)
        self.remember("spawned", trainer)
        self.world.checks.spawned(trainer)

    def _stop(self, name: str, why: str, at_once: bool) -> None:
        if name in self.lighthouses:
            self.lighthouses[name].end()
            return
        trainer = self.trainers[name]
        if trainer.ending is None and trainer.ended is None:
            trainer.ending = why
            self.world.checks.ends(trainer)
            clock = self.world.clock
            grace_s = 0.0 if at_once else trainer.desired.term_grace_s
            after_s = grace_s if trainer.frozen else min(grace_s, self.world.dice.uniform(*self.world.pace.term_s))
            first, last = (9, 9) if at_once else (15, 9 if trainer.frozen else 15)
            self.remember("signalled", trainer, signal=first, why=why)
            clock.after(after_s, lambda: trainer.end(signal=last))

    # --- its reports ---

    def _report(self) -> None:
        for trainer in self.trainers.values():
            trainer.reached = trainer.reaches_gate()
        observed = NodeObserved(
            node=self.name,
            sequence=self._sequence,
            trainers=tuple(t.observed() for t in self.trainers.values()),
            lighthouses=tuple(
                LighthouseObserved(
                    run=x.name.run,
                    generation=x.name.generation,
                    state="running" if x.up else "exited",
                    address=x.address,
                )
                for x in self.lighthouses.values()
            ),
            leaving=self.leaving,
            store=self.store,
        )
        saved = [(t, t.saved) for t in self.trainers.values() if t.saved is not t.saved_told]
        if observed != self._said:
            if self._said is None:
                self.client.put(keys.health(self.name), encode(self._health()))
            self._sequence += 1
            ended = [t for t in self.trainers.values() if t.ended is not None and not t.told]
            self.client.put(keys.observed(self.name), encode(observed))
            self._said = observed
            for trainer, mark in saved:
                trainer.saved_told = mark
                self.world.checks.told(trainer, mark)
            for trainer in ended:
                trainer.told = True
                self.wake()  # it may be forgotten now
        if self._lease is None or self._lease.lost:
            self._register()

    @property
    def registered(self) -> bool:
        """Returns true if it is registered and reaches etcd, where it can read what is wanted now."""
        return self.client.reaches and self._lease is not None and not self._lease.lost

    def _register(self) -> None:
        key = keys.registration(self.name)
        found = self.client.get(key)
        own = self._lease.id if self._lease is not None else -1
        if found is not None and found.lease not in (0, own):
            self.world.clock.after(RENEW_S, self.wake)  # another agent of this name: its lease must lapse first
            return
        lease = self.client.lease(self.world.spec.policy.node_lease_s)
        record = Registration(
            node=self.name, address=self.name, role=self.role, allocation=self.allocation, slots=self.world.spec.groups.slots, agent_pid=1,
            version="sim", host=host_of(self.name) if self.role == "trainer" else self.name,
        )  # fmt: skip
        try:
            expect = Expect(key, mod_revision=found.mod_revision if found is not None else 0)
            self.client.commit({key: encode(record)}, expect=[expect], lease=lease.id)
        except Fenced:
            lease.revoke()
            self.world.clock.after(RENEW_S, self.wake)
            return
        except Retryable:  # written or not: without its lease it is gone
            lease.revoke()
            raise
        self._lease, self.known_at = lease, self.world.clock.now
        self._keep_looking(lease)
        self.wake()  # processes that are wanted may start now

    def _keep_looking(self, lease: SimLease) -> None:
        """Notices a lost lease within a third of its time."""

        def look() -> None:
            if self._lease is lease and self.power:
                if lease.lost:
                    self.wake()
                if not lease.lost or not (self.agent and self.client.reaches):
                    self.world.clock.after(lease.ttl_s, look)

        self.world.clock.after(lease.ttl_s, look)

    def _health(self) -> Health:
        return Health(
            node=self.name, sequence=1, warm="off", disk_free_bytes=1 << 40, memory_available_bytes=1 << 37, load_1m=1.0
        )

    def remember(self, event: str, trainer: Trainer, **more: object) -> None:
        """Writes a line of the history as `agents.shim.process_table.Table.remember` does."""
        line = {"t": self.world.clock.now, "event": event, "name": str(trainer.name), "pid": trainer.pid}
        self.history.append({**line, "start_ticks": 1, "generation": trainer.generation, **more})

    def living(self) -> Iterator[Trainer]:
        return (t for t in self.trainers.values() if t.lives)
