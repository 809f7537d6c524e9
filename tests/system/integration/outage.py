"""A run of real TorchFT groups whose store goes away, and the checks of what must hold during and after that."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, World, toy_spec
from supervisor.core.model.kinds import Kind
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.spec import BudgetSpec, RunSpec, TorchFTSpec
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import client
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord, NodeObserved, RunRecord

TORCHFT = TorchFTSpec(
    heartbeat_timeout_ms=2000,
    join_timeout_ms=4000,
    process_group_timeout_ms=6000,
    quorum_timeout_ms=120_000,
    quorum_retries=1200,
)
HEARTBEAT_S = TORCHFT.heartbeat_timeout_ms / 1000
GROUPS = 2
STEP_S = 0.05
BASELINE_STEPS = 15
"""Steps that all groups commit before a fault: the measure of an undisturbed run."""


def outage_spec(mode: str) -> RunSpec:
    """Without spares, an escalation shows as an allocation. Many restarts, for each case kills a trainer at its end."""
    budget = BudgetSpec(restart=100)
    spec = toy_spec(groups=GROUPS, spares=0, budget=budget, backoff_first_s=0.1, backoff_max_s=0.1)
    titan = replace(spec.titan, overrides={"toy.mode": mode, "toy.step_s": STEP_S})
    return replace(spec, titan=titan, torchft=TORCHFT)


@dataclass(frozen=True)
class Standing:
    """The state that an outage of the store must leave as it was."""

    phase: str
    groups: tuple[tuple[int, int, str, str], ...]
    """(group, generation, node, phase)"""
    pids: tuple[int, ...]
    lighthouse: tuple[str, int, str, bool]
    """(node, generation, address, closing)"""
    cordons: tuple[str, ...]
    allocations: tuple[tuple[str, str], ...]
    incidents: tuple[str, ...]


class Outage:
    """One run in one world, and the cases that are tried on it."""

    def __init__(self, w: World, mode: str = "torchft", **supervisor: Any) -> None:
        self.w = w
        w.supervisor(**supervisor)
        self.record: RunRecord = w.launch(outage_spec(mode))
        self._next_victim = 0
        self._read: dict[Path, tuple[int, list[dict[str, Any]]]] = {}
        self.servers = ExitStack()
        """Ends the servers that a case starts, once the world has ended."""
        eventually(w.running(self.record, *[1] * GROUPS), 100, "all groups run")

    # --- how training does ---

    def commits(self, group: int, since: float, joint: bool = True) -> list[dict[str, Any]]:
        """Committed steps of any generation of a group, in order; `joint`: only those with all groups."""
        found: list[dict[str, Any]] = []
        pattern = f"nodes/*/ranks/{self.record.spec.name}.{group}.*.0/steps.jsonl"
        for path in self.w.system.glob(pattern):
            found += (line for line in self._lines_of(path) if line["committed"] and line["t"] > since)
        if joint:
            found = [line for line in found if line["participants"] == GROUPS]
        return sorted(found, key=lambda line: float(line["t"]))

    def _lines_of(self, path: Path) -> list[dict[str, Any]]:
        """All whole lines so far; only new ones are read."""
        at, lines = self._read.setdefault(path, (0, []))
        with path.open("rb") as file:
            file.seek(at)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        lines += (json.loads(line) for line in whole.splitlines())
        self._read[path] = (at + len(whole), lines)
        return lines

    def longest_gap(self, since: float) -> tuple[float, float]:
        """The longest time between two steps that all groups committed together, from `since` to now, of the worst
        group; and how long after `since` it began."""
        until = time.time()
        gaps = []
        for group in range(GROUPS):
            times = [since, *(float(line["t"]) for line in self.commits(group, since)), until]
            gaps += [(later - earlier, earlier - since) for earlier, later in pairwise(times)]
        return max(gaps)

    def together(self, steps: int = BASELINE_STEPS, deadline_s: float = 40) -> float:
        """Waits until every group has committed `steps` together with all others; returns the start of the count."""
        began = time.time()
        for group in range(GROUPS):
            eventually(
                lambda group=group: len(self.commits(group, began)) >= steps,  # type: ignore[misc]
                deadline_s,
                f"group {group} commits {steps} steps with all groups",
            )
        return began

    # --- how the control plane does ---

    def standing(self) -> Standing:
        mirror = self.w.mirror()
        memory = observe.memory(mirror, self.record.spec.name)
        seat = memory.lighthouse
        return Standing(
            phase=memory.phase,
            groups=tuple((g.group, g.generation, g.first_node, g.phase) for _, g in sorted(memory.groups.items())),
            pids=tuple(_pid(mirror, group) for _, group in sorted(memory.groups.items())),
            lighthouse=(seat.node, seat.generation, seat.address, seat.closing),
            cordons=tuple(sorted(memory.cordons)),
            allocations=tuple(sorted((key, a.state) for key, a in memory.allocations.items())),
            incidents=tuple(i.id for i in client.incidents(mirror, self.record.spec.name)),
        )

    def acts(self) -> bool:
        """True if a supervisor reports that it leads and reaches etcd, and all that it commands are registered."""
        mirror = self.w.mirror()
        leader = mirror.record(keys.LEADER, LeaderRecord)
        if leader is None or not _leads(leader.metrics_port):
            return False
        return self.registered(mirror) == self._commanded(mirror)

    def registered(self, mirror: Mirror | None = None) -> set[str]:
        """The keys under a lease of the run's nodes and gate, as far as they exist."""
        mirror = mirror or self.w.mirror()
        return self._commanded(mirror) & mirror.items.keys()

    def _commanded(self, mirror: Mirror) -> set[str]:
        memory = observe.memory(mirror, self.record.spec.name)
        nodes = {memory.lighthouse.node, *(node for g in memory.groups.values() for node in g.nodes)}
        gate = keys.gate_presence(memory.lighthouse.node, self.record.spec.name)
        return {gate, *(keys.registration(node) for node in nodes)}

    def done_since(self, t: float) -> list[str]:
        """Actions since then that the journal shows as done, or tried."""
        return [
            f"{action['verb']} {action['key']}: {action.get('reason')}"
            for decision in self.w.history(self.record).decisions
            if decision.t >= t
            for action in decision.actions
        ]

    @contextmanager
    def nothing_happens(self, what: str, hold_s: float = LEASE_S + 1) -> Iterator[None]:
        """Checks that training goes on while the block breaks the store (and mends it). Nothing is escalated in it, nor
        for `hold_s` after the supervisor acts again."""
        began = self.together()
        usual, _ = self.longest_gap(began)
        before = self.standing()
        broken = time.time()
        yield
        back = time.time()
        eventually(self.acts, 30, f"the supervisor acts again after {what}")
        acting = time.time()
        stays(self, before, hold_s)
        self.together(5)
        gap, after = self.longest_gap(broken)
        print(
            f"MEASURED {what}: longest gap of joint steps {gap:.2f} s, {after:.1f} s after it began (before: {usual:.2f} s), "
            f"acting again {acting - back:.2f} s after it was back"
        )
        assert gap < max(HEARTBEAT_S, 5 * usual), f"{what}: training stood still for {gap:.2f} s"
        done = self.done_since(broken)
        assert done == [], f"{what}: something was done: {done}"
        now = self.standing()
        assert now == before, f"it stands otherwise than before the outage:\n{now}\n{before}"

    def restarts_as_usual(self, what: str) -> None:
        """Kills a trainer: it must be started again, once, and everything else must stay as it is."""
        before, group = self.standing(), self._next_victim
        self._next_victim = (group + 1) % GROUPS
        killed = time.time()
        pid = self.w.kill_trainer(self.record, group)
        self.restarted(group, before)
        print(f"MEASURED {what}: a trainer killed afterwards steps with all again {time.time() - killed:.2f} s later")
        assert self.w.trainer(self.record, group).pid != pid

    def exited(self, pid: int) -> bool:
        """True if a node has reported the trainer's end."""
        mirror = self.w.mirror()
        seen = [mirror.record(keys.observed(node), NodeObserved) for node in mirror.nodes()]
        return any(t.pid == pid and t.state == "exited" for view in seen if view is not None for t in view.trainers)

    def generation_wanted(self, group: int) -> int:
        return observe.memory(self.w.mirror(), self.record.spec.name).groups[group].generation

    def restarted(self, group: int, before: Standing, kind: Kind = Kind.CRASH) -> None:
        """Waits until the group, and no other, runs in its next generation, for one reason that is over by then."""
        generations = [g[1] + (g[0] == group) for g in before.groups]
        eventually(self.w.running(self.record, *generations), 40, f"group {group} runs again")
        self.together(5)
        after = self.standing()
        fresh = [i for i in self.w.incidents(self.record) if i.id not in before.incidents]
        assert len(fresh) == 1, f"one failure, but these incidents: {fresh}"
        incident = fresh[0]
        assert (incident.group, incident.kind, incident.state) == (group, kind, "recovered"), incident
        others = [(old, new) for g, (old, new) in enumerate(zip(before.pids, after.pids, strict=True)) if g != group]
        assert all(old == new for old, new in others), f"other trainers were started again: {others}"
        same = replace(after, groups=before.groups, pids=before.pids, incidents=before.incidents)
        assert same == before, f"more has changed than the group:\n{after}\n{before}"
        self.w.check(self.record)


def stays(outage: Outage, before: Standing, seconds: float) -> None:
    """Checks at every look for these seconds that everything stands as before."""
    began = time.monotonic()

    def look() -> bool:
        now = outage.standing()
        assert now == before, f"it stands otherwise than before the outage:\n{now}\n{before}"
        return time.monotonic() - began > seconds

    eventually(look, seconds + 20)


def passes(seconds: float) -> None:
    """Waits while no part of the system can be asked."""
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > seconds, seconds + 2)


def _pid(mirror: Mirror, group: GroupMemory) -> int:
    """The pid of the group's rank 0; 0 while its node does not report it."""
    seen = mirror.record(keys.observed(group.first_node), NodeObserved)
    ours = [t for t in (seen.trainers if seen else ()) if (t.group, t.generation) == (group.group, group.generation)]
    return ours[0].pid if ours else 0


def _leads(metrics_port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=1.0) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return False
    return "supervisor_leader 1.0" in lines and "supervisor_store_up 1.0" in lines
