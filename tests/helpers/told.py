"""A scripted cluster that writes every round to a store, as agents, gate and leader do: real decisions for readers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.decision import Decision
from supervisor.core.model.observed import DebugView, NodeView, RankView
from supervisor.shell.control import projection
from supervisor.wire import keys
from supervisor.wire.records import (
    CheckpointMark,
    Control,
    ExitObserved,
    GateGroup,
    GateObserved,
    GatePresence,
    Health,
    LeaderRecord,
    NodeObserved,
    Progress,
    Registration,
    RunRecord,
    TrainerObserved,
    encode,
)
from tests.unit.core.world import World

GIB = 2**30


class ToldWorld(World):
    """A World and the store that gets its records."""

    def __init__(self, **about: Any) -> None:
        super().__init__(**about)
        self.store = MemoryStore()
        self.run_dir = "/nowhere/run"
        self._incidents_told: set[str] = set()

    def loss(self, step: int) -> float:
        """A loss curve like that of training."""
        return 2.2 + 5.8 / (1 + step / 25) + 0.03 * ((step * 7919) % 13 - 6) / 6

    def round(self, after: float = 0.0) -> Decision:
        decision = super().round(after)
        puts = projection.memory_records(self.spec, decision.memory, decision.incidents)
        puts |= projection.suspicion_records(decision.suspicions)
        self._write(puts)
        self.tell()
        return decision

    def lead(self) -> None:
        """Writes the records of a leader and its run."""
        self._write({
            keys.LEADER: encode(LeaderRecord(host="host", pid=41, home="/nowhere")),
            keys.spec(self.spec.name): encode(self._record()),
        })  # fmt: skip

    def lead_again(self) -> None:
        """Writes all records again, for a spec or memory that the test has changed."""
        self.store.put(keys.spec(self.spec.name), encode(self._record()))
        self._write(projection.memory_records(self.spec, self.memory, ()))
        self.tell()

    def _record(self) -> RunRecord:
        return RunRecord(spec=self.spec, run_dir=self.run_dir, launched_unix_s=1.0)

    def tell(self) -> None:
        """Writes the current observations."""
        puts: dict[str, bytes] = {}
        for name, view in self.nodes.items():
            puts |= self._node(name, view)
            if not view.registered and self.store.get(keys.registration(name)) is not None:
                self.store.commit({}, [keys.registration(name)])
        for key, grant in self.grants.items():
            puts[keys.grant(self.spec.name, key)] = encode(grant)
        if self.gate is not None:
            puts |= self._gate()
        control = Control(paused=self.control.paused, stop=self.control.stop, because=self.control.because)
        puts[keys.control(self.spec.name)] = encode(control)
        self._write(puts)

    def _write(self, puts: dict[str, bytes]) -> None:
        changed = [(k, v) for k, v in puts.items() if (item := self.store.get(k)) is None or item.value != v]
        for at in range(0, len(changed), 100):
            self.store.commit(dict(changed[at : at + 100]))

    def _node(self, name: str, view: NodeView) -> dict[str, bytes]:
        seen = NodeObserved(
            node=name, sequence=1, trainers=tuple(self._trainer(r) for r in view.ranks), leaving=view.leaving
        )
        health = Health(
            node=name, sequence=1, warm="ready", disk_free_bytes=412 * GIB, memory_available_bytes=51 * GIB, load_1m=1.0
        )
        puts = {keys.observed(name): encode(seen), keys.health(name): encode(health)}
        if view.registered:
            registration = Registration(
                node=name, address="10.0.0.1", role=view.role, allocation=view.allocation, slots=view.slots,
                agent_pid=1, version="0.1.0", host=view.host,
            )  # fmt: skip
            puts[keys.registration(name)] = encode(registration)
        return puts

    def _trainer(self, r: RankView) -> TrainerObserved:
        trains = sum(g.phase == "running" for g in self.memory.groups.values())
        progress = Progress(
            run=self.spec.name, group=r.group, generation=r.generation, rank=r.rank, pid=7, sequence=1,
            phase=r.phase,  # type: ignore[arg-type]
            step=r.step, commits=r.commits, loss=self.loss(r.step) if r.step else None, tokens_per_s=8192.0 if r.step else 0.0,
            step_s=r.step_s or (1.0 + 0.02 * (r.step * 31 % 7) if r.step else 0.0),
            quorum_id=3 + len(self.incidents), participants=trains,
            checkpoint=CheckpointMark(**asdict(r.checkpoint)) if r.checkpoint is not None else None, error=r.save_failed,
            debugging=DebugView(function="step", file="train.py", line=7, since_unix_s=0.0) if r.debugging else None,
        )  # fmt: skip
        ended = r.state == "exited"
        return TrainerObserved(
            run=self.spec.name, group=r.group, generation=r.generation, rank=r.rank, pid=7, state=r.state,
            exit=ExitObserved(exit_code=r.exit_code, signal=r.signal, error_file=r.error, trace=r.trace) if ended else None,
            progress=progress, compute_s=r.compute_s, data_s=r.data_s, stuck=r.stuck,
            stopped=r.stopped, stopped_s=r.stopped_s,
        )  # fmt: skip

    def _gate(self) -> dict[str, bytes]:
        gate, run = self.gate, self.spec.name
        assert gate is not None
        groups = tuple(
            GateGroup(group=g, generation=generation, hearing=gate.hearing.get(g, "absent"))  # type: ignore[arg-type]
            for g, generation in gate.admitted.items()
        )
        found = {
            keys.gate(gate.node, run): encode(
                GateObserved(run=run, node=gate.node, generation=gate.generation, address=gate.address, groups=groups)
            )
        }
        if gate.present:
            found[keys.gate_presence(gate.node, run)] = encode(
                GatePresence(run=run, node=gate.node, generation=gate.generation)
            )
        return found

    # --- stories ---

    def train(self, to_step: int, by: int = 1) -> None:
        """Makes all running groups step, a second a step, and writes the records after each."""
        while (step := self.step + by) <= to_step:
            self.now += by
            for group, memory in self.memory.groups.items():
                if memory.phase == "running" and self.nodes[memory.first_node].registered:
                    self.commit(group, step=step)
            self.step_now = step
            self.round()
            self.after_step()

    step_now = 0

    @property
    def step(self) -> int:
        return self.step_now

    def after_step(self) -> None:
        """A hook for subclasses that look after every step."""
