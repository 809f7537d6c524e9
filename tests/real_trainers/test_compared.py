"""Comparison of one run's groups, with real parts: a stall that all share, a slow group, and one that is silent because
its disk is full. The trainers are fault_injection/doubles/toy_model.py, in a real TorchFT quorum."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agents.health.facts.files import EVERY_S
from agents.health.step_timing import MOVES_ON
from benchmarks import detection
from benchmarks.detection import CHECKPOINT_STEPS, GROUPS, Bench
from fault_injection.faults import acts
from fault_injection.in_rank import causes
from fault_injection.in_rank.causes import Order
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code, Reason
from supervisor.shell.runfile import live_policy
from tests.helpers.reasons import values
from tests.system.integration.outage import passes

pytestmark = [pytest.mark.etcd, pytest.mark.trainers, pytest.mark.timeout(900)]

HANG_AT_LEAST_S = 8.0
"""Twice the benchmark's value: other tests run beside this one."""
STEP_S = 0.03
"""Shortest time of a step. Learning a group, calling it slow, and waiting before an action take 64 steps each."""
SLOWER_S = 2 * STEP_S
SLOW_FOR_S = 1.0
SHARED = "every group hangs, in checkpoint: it is a cause that they share, so none is ended"


@dataclass
class Run:
    """A run that saves to a storage which all groups share, without TorchFT's logs (which would fill a disk)."""

    bench: Bench
    store: Path

    @contextmanager
    def storage_hangs(self) -> Iterator[None]:
        with (self.store / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def generations(self) -> list[int]:
        return [group.generation for group in self.bench.status().groups]

    def steps_on(self, more: int = 2 * CHECKPOINT_STEPS) -> None:
        """Waits until all groups have made `more` further steps, and their agents have reported them."""
        goal = self.bench.step() + more
        eventually(lambda: min(g.step for g in self.bench.status().groups) >= goal, 60, "all groups step")

    def waits(self, words: str) -> bool:
        """True if `status` shows these words as waited for."""
        return any(words in sentence for sentence in self.bench.status().waiting)

    def acted(self, since: int) -> list[Incident]:
        return [incident for _, incident in self.bench.acted(since).values()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    store = tmp_path_factory.mktemp("store")
    spec = detection.spec(hang_at_least_s=HANG_AT_LEAST_S)
    options = {"toy.step_s": STEP_S, "toy.quiet": True, "toy.store": str(store)}
    titan = replace(spec.titan, overrides={**spec.titan.overrides, **options})
    spec = replace(spec, titan=titan, policy=replace(spec.policy, straggler_for_s=SLOW_FOR_S))
    with detection.bench(tmp_path_factory.mktemp("compared"), spec) as bench:
        yield Run(bench, store)


@pytest.mark.long
def test_a_stall_that_all_groups_share_ends_nobody(run: Run) -> None:
    bench = run.bench
    bench.settle()

    def learned() -> bool:
        return all(rank.measured.apart_s > 0 for g in range(GROUPS) for rank in bench.ranks(g) if rank.rank == 0)

    eventually(learned, 60, "every group has learned how long a checkpoint takes it")
    count, generations = len(bench.watcher.came), run.generations()
    with run.storage_hangs():
        eventually(lambda: run.waits(SHARED), 6 * HANG_AT_LEAST_S, "all say that they hang, and that is said")
        at = bench.step()
        passes(HANG_AT_LEAST_S)
        assert run.waits(SHARED)
        assert bench.step() == at
        assert run.acted(count) == []
    run.steps_on()
    eventually(lambda: not run.waits("hangs") and not run.waits("not known"), 30, "nothing of it is said any more")
    assert run.acted(count) == []
    assert run.generations() == generations
    assert bench.status().incidents_open == ()
    bench.w.check(bench.record)


@pytest.mark.parametrize(
    ("rung", "group"),
    [
        pytest.param(Rung.RESTART, 1, marks=pytest.mark.long, id="restart"),
        pytest.param(Rung.REPLACE, 0, marks=pytest.mark.long, id="replace"),
    ],
)
def test_a_slow_group_is_acted_on_as_the_policy_says(run: Run, rung: Rung, group: int) -> None:
    bench, other = run.bench, 1 - group
    bench.settle()
    live_policy.set_policy(bench.w.store, bench.record, [f"first_rung.straggler={rung.name.lower()}"], "a test")
    try:
        eventually(
            lambda: all(rank.compute_past_s > 0 for g in range(GROUPS) for rank in bench.ranks(g)),
            60,
            "it is known how long the groups take",
        )
        count, generations = len(bench.watcher.came), run.generations()
        target = bench.targets(1)[group]
        bench.ordered(target, Order(cause=causes.SLOW, seconds=SLOWER_S))
        (incident,) = eventually(lambda: run.acted(count), 90, "something is done about it")
        assert (incident.kind, incident.rung, incident.rank) == (Kind.STRAGGLER, rung, 1)
        assert (incident.group, incident.node) == (group, target.node)
        (slow,) = values(incident.evidence, Code.SLOW)
        assert (slow["rank"], slow["for_data"]) == (1, False)
        generations[group] += 1
        eventually(bench.w.running(bench.record, *generations), 60, "the slow group runs again, the other as before")
        assert (bench.status().groups[group].node == target.node) == (rung == Rung.RESTART)
        assert (target.node in bench.status().cordons) == (rung == Rung.REPLACE)
        run.steps_on()
        assert run.acted(count) == [incident], "what was slow is slow no more"
        assert run.generations()[other] == generations[other]
    finally:
        live_policy.set_policy(bench.w.store, bench.record, ["first_rung.straggler=ride_through"], "the test is over")


@pytest.mark.long
def test_a_group_of_which_a_full_disk_tells_nothing_is_no_hang_and_leaves_it_when_it_fails(run: Run) -> None:
    bench, group = run.bench, 1
    if not bench.disks:
        pytest.skip("nodes have no disk of their own here: a tmpfs needs root")
    bench.settle()
    count, generations = len(bench.watcher.came), run.generations()
    target = bench.targets(1)[group]
    said = f"{target.folder}: No space left on device"
    acts.fill_disk(group, target.node, target.folder)
    filled = time.monotonic()
    try:
        eventually(lambda: run.waits(f"group {group}: its node {target.node} says: {said}"), 4 * EVERY_S, "it is told")
        before = bench.status().groups
        # a group that goes from one thing to the next, and commits nothing, is reported after MOVES_ON bounds
        eventually(lambda: time.monotonic() - filled > (MOVES_ON + 1) * HANG_AT_LEAST_S, 6 * HANG_AT_LEAST_S)
        after = bench.status().groups
        assert after[group].step < (before[1 - group].step + after[1 - group].step) / 2, "its steps are not told"
        assert after[1 - group].participants == GROUPS, "but it steps with the others"
        assert run.acted(count) == []
        acts.kill_trainer(group, target.node, target.pid)
        (incident,) = eventually(lambda: run.acted(count), 30, "the end of a rank is seen all the same")
        assert (incident.kind, incident.rung, incident.group) == (Kind.CRASH, Rung.RESTART, group)
        assert Reason.of(Code.ON_ITS_NODE, fact=said) in incident.evidence
        generations[group] += 1
        eventually(bench.w.running(bench.record, *generations), 60, "it runs again, though the disk is full")
        state = bench.status()
        assert state.groups[group].node != target.node
        assert target.node not in state.spares
        assert run.waits(f"node {target.node} is given no group while there is another: {said}")
        assert state.cordons == {}
    finally:
        (target.folder / acts.FILLER).unlink()
    eventually(lambda: target.node in bench.status().spares, 4 * EVERY_S, "it is a spare once its disk has room")
    run.steps_on()
    bench.w.check(bench.record)
