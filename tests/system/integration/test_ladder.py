"""The ladder's rungs with real processes: toys in the place of trainers. The first tests share one run, in this order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agents.agent.launch import read_launch
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, World, toy_spec
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import HangSpec
from supervisor.wire import keys
from supervisor.wire.checkpoints import MARKER
from supervisor.wire.records import CheckpointMark, NodeDesired, RunRecord, encode
from tests.helpers.reasons import SEGFAULT, passed, values
from tests.real_trainers.test_lighthouse import joint, quorum_spec


def _recovered(w: World, record: RunRecord, count: int) -> bool:
    found = w.incidents(record)
    return len(found) == count and all(i.state == "recovered" for i in found)


class Before:
    """A run before what a test does to it: tests share one."""

    def __init__(self, w: World, record: RunRecord) -> None:
        self.w, self.record = w, record
        self.known = {i.id for i in w.incidents(record)}
        self.state = w.status(record)
        self.generations = [g.generation for g in self.state.groups]
        self.pids = [w.trainer(record, g.group).pid for g in self.state.groups]

    def new(self) -> list[Incident]:
        return [i for i in self.w.incidents(self.record) if i.id not in self.known]

    def recovers(self, group: int, within_s: float = 30.0) -> Incident:
        """Waits until the one new incident is over and this group runs one generation further, the others as they were."""
        after = [n + 1 if number == group else n for number, n in enumerate(self.generations)]

        def over() -> bool:
            return [i.state for i in self.new()] == ["recovered"] and self.w.running(self.record, *after)()

        eventually(over, within_s, f"group {group} runs again")
        (incident,) = self.new()
        others = [group for group in range(len(after)) if group != incident.group]
        assert [self.w.trainer(self.record, other).pid for other in others] == [self.pids[other] for other in others]
        return incident


def test_a_killed_trainer_is_restarted_in_place_and_the_other_is_left_alone(one_run: tuple[World, RunRecord]) -> None:
    w, record = one_run
    before = Before(w, record)
    w.kill_trainer(record, 1)
    incident = before.recovers(1)
    assert (incident.kind, incident.rung) == (Kind.CRASH, Rung.RESTART)
    assert incident.evidence[0].code in (Code.KILLED_NOT_BY_US, Code.KILLED_BY_NEITHER), incident.evidence
    assert w.status(record).groups[1].node == before.state.groups[1].node


def test_paused_nothing_is_done_and_everything_is_seen(one_run: tuple[World, RunRecord]) -> None:
    w, record = one_run
    before = Before(w, record)
    w.control(record, paused=True)
    w.kill_trainer(record, 0)
    eventually(lambda: [i.state for i in before.new()] == ["open"], 10, "the incident is open")
    assert w.status(record).groups[0].generation == before.generations[0]
    w.control(record, paused=False)
    before.recovers(0)


def test_a_person_restarts_a_group_and_no_budget_is_drawn(one_run: tuple[World, RunRecord]) -> None:
    w, record = one_run
    before = Before(w, record)
    w.control(record, restarts={1: 1})
    assert before.recovers(1).kind == Kind.REQUESTED
    assert w.status(record).budgets_left == before.state.budgets_left


def test_records_that_cannot_be_read_are_reported_and_left_alone(one_run: tuple[World, RunRecord]) -> None:
    w, record = one_run
    before = Before(w, record)
    corrupt, newer = keys.incident("toy", "i99"), keys.observed("ghost")
    w.store.put(newer, b'{"$kind":"NodeObserved","$version":99,"node":"ghost","sequence":1}')
    w.store.put(keys.NODES + "nonsense", b"\xff\xfe")
    w.kill_trainer(record, 1)
    before.recovers(1)
    assert w.store.get(newer) is not None
    w.store.put(corrupt, b"{torn")
    eventually(lambda: "left alone" in (w.system / "supervisor.log").read_text(), 10, "it is said")
    log = (w.system / "supervisor.log").read_text()
    assert "version 99 is newer" in log
    assert "Traceback" not in log
    w.store.commit({}, deletes=[corrupt])


def test_a_lost_node_is_replaced_by_the_spare(one_run: tuple[World, RunRecord]) -> None:
    w, record = one_run
    (spare,) = eventually(lambda: w.status(record).spares, 30, "the spare is there")
    before = Before(w, record)
    node = before.state.groups[0].node
    w.kill_node(node)
    incident = before.recovers(0, 30 + 5 * LEASE_S)
    assert (incident.kind, incident.rung) == (Kind.NODE_LOST, Rung.REPLACE)
    state = w.status(record)
    assert state.groups[0].node == spare
    assert list(state.cordons) == [node]


def test_stop_drains_and_gives_everything_back(one_run: tuple[World, RunRecord]) -> None:
    w, record = one_run
    before = Before(w, record)
    w.control(record, stop=True)
    eventually(lambda: w.status(record).phase == "stopped", 60, "the run ends")
    eventually(lambda: not list(w.system.glob("local/allocation-*.json")), 30, "all nodes are given back")
    assert before.new() == []


def test_a_node_that_is_proved_dead_is_replaced_long_before_its_lease_lapses(empty: World) -> None:
    w, spec = empty, quorum_spec(groups=2)
    lease_s = 60
    record = w.launch(replace(spec, policy=replace(spec.policy, node_lease_s=lease_s)))
    eventually(w.running(record, 1, 1), 60, "both groups run")
    joint(w, record, time.time())
    eventually(lambda: w.status(record).spares, 30, "the spare is there")
    at, node = time.time(), w.status(record).groups[1].node
    w.kill_node(node)
    eventually(lambda: _recovered(w, record, 1), lease_s / 6, "the group trains on the spare")
    (incident,) = w.incidents(record)
    assert (incident.kind, incident.rung, incident.node) == (Kind.NODE_LOST, Rung.REPLACE, node)
    assert Code.PROVED_DEAD in [reason.code for reason in incident.evidence]
    joint(w, record, time.time())
    assert time.time() - at < lease_s
    w.check(record)


@pytest.mark.long
def test_a_stopped_rank_is_silent_first_and_started_again_once_it_has_been_for_too_long(empty: World) -> None:
    """With policy.hang.stopped_s = 0 a stop is not acted on as such. Its node lives, and the others go on without it,
    so a while of that is ridden through."""
    w, spec = empty, quorum_spec(groups=2)
    record = w.launch(replace(spec, policy=replace(spec.policy, silent_timeout_s=6.0, hang=HangSpec(stopped_s=0.0))))
    eventually(w.running(record, 1, 1), 60, "both groups run")
    joint(w, record, time.time())
    other, node, pid = w.trainer(record, 0).pid, w.status(record).groups[1].node, w.trainer(record, 1).pid
    os.kill(pid, signal.SIGSTOP)
    (silent,) = eventually(lambda: w.incidents(record), 30, "it is silent")
    assert (silent.kind, silent.rung, silent.group, silent.node) == (Kind.SILENT, Rung.RIDE_THROUGH, 1, node)
    assert w.trainer(record, 1).pid == pid
    eventually(lambda: _recovered(w, record, 1) and w.running(record, 1, 2)(), 60, "rung 1")
    (stalled,) = w.incidents(record)
    assert (stalled.id, stalled.kind, stalled.rung) == (silent.id, Kind.STALLED, Rung.RESTART)
    assert (stalled.group, stalled.node) == (1, node)
    assert (w.status(record).groups[1].node, w.trainer(record, 0).pid) == (node, other)
    joint(w, record, time.time())
    w.check(record)


@pytest.mark.long
def test_who_is_started_again_while_the_other_is_at_something_long_waits_for_it(empty: World, tmp_path: Path) -> None:
    """Two groups have no quorum without each other, so the start is late through no fault of its own."""
    spec, pause = quorum_spec(groups=2), tmp_path / "pause"
    titan = replace(spec.titan, overrides={**spec.titan.overrides, "toy.pause": str(pause)})
    timeout_s = 20.0
    record = empty.launch(replace(spec, titan=titan, policy=replace(spec.policy, start_timeout_s=timeout_s)))
    eventually(empty.running(record, 1, 1), 60, "both groups run")
    joint(empty, record, time.time())
    pause.touch()
    empty.kill_trainer(record, 1)
    killed = time.monotonic()
    eventually(lambda: empty.status(record).groups[1].generation == 2, 30, "it is started again")
    while time.monotonic() < killed + 2.5 * timeout_s:
        assert empty.status(record).groups[1].generation == 2
        time.sleep(0.5)
    pause.unlink()
    eventually(lambda: _recovered(empty, record, 1) and empty.running(record, 1, 2)(), 60, "both train")
    (incident,) = empty.incidents(record)
    assert (incident.kind, incident.rung) == (Kind.CRASH, Rung.RESTART)
    joint(empty, record, time.time())
    empty.check(record)


@pytest.mark.long
def test_a_lost_allocation_is_asked_for_anew(toy_run: tuple[World, RunRecord]) -> None:
    w, record = toy_run
    w.take_away(w.allocation_of(record, 1))
    eventually(lambda: _recovered(w, record, 1), 60, "rung 3")
    assert w.incidents(record)[0].rung == Rung.REALLOCATE
    assert w.status(record).budgets_left["reallocate"] == record.spec.policy.budget.reallocate - 1


@pytest.mark.long
def test_a_restart_loop_climbs_and_stops_when_nothing_is_left(empty: World) -> None:
    """A group that always fails spends its budgets rung by rung; then the run is halted with the whole story."""
    spec = toy_spec(name="loop", groups=1, spares=1, backoff_first_s=0.0)
    budget = replace(spec.policy.budget, restart=1, replace=1, reallocate=1)
    titan = replace(spec.titan, overrides={"toy.mode": "exit", "toy.exit_code": 3})
    record = empty.launch(replace(spec, titan=titan, policy=replace(spec.policy, budget=budget)))
    eventually(lambda: empty.status(record).phase == "halted", 90, "rung 4")
    (incident,) = empty.incidents(record)
    assert (incident.kind, incident.rung, incident.state) == (Kind.ERROR, Rung.STOP, "halted")
    passed_over = set(passed(incident.considered))
    assert {"restart", "replace", "reallocate"} <= passed_over
    assert "nothing cheaper is left" in empty.status(record).halt_reason
    assert _wanted(empty) == []
    empty.check(record, stepped=False)


@pytest.mark.long
def test_a_segfault_is_named_with_what_python_said_of_it(empty: World) -> None:
    spec = toy_spec(name="fault", groups=1, spares=0)
    record = empty.launch(replace(spec, titan=replace(spec.titan, overrides={"toy.segfault_at": 3})))
    eventually(lambda: empty.incidents(record), 60, "the segfault is seen")
    incident = empty.incidents(record)[0]
    assert (incident.kind, incident.rung) == (Kind.CRASH, Rung.RESTART)
    assert incident.evidence[0] == SEGFAULT
    words = values(incident.evidence, Code.LOG_ENDS)[0]["words"]
    assert words.startswith("Fatal Python error: Segmentation fault (")
    assert "toy_trainer.py, line " in words


def test_a_group_that_never_commits_is_started_again(empty: World) -> None:
    spec = toy_spec(name="mute", groups=1, spares=0, start_timeout_s=3.0)
    record = empty.launch(replace(spec, titan=replace(spec.titan, overrides={"toy.step_s": 1000.0})))
    eventually(lambda: empty.incidents(record), 60, "it is seen")
    (incident,) = empty.incidents(record)
    assert (incident.kind, incident.group, incident.node) == (
        Kind.START_TIMEOUT,
        0,
        empty.status(record).groups[0].node,
    )
    assert (incident.rung, incident.evidence) == (Rung.RESTART, (Reason.of(Code.START_LATE, limit_s=3.0),))


def test_a_bug_at_a_step_stops_the_run_when_it_comes_back(empty: World) -> None:
    """One group: restarted once, the same error at the same step again, and no more is spent on it."""
    spec = toy_spec(name="bug", groups=1, spares=1, backoff_first_s=0.0)
    record = empty.launch(replace(spec, titan=replace(spec.titan, overrides={"toy.raise_at": 5})))
    eventually(lambda: empty.status(record).phase == "halted", 90, "rung 4")
    first, last = empty.incidents(record)
    assert (first.kind, first.rung, first.state) == (Kind.ERROR, Rung.RESTART, "recovered")
    assert (last.kind, last.rung, last.state) == (Kind.SAME_ERROR, Rung.STOP, "halted")
    assert last.error.startswith("ToyError: a bug at step 5, object at 0x")
    assert last.error != first.error, "its address and its pid"
    assert "in bugs" in last.trace
    assert "toy_trainer.py, line " in values(last.evidence, Code.RAISED_IN)[0]["place"]
    (again,) = values(last.evidence, Code.SEEN_AGAIN)
    assert (again["step"], again["times"]) == (5, 2)
    state = empty.status(record)
    assert "ToyError: a bug at step 5" in state.halt_reason
    budget = record.spec.policy.budget
    left = {"restart:0": budget.restart - 1, "replace": budget.replace, "reallocate": budget.reallocate}
    assert state.budgets_left == left
    assert _wanted(empty) == []
    empty.check(record)


@pytest.mark.long
def test_a_program_that_cannot_start_anywhere_is_tried_in_place_and_elsewhere_and_no_further(
    empty: World, tmp_path: Path
) -> None:
    spec = toy_spec(name="typo", groups=1, spares=1, backoff_first_s=0.0)
    titan = replace(spec.titan, overrides={"toy.needs": str(tmp_path / "missing")})
    record = empty.launch(replace(spec, titan=titan))
    eventually(lambda: empty.status(record).phase == "halted", 90, "rung 4")
    (incident,) = empty.incidents(record)
    assert (incident.kind, incident.rung, incident.state) == (Kind.SAME_ERROR, Rung.STOP, "halted")
    (again,) = values(incident.evidence, Code.SEEN_AGAIN)
    assert (again["step"], again["times"]) == (-1, 3)
    state = empty.status(record)
    assert "the program's or its configuration's fault" in state.halt_reason
    assert state.groups[0].generation == 3
    assert state.cordons == {}, "neither node is held guilty of it"
    empty.check(record, stepped=False)


@pytest.mark.long
def test_a_group_that_cannot_start_any_more_is_left_out_and_the_other_goes_on(empty: World, tmp_path: Path) -> None:
    """It is tried in place and on the spare; then a person mends it, and asks for it."""
    there = tmp_path / "there"
    there.touch()
    spec = toy_spec(name="out", groups=2, spares=1, backoff_first_s=0.0)
    record = empty.launch(replace(spec, titan=replace(spec.titan, overrides={"toy.needs": str(there)})))
    eventually(empty.running(record, 1, 1), 60, "both groups run")
    other, before = empty.trainer(record, 1).pid, empty.status(record).budgets_left
    there.unlink()
    empty.kill_trainer(record, 0)
    eventually(lambda: any("group 0 is left out" in said for said in empty.status(record).waiting), 90, "left out")
    state = empty.status(record)
    assert (state.phase, state.groups[0].node, state.cordons) == ("running", "", {})
    left = {**before, "restart:0": before["restart:0"] - 2, "replace": before["replace"] - 1}
    assert state.budgets_left == left, "no more than a try in place and one elsewhere"
    assert empty.trainer(record, 1).pid == other
    there.touch()
    done = supervisor(empty, "restart", "0", "--run", "out")
    assert done.returncode == 0, done.stderr
    eventually(lambda: all(g.phase == "running" for g in empty.status(record).groups), 60, "it trains again")
    assert empty.trainer(record, 1).pid == other
    assert empty.incidents(record)[0].state == "recovered"
    empty.check(record)


def _wanted(w: World) -> list[str]:
    """Nodes on which anything is desired."""
    desired = [record for _, record in w.mirror().records(keys.DESIRED, NodeDesired)]
    assert desired
    return [record.node for record in desired if record.trainers or record.lighthouses]


def test_a_halted_run_goes_on_when_a_person_says_why(empty: World, tmp_path: Path) -> None:
    """Its budgets are full again, its generations go on, and the reason is kept."""
    missing = tmp_path / "mended"
    spec = toy_spec(name="mend", groups=2, spares=0, backoff_first_s=0.0)
    budget = replace(spec.policy.budget, restart=0, replace=0, reallocate=0)
    titan = replace(spec.titan, overrides={"toy.needs": str(missing)})
    record = empty.launch(replace(spec, titan=titan, policy=replace(spec.policy, budget=budget)))
    eventually(lambda: empty.status(record).phase == "halted", 90, "rung 4")
    before = [g.generation for g in empty.status(record).groups]
    refused = supervisor(empty, "resume", "mend")
    assert refused.returncode == 2
    assert "give a reason to resume it" in refused.stderr
    missing.touch()
    done = supervisor(empty, "resume", "mend", "--because", "the missing file is there")
    assert done.returncode == 0, done.stderr
    eventually(lambda: all(g.phase == "running" for g in empty.status(record).groups), 60, "it trains")
    assert [g.generation for g in empty.status(record).groups] == [n + 1 for n in before]
    assert "a person resumes it: the missing file is there" in (Path(record.run_dir) / "journal.jsonl").read_text()
    empty.check(record)


def supervisor(w: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line on this world."""
    command = [sys.executable, "-m", "supervisor.cli", *arguments, "--etcd", w.etcd.endpoint, "--home", str(w.runs)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.long
def test_two_runs_after_each_other_share_the_nodes(toy_run: tuple[World, RunRecord]) -> None:
    w, record = toy_run
    w.control(record, stop=True)
    eventually(lambda: w.status(record).phase == "stopped", 60, "the first run ends")
    second = w.launch(toy_spec(name="second"))
    eventually(w.running(second, 1, 1), 60, "the second run starts on the nodes of the first")
    w.check(second)


@pytest.mark.long
def test_everything_stops_and_starts_again(toy_run: tuple[World, RunRecord]) -> None:
    """The state is in etcd: started again, the run goes on with new nodes and a new lighthouse. These toys have saved
    nothing since they started, which draws once on the budget for any number of groups. The second time everything is
    killed at once. A saved checkpoint is then found on disk alone, which draws on no budget."""
    w, record = toy_run
    before = w.status(record).budgets_left
    saved = Path(record.run_dir) / "checkpoints" / "step-40.g0.gen2"
    for generation, end in ((2, w.stop_all_but_etcd), (3, w.pull_the_power)):
        end()
        if generation == 3:
            saved.mkdir(parents=True)
            saved.with_name("step-60.g0.gen2").mkdir()
            (saved / MARKER).write_bytes(encode(CheckpointMark(step=40, path=str(saved), group=0, generation=2)))
        w.host = w.start_host()
        w.supervisor()
        eventually(w.running(record, generation, generation), 60 + 10 * LEASE_S, "both groups run again")
    state = w.status(record)
    assert state.budgets_left == {**before, "reallocate": before["reallocate"] - 1}
    assert state.cordons == {}
    assert state.checkpoint_step == 40
    assert state.resumed == (
        "step 40 of group 0, generation 2, the newest complete one; etcd had no record of one; passed over: step-60.g0.gen2 "
        "(torn: it has no complete.json)"
    )
    ranks = [w.system / "nodes" / g.node / "ranks" / f"toy.{g.group}.3.0" for g in state.groups]
    launches = [read_launch(rank) for rank in ranks]
    assert [launch.checkpoint.step for launch in launches if launch and launch.checkpoint] == [40, 40]
    eventually(lambda: len(w.status(record).spares) == record.spec.allocation.spares, 30, "the spares are there")
    eventually(lambda: _recovered(w, record, 4), 10, "an incident a group and stop, all recovered")
