"""Groups of real trainers on several nodes each, with the model sharded over all ranks of a group. Run by
test_nodes_of_a_group.py inside a hub's network namespace, where every node is a machine; never by themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agents.shim import process
from fault_injection.checkers.recovery import longest_stall
from fault_injection.doubles.toys import WARM_TORCH
from fault_injection.testbed import netns
from fault_injection.testbed.own_slurm import slurm
from fault_injection.testbed.slurm_world import SlurmWorld
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, equal_digests, toy_spec
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code
from supervisor.core.model.spec import (
    AllocationSpec,
    BudgetSpec,
    GroupsSpec,
    NetworkSpec,
    RunSpec,
    SlurmSpec,
    TitanSpec,
    TorchFTSpec,
)
from supervisor.shell.control import cordons
from supervisor.shell.dev.etcd_server import EtcdServer, start_etcd
from supervisor.shell.inspect import client, hosts, status
from supervisor.shell.processes import is_running, start_ticks
from supervisor.wire import checkpoints
from supervisor.wire.records import RunRecord
from supervisor.wire.security import Security, load
from tests.helpers.reasons import values
from tests.system.integration.split_cases import out_of_reach

SHAPE = "SHAPE"
"""Environment variable: groups x nodes of each x ranks of each node."""
RANKS_MEET = "RANKS_MEET"
"""Environment variable: the network between ranks, where it is another than that of etcd and agents."""
GROUPS, SIZE, RANKS = map(int, os.environ.get(SHAPE, "2x2x2").split("x"))
SPARES = 2
ENGINE = "ENGINE"
"""Environment variable: `slurm` for a real Slurm instead of the local engine."""
ON_SLURM = os.environ.get(ENGINE) == "slurm"
SLURMD_TIMEOUT_S = 300
"""Seconds, as Slurm's default: it does not see a silent loss before us."""
if ON_SLURM:
    NODES = tuple(f"n{i + 1}" for i in range(GROUPS * SIZE + SPARES))
else:
    NODES = ("host", *(f"n{i + 1}" for i in range(GROUPS * SIZE + SPARES + 1)))
BACK_S = 300.0 if ON_SLURM else 120.0
"""Seconds until there are spares again: Slurm learns by its own requests, now and then, that a lost host is empty."""
TORCHFT = TorchFTSpec(
    heartbeat_timeout_ms=1000,
    join_timeout_ms=5000,
    process_group_timeout_ms=10_000,
    quorum_timeout_ms=120_000,
    quorum_retries=1000,
)
LOST = (Code.LEASE_LAPSED, Code.LAPSED_UNHEARD, Code.PROVED_DEAD)
"""Evidence that names a lost node."""
STALLS_AT_MOST_S = 2 * (TORCHFT.heartbeat_timeout_ms + TORCHFT.join_timeout_ms) / 1000
"""Longest time without a step of a group that is not hurt: the lost one falls silent, and those left join without it."""

NAMED_WITHIN_S = 240.0
"""Seconds until a slow rank is named: its node's agent has medians of 64 steps."""


def spec(name: str, w: World) -> RunSpec:
    """Returns a run of the small debug model."""
    allocation = AllocationSpec(nodes=GROUPS * SIZE, spares=SPARES)
    if ON_SLURM:
        slurm_spec = SlurmSpec(node_folder=str(w.system), drain_suspects=False)
        allocation = replace(allocation, engine="slurm", slurm=slurm_spec)
    budget = BudgetSpec(restart=30, replace=60, reallocate=60)
    # the cases follow each other as no failures do: by the eighth a start would wait a minute
    made = toy_spec(name, GROUPS, start_timeout_s=300.0, budget=budget, backoff_max_s=1.0)
    titan = TitanSpec(
        recipe="tests.real_trainers.titan.recipes:that_rests_between_steps",
        steps=100_000,
        checkpoint_interval_steps=10,
        digest_interval_steps=5,
    )
    return replace(
        made,
        titan=titan,
        network=NetworkSpec(address=os.environ.get(RANKS_MEET, "")),
        torchft=TORCHFT,
        groups=GroupsSpec(count=GROUPS, ranks_per_group=SIZE * RANKS, nodes_per_group=SIZE),
        allocation=allocation,
    )


@dataclass
class Run:
    """The run, and what is remembered of it from before a fault."""

    w: World
    net: netns.Network
    record: RunRecord
    out_of_reach: list[int] = field(default_factory=list)
    """Shims on machines that the engine does not reach."""
    instead: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Processes of ours that it reaches instead."""

    def nodes(self, group: int) -> tuple[str, ...]:
        return tuple(self.w.status(self.record).groups[group].nodes)

    def generation(self, group: int) -> int:
        return self.w.status(self.record).groups[group].generation

    def standing(self, node: str) -> dict[str, int]:
        """Returns the pids of all that runs on a node, by name."""
        found = {"shim": self.w.shim_pid(node)}
        for path in (self.w.system / "nodes" / node / "processes").glob("*.json"):
            body = json.loads(path.read_text())
            if body["pid"] and not body["exited"]:
                found[body["name"]] = body["pid"]
        recorded = {*found.values()}
        for stat in process.all_processes():
            # no record has the warm process; trainers that it forked have its command line, and a record each
            if stat.parent == found["shim"] and stat.pid not in recorded and "titan_actor.warm" in command_of(stat.pid):
                found["warm"] = stat.pid
        return found

    def kept(self, node: str) -> dict[str, int]:
        """Returns what of a node must outlast the loss of another one."""
        eventually(lambda: self._warm(node), 120, f"the warm process of {node} is ready")
        stays = {name: pid for name, pid in self.standing(node).items() if name in ("shim", "agent", "warm")}
        assert len(stays) == 3, f"{node} has {stays}"
        return stays

    def _warm(self, node: str) -> bool:
        return next(n.warm for n in status.node_status(self.w.mirror()) if n.node == node) == "ready"

    def rank(self, group: int, rank: int) -> int:
        """Returns the pid of a rank."""
        node = self.nodes(group)[rank // RANKS]
        return self.standing(node)[f"{self.record.spec.name}.{group}.{self.generation(group)}.{rank}"]

    def together(self, more: int = 6) -> None:
        """Waits until all groups run, and have made `more` further steps with equal digests."""
        w, record = self.w, self.record
        eventually(w.running(record), 240, "all groups train")
        goal, since = max(g.step for g in w.status(record).groups) + more, time.time()
        eventually(lambda: min(g.step for g in w.status(record).groups) >= goal, 120, "they step")
        eventually(lambda: equal_digests(w, record, since), 120, "all ranks write the digests of a step")

    def spared(self) -> None:
        """Waits until there are as many idle nodes as before the first fault."""
        eventually(lambda: len(self.idle()) >= SPARES, BACK_S, "the spares are there")

    def idle(self) -> list[str]:
        """Returns the nodes that no group holds and that have a warm process."""
        held = {node for group in range(GROUPS) for node in self.nodes(group)}
        seen, closed = status.node_status(self.w.mirror()), cordons.by_host(self.w.mirror())
        return [n.node for n in seen if n.alive and n.warm == "ready" and n.node not in held and n.node not in closed]

    def goes_through(
        self,
        act: Callable[[], object],
        hurt: tuple[int, ...],
        lost: tuple[str, ...] = (),
        unseen_s: float = 0.0,
    ) -> list[Incident]:
        """Breaks something that hurts these groups, and returns their incidents once all train together again. All else
        must have gone on as it was: the other groups' steps and processes, and what stays on the unhurt nodes.
        `unseen_s`: seconds after which the failure shows at all, for which the others wait."""
        before = {group: (self.nodes(group), self.generation(group)) for group in range(GROUPS)}
        others = {n: self.standing(n) for g in range(GROUPS) if g not in hurt for n in before[g][0]}
        unhurt = {n: self.kept(n) for g in hurt for n in before[g][0] if n not in lost}
        known = {incident.id for incident in self.w.incidents(self.record)}
        since = time.time()
        act()
        eventually(lambda: all(self.generation(g) > before[g][1] for g in hurt), 120, "the hurt groups start again")
        self.together()
        stalls = [self._stalled_s(g, since) for g in range(GROUPS) if g not in hurt]
        print(f"MEASURED longest stalls of the others: {', '.join(f'{s:.1f}' for s in stalls) or 'none'} s")
        assert all(stalled < unseen_s + STALLS_AT_MOST_S for stalled in stalls)
        found = [i for i in self.w.incidents(self.record) if i.id not in known]
        assert {i.group for i in found} == {*hurt}
        assert {n: self.standing(n) for n in others} == others
        assert {n: self.kept(n) for n in unhurt} == unhurt
        for group in hurt:
            stays = [n for n in before[group][0] if n not in lost]
            now = self.nodes(group)
            assert [*now[: len(stays)]] == stays, "the unhurt seats stay, and come first"
            assert len(now) == SIZE
            assert not {*now} & {*lost}
        return eventually(lambda: self._recovered(known), 60, "the incidents are over")

    def _stalled_s(self, group: int, since: float) -> float:
        """Returns the longest time since then for which the group committed no step."""
        first = [s for s in self.w.history(self.record).steps if (s.group, s.rank) == (group, 0)]
        return longest_stall(sorted(line["t"] for s in first for line in s.committed()), since, time.time())

    def _recovered(self, known: set[str]) -> list[Incident]:
        found = [i for i in self.w.incidents(self.record) if i.id not in known]
        return found if all(i.state == "recovered" for i in found) else []

    # --- what breaks ---

    def kill(self, node: str) -> None:
        """Kills all processes of a machine at once."""
        if isinstance(self.w, SlurmWorld):
            self.w.lose_machine(node)
        else:
            end(self.w.shim_pid(node))

    def cut(self, *nodes: str) -> None:
        """Loses machines silently: no connection is reset, and the engine reaches none of their processes."""
        for node in nodes if not ON_SLURM else ():
            self.out_of_reach.append(self.w.shim_pid(node))
            self.instead.append(out_of_reach(self.w, node))
        for node in nodes:
            self.net.cut(NODES.index(node))

    def repaired(self, *nodes: str) -> None:
        """Has the old processes of lost machines end, by their own agents, and lets runs have these machines again."""
        ranks = {
            n: {k: p for k, p in self.standing(n).items() if k.startswith(f"{self.record.spec.name}.")} for n in nodes
        }
        shims = {n: self.standing(n)["shim"] for n in nodes}
        for node in nodes:
            self.net.mend(NODES.index(node))
        for node in nodes:
            for pid in ranks[node].values():
                eventually(lambda pid=pid: start_ticks(pid) is None, 60, "its agent ends the old ranks")
            if not ON_SLURM:  # which ends the job, now that it can
                end(shims[node])
        self.free(*nodes)

    def free(self, *nodes: str) -> None:
        """Lifts the cordons of these hosts, and waits until spares are there."""
        if isinstance(self.w, SlurmWorld):
            self.w.lab.revive()
            eventually(self.w.lab.usable, BACK_S, "Slurm has all its hosts again")
        held = cordons.by_host(self.w.mirror())
        if wanted := [node for node in nodes if node in held]:
            hosts.uncordon(self.w.store, self.w.mirror(), *wanted)
        self.spared()


def end(pid: int) -> None:
    """Kills a shim; what runs below it ends with it."""
    ticks = start_ticks(pid)
    if ticks is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not is_running(pid, ticks), 30, "the shim ends")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    body = json.loads(os.environ["SPLIT_NETWORK"])
    net = netns.Network(body["hub"], body["hub_address"], tuple((a, b) for a, b in body["nodes"]))
    folder = tmp_path_factory.mktemp("wide")
    (folder / "security.toml").write_text("insecure = true\n")
    security = load(str(folder / "security.toml"))
    with ExitStack() as ends:
        server = start_etcd(folder / "etcd", host=net.hub_address)
        ends.callback(server.stop)
        made = world(folder, server, net, security, ends)
        ends.callback(made.close)
        made.supervisor()
        run = Run(made, net, made.launch(spec("wide", made)))
        yield run
        end_all(run)


def world(folder: Path, server: EtcdServer, net: netns.Network, security: Security, ends: ExitStack) -> World:
    """Starts all but the supervisor. On Slurm the machines of the network are its hosts, and end with `ends`."""
    places = dict(zip(NODES, net.nodes, strict=False))
    if not ON_SLURM:
        return World(folder, server, len(NODES) - 1, {WARM_TORCH: "1"}, security, places)
    about = {"places": places, "hub": ("", net.hub_address), "slurmd_timeout": SLURMD_TIMEOUT_S}
    lab = ends.enter_context(slurm(folder, len(NODES), **about))
    return SlurmWorld(folder, lab, server, {}, security=security, places={"host": ("", net.hub_address)})


def end_all(run: Run) -> None:
    """Ends the supervisor, and the shims that the engine does not reach."""
    for supervisor in run.w.supervisors:
        supervisor.terminate()
        supervisor.wait(30)
    for index in range(len(NODES)):
        run.net.mend(index)
    for pid in run.out_of_reach:
        end(pid)
    for process_ in run.instead:
        process_.kill()
        process_.wait()


def command_of(pid: int) -> str:
    """Returns a process's command line; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize("rank", [0, 3])
def test_a_killed_rank(run: Run, rank: int) -> None:
    run.together()
    node = run.nodes(1)[rank // RANKS]
    (incident,) = run.goes_through(lambda: os.kill(run.rank(1, rank), signal.SIGKILL), (1,))
    assert (incident.kind, incident.rung, incident.rank, incident.node) == (Kind.CRASH, Rung.RESTART, rank, node)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_stopped_rank(run: Run, rank: int) -> None:
    run.together()
    node = run.nodes(1)[rank // RANKS]
    hangs_s = 2 * run.record.spec.policy.hang.at_least_s
    (incident,) = run.goes_through(lambda: os.kill(run.rank(1, rank), signal.SIGSTOP), (1,), unseen_s=hangs_s)
    assert (incident.kind, incident.rank, incident.node) == (Kind.HANG, rank, node)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_slow_rank_is_named(run: Run, rank: int) -> None:
    """It stands still for most of the time, too briefly to count as stopped: the other ranks of its group wait for it
    inside their steps, and the other group too."""
    run.together()
    node, pid = run.nodes(1)[rank // RANKS], run.rank(1, rank)
    named, until = f"group 1 is slow: rank {rank} on node {node} ", time.monotonic() + NAMED_WITHIN_S
    while not any(sentence.startswith(named) for sentence in run.w.status(run.record).waiting):
        assert time.monotonic() < until, run.w.status(run.record).waiting
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.7)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.3)


@pytest.mark.parametrize("seat", [0, 1])
def test_a_killed_node(run: Run, seat: int) -> None:
    run.together()
    run.spared()
    lost = run.nodes(1)[seat]
    (incident,) = run.goes_through(lambda: run.kill(lost), (1,), (lost,))
    assert (incident.kind, incident.rung, incident.node) == (Kind.NODE_LOST, Rung.REPLACE, lost)
    run.free(lost)


@pytest.mark.parametrize("seat", [0, 1])
def test_a_node_lost_silently(run: Run, seat: int) -> None:
    run.together()
    run.spared()
    lost = run.nodes(1)[seat]
    (incident,) = run.goes_through(lambda: run.cut(lost), (1,), (lost,))
    assert (incident.kind, incident.rung, incident.node) == (Kind.NODE_LOST, Rung.REPLACE, lost)
    run.repaired(lost)


def test_two_nodes_of_one_group_lost_silently(run: Run) -> None:
    run.together()
    run.spared()
    lost = run.nodes(1)
    (incident,) = run.goes_through(lambda: run.cut(*lost), (1,), lost)
    assert (incident.kind, incident.rung) == (Kind.NODE_LOST, Rung.REPLACE)
    assert {*incident.nodes} == {*lost}
    seen = [why for code in LOST for why in values(incident.evidence, code)]
    assert {why["node"] for why in seen} == {*lost}
    run.repaired(*lost)


def test_two_nodes_of_different_groups_lost_silently(run: Run) -> None:
    run.together()
    run.spared()
    lost = (run.nodes(0)[1], run.nodes(1)[0])
    found = run.goes_through(lambda: run.cut(*lost), (0, 1), lost)
    # the one that is back first may find no peer to heal from yet, and start once more from disk
    first = {i.group: (i.kind, i.rung, i.node) for i in reversed(found)}
    assert first == {group: (Kind.NODE_LOST, Rung.REPLACE, node) for group, node in enumerate(lost)}
    run.repaired(*lost)


def test_the_spare_dies_while_it_starts(run: Run) -> None:
    run.together()
    run.spared()
    lost, kept = run.nodes(1)

    def lose_twice() -> None:
        run.kill(lost)
        spare = eventually(lambda: [n for n in run.nodes(1) if n not in (lost, kept)], 60, "a spare has the seat")[0]
        eventually(lambda: f"{run.record.spec.name}.1." in "".join(run.standing(spare)), 60, "ranks start there")
        assert run.w.status(run.record).groups[1].phase == "starting"
        run.kill(spare)
        fallen.append(spare)

    fallen: list[str] = []
    found = run.goes_through(lose_twice, (1,), (lost,))
    assert [(i.kind, i.node) for i in found] == [(Kind.NODE_LOST, *fallen)], "one incident, which goes on"
    assert fallen[0] not in run.nodes(1)
    run.free(lost, *fallen)


@pytest.mark.parametrize("seat", [0, 1])
def test_a_drained_node(run: Run, seat: int) -> None:
    run.together()
    run.spared()
    left = run.nodes(1)[seat]
    w = run.w
    (incident,) = run.goes_through(lambda: hosts.cordon(w.store, w.mirror(), left, "new firmware", True), (1,), (left,))
    assert (incident.kind, incident.node) == (Kind.LEAVING, left)
    run.free(left)


@pytest.mark.parametrize("seat", [0, 1])
def test_a_node_near_its_time_limit(run: Run, seat: int) -> None:
    """Its shim has the signal that a scheduler sends some time before."""
    run.together()
    run.spared()
    left = run.nodes(1)[seat]
    (incident,) = run.goes_through(lambda: os.kill(run.w.shim_pid(left), signal.SIGUSR1), (1,), (left,))
    assert (incident.kind, incident.node) == (Kind.LEAVING, left)
    run.free(left)


def test_the_leader_dies_between_fencing_and_placing(run: Run) -> None:
    """It dies as soon as it has decided to fence the old generation."""
    run.together()
    run.spared()
    w, lost = run.w, run.nodes(1)[0]
    dies = w.supervisor(failpoint="fencing")
    leader = w.supervisors[-2]
    leader.kill()
    leader.wait()

    def lose_both() -> None:
        run.cut(lost)
        dies.wait(120)
        assert w.status(run.record).groups[1].phase == "fencing"
        w.supervisor()

    (incident,) = run.goes_through(lose_both, (1,), (lost,))
    assert (incident.kind, incident.node) == (Kind.NODE_LOST, lost)
    run.repaired(lost)


def test_a_stopped_run_resumes_from_its_checkpoint(run: Run) -> None:
    run.together()
    w, record = run.w, run.record
    w.control(record, stop=True)
    eventually(lambda: w.status(record).phase == "stopped", 120, "the run stops")
    step = w.status(record).step
    client.resume(w.store, w.mirror(), record, "the test goes on")
    run.together()
    first = [s for s in w.history(record).steps if s.generation == run.generation(s.group)]
    assert {line["step"] for s in first for line in s.lines if line.get("event") == "resumed"} == {step}


def test_the_checkers_agree(run: Run) -> None:
    run.w.check(run.record)


@pytest.mark.parametrize("size", [1, SIZE], ids=["fewer nodes", "more nodes"])
def test_a_run_of_groups_on_other_nodes_goes_on_from_it(run: Run, size: int) -> None:
    """The checkpoint of the ranks of several nodes is read by those of one, and theirs by those of several."""
    run.together()
    w = run.w
    w.control(run.record, stop=True)
    eventually(lambda: w.status(run.record).phase == "stopped", 120, "the run stops")
    mark = next(mark for _, _, mark in checkpoints.listed(run.record.run_dir) if mark is not None)
    made = spec(f"of-{size}", w)
    made = replace(
        made,
        groups=GroupsSpec(count=GROUPS, ranks_per_group=size * RANKS, nodes_per_group=size),
        allocation=replace(made.allocation, nodes=GROUPS * size, spares=1),
    )
    begins_with = client.resumed_from(Path(mark.path), made)
    run.record = client.launch(w.store, made, w.runs, begins_with=begins_with)
    run.together()
    first = [line for s in w.history(run.record).steps for line in s.lines if line.get("event") == "resumed"]
    assert {line["step"] for line in first} == {mark.step}
    w.check(run.record)
