"""A model of TorchFT's quorum: all groups that the gate's lighthouse counts as alive step together, and a newcomer
heals in its first step.

A group is in it by its rank 0, and steps only with all of its ranks. A rank that loses another ends soon after, by an
error; it notices a node that falls silent later.

The members of its quorum make a step; a group that comes meanwhile is in the next. When a member is lost, the step is
not committed, and the others make it again. A group that was healing from the lost one heals again, from another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from supervisor.wire.records import PEERS_GONE, CheckpointMark

if TYPE_CHECKING:
    from fault_injection.sim.gates import Lighthouse
    from fault_injection.sim.nodes import Trainer
    from fault_injection.sim.world import World


ECHO_S = (0.05, 2.0)
"""Seconds from the end of a rank until another of its group fails by that."""
APART_S = (1.0, 12.0)
"""The same from the time at which their nodes no longer reach each other."""
LOST_PEER = "RuntimeError: Connection closed by peer"


@dataclass(frozen=True)
class Step:
    """A step that is under way."""

    members: Sequence[Trainer]
    """The rank 0 of each group."""
    makers: frozenset[str]
    """Names of the members."""
    began: float
    heals: Sequence[tuple[Trainer, Trainer]] = ()
    """The members that heal, each with its source."""
    healed_at: float = 0.0
    """When the heals end."""
    left_out: Sequence[Trainer] = ()
    """Trainers that are further than its members, and might have been among them."""
    unasked: frozenset[str] = frozenset()
    """Names of trainers that are not heard, and about which its lighthouse has since been unable to ask anyone."""


@dataclass
class Training:
    """The training of the run."""

    world: World
    quorum_id: int = 0
    newest: int = 0
    """The newest step that was ever committed."""
    saved: int = 0
    """Step of the newest checkpoint that was ever written."""
    all_at: float | None = None
    """Seconds from the launch until every group stepped for the first time."""
    stepped_at: dict[int, float] = field(default_factory=dict)
    """Maps a group to when it last committed."""
    everybody: list[Trainer] = field(default_factory=list)
    """The rank 0 of all generations that ever committed."""
    ranks: dict[tuple[int, int], list[Trainer]] = field(default_factory=dict)
    """Maps (group, generation) to the ranks that were ever started."""
    rows: dict[tuple[int, int, int, str], list[dict[str, Any]]] = field(default_factory=dict)
    """Maps (group, generation, rank, node) to the lines of its steps.jsonl."""
    on_heal: Callable[[Step], None] | None = None
    """Called when a step begins in which a member heals."""
    _together: tuple[str, ...] = ()
    _under_way: dict[Lighthouse, Step] = field(default_factory=dict)
    _fail_at: dict[tuple[int, int], float] = field(default_factory=dict)
    """Maps (group, generation) to when its ranks fail whose nodes do not reach each other."""

    # --- the ranks of a group ---

    def all_of(self, trainer: Trainer) -> list[Trainer]:
        return self.ranks[trainer.group, trainer.generation]

    def meets(self, trainer: Trainer) -> bool:
        """Returns true if all ranks of the trainer's generation are built and reach each other."""
        now, ranks = self.world.clock.now, self.all_of(trainer)
        if len(ranks) == 1:
            return trainer.works(now)
        return len(ranks) == trainer.desired.world_size and all(
            t.works(now) and (t.node is trainer.node or self.world.same_side(t.node, trainer.node)) for t in ranks
        )

    def lost_one(self, lost: Trainer) -> None:
        """Ends the other ranks of a generation soon after one has ended, where they notice it."""
        for other in self.all_of(lost):
            if other.ended is None:
                self.world.clock.after(
                    self.world.dice.uniform(*ECHO_S),
                    lambda other=other: self._fail(other, lost),  # type: ignore[misc]
                )

    def _fail(self, rank: Trainer, lost: Trainer) -> None:
        if rank.lives and not rank.frozen and self.world.same_side(rank.node, lost.node):
            rank.end(code=1, error=LOST_PEER)

    def lose_peers(self) -> None:
        """Ends ranks whose group's nodes have not reached each other for a while."""
        before, self._fail_at = self._fail_at, {}
        for way, ranks in self.ranks.items():
            left = [t for t in ranks if t.lives]
            if not left or all(self.world.same_side(t.node, left[0].node) for t in ranks if t.ended is None):
                continue
            at = before.get(way)
            self._fail_at[way] = at = self.world.clock.now + self.world.dice.uniform(*APART_S) if at is None else at
            for rank in left if self.world.clock.now >= at else ():
                if not rank.frozen:
                    rank.end(code=1, error=LOST_PEER)

    # --- steps ---

    def follow(self, gate: Lighthouse) -> None:
        """Trains by this lighthouse from now on, for as long as it is up."""
        self.world.clock.after(self.world.pace.gate_tick_s, lambda: self._look(gate))

    @property
    def healing(self) -> list[tuple[Trainer, Trainer]]:
        """Returns the trainers that heal now, each with its source."""
        now = self.world.clock.now
        return [pair for step in self._under_way.values() if now < step.healed_at for pair in step.heals]

    def _look(self, gate: Lighthouse) -> None:
        """Runs at the end of a step, and repeatedly while no step may begin."""
        if not gate.up:
            self._under_way.pop(gate, None)
            return
        members = gate.members()
        step = self._under_way.get(gate)
        if members and step is not None:
            del self._under_way[gate]
            if step.makers.issubset([m.said for m in members]):
                self._commit(step)
                members = [m for m in members if m.ended is None]  # the last step of all ends them
            # else a member was lost in it: the others make it again
        pace = self.world.pace
        after_s = self._begin(gate, members) if members else pace.gate_tick_s
        self.world.clock.after(after_s, lambda: self._look(gate))

    def _begin(self, gate: Lighthouse, members: list[Trainer]) -> float:
        """Begins the next step of these members; returns how long it takes."""
        world, able = self.world, [m for m in members if m.commits or m.desired.resume == "disk"]
        if not able:  # groups that must heal from peers end where none has trained (titan_actor/replica.py)
            for trainer in [rank for member in members for rank in self.all_of(member)]:
                trainer.end(code=PEERS_GONE)
            return world.pace.gate_tick_s
        newest = max(m.step for m in able)
        sources = [m for m in able if m.step == newest]
        behind = [m for m in members if m.step < newest or (not m.commits and m.desired.resume == "peers")]
        heals = tuple((m, sources[place % len(sources)]) for place, m in enumerate(behind))
        heal_s = world.dice.uniform(*world.pace.heal_s) if heals else 0.0
        now = world.clock.now
        left_out = self._left_out(members, newest) if newest < self.newest else ()
        makers = frozenset([m.said for m in members])
        unasked = frozenset() if gate.client.reaches else self._unasked(gate, makers)
        step = Step(members, makers, now, heals, now + heal_s, left_out, unasked)
        self._under_way[gate] = step
        if heals and self.on_heal is not None:
            self.on_heal(step)
        return world.pace.step_s + heal_s

    def _left_out(self, members: Sequence[Trainer], newest: int) -> list[Trainer]:
        able = [t for gate in self.world.gates for t in gate.able() if not t.node.is_hard_to_hear]
        return [t for t in able if t not in members and t.step > newest]

    def _unasked(self, gate: Lighthouse, makers: frozenset[str]) -> frozenset[str]:
        """Returns the trainers missed since it last heard from etcd: another lighthouse may lead them by now."""
        now, patience_s = self.world.clock.now, self.world.spec.torchft.heartbeat_timeout_ms / 1000
        trainers = (t for t in self.world.trainers() if t.rank == 0)
        others = (t for t in trainers if t.commits and t.works(now) and t.said not in makers)
        return frozenset([t.said for t in others if self.stepped_at[t.group] > now - gate.client.silent_s - patience_s])

    def _commit(self, made: Step) -> None:
        members = made.members
        together = tuple(sorted(m.said for m in members))
        if together != self._together:
            self._together, self.quorum_id = together, self.quorum_id + 1
        healed = {trainer for trainer, _ in made.heals}
        step = max(m.step for m in members if m not in healed) + 1
        self.world.checks.stepped(made, step)
        self.newest = max(self.newest, step)
        if self.all_at is None and len(members) == self.world.spec.groups.count:
            self.all_at = self.world.clock.now - self.world.launched_at
        at = {m.said: place for place, m in enumerate(sorted(members, key=lambda m: m.group))}
        for trainer in members:
            self._commit_one(made, trainer, step, trainer in healed, at[trainer.said])

    def _commit_one(self, made: Step, trainer: Trainer, step: int, healed: bool, place: int) -> None:
        now, spec = self.world.clock.now, self.world.spec
        first = trainer.commits == 0
        if first:
            self.everybody.append(trainer)
            trainer.node.kept.pop(trainer.group, None)
        trainer.commits += 1
        trainer.step = step
        self.stepped_at[trainer.group] = now
        row = {
            "event": "step", "committed": True, "t": now, "start": made.began, "step": step, "quorum_id": self.quorum_id,
            "participants": len(made.members), "participating_rank": place, "healed": healed,
        }  # fmt: skip
        for rank in self.all_of(trainer):
            self.rows.setdefault((rank.group, rank.generation, rank.rank, rank.node.name), []).append(row)
            rank.commits, rank.step = trainer.commits, step
        last = trainer.desired.stop_at_step is not None and step >= trainer.desired.stop_at_step
        keeps = last and trainer.desired.from_memory > 0 and trainer.desired.nodes == 1
        if keeps:
            trainer.node.kept[trainer.group] = (trainer.desired.from_memory, step)
        due = step % spec.titan.checkpoint_interval_steps == 0
        saves = trainer.desired.writer and (due or (last and not keeps))
        if saves:
            self.saved = max(self.saved, step)
            trainer.saved = CheckpointMark(
                step=step, path=f"s{step}", group=trainer.group, generation=trainer.generation
            )
        for rank in self.all_of(trainer):
            if last:
                rank.end(code=0)
            if first or (saves and rank is trainer):
                rank.node.wake()
