"""Plays one round of kills in a small world: a run, a fault, a process killed at a failpoint, and the checks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fault_injection.checkers import consistency
from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec
from supervisor.core.model.spec import GroupsSpec, RunSpec, TitanSpec, TorchFTSpec
from supervisor.ports.store import MAX_OPERATIONS
from supervisor.shell.dev.etcd_server import EtcdServer
from supervisor.shell.etcd import connect
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord, RunRecord
from tests.helpers.etcd import clear
from tests.nightly.plans import Plan

PATIENCE_S = 60.0
"""Patience for steps that take seconds on an idle machine."""

MORE = 3
"""Nodes in the pool beside those of two groups: one in the place of another, and two that may still be ending."""

GENERATIONS = {"trainer": {2}, "restart": {2}, "node": {2, 3}, "allocation": {2, 3}}
"""Generations that the victim may end with. A lost node shows as dead processes too: then a restart may come first."""


AGENT_LEASE_S = 25
"""Lease of nodes whose agent is killed. The next agent must start before it lapses, which may take 10 s if busy."""


def spec(plan: Plan) -> RunSpec:
    """Two groups that step in real quorums."""
    lease = {"node_lease_s": AGENT_LEASE_S} if plan.failpoint.startswith("agent.") else {}
    made = toy_spec(f"r{plan.seed}", groups=2, spares=0, **lease)
    groups = GroupsSpec(count=2, ranks_per_group=plan.nodes, nodes_per_group=plan.nodes)
    torchft = TorchFTSpec(quorum_timeout_ms=30_000, quorum_retries=60)
    # ranks of one group meet in its store
    overrides = {"toy.mode": "quorum" if plan.nodes == 1 else "model", "toy.step_s": 0.1}
    titan = TitanSpec(steps=10**6, checkpoint_interval_steps=10**6, overrides=overrides)
    allocation = replace(made.allocation, nodes=2 * plan.nodes)
    return replace(made, titan=titan, torchft=torchft, groups=groups, allocation=allocation)


class Wrong(Exception):
    """A round ended otherwise than it must; the text says how."""


class Lane(World):
    """A world that goes on from round to round: etcd, the service host, and a supervisor that is not armed."""

    def __init__(self, folder: Path, etcd: EtcdServer, nodes: int) -> None:
        """`nodes`: of a group."""
        self._pool = 2 * nodes + MORE
        super().__init__(folder, etcd, self._pool, {"SUPERVISOR_PROGRAMS": json.dumps(TOYS)})
        self.leader = self.supervisor()

    # --- armed processes ---

    def lead(self, process: subprocess.Popen[bytes]) -> None:
        """Makes `process`, which stands by, lead in the leader's place."""
        if self.leader.poll() is None:
            self.leader.terminate()
        self.leader.wait(15)
        self.leader = process
        eventually(lambda: self.leads(process) or process.poll() is not None, PATIENCE_S, "the next one leads")

    def leads(self, process: subprocess.Popen[bytes]) -> bool:
        record = self.mirror().record(keys.LEADER, LeaderRecord)
        return record is not None and record.pid == process.pid

    def arm(self, plan: Plan, once: Path) -> None:
        """Sets the environment that processes inherit when they begin. Called before the run exists."""
        self.environment["SUPERVISOR_FAILPOINT_ONCE"] = str(once)
        failpoint = f"{plan.failpoint}:{plan.nth}"
        if plan.way.late and plan.way.who != "supervisor":
            once.touch()
        if plan.way.who == "nodes" or (plan.way.who, plan.way.scenario) == ("supervisor", "start"):
            self.lead(self.supervisor(failpoint))
        if plan.way.who == "host":
            self.restart_host(SUPERVISOR_FAILPOINT=failpoint)

    def restart_host(self, **environment: str) -> None:
        self.host.terminate()
        self.host.wait(15)
        known = self.environment
        self.environment = {**known, **environment}
        self.host = self.start_host()
        self.environment = known

    # --- faults ---

    def hit(self, record: RunRecord, plan: Plan) -> None:
        match plan.way.scenario:
            case "trainer":
                self.kill_trainer(record, plan.victim)
            case "restart":
                self.control(record, restarts={plan.victim: 1})
            case "node":
                self.kill_node(self.status(record).groups[plan.victim].nodes[plan.seat])
            case "allocation":
                self.take_away(self.allocation_of(record, plan.victim))
            case "lighthouse":
                self.kill_lighthouse(record, plan.whole_gate)
            case "drain":
                self.control(record, stop=True)

    def kill_lighthouse(self, record: RunRecord, whole_gate: bool) -> None:
        name = f"lighthouse.{record.spec.name}.1"
        gate = int(json.loads((self.system / "nodes/host/processes" / f"{name}.json").read_text())["pid"])
        (child,) = Path(f"/proc/{gate}/task/{gate}/children").read_text().split()
        os.kill(gate if whole_gate else int(child), signal.SIGKILL)

    # --- checks ---

    def newest_commits(self, run: str) -> dict[int, dict[str, Any]]:
        """group -> its newest committed step, of any generation."""
        newest: dict[int, dict[str, Any]] = {}
        for path in self.system.glob(f"nodes/*/ranks/{run}.*/steps.jsonl"):
            whole = path.read_bytes().rpartition(b"\n")[0]  # the last line may be on its way
            if whole:
                line = json.loads(whole.rpartition(b"\n")[2])
                if line["t"] > newest.get(line["group"], {"t": 0.0})["t"]:
                    newest[line["group"]] = line
        return newest

    def train_together(self, run: str, since: float) -> bool:
        """True if both groups have committed in one quorum of two since then (this machine's clock)."""
        newest = [line for line in self.newest_commits(run).values() if line["t"] > since]
        return len(newest) == 2 and {(x["quorum_id"], x["participants"]) for x in newest} == {
            (newest[0]["quorum_id"], 2)
        }

    def ended(self, record: RunRecord) -> bool:
        return self.status(record).phase == "stopped" and not list(self.system.glob("local/allocation-*.json"))

    # --- a round ---

    def play(self, plan: Plan, once: Path) -> bool:
        """Plays one round; true if its failpoint was reached. Raises Wrong, or AssertionError for a missed deadline."""
        self.arm(plan, once)
        of_supervisor, starts = plan.way.who == "supervisor", plan.way.scenario == "start"
        standby = self.supervisor() if of_supervisor and starts else None
        record = self.launch(spec(plan))
        if not starts:
            armed = self.supervisor(f"{plan.failpoint}:{plan.nth}") if of_supervisor else None
            self._until_training(record, {0: {1}, 1: {1}})
            if armed is not None:
                self.lead(armed)
                standby = self.supervisor()
            if plan.way.late:
                once.unlink()
            self.hit(record, plan)
        if plan.way.scenario != "drain":
            after = GENERATIONS.get(plan.way.scenario, {1})
            self._until_training(record, {plan.victim: after, 1 - plan.victim: {1}})
            self._nothing_twice(record, plan)
            self.control(record, stop=True)
        eventually(lambda: self.ended(record), PATIENCE_S, "the run is stopped and its nodes are given back")
        if standby is not None:
            self.lead(standby)
        fired = once.exists()
        once.touch()  # processes that are still armed die no more
        wrong = [v for v in consistency.check(self.history(record)) if v.answer != "pass"]
        if wrong:
            raise Wrong("; ".join(f"{v.checker}: {v.answer}: {'; '.join(v.sentences)}" for v in wrong))
        return fired

    def clean(self, run: str) -> None:
        """Removes everything of a round except the service host and the leader."""
        for node in self.system.glob("nodes/n*"):
            shutil.rmtree(node)
        shutil.rmtree(self.runs / run)
        names = {run, *(f"n{i + 1}" for i in range(self._pool))}
        left = [key for key in self.mirror().items if names & set(key.split("/"))]
        for i in range(0, len(left), MAX_OPERATIONS):
            self.store.commit({}, left[i : i + MAX_OPERATIONS], ())

    def _until_training(self, record: RunRecord, generations: dict[int, set[int]]) -> None:
        def look() -> bool:
            groups = self.status(record).groups
            return len(groups) == 2 and all(
                g.phase == "running" and g.generation in generations[g.group] for g in groups
            )

        eventually(look, PATIENCE_S, f"both groups run, in generations {generations}")
        since = time.time()
        eventually(lambda: self.train_together(record.spec.name, since), PATIENCE_S, "both groups commit in one quorum")
        if not look():
            raise Wrong(f"the groups did not stay as they were: {self.status(record).groups}")

    def _nothing_twice(self, record: RunRecord, plan: Plan) -> None:
        asked = len(self.mirror().keys(f"{keys.RUNS}{record.spec.name}/allocations/"))
        wanted = 2 * plan.nodes + (plan.way.scenario in ("node", "allocation"))
        if asked != wanted:
            raise Wrong(f"{asked} allocations were asked for, not {wanted}")
        incidents = self.incidents(record)
        if len(incidents) != (plan.way.scenario in GENERATIONS):
            raise Wrong(f"the incidents are {[(i.id, i.kind, i.state) for i in incidents]}")


class Lanes:
    """One lane for all rounds, and a new one, in a folder of its own, after a round that went wrong."""

    def __init__(self, folder: Path, server: EtcdServer, nodes: int = 1) -> None:
        """`nodes`: of a group."""
        self._nodes = nodes
        self._folder = folder
        self._server = server
        self._lane: Lane | None = None
        self._first = 0

    def files(self, plan: Plan) -> Path:
        """The folder with the files of a round that has just gone wrong."""
        return self._folder / f"from-{self._first}-to-{plan.seed}"

    def play(self, plan: Plan) -> bool:
        """Plays a round as Lane.play. A failure ends the lane; its files stay."""
        if self._lane is None:
            with connect([self._server.endpoint]) as store:
                clear(store)
            self._first = plan.seed
            self._lane = Lane(self._folder / "lane", self._server, self._nodes)
        try:
            fired = self._lane.play(plan, self._folder / f"once-{plan.seed}")
            self._lane.clean(f"r{plan.seed}")
        except BaseException:
            try:
                self.close()
            finally:
                (self._folder / "lane").rename(self.files(plan))
            raise
        return fired

    def close(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()
