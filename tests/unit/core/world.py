"""A scripted cluster for the tests of `decide`: the test sets the observations, the world keeps the decisions.

Every round checks the invariants and that the same input gives the same output again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from supervisor.core import invariants
from supervisor.core.decide import decide
from supervisor.core.model.decision import Decision
from supervisor.core.model.engines import TRAITS
from supervisor.core.model.incident import Incident, Suspicion
from supervisor.core.model.kinds import Kind
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import (
    Checkpoint,
    ControlView,
    CordonView,
    DiskView,
    GateView,
    Grant,
    NextSpec,
    NodeView,
    Observed,
    RankView,
    StuckView,
)
from supervisor.core.model.reason import Code
from supervisor.core.model.spec import AllocationSpec, BudgetSpec, GroupsSpec, PolicySpec, RunSpec
from tests.helpers.reasons import held_against, values

LOCAL_WORD_S = TRAITS["local"].word_s

HOST = "host"


class World:
    """Nodes n1, n2, ... by allocation run-a1, run-a2, ...; the lighthouse is on `host`."""

    def __init__(
        self,
        groups: int = 2,
        spares: int = 1,
        ranks: int = 1,
        size: int = 1,
        min_groups: int = 1,
        budget: dict[str, Any] | None = None,
        **policy: Any,
    ) -> None:
        self.spec = RunSpec(
            name="run",
            groups=GroupsSpec(count=groups, ranks_per_group=ranks, nodes_per_group=size, min_groups=min_groups),
            allocation=AllocationSpec(nodes=groups * size, spares=spares),
            policy=PolicySpec(budget=BudgetSpec(**(budget or {})), **policy),
        )
        self.ranks = ranks
        self.now = 1000.0
        self.stable = 1e6
        self.memory = Memory()
        self.nodes: dict[str, NodeView] = {}
        self.gate: GateView | None = None
        self.grants: dict[str, Grant] = {}
        self.control = ControlView()
        self.relaunch: NextSpec | None = None
        self.disk: DiskView | None = None
        self.cordons: dict[str, CordonView] = {}
        """Cordons and suspicions of hosts, by persons and by incidents of all runs."""
        self.lent: dict[str, str] = {}
        self.users: tuple[str, ...] = ()
        self.suspicions: list[Suspicion] = []
        self.engine_word_s = 0.0
        self.engine_away = False
        self.engine_listed_at: float | None = None
        self.last = Decision(memory=self.memory)
        self.incidents: dict[str, Incident] = {}
        self.rounds = 0

    # --- deciding ---

    def observed(self) -> Observed:
        return Observed(
            revision=self.rounds,
            now=self.now,
            store_stable_s=self.stable,
            nodes=dict(self.nodes),
            gate=self.gate,
            grants=dict(self.grants),
            engine_word_s=self.engine_word_s,
            engine_listed_at=self.engine_listed_at,
            control=self.control,
            relaunch=self.relaunch,
            cordons=dict(self.cordons),
            lent=dict(self.lent),
            users=self.users,
            disk=self.disk,
        )

    def round(self, after: float = 0.0) -> Decision:
        """Makes one decision, `after` seconds later."""
        self.now += after
        self.rounds += 1
        observed = self.observed()
        decision = decide(observed, self.spec, self.memory)
        assert decision == decide(observed, self.spec, self.memory)
        assert invariants.violations(self.memory, decision.memory, observed, self.spec) == []
        self.memory = decision.memory
        self.last = decision
        self.incidents |= {i.id: i for i in decision.incidents}
        self._give_back()
        self._meet_elsewhere()
        self.suspicions += decision.suspicions
        for suspicion in decision.suspicions:
            self.hold(suspicion.host)
        for host, incident in decision.acquitted:
            self.suspicions = [s for s in self.suspicions if (s.host, s.incident) != (host, incident)]
            if host in self.cordons and host not in {s.host for s in self.suspicions}:
                self.cordons[host] = replace(self.cordons[host], ours=False)
        return decision

    def _give_back(self) -> None:
        """The engine takes released allocations before the next look, unless it is away."""
        for key, allocation in self.memory.allocations.items():
            grant = self.grants.get(key)
            live = grant is not None and grant.state in ("pending", "granted")
            if allocation.state == "released" and live and grant is not None and not self.engine_away:
                self.grants[key] = replace(grant, state="gone", reason="given back")

    def _meet_elsewhere(self) -> None:
        """Agents choose another port once a group meets at the one that they had reported."""
        for group in self.memory.groups.values():
            view = self.nodes.get(group.first_node)
            if group.phase == "starting" and view is not None and group.store and view.store == group.store:
                node, _, port = view.store.partition(":")
                self.nodes[view.name] = replace(view, store=f"{node}:{int(port) + 1}")

    def take_spec(self) -> None:
        """Puts the next spec in the place of this one, as the loop does with the decision that says so."""
        assert self.relaunch is not None
        assert self.memory.relaunches == self.relaunch.number
        self.spec, self.relaunch = self.relaunch.spec, None

    def verbs(self, after: float = 0.0) -> list[str]:
        """The actions of one decision."""
        return [a.verb for a in self.round(after).actions]

    def group(self, number: int = 0) -> GroupMemory:
        return self.memory.groups[number]

    @property
    def incident(self) -> Incident:
        """The newest incident."""
        return self.incidents[f"i{len(self.incidents)}"]

    def waiting(self, code: Code) -> list[dict[str, Any]]:
        """The values of each reason of this code for which the newest decision waits."""
        return values(self.last.waits, code)

    # --- observations ---

    def hold(self, host: str) -> None:
        """Records that an incident of this run is held against a host."""
        self.cordons[host] = replace(self.cordons.get(host, CordonView()), ours=True)

    def cordon(self, host: str) -> None:
        """Records that an incident of this run was held against a host some time ago."""
        self.hold(host)
        self.memory = replace(self.memory, cordons={**self.memory.cordons, host: held_against("i1", Kind.NODE_LOST)})

    def host(self) -> None:
        self.nodes[HOST] = NodeView(name=HOST, registered=True, role="service")

    def open_gate(self, **about: Any) -> None:
        """Makes the gate report that it admits the generations in memory and hears those that run."""
        generations = {g: m.generation for g, m in self.memory.groups.items() if m.generation}
        hearing = {g: "beating" if self.memory.groups[g].phase == "running" else "absent" for g in generations}
        self.gate = GateView(
            node=HOST,
            generation=1,
            address="host:1",
            admitted=generations,
            hearing={**hearing, **about.pop("hear", {})},
        )

    def mute(self) -> None:
        """Lapses the gate's lease; its last report stays."""
        assert self.gate is not None
        self.gate = replace(self.gate, present=False)

    def hear(self, group: int, hearing: str) -> None:
        assert self.gate is not None
        self.gate = replace(self.gate, hearing={**self.gate.hearing, group: hearing})

    def grant(self, number: int, state: Any = "granted", reason: str = "") -> None:
        """Sets the engine's answer about allocation run-a<number>, which brings node n<number>."""
        key = f"run-a{number}"
        nodes = (f"n{number}",) if state in ("granted", "gone") else ()
        self.grants[key] = Grant(key=key, state=state, nodes=nodes, engine_id=f"job-{number}", reason=reason)

    def node(self, number: int, **about: Any) -> None:
        name = f"n{number}"
        fresh = NodeView(name=name, registered=True, allocation=f"run-a{number}", slots=self.spec.groups.slots)
        view = self.nodes.get(name, replace(fresh, store=f"{name}:1"))
        self.nodes[name] = replace(view, **{"registered": True, **about})

    def bring(self, number: int) -> None:
        """Makes the engine grant allocation <number>; its node comes up."""
        self.grant(number)
        self.node(number)

    def lapse(self, node: str) -> None:
        """Removes the node's lease; that was seen, and the engine had time to report if its allocation is gone too."""
        self.nodes[node] = replace(self.nodes[node], registered=False)
        self.round()
        self.now += LOCAL_WORD_S + 0.01

    def report(self, group: int, rank: int = 0, **about: Any) -> None:
        """Sets the agent's report of one rank of the group's current generation; the group's other ranks there stay."""
        memory = self.group(group)
        node = memory.nodes[rank // self.spec.groups.slots] if memory.seats else ""
        self.report_on(node, group, about.pop("generation", memory.generation), rank, **about)

    def report_on(self, node: str, group: int, generation: int, rank: int = 0, **about: Any) -> None:
        view = self.nodes[node]
        seen = RankView(group=group, generation=generation, rank=rank, **{"state": "running", "phase": "step", **about})
        kept = tuple(r for r in view.ranks if (r.group, r.generation, r.rank) != (group, generation, rank))
        # as an agent does: an older generation of a group is forgotten once a newer one is there
        kept = tuple(r for r in kept if r.group != group or r.generation >= generation)
        self.nodes[node] = replace(view, ranks=(*kept, seen))

    def others_wait(self, group: int, step: int = 50) -> None:
        """Makes all other running groups wait for this one for longer than a step may take."""
        waits = StuckView(activity="collective", activity_s=31.0, bound_s=30.0, usual_s=1.5)
        for other, memory in self.memory.groups.items():
            if other != group and memory.phase == "running":
                for rank in range(self.ranks):
                    self.report(other, rank, commits=1, step=step, stuck=waits)

    def go_on(self, step: int = 51) -> None:
        """Makes all running groups step again."""
        for group, memory in self.memory.groups.items():
            if memory.phase == "running":
                self.commit(group, step=step)

    def commit(self, group: int, step: int = 1, **about: Any) -> None:
        for rank in range(self.ranks):
            self.report(group, rank, commits=1, step=step, **about)

    def crash(self, group: int, signal: int = 11, **about: Any) -> None:
        self.report(group, state="exited", signal=signal, **about)

    def fail(self, group: int, code: int = 1, error: str = "", **about: Any) -> None:
        phase = "finished" if code == 0 else "failed"
        self.report(group, **{"state": "exited", "exit_code": code, "error": error, "phase": phase, **about})

    def save(self, group: int, step: int, generation: int | None = None, written_by: int | None = None) -> None:
        current = self.group(group).generation
        mark = Checkpoint(step, f"step-{step}", group, current if written_by is None else written_by)
        self.report(
            group, generation=current if generation is None else generation, commits=1, step=step, checkpoint=mark
        )

    # --- stories ---

    def start_up(self) -> World:
        """Grants and starts everything; no group has committed."""
        self.host()
        while len(self.memory.allocations) < self.spec.allocation.nodes + self.spec.allocation.spares:
            self.round()
        for number in range(1, len(self.memory.allocations) + 1):
            self.bring(number)
        self.open_gate()
        while not self.memory.groups or any(g.phase == "unplaced" for g in self.memory.groups.values()):
            self.round()
        self.open_gate()
        return self

    def bring_up(self) -> World:
        """Grants and starts everything, and commits: the run trains."""
        self.start_up()
        for group in self.memory.groups:
            self.commit(group)
        self.round(1.0)
        while any(g.phase == "starting" for g in self.memory.groups.values()):
            self.round()
        self.open_gate()
        assert [g.phase for g in self.memory.groups.values()] == ["running"] * len(self.memory.groups)
        assert self.round(1.0).actions == ()
        return self

    def recover(self, group: int = 0, after: float = 1.0, step: int = 10) -> None:
        """Starts the group (fence and backoff included) and lets it commit."""
        self.start_again(group, after)
        self.commit(group, step=step)
        self.round(after)
        self.hear(group, "beating")
        assert self.group(group).phase == "running"

    def start_again(self, group: int = 0, after: float = 1.0) -> None:
        """Starts the group (fence and backoff included)."""
        self.admit(group)
        for _ in range(5):
            if self.group(group).phase == "starting":
                break
            self.round(max(after, self.group(group).not_before - self.now))
        assert self.group(group).phase == "starting", (self.group(group), self.last.waits)

    def admit(self, group: int = 0) -> None:
        """Makes the gate take the newest admission: every older generation is shut out."""
        assert self.gate is not None
        self.gate = replace(
            self.gate,
            admitted={**self.gate.admitted, group: self.group(group).generation},
            hearing={**self.gate.hearing, group: "absent"},
        )
