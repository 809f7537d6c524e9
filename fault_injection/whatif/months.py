"""Simulates a run of months in minutes: the real `decide` around a model that moves only when something changes.

There are no store and no agents; data/times.toml holds how long they take. A failure hits one node of one group, all
ranks of which start again. While a group heals, all that train wait for it, as the quorum's step does. New nodes are never short, only late; no group fails while it starts. With one group a failure stops all, who
resume from the newest checkpoint."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from fault_injection.whatif.past import Failed
from fault_injection.whatif.rates import Look, Rates, Times
from supervisor.core.decide import decide
from supervisor.core.model.decision import Decision
from supervisor.core.model.kinds import Rung
from supervisor.core.model.memory import AllocationMemory, GroupMemory, Lighthouse, Memory
from supervisor.core.model.observed import (
    ControlView,
    CordonView,
    GateView,
    GpuFact,
    Grant,
    NodeView,
    Observed,
    RankView,
)
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.model.spec import RunSpec
from supervisor.core.report.words import say

HOST = "host"
TURN_S = 0.1
"""Seconds from a decision that did something to the loop's next round."""
IDLE_S = 0.5
"""The loop's longest sleep in seconds, observed while a failure is not decided. Otherwise it sleeps until the time at
which it must look again."""
BEGAN_S = 1000.0
"""Run clock at the beginning: all groups have trained for a while."""


@dataclass
class Down:
    """A group that does not train, and since when which part of that lasts."""

    looks_like: str
    since: float
    part: str = "detect"
    part_since: float = 0.0
    shown: float = float("inf")
    """When all of the failure has become visible."""


@dataclass
class Outcome:
    """The outcome of one seed, in group-seconds except for the counts."""

    seconds: float
    groups: int
    failures: int = 0
    badput: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By cause as the ledger names them, and `halted`."""
    by_look: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The same, by what had failed."""
    spares: int = 0
    """How often a group was placed on another node."""
    asked: int = 0
    """Allocations that were requested."""
    halts: int = 0
    halted: list[str] = field(default_factory=list)
    """The reason of each halt."""
    while_down: int = 0
    """Failures of groups that did not train, which cost nothing more."""

    @property
    def ettr(self) -> float:
        return 1.0 - sum(self.badput.values()) / (self.seconds * self.groups)


@dataclass(frozen=True)
class ByChance:
    """Failures at published rates."""

    rates: Rates
    gpus: int

    @property
    def mttf_s(self) -> float:
        return self.rates.mttf_s(self.gpus)


class Months:
    """Simulates one seed."""

    def __init__(self, spec: RunSpec, failures: ByChance | Sequence[Failed], times: Times, seed: int) -> None:
        """`failures`: at published rates, or those of a real run."""
        self.spec, self.failures, self.times = spec, failures, times
        self.dice = random.Random(seed)
        self.now = BEGAN_S
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._changed = False
        """True if something has become visible since the last decision."""
        self._order = count()
        self._look = float("inf")
        self._down: dict[int, Down] = {}
        self._stores = count(1)
        self._heal_ends = self.now
        """When the last heal ends that the others wait for."""
        self._resumed = self.now
        """When all groups resumed from a checkpoint; since then one is written every `whole_interval_s`."""
        self._control = ControlView()
        self._cordons: dict[str, CordonView] = {}
        self._begin()

    def run(self, seconds: float) -> Outcome:
        """Simulates that many seconds of the run."""
        groups = self.spec.groups.count
        self.out, end = Outcome(seconds, groups), self.now + seconds
        self._after(float("inf"), lambda: None)
        if isinstance(self.failures, ByChance):
            self._fail_by_chance(self.failures)
        else:
            for failed in self.failures:
                self._after(failed.at_s, lambda failed=failed: self._fail(failed.group, failed.look, failed.error))  # type: ignore[misc]
        while (at := min(self._due[0][0], self._look)) <= end:
            self.now = at
            while self._due[0][0] <= at:
                heapq.heappop(self._due)[2]()
            if self._changed or self._look <= at:
                self._think()
        self.now = end
        for group in list(self._down):
            self._up(group)
        return self.out

    # --- as it begins ---

    def _begin(self) -> None:
        spec, groups, size = self.spec, self.spec.groups.count, self.spec.groups.nodes_per_group
        nodes = groups * size + spec.allocation.spares
        keys = [f"{spec.name}-a{number + 1}" for number in range(nodes)]
        self._nodes = {f"node-{k}": self._new_node(k) for k in keys}
        seats = {
            g: tuple([Seat(f"node-{key}", allocation=key) for key in keys[g * size : (g + 1) * size]])
            for g in range(groups)
        }
        for g, held in seats.items():
            self._ranks(tuple([seat.node for seat in held]), g, 1, state="running", commits=100)
        self._nodes[HOST] = NodeView(name=HOST, registered=True, role="service")
        self._grants = {k: _granted(k) for k in keys}
        self._admitted = dict.fromkeys(range(groups), 1)
        self._hearing = dict.fromkeys(range(groups), "beating")
        self._memory = Memory(
            clock=self.now,
            phase="running",
            groups={
                g: GroupMemory(group=g, generation=1, size=size, seats=held, phase="running")
                for g, held in seats.items()
            },
            allocations={
                k: AllocationMemory(key=k, state="wanted", since=0.0, reason=Reason.of(Code.RUN_STARTS)) for k in keys
            },
            lighthouse=Lighthouse(node=HOST, generation=1, address=f"{HOST}:1"),
        )

    # --- what fails ---

    def _fail_by_chance(self, chance: ByChance) -> None:
        def fail() -> None:
            self._after(self.dice.expovariate(1 / chance.mttf_s), fail)
            up = [g for g in self._memory.groups if g not in self._down]
            if up:
                causes = chance.rates.causes
                group = self.dice.choice(up)
                self._fail(group, self.dice.choices([c[2] for c in causes], [c[1] for c in causes])[0])

        self._after(self.dice.expovariate(1 / chance.mttf_s), fail)

    def _fail(self, group: int, look: Look, error: str = "") -> None:
        """Makes a group fail. One that is down has already failed."""
        if group in self._down:
            self.out.while_down += 1
            return
        self._down[group] = Down(look, self.now, part_since=self.now)
        self.out.failures += 1
        self._stall(look)
        if len(self._down) == self.spec.groups.count:
            self._lose(look)
        self._show(group, look, error or f"RuntimeError: failure {self.out.failures}")

    def _stall(self, look: Look) -> None:
        """Charges the step in flight, which all lose, and the wait until the lost group is dropped."""
        others = self.spec.groups.count - len(self._down)
        waits_s = self.times.silent_s if look == "node" else self.times.dropped_s
        lost_s = self.times.step_s * self.dice.random()
        self.out.badput["quorum"] += others * waits_s
        self.out.badput["failed_step"] += others * lost_s
        self.out.by_look[look] += others * (waits_s + lost_s)

    def _lose(self, look: Look) -> None:
        """Charges what each group trained since the newest checkpoint: none is left to heal from, so it is trained
        again."""
        if self.times.whole_interval_s:
            saved = self.now - (self.now - self._resumed) % self.times.whole_interval_s
            lost_s = sum(max(0.0, down.since - saved) for down in self._down.values())
            self.out.badput["recompute"] += lost_s
            self.out.by_look[look] += lost_s

    def _show(self, group: int, look: Look, error: str) -> None:
        """Schedules what becomes visible of a failure, and when."""
        known, times = self._memory.groups[group], self.times
        index = self.dice.randrange(known.size) if known.size > 1 else 0
        seat, way = known.seats[index], (group, known.generation)
        node = seat.node
        last_s = {"node": self.spec.policy.node_lease_s, "allocation": times.taken_s}.get(look, times.seen_s)
        self._down[group].shown = self.now + last_s
        if look == "node":
            self._after(self.spec.torchft.heartbeat_timeout_ms / 1000, lambda: self._hear(*way, "silent"))
            self._after(self.spec.policy.node_lease_s, lambda: self._lapse(node))
            return
        self._after(times.dropped_s, lambda: self._hear(*way, "gone"))
        if look == "allocation":
            self._after(times.taken_s, lambda: self._take(seat.allocation))
            return
        numerics = "own" if look == "numerics" else ""
        self._after(
            times.seen_s,
            lambda: self._rank(node, index, *way, state="exited", exit_code=1, error=error, numerics=numerics),
        )
        if look == "gpu":
            lost = GpuFact(kind="gpu_lost", evidence=f"a GPU of {node} is lost")
            self._after(times.seen_s, lambda: self._change(node, gpus=(lost,)))

    # --- what is seen ---

    def _new_node(self, key: str) -> NodeView:
        name = f"node-{key}"
        return NodeView(name=name, registered=True, allocation=key, store=f"{name}:{next(self._stores)}")

    def _ranks(self, nodes: Sequence[str], group: int, generation: int, **more: Any) -> None:
        """Shows the ranks of a group, one on each of its nodes."""
        for index, node in enumerate(nodes):
            self._rank(node, index, group, generation, **more)

    def _rank(self, node: str, rank: int, group: int, generation: int, **more: Any) -> None:
        step = int(self.now / self.times.step_s)
        view = RankView(
            group=group,
            generation=generation,
            rank=rank,
            step=step,
            told="",
            oom=False,
            gate=f"{HOST}:1",
            reaches_gate=True,
            **more,
        )
        self._change(node, ranks=(view,))

    def _change(self, node: str, **about: Any) -> None:
        if node in self._nodes:
            self._nodes[node] = replace(self._nodes[node], **about)
            self._changed = True

    def _hear(self, group: int, generation: int, hearing: str) -> None:
        if self._admitted[group] == generation:
            self._hearing[group] = hearing
            self._changed = True

    def _lapse(self, node: str) -> None:
        self._change(node, registered=False)

    def _take(self, key: str) -> None:
        self._grants[key] = replace(self._grants[key], state="gone", reason="host maintenance", ended=True)
        self._nodes.pop(f"node-{key}", None)
        self._changed = True

    # --- the supervisor ---

    def _think(self) -> None:
        gate = GateView(node=HOST, generation=1, address=f"{HOST}:1", admitted=self._admitted, hearing=self._hearing)
        observed = Observed(
            revision=1, now=self.now, store_stable_s=self.now, nodes=self._nodes, gate=gate, grants=self._grants,
            engine_listed_at=self.now, control=self._control, cordons=self._cordons,
        )  # fmt: skip
        before, self._changed = self._memory, False
        decision = decide(observed, self.spec, before)
        self._memory = decision.memory
        self._look = float("inf") if decision.look_again_at is None else max(decision.look_again_at, self.now + IDLE_S)
        if decision.memory is not before:
            self._look = min(self._look, self.now + TURN_S if decision.actions else self._look)
            self._react(before, decision)
        judging = [down.shown for down in self._down.values() if down.part in ("detect", "decide")]
        if judging and self.now >= min(judging):
            self._look = min(self._look, self.now + IDLE_S)

    def _react(self, before: Memory, decision: Decision) -> None:
        after = decision.memory
        self._cordons |= {s.host: CordonView(ours=True) for s in decision.suspicions}
        for incident in decision.incidents:
            if incident.opened == self.now:
                self._part(incident.group, "decide")
            if incident.decided == self.now and incident.rung > Rung.RIDE_THROUGH:
                self._part(incident.group, "place")
        for g, new in after.groups.items():
            if new is not before.groups[g]:
                self._group(before.groups[g], new)
        for key, wanted in after.allocations.items():
            old = before.allocations.get(key)
            if old is None:
                self.out.asked += 1
                self._grants[key] = Grant(key=key, state="pending", engine_id=key)
                self._after(self.times.queue_s, lambda key=key: self._grant(key))  # type: ignore[misc]
            elif wanted.state == "released" and old.state == "wanted":
                self._nodes.pop(f"node-{key}", None)
                self._grants[key] = replace(self._grants[key], state="gone", reason="given back", ended=True)
        for key in before.allocations.keys() - after.allocations.keys():
            self._grants.pop(key, None)
        if after.phase == "stopping" and before.phase != "stopping":
            self._after(2 * self.times.step_s, self._drain)
        if after.phase == "halted" and before.phase != "halted":
            self._halt()

    def _group(self, old: GroupMemory, new: GroupMemory) -> None:
        g = new.group
        if new.generation > old.generation:
            self._admitted[g], self._hearing[g] = new.generation, "absent"
            if g not in self._down:  # it was ended although it trained
                self._down[g] = Down("decided", self.now, "place", self.now)
        if new.phase != "starting" or (old.phase, old.generation) == ("starting", new.generation):
            return
        self.out.spares += len({*new.nodes} - {seat.node for seat in old.last_seats})
        self._part(g, "act")
        times, nodes, way = self.times, new.nodes, (g, new.generation)
        self._after(times.act_s, lambda: self._born(nodes, way))
        self._after(times.act_s + times.start_s, lambda: self._built(way))
        self._after(times.act_s + times.start_s + times.heal_s, lambda: self._commits(nodes, way))

    def _is_current(self, way: tuple[int, int]) -> bool:
        return self._memory.groups[way[0]].generation == way[1] and self._memory.phase in ("running", "stopping")

    def _born(self, nodes: Sequence[str], way: tuple[int, int]) -> None:
        if self._is_current(way):
            changed = self._changed
            self._ranks(nodes, *way, state="starting")
            for node in nodes:  # no store serves two generations
                self._change(node, store=f"{node}:{next(self._stores)}")
            self._changed = changed  # this needs no decision
            self._part(way[0], "start")

    def _built(self, way: tuple[int, int]) -> None:
        if self._is_current(way):
            self._part(way[0], "heal")
            self._wait_for_heal(self._down[way[0]].looks_like)

    def _wait_for_heal(self, look: str) -> None:
        """Charges the groups that train with a heal, but for the part of it that falls into another's."""
        ends = self.now + self.times.heal_s
        waits_s = (self.spec.groups.count - len(self._down)) * (ends - max(self.now, self._heal_ends))
        self._heal_ends = ends
        self.out.badput["heal"] += waits_s
        self.out.by_look[look] += waits_s

    def _commits(self, nodes: Sequence[str], way: tuple[int, int]) -> None:
        if self._is_current(way):
            self._ranks(nodes, *way, state="running", commits=1)
            self._hear(*way, "beating")
            self._up(way[0])
            if self._memory.phase == "stopping":
                self._finish(way[0])

    def _grant(self, key: str) -> None:
        wanted = self._memory.allocations.get(key)
        if wanted is not None and wanted.state == "wanted":
            self._grants[key] = _granted(key)
            self._nodes[f"node-{key}"] = self._new_node(key)
            self._changed = True

    def _drain(self) -> None:
        """Ends all groups that train, after the step at which they must stop."""
        for g in self._memory.groups:
            if g not in self._down:
                self._finish(g)

    def _finish(self, group: int) -> None:
        known = self._memory.groups[group]
        way = (group, known.generation)
        self._down[group] = Down("halted", self.now, "halted", self.now)
        self._ranks(known.nodes, *way, state="exited", exit_code=0, phase="finished", commits=1)
        self._hear(*way, "gone")

    def _halt(self) -> None:
        self.out.halts += 1
        self.out.halted.append(say(self._memory.halt_reason))
        for g in self._memory.groups:
            down = self._down.setdefault(g, Down("halted", self.now, part_since=self.now))
            self._part(g, "halted")
            down.looks_like = "halted"

        def resume() -> None:
            self._control = replace(self._control, resumes=self._control.resumes + 1, because="a person looked")
            self._changed = True

        self._after(self.times.person_s, resume)

    # --- time ---

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), do))

    def _part(self, group: int, part: str) -> None:
        """Counts the group as down for this from now on."""
        down = self._down.get(group)
        if down is not None:
            self.out.badput[down.part] += self.now - down.part_since
            self.out.by_look[down.looks_like] += self.now - down.part_since
            down.part, down.part_since = part, self.now

    def _up(self, group: int) -> None:
        self._part(group, "")
        if len(self._down) == self.spec.groups.count:
            self._resumed = self.now
        self._down.pop(group, None)


def _granted(key: str) -> Grant:
    return Grant(key=key, state="granted", nodes=(f"node-{key}",), engine_id=key)


def whole(outcome: Outcome, times: Times) -> float:
    """Returns the ETTR if each of the same failures had stopped all groups (no replica groups)."""
    return 1.0 - outcome.failures * (times.whole_restart_s + times.whole_interval_s / 2) / outcome.seconds
