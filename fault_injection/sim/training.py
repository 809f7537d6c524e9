"""A model of TorchFT's quorum: whoever the gate's lighthouse counts as alive steps together, and a newcomer heals first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.wire.records import PEERS_GONE, CheckpointMark

if TYPE_CHECKING:
    from fault_injection.sim.nodes import Trainer
    from fault_injection.sim.world import World

ALONE_STEPS = 3
"""How often one that is to heal looks for a peer before it gives up."""


class Training:
    """All that is trained of the run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.quorum_id = 0
        self.newest = 0
        """The newest step that was ever committed."""
        self.all_at: float | None = None
        """Seconds from the launch until every group stepped for the first time."""
        self.stepped_at: dict[int, float] = {}
        """By group, when it last committed."""
        self.everybody: list[Trainer] = []
        """All who ever committed."""
        self.rows: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
        """By (group, generation, node): what its steps.jsonl would say."""
        self._together: tuple[str, ...] = ()
        self._makers: dict[str, set[str]] = {}
        """By lighthouse, who makes the step that is under way there."""
        world.clock.after(world.pace.step_s, self._step)

    def _step(self) -> None:
        self.world.clock.after(self.world.pace.step_s, self._step)
        self.world.checks.obeyed()
        makers, self._makers = self._makers, {}
        for gate in self.world.gates:
            members = gate.members()
            before, now = makers.get(str(gate.name), set()), {m.said for m in members}
            self._makers[str(gate.name)] = now or before  # nobody: they wait for one of them
            if members and now >= before:
                self._commit(members)
            # else one was lost in it: the others make it again

    def _commit(self, members: list[Trainer]) -> None:
        only = members[0] if len(members) == 1 else None
        if only is not None and only.desired.resume == "peers" and not only.commits:
            only.alone += 1
            if only.alone > ALONE_STEPS:
                only.end(code=PEERS_GONE)
            return
        together = tuple(sorted(m.said for m in members))
        if together != self._together:
            self._together, self.quorum_id = together, self.quorum_id + 1
        before = max(m.step for m in members)
        step = before + 1
        self.world.checks.stepped(members, step)
        self.newest = max(self.newest, step)
        if self.all_at is None and len(members) == self.world.spec.groups.count:
            self.all_at = self.world.clock.now - self.world.launched_at
        at = {m.said: place for place, m in enumerate(sorted(members, key=lambda m: m.group))}
        for trainer in members:
            self._commit_one(trainer, step, healed=trainer.step < before, place=at[trainer.said], of=len(members))

    def _commit_one(self, trainer: Trainer, step: int, healed: bool, place: int, of: int) -> None:
        now, spec = self.world.clock.now, self.world.spec
        first = trainer.commits == 0
        if first:
            self.everybody.append(trainer)
        trainer.commits += 1
        trainer.step = step
        self.stepped_at[trainer.group] = now
        key = (trainer.group, trainer.generation, trainer.node.name)
        self.rows.setdefault(key, []).append(
            {
                "event": "step", "committed": True, "t": now, "start": now - self.world.pace.step_s, "step": step, "quorum_id": self.quorum_id,
                "participants": of, "participating_rank": place, "healed": healed,
            }
        )  # fmt: skip
        last = trainer.desired.stop_at_step is not None and step >= trainer.desired.stop_at_step
        saves = trainer.desired.writer and (last or step % spec.titan.checkpoint_interval_steps == 0)
        if saves:
            trainer.saved = CheckpointMark(
                step=step, path=f"s{step}", group=trainer.group, generation=trainer.generation
            )
        if last:
            trainer.end(code=0)
        if first or saves:
            trainer.node.wake()
