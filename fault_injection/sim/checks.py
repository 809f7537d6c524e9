"""Checks what must hold whatever happens, each time that something of it may have changed.

Where the model knows the truth, no check relies on the supervisor's own view."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from fault_injection.sim.engine import host_of
from fault_injection.sim.store import SimStore
from supervisor.core.model.decision import Decision
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import PLANNED, Rung
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import Observed
from supervisor.core.model.reason import ONE_CAUSE, Code
from supervisor.core.policy.ladder import first_rung
from supervisor.core.report.words import say
from supervisor.wire import keys
from supervisor.wire.records import CheckpointMark, GateObserved, NodeDesired, decode

if TYPE_CHECKING:
    from fault_injection.sim.nodes import Node, Trainer
    from fault_injection.sim.training import Step
    from fault_injection.sim.world import World

OBEYS_S = 12.0
"""Seconds from the withdrawal of an order until an agent that reaches etcd has ended the process: the grace period
(term_grace_s) and the latest watch."""
KNOWN_S = 10.0
"""Seconds from a write until the leader acts: the latest watch, and the rest of a blind leader's term (LEASE_S)."""
UNSAVED = 5
"""Checkpoint intervals that may pass without a checkpoint."""
ENOUGH = 5
"""Violations of one seed that are reported."""


@dataclass
class Checks:
    """The checks of one seed. `broken` collects a sentence for everything that did not hold."""

    world: World
    broken: list[str] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    """The memory of the last commit."""
    incidents: dict[str, Incident] = field(default_factory=dict)
    changes: int = 0
    """Committed steps and decisions."""
    _trace: Any = field(default_factory=sha256)
    _begun: dict[tuple[int, int, int], str] = field(default_factory=dict)
    """Maps group, generation and rank to its node."""
    _stores: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Maps the address of a store to the group and generation that met there."""
    _stepped: dict[int, int] = field(default_factory=dict)
    _fenced_below: dict[int, int] = field(default_factory=dict)
    """Maps a group to the generation below which a gate has stated in etcd that it admits none."""
    _complete: dict[tuple[int, int], int] = field(default_factory=dict)
    """Maps group and generation to the newest checkpoint's step that had to be known when its start was decided."""
    _told: deque[tuple[float, Trainer, int]] = field(default_factory=deque)
    """Steps of complete checkpoints, when each reached etcd, and by whose report."""
    _known: int = 0
    """Step of the newest checkpoint that the leader must know."""
    _unasked: dict[int, Step] = field(default_factory=dict)
    """Maps a step's number to the step, if trainers that its lighthouse could not ask may not know it."""
    _unwanted_since: dict[Trainer, float] = field(default_factory=dict)
    _homeless: dict[int, float] = field(default_factory=dict)
    """Maps a group to the time since which it needs another node."""
    _drawn: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def digest(self) -> str:
        """A hash of everything that was ever written, with its virtual time."""
        digest: str = self._trace.hexdigest()[:16]
        return digest

    def broke(self, sentence: str) -> None:
        if len(self.broken) < ENOUGH:
            self.broken.append(f"at {self.world.clock.now:.2f} s: {sentence}")

    # --- owners and fencing ---

    def owners(self) -> None:
        """Checks that a group never has two owners, nor the run two lighthouses."""
        able = [(gate, gate.able()) for gate in self.world.gates]
        serving = [str(gate.name) for gate, trainers in able if trainers]
        if len(serving) > 1:
            self.broke(f"owners: {' and '.join(serving)} serve at once")
        seen: dict[int, Trainer] = {}
        for _, trainers in able:
            for t in trainers:
                other = seen.setdefault(t.group, t)
                if other is not t:
                    self.broke(f"owners: {t.name} on {t.node.name} and {other.name} on {other.node.name} may both step")

    def spawned(self, trainer: Trainer) -> None:
        way, rank = (trainer.group, trainer.generation), (trainer.group, trainer.generation, trainer.rank)
        where = f"{trainer.name} on {trainer.node.name}"
        if rank in self._begun:
            self.broke(f"start: {where} is begun a second time, first on {self._begun[rank]}")
        self._begun[rank] = trainer.node.name
        if self.world.spec.groups.nodes_per_group > 1:
            self._spawned_of_several(trainer, where)
        if trainer.floor < (complete := self._complete.get(way, 0)):
            self.broke(f"steps: {where} is begun from step {trainer.floor}, and step {complete} was complete for long")
        for other in trainer.node.living():
            if other.group == trainer.group and other.generation != trainer.generation:
                self.broke(f"owners: {where} is begun while {other.name} runs there")

    def _spawned_of_several(self, trainer: Trainer, where: str) -> None:
        """Checks the start of a rank of a group on several nodes: all of its seats are taken, and its generation alone
        meets at its store."""
        size, way = self.world.spec.groups.nodes_per_group, (trainer.group, trainer.generation)
        current = self.memory.groups[trainer.group]
        if current.generation == trainer.generation and len(seats := {*current.nodes}) < size:
            self.broke(f"part: {where} is begun, and its group has {len(seats)} of {size} nodes")
        if (met := self._stores.setdefault(trainer.desired.store, way)) != way:
            self.broke(f"store: {where} meets at {trainer.desired.store}, as group {met[0]} generation {met[1]} did")

    def stepped(self, made: Step, step: int) -> None:
        """Checks a quorum before it commits `step`."""
        self.changes += 1
        training, every = self.world.training, self.world.spec.titan.checkpoint_interval_steps
        for t in made.members:
            newest = max(self._stepped.get(t.group, 0), self._fenced_below.get(t.group, 0))
            if t.generation < newest:
                self.broke(f"stale: {t.name} on {t.node.name} steps after generation {newest} took its place")
            self._stepped[t.group] = max(t.generation, self._stepped.get(t.group, 0))
        if step <= training.newest:
            self._lost(step, made)
        if made.unasked:
            self._unasked[step] = made
        if step - training.saved > UNSAVED * every:
            self.broke(f"checkpoint: step {step} is committed, and the newest checkpoint is of step {training.saved}")
        self.owners()

    def _lost(self, step: int, made: Step) -> None:
        """Checks a step that is committed again. That is allowed if all groups that had it are lost, but not by the
        run's own doing. Both sides of a split network must not make it, one after the other."""
        for t in made.left_out:
            self.broke(f"steps: step {step} is committed again, while {t.name} is at {t.step} and may step")
        for t in self.world.training.everybody:
            if t.well and t.step >= step > t.floor:
                self.broke(f"steps: step {step} is committed again: {t.name}, which had it, was well, and was given up")
        before = self._unasked.get(step)
        if before is not None and (both := sorted(before.unasked & made.makers)):
            alone = ", ".join(sorted(before.makers))
            self.broke(
                f"steps: step {step} is committed again by {both[0]}: {alone} had made it on the other side of a split"
            )

    # --- agents ---

    def ends(self, trainer: Trainer) -> None:
        """Notes whether a trainer's group was well before its agent ends it."""
        if self._is_current(trainer):
            first = next((t for t in self.world.training.all_of(trainer) if t.rank == 0), None)
            if first is not None:
                first.well = first.well or self._is_well(first)

    def _is_well(self, trainer: Trainer) -> bool:
        """Returns true if it may step, the leader can know that, and the scheduler leaves it its node."""
        key = trainer.node.allocation
        return (
            self.world.engine.held[key].state == "granted"
            and not self.world.engine.takes_away(key)
            and not trainer.node.is_hard_to_hear
            and any(trainer in gate.able() for gate in self.world.gates if gate.client.reaches)
        )

    def told(self, trainer: Trainer, mark: CheckpointMark | None) -> None:
        """Notes that its agent's report of its newest checkpoint is in etcd."""
        if mark is not None:
            self._told.append((self.world.clock.now, trainer, mark.step))

    def obeyed(self) -> None:
        """Checks that a process that is wanted nowhere ends soon, wherever an agent reaches etcd. That holds also if
        its successor does not need its place, or its allocation, with which it would end, will be released."""
        since: dict[Trainer, float] = {}
        for node in self.world.nodes.values():
            if node.power and node.agent and node.client.reaches:
                for t in node.trainers.values():
                    if t.ended is None and not self._is_current(t) and self._is_unwanted(t):
                        since[t] = self._unwanted_since.get(t, self.world.clock.now)
        self._unwanted_since = since
        for t, at in since.items():
            if self.world.clock.now - at > OBEYS_S:
                self.broke(f"orphan: {t.name} still runs on {t.node.name}, where it is not wanted since {at:.2f} s")

    def _is_unwanted(self, trainer: Trainer) -> bool:
        """Returns true if its node's own record does not want it. Without a record it is left alone, and so is a
        process newer than the record."""
        found = self.world.etcd.items.get(keys.desired(trainer.node.name, self.world.spec.name))
        if found is None:
            return False
        wanted = [t.generation for t in decode(found.value, NodeDesired).trainers if t.group == trainer.group]
        return not wanted or max(wanted) > trainer.generation

    # --- what is written ---

    def decided(self, decision: Decision) -> None:
        for action in decision.actions:
            if not say(action.reason):
                self.broke(f"reason: {action.key} says none")
            if action.group is not None and action.generation is not None:
                current = decision.memory.groups[action.group].generation
                if action.generation != current:
                    self.broke(f"stale: {action.key} is decided while the generation is {current}")

    def written(self, by: SimStore | None, puts: Mapping[str, bytes], deletes: Sequence[str]) -> None:
        """Checks a write before it takes effect."""
        self._note(by, puts, deletes)
        for key, value in puts.items():
            if key.startswith(keys.NODES) and "/gate/" in key:
                for group in decode(value, GateObserved).groups:
                    before = self._fenced_below.get(group.group, 0)
                    self._fenced_below[group.group] = max(before, group.generation)
        if keys.memory(self.world.spec.name, "run") in puts:
            self._committed(by)

    def _note(self, by: SimStore | None, puts: Mapping[str, bytes], deletes: Sequence[str]) -> None:
        trace = self._trace
        trace.update(f"{self.world.clock.now!r} {by.name if by else ''} {len(puts)} {deletes}".encode())
        for key in sorted(puts):
            value = puts[key]
            trace.update(f" {key} {len(value)} ".encode())
            trace.update(value)

    def _committed(self, by: SimStore | None) -> None:
        writer = next((s for s in self.world.supervisors if s.store is by), None)
        term = writer.term if writer is not None else None
        assert writer is not None
        assert term is not None
        assert writer.decided is not None
        leader = self.world.etcd.items.get(keys.LEADER)
        if leader is None or leader.create_revision != term.epoch:
            now = "nobody" if leader is None else f"epoch {leader.create_revision}"
            self.broke(f"fencing: {writer.name} commits under epoch {term.epoch}, and {now} leads")
        observed, decision = writer.decided
        self._know(writer.decided_at)
        before, self.memory = self.memory, decision.memory
        self.changes += 1
        self._monotonic(before, decision.memory)
        if any(action.reason.code == Code.RELAUNCHED for action in decision.actions):
            self._drawn.clear()  # its budgets are full again
        self._given_up(before)
        starts = _starts(before, decision.memory)
        self._complete |= {(g, new.generation): self._known for g, new in starts.items()}
        self._emptied(starts)
        self._budgets(observed, decision)
        self._spares(observed, decision, before, starts)
        self.incidents |= {i.id: i for i in decision.incidents}

    def _monotonic(self, before: Memory, after: Memory) -> None:
        if after.decisions <= before.decisions:
            self.broke(f"monotonic: decision {after.decisions} is committed after {before.decisions}")
        for g, old in before.groups.items():
            new = after.groups[g].generation if g in after.groups else after.generations_above
            if new < old.generation:
                self.broke(f"monotonic: group {g} goes back from generation {old.generation}")
        was, now = before.checkpoint, after.checkpoint
        if was is not None and (now is None or now.step < was.step):
            self.broke(f"monotonic: the newest checkpoint goes back from step {was.step} to {now and now.step}")

    def _know(self, decided_at: float) -> None:
        """Counts the checkpoints reported long enough ago, except those of a generation that was replaced meanwhile."""
        while self._told and decided_at - max(self._told[0][0], self.world.etcd.up_since) > KNOWN_S:
            _, trainer, step = self._told.popleft()
            if self._is_current(trainer):
                self._known = max(self._known, step)

    def _given_up(self, before: Memory) -> None:
        """Notes which trainers were well when they had to make room for a successor."""
        newer = {g: new.generation for g, new in self.memory.groups.items() if g in before.groups}
        newer = {g: generation for g, generation in newer.items() if generation > before.groups[g].generation}
        for t in self.world.trainers() if newer else ():
            if t.lives and t.generation < newer.get(t.group, 0):
                t.well = t.well or self._is_well(t)

    def _emptied(self, starts: Mapping[int, GroupMemory]) -> None:
        """Checks that a group starts elsewhere only once its old generation is gone or shut out: one on several nodes
        only once each older rank is gone, or a gate has stated that it admits none of them."""
        for t in self.world.trainers() if starts and self._size > 1 else ():
            next_ = starts.get(t.group)
            if next_ is None or not t.lives or t.generation >= next_.generation:
                continue
            if self._fenced_below.get(t.group, 0) < next_.generation:
                self.broke(f"fence: generation {next_.generation} starts, and {t.name} on {t.node.name} lives")
        for t in [t for gate in self.world.gates for t in gate.able()] if starts else []:
            next_ = starts.get(t.group)
            kept = next_ is not None and next_.size == 1 and next_.holds(t.node.name)
            if next_ is not None and t.generation < next_.generation and not kept:
                self.broke(
                    f"owners: {t.name} on {t.node.name} may step, and the next starts on {', '.join(next_.nodes)}"
                )

    def _budgets(self, observed: Observed, decision: Decision) -> None:
        budget = self.world.spec.policy.budget
        drawn = [
            (f"restart of group {i.group}", budget.restart) if i.rung == Rung.RESTART else ("replace", budget.replace)
            for i in decision.incidents
            if i.decided == observed.now
            and i.rung in (Rung.RESTART, Rung.REPLACE)
            and i.kind not in PLANNED
            and not (i.reason is not None and i.reason.code in ONE_CAUSE)
        ]
        asked = [a.reason for a in decision.actions if a.verb == "acquire" and a.rung == Rung.REALLOCATE]
        # all nodes that a group lacks are paid at once
        drawn += [
            ("reallocate", budget.reallocate) for _ in (asked if self._size == 1 else {say(why) for why in asked})
        ]
        for scope, allowed in drawn:
            recent = [t for t in self._drawn[scope] if observed.now - t < budget.window_s] + [observed.now]
            self._drawn[scope] = recent
            if len(recent) > allowed:
                self.broke(
                    f"budget: {scope} is drawn on {len(recent)} times in {budget.window_s:g} s; {allowed} are allowed"
                )

    def _spares(
        self, observed: Observed, decision: Decision, before: Memory, starts: Mapping[int, GroupMemory]
    ) -> None:
        """Checks that a group that leaves its node takes a free spare, and neither requests a node nor waits for
        one."""
        for g in starts.keys() & self._homeless.keys():
            since, node = self._homeless.pop(g), starts[g].first_node
            came = self.world.nodes.get(node)
            waited = self._size == 1 and came is not None and since < came.known_at < float("inf")
            # of those that are free the first by name is taken, also one that came while the old generation was shut
            # out
            if waited and (free := [spare for spare in self._free(before, since) if spare.name < node]):
                self.broke(f"spare: group {g} waited for {node}, and {free[0].name} was free")
        policy = self.world.spec.policy
        for i in decision.incidents:
            if i.decided != observed.now or i.rung not in (Rung.REPLACE, Rung.REALLOCATE):
                continue
            self._homeless.setdefault(i.group, self.world.clock.now)
            if i.rung == Rung.REPLACE or first_rung(i.kind, policy) > Rung.REPLACE:
                continue
            drawn = [t for t in self._drawn["replace"] if observed.now - t < policy.budget.window_s]
            spent, earlier = len(drawn) >= policy.budget.replace, self.incidents.get(i.id)
            climbs = spent or (earlier is not None and earlier.rung >= Rung.REPLACE)
            free = [] if climbs else self._free(before, self.world.clock.now)
            if free and len(free) >= self._lacking(i.group):
                self.broke(f"spare: incident {i.id} asks for another node, and {free[0].name} is free: {say(i.reason)}")

    @property
    def _size(self) -> int:
        return self.world.spec.groups.nodes_per_group

    def _lacking(self, group: int) -> int:
        """Returns how many nodes must be free before this group can take all that it lacks: others may come first."""
        if self._size == 1:
            return 1
        return sum(g.size - len(g.seats) for g in self.memory.groups.values() if g.group == group or not g.placed)

    def _free(self, before: Memory, since: float) -> list[Node]:
        """Returns spares that were known to be well by then, and that no group has."""
        memory, held = self.memory, self.world.engine.held
        taken = {node for each in (before, memory) for g in each.groups.values() for node in g.nodes}
        return [
            node
            for node in self.world.nodes.values()
            if node.name not in taken
            and node.power
            and node.registered
            and node.known_at < since - KNOWN_S
            and held[node.allocation].state == "granted"
            and memory.allocations[node.allocation].state == "wanted"
            and host_of(node.name) not in memory.cordons
        ]

    # --- at the end ---

    def left_over(self) -> str:
        """Returns a sentence on what is kept unwanted, or missing of what the run was launched with; empty: nothing."""
        wanted = {key for key, a in self.memory.allocations.items() if a.state == "wanted"}
        gone = {key for key, h in self.world.engine.held.items() if h.state == "gone"}
        held = self.world.engine.held.keys() - gone
        most = self.world.spec.allocation.nodes + self.world.spec.allocation.spares
        orphans = [t for t in self.world.trainers() if t.lives and not self._is_current(t)]
        if held - wanted:
            return f"leak: the engine still holds {sorted(held - wanted)}"
        if len(held) > most:
            return f"leak: {len(held)} allocations are held, and the run was launched with {most}"
        if len(wanted - gone) < most and self._renews():
            return f"kept: {len(wanted - gone)} allocations are held or asked for, and the run was launched with {most}"
        return f"orphan: {orphans[0].name} still runs on {orphans[0].node.name}" if orphans else ""

    def _renews(self) -> bool:
        """Returns true if lost allocations are requested again: groups without a node have the last of the budget."""
        left = self.world.spec.policy.budget.reallocate - len(self._drawn["reallocate"])
        return self.memory.phase == "running" and left > 1

    def _is_current(self, trainer: Trainer) -> bool:
        current = self.memory.groups.get(trainer.group)  # None: the run has fewer groups by now
        return current is not None and current.generation == trainer.generation and current.holds(trainer.node.name)


def _starts(before: Memory, after: Memory) -> dict[int, GroupMemory]:
    """Returns the groups that a decision starts."""
    return {
        g: new
        for g, new in after.groups.items()
        if new.phase == "starting"
        and ((old := before.groups.get(g)) is None or (old.phase, old.generation) != ("starting", new.generation))
    }
