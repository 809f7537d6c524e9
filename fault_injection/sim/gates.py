"""A model lighthouse with its gate: the real `agents.gate.state` decides which groups it lets through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from agents.agent.names import LighthouseName
from agents.gate.etcd import GATE_LEASE_S, read_orders
from agents.gate.lighthouse_child import FROZEN_S
from agents.gate.state import GateState
from fault_injection.sim.store import SimLease, SimStore, SimWatch
from supervisor.core.model.observed import GATE_ETCD_SILENCE_S
from supervisor.ports.store import Item
from supervisor.wire import keys
from supervisor.wire.records import GateObserved, GatePresence, LighthouseDesired, ProcessRecord, encode

if TYPE_CHECKING:
    from fault_injection.sim.nodes import Node, Trainer
    from fault_injection.sim.world import World


class Lighthouse:
    """One generation of the lighthouse, on a service host."""

    def __init__(self, world: World, node: Node, name: LighthouseName, desired: LighthouseDesired) -> None:
        torchft = desired.torchft
        self.world, self.node, self.name = world, node, name
        self.up = True
        self.frozen = False
        self.address = ""
        """Empty until it listens."""
        self.state = GateState(
            torchft.heartbeat_timeout_ms / 1000, torchft.join_timeout_ms / 1000, GATE_ETCD_SILENCE_S, FROZEN_S
        )
        self.client = SimStore(world.etcd, str(name))
        self._key = keys.desired(node.name, name.run)
        self._watch: SimWatch | None = None
        self._lease: SimLease | None = None
        self._told: GateObserved | None = None
        self._doubted: tuple[tuple[int, int], ...] = ()
        self._ticked_at = world.clock.now
        self._opened_at = 0.0
        self._join_s = torchft.join_timeout_ms / 1000
        self._waits_since: float | None = None
        """Since when it waits for a group that it counts as alive and that does not come."""
        world.clock.after(world.pace.gate_tick_s, self._tick)

    def record(self) -> ProcessRecord:
        return ProcessRecord(
            name=str(self.name), pid=1, start_ticks=1, folder="", exited=not self.up, exit_code=None if self.up else 0
        )

    @property
    def serves(self) -> bool:
        """Returns true if a group may get a quorum from it."""
        state = self.state
        return self.up and not self.frozen and self.node.power and state.opened and not (state.closed or state.retired)

    def end(self) -> None:
        if self.up:
            self.up = False
            self.client.cut()
            self.node.wake()
            self.world.gates_changed()

    # --- the network ---

    def hears(self, trainer: Trainer) -> bool:
        """Returns true if the trainer's forwarder has a connection to it."""
        listens = self.up and not self.frozen and bool(self.address) and trainer.way == self.address
        return listens and self.world.same_side(trainer.node, self.node)

    def _heard(self) -> Iterator[Trainer]:
        """Yields all trainers that it hears."""
        world = self.world
        if not self.up or self.frozen or not self.address:
            return
        for node in (*world.nodes.values(), *world.ghosts):
            if node.trainers and world.same_side(node, self.node):
                for trainer in node.trainers.values():
                    if trainer.way == self.address:
                        yield trainer

    def able(self) -> list[Trainer]:
        """Returns the trainers, each the rank 0 of its group, that it lets into a quorum now."""
        if not self.serves:
            return []
        now, passage = self.world.clock.now, self.state.passage
        heard = (t for t in self._heard() if t.rank == 0 and t.works(now))
        meets = self.world.training.meets
        return [t for t in heard if passage(t.group, t.generation, t.node.name, now) == "admit" and meets(t)]

    def members(self) -> list[Trainer]:
        """Returns the members of the lighthouse's next quorum: none while the gate is in doubt about a group that it
        lost. It waits for a group that it counts as alive and that does not come. After `join_timeout_ms` it goes on
        without it if more than half remain (torchft 0.2.0, src/lighthouse.rs, quorum_compute)."""
        now = self.world.clock.now
        waits = now < self._opened_at + self.world.pace.rejoin_s
        if not self.serves or waits or self.state.doubted(now):
            return []
        beating = {g for g in self.state.admitted if self.state.hearing(g, now) == "beating"}
        # a trainer whose calls are lost requests no quorum; all others will have been heard a moment from now
        come = [t for t in self.able() if t.group in beating or not t.node.is_hard_to_hear]
        if {t.group for t in come} == beating:
            self._waits_since = None
            return come
        if self._waits_since is None:
            self._waits_since = now
        come = [t for t in come if t.group in beating]
        return come if now - self._waits_since >= self._join_s and 2 * len(come) > len(beating) else []

    # --- its own time ---

    def _tick(self) -> None:
        if not self.up:
            return
        now = self.world.clock.now
        self.world.clock.after(self.world.pace.gate_tick_s, self._tick)
        if self.frozen or not self.node.power:
            return
        if now - self._ticked_at > FROZEN_S:
            self.end()
            return
        self._ticked_at = now
        if self.client.reaches and not self._asks_etcd():
            return
        self._hear(now)
        self.state.judge_etcd(self.client.silent_s, self.client.reaches, now)
        if not self.state.opened and self.state.may_open(now):
            self.state.open(now)
            self._opened_at = now
        self._doubted = self.state.doubted(now)
        if self.client.reaches:
            self._publish(now)
        self.world.checks.owners()

    def _asks_etcd(self) -> bool:
        """Reads its orders from etcd; returns true if it must go on."""
        self.state.confirm(self._doubted)
        if self._watch is None:
            item = self.client.get(self._key)
            self._watch = self.client.watch(self._key, self.world.etcd.revision)
            self._obey(item)
        while (changes := self._watch.poll(0.0)) is not None:
            for item in changes.puts:
                self._obey(item)
        if self.state.retired:
            self.end()
            return False
        if self._lease is None or self._lease.lost:
            self._lease = self.client.lease(GATE_LEASE_S)
            presence = GatePresence(run=self.name.run, node=self.node.name, generation=self.name.generation)
            self.client.put(keys.gate_presence(self.node.name, self.name.run), encode(presence), self._lease.id)
        return True

    def _obey(self, item: Item | None) -> None:
        orders = read_orders(item, self._key, self.name.generation)
        if orders is None:
            return
        if orders.retired:
            self.state.retired = True
            return
        self.state.admit(orders.admitted, self.world.clock.now)
        if not self.address:
            self.address = f"{self.node.name}:{self.name.generation}"
            self.node.wake()
            self.world.gates_changed()

    def _hear(self, now: float) -> None:
        dice = self.world.dice
        for trainer in self._heard():
            node = trainer.node
            if node.beats_lost and dice.random() < node.beats_lost:
                continue
            if node.beats_late[1]:
                self._comes_late(trainer, now)
            else:
                self._take(trainer, trainer.ended is not None, trainer.works(now), now)

    def _comes_late(self, trainer: Trainer, now: float) -> None:
        """Delivers what it reports now, later and after its earlier reports."""
        node, ended, works = trainer.node, trainer.ended is not None, trainer.works(now)
        node.beat_due = max(node.beat_due, now + self.world.dice.uniform(*node.beats_late))

        def come() -> None:
            if self.up and not self.frozen and self.hears(trainer):
                self._take(trainer, ended, works, self.world.clock.now)

        self.world.clock.after(node.beat_due - now, come)

    def _take(self, trainer: Trainer, ended: bool, works: bool, now: float) -> None:
        """Takes a trainer's report to the gate."""
        state, way = self.state, (trainer.group, trainer.generation)
        if state.is_stale(*way) or state.is_foreign(*way, trainer.node.name):
            return
        state.came(*way)
        if ended:
            state.gone(*way)
            return
        if trainer.desired.nodes > 1:
            state.asked(*way, trainer.node.name, now)  # by its node's forwarder, even for a rank that is frozen
        if works and trainer.rank == 0:
            replica = trainer.said
            if not state.generations[way].replica_id:
                if not self.world.training.meets(trainer):
                    return
                state.built(*way, replica, now)
            state.heard(*way, replica.encode(), now)
            state.answered(now)

    def _publish(self, now: float) -> None:
        observed = GateObserved(
            run=self.name.run, node=self.node.name, generation=self.name.generation, address=self.address,
            groups=self.state.groups(now),
        )  # fmt: skip
        if self.address and observed != self._told:
            self._told = observed
            self.client.put(keys.gate(self.node.name, self.name.run), encode(observed))
