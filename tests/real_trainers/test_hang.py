"""A rank that hangs and still heartbeats stalls all groups: the right group is restarted, and no other."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import TORCHFT, World, equal_digests, toy_spec, world
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.measured import Measured
from supervisor.core.model.reason import Code
from supervisor.core.model.spec import HangSpec, TitanSpec
from supervisor.wire.records import RunRecord
from tests.helpers.reasons import codes, values
from tests.real_trainers.titan import hanging
from tests.system.integration.outage import passes

pytestmark = [pytest.mark.etcd, pytest.mark.trainers, pytest.mark.timeout(1800)]

HANG = HangSpec(factor=10.0, at_least_s=10 * hanging.PACE_S, at_most_s=60.0)
PATIENT = replace(TORCHFT, join_timeout_ms=4000, process_group_timeout_ms=8000)
"""The other group waits in a collective for a slow one: 6 s, and the delay of a busy machine. Both together are
`HANG.at_least_s`."""
LEARNING_STEPS = 12


@dataclass
class Run:
    w: World
    record: RunRecord
    generations: list[int]

    def steps_on(self, more: int = LEARNING_STEPS) -> None:
        """Waits until both groups have made `more` further steps."""
        eventually(self.w.running(self.record, *self.generations), 240, "both groups train")
        goal = max(g.step for g in self.w.status(self.record).groups) + more
        eventually(lambda: min(g.step for g in self.w.status(self.record).groups) >= goal, 120, "they step")

    def hangs(self, group: int, how: str) -> float:
        hanging.want(self.record.run_dir, group, self.generations[group], how)
        return time.time()

    def recovered(self, group: int) -> Incident:
        """The newest incident, once its group trains in its next generation and the other in its own."""
        self.generations[group] += 1
        eventually(self.w.running(self.record, *self.generations), 120, "the one that hangs is started again")
        return eventually(lambda: self._newest(group), 120, "the incident is over")

    def measured(self, group: int) -> Measured:
        return self.w.trainer(self.record, group).measured

    def _newest(self, group: int) -> Incident | None:
        found = [i for i in self.w.incidents(self.record) if i.generation_after == self.generations[group]]
        return found[-1] if found and found[-1].state == "recovered" else None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("hang")
    titan = TitanSpec(
        recipe="tests.real_trainers.titan.hanging:small",
        steps=100_000,
        checkpoint_interval_steps=10,
        digest_interval_steps=5,
    )
    spec = replace(toy_spec("hang", spares=0, start_timeout_s=300.0, hang=HANG), titan=titan, torchft=PATIENT)
    spec = replace(spec, policy=replace(spec.policy, budget=replace(spec.policy.budget, restart=10)))
    with world(folder, toys=False) as w:
        w.supervisor()
        yield Run(w, w.launch(spec), [1, 1])


@pytest.mark.long
def test_steps_that_are_five_times_as_slow_are_left_alone(run: Run) -> None:
    """Each slow step takes half of a hang's time, one after the other."""
    run.hangs(1, "paced")
    run.steps_on()
    eventually(lambda: run.measured(1).step_s > 0.9 * hanging.PACE_S, 240, "it has learned its pace")
    bound_s = max(HANG.at_least_s, HANG.factor * run.measured(1).step_s)
    slow_s = hanging.SLOW_TIMES * hanging.PACE_S
    assert slow_s > 0.4 * bound_s, "the test comes near to the bound"
    before = len(run.w.incidents(run.record))
    run.hangs(1, "slow")
    eventually(lambda: run.measured(1).longest_step_s > 0.9 * slow_s, 60, "its steps are slow")
    passes(2 * HANG.at_least_s)
    assert len(run.w.incidents(run.record)) == before
    assert [group.generation for group in run.w.status(run.record).groups] == run.generations
    run.hangs(1, "")
    run.steps_on(3)


@pytest.mark.parametrize(
    ("how", "group", "activity", "state", "where"),
    [
        pytest.param("data", 1, "data", "sleeping", "batch_generator", marks=pytest.mark.long),
        pytest.param("gil", 0, "compute", "sleeping", "forward_backward_step", marks=pytest.mark.long),
        pytest.param("compute", 1, "compute", "busy", "forward_backward_step", marks=pytest.mark.long),
    ],
)
def test_the_one_that_hangs_is_found_and_started_again(
    run: Run, how: str, group: int, activity: str, state: str, where: str
) -> None:
    run.steps_on()
    since = run.hangs(group, how)
    incident = run.recovered(group)
    assert (incident.kind, incident.group, incident.rung) == (Kind.HANG, group, Rung.RESTART)
    seen = values(incident.evidence, Code.NO_STEP)[0]
    assert (seen["activity"], seen["process"]) == (activity, state)
    stack = seen["stack"].about
    # py-spy names a function with what it is defined in
    assert (where, "hanging.py") in {(function.rpartition(".")[2], file) for function, file, _ in stack["frames"]}
    assert stack["holds_lock"] or how != "gil"
    run.steps_on(2 * 5)
    assert equal_digests(run.w, run.record, since)


@pytest.mark.long
def test_a_stopped_process_is_killed_at_once_and_one_that_goes_on_is_left_alone(run: Run) -> None:
    """Neither the bound of a step nor TERM's grace has to pass. By day: `tests/system/agents/test_stopped.py`, with toys."""
    run.steps_on()
    hiccup = run.w.trainer(run.record, 0).pid
    os.kill(hiccup, signal.SIGSTOP)
    passes(0.5 * HANG.stopped_s)
    os.kill(hiccup, signal.SIGCONT)
    run.steps_on(3)
    assert run.w.trainer(run.record, 0).pid == hiccup
    at = time.time()
    os.kill(hiccup, signal.SIGSTOP)
    incident = run.recovered(0)
    assert (incident.kind, incident.rank) == (Kind.HANG, 0)
    assert Code.STOPPED in codes(*incident.evidence)
    assert incident.decided is not None
    assert HANG.stopped_s <= incident.decided - incident.opened + incident.took_s < HANG.at_least_s
    name = f"{run.record.spec.name}.0.{run.generations[0] - 1}.0"
    history = run.w.shim_history(run.w.status(run.record).groups[0].node)
    sent = [line for line in history if line["event"] == "signalled" and line["name"] == name]
    assert [line["signal"] for line in sent] == [signal.SIGKILL]
    assert sent[0]["t"] - at < 2 * HANG.stopped_s
    run.steps_on(3)
    run.w.check(run.record)
