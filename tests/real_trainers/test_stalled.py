"""An unreachable storage, with real parts: of one node, and one that all groups share. Each is a FUSE file system whose
server is stopped; the trainers are fault_injection/doubles/toy_model.py, in a real TorchFT quorum."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest

from agents.health.facts.files import DEADLINE_S, EVERY_S, EVERY_SHARED_S
from benchmarks import detection
from benchmarks.detection import CHECKPOINT_STEPS, NODES, Bench
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code, Reason
from supervisor.wire import keys
from supervisor.wire.records import Health
from tests.helpers.file_system import FileSystem, file_system, missing
from tests.system.integration.outage import passes
from tests.system.integration.test_cli import cli

pytestmark = [
    pytest.mark.etcd, pytest.mark.trainers, pytest.mark.timeout(900), pytest.mark.skipif(bool(missing()), reason=missing()),
]  # fmt: skip

HANG_AT_LEAST_S = EVERY_SHARED_S + DEADLINE_S + 5.0
"""The nodes report before it that the folder does not answer, as they do with the default."""
TOLD_S = 3 * EVERY_S + DEADLINE_S
SHARED = "it is a cause that they share, so none is ended"


@dataclass
class Run:
    bench: Bench
    disks: dict[str, FileSystem]
    shared: FileSystem
    """The run's folder."""

    def facts(self, node: str) -> dict[str, str]:
        """Kind -> subject."""
        with self.bench.watcher.mirror() as mirror:
            health = mirror.record(keys.health(node), Health)
        return {fact.kind: fact.subject for fact in health.facts} if health is not None else {}

    def waits(self, words: str) -> bool:
        return any(words in sentence for sentence in self.bench.status().waiting)

    def steps_on(self) -> None:
        goal = self.bench.step() + 2 * CHECKPOINT_STEPS
        eventually(lambda: min(g.step for g in self.bench.status().groups) >= goal, 60, "all groups step")

    def generations(self) -> list[int]:
        return [group.generation for group in self.bench.status().groups]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    spec = detection.spec(hang_at_least_s=HANG_AT_LEAST_S)
    spec = replace(spec, titan=replace(spec.titan, overrides={**spec.titan.overrides, "toy.quiet": True}))
    folder = tmp_path_factory.mktemp("stalled")
    behind, runs = folder / "behind", folder / "runs"
    with ExitStack() as stack:
        disks = {
            f"n{i + 1}": stack.enter_context(
                file_system(runs / ".supervisor" / "nodes" / f"n{i + 1}", behind / f"n{i + 1}")
            )
            for i in range(NODES)
        }
        shared = stack.enter_context(file_system(runs / spec.name, behind / spec.name))
        made = stack.enter_context(detection.bench(folder, spec, own_disks=False))
        for served in (*disks.values(), shared):
            stack.callback(served.answer)  # first of all: else the processes that are ended would wait for it
        yield Run(made, disks, shared)


@pytest.mark.long
def test_of_one_node_it_is_found_and_its_group_goes_on_elsewhere(run: Run) -> None:
    bench, group = run.bench, 1
    bench.settle()
    count, generations = len(bench.watcher.came), run.generations()
    target = bench.targets(0)[group]
    agent = bench.agent_of(target.node)
    disk = run.disks[target.node]
    disk.stall()
    try:
        _, incident = eventually(
            lambda: next(iter(bench.acted(count).values()), None), TOLD_S + HANG_AT_LEAST_S, "found"
        )
        assert (incident.kind, incident.rung, incident.rank) == (Kind.HANG, Rung.RESTART, None)
        assert (incident.group, incident.node) == (group, target.node)
        assert incident.evidence[0] == Reason.of(Code.STEPS_UNSEEN)
        said = f"cannot see what the ranks here do: {target.folder} does not answer"
        assert Reason.of(Code.ON_ITS_NODE, fact=said) in incident.evidence
        stalled = eventually(lambda: run.facts(target.node).get("file_system_stalled"), TOLD_S, "its agent says why")
        assert stalled == str(target.folder)
        generations[group] += 1
        eventually(bench.w.running(bench.record, *generations), 90, "it runs again, though its node's disk stalls")
        state = bench.status()
        assert state.groups[group].node != target.node
        assert target.node not in state.spares
        assert run.waits(f"node {target.node} is given no group while there is another")
        assert (state.cordons, len(bench.acted(count))) == ({}, 1)
    finally:
        disk.answer()
    eventually(lambda: target.node in bench.status().spares, TOLD_S, "it is a spare once its disk answers")
    assert "file_system_stalled" not in run.facts(target.node)
    assert bench.agent_of(target.node) == agent
    run.steps_on()
    assert run.generations() == generations
    bench.w.check(bench.record)


@pytest.mark.long
def test_of_all_nodes_it_ends_nobody(run: Run) -> None:
    """The run's folder holds the files that the ranks read at each step, and the leader's journal."""
    bench = run.bench
    bench.settle()
    count, generations = len(bench.watcher.came), run.generations()
    nodes = [group.node for group in bench.status().groups]
    run.shared.stall()
    try:
        eventually(lambda: run.waits(SHARED), 6 * HANG_AT_LEAST_S, "all say that they hang, and that is said")
        here = str(run.shared.folder)
        eventually(
            lambda: all(run.facts(n).get("file_system_stalled") == here for n in nodes), TOLD_S, "all nodes tell it"
        )
        said = cli("status", "--json", world=bench.w)
        assert any(SHARED in sentence for sentence in json.loads(said.stdout)["waiting"]), said.stderr
        at = bench.step()
        passes(HANG_AT_LEAST_S)
        assert run.waits(SHARED)
        assert bench.step() == at
        assert bench.acted(count) == {}
    finally:
        run.shared.answer()
    run.steps_on()
    eventually(lambda: not run.waits("hang") and not run.waits("not known"), 30, "nothing of it is said any more")
    eventually(
        lambda: not any("file_system_stalled" in run.facts(node) for node in nodes), TOLD_S, "and that it is over"
    )
    assert bench.acted(count) == {}
    assert run.generations() == generations
    assert bench.status().incidents_open == ()
    bench.w.check(bench.record)
