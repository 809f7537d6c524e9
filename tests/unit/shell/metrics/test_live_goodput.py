"""Every second of every group has one cause, from the trainers' reports and from the supervisor's own phases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.attribution.stragglers import Slow
from supervisor.core.goodput.causes import Cause
from supervisor.core.model.incident import Confidence, Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import NodeView, Observed, RankView, StuckView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.shell.metrics.catalogue import GROUP_PHASES
from supervisor.shell.metrics.live_goodput import HELD_S, Accounts, Told, cause_of, told
from supervisor.wire import keys
from supervisor.wire.records import NodeObserved, Progress, TrainerObserved, encode
from tests.unit.shell.records import INCIDENT, mirror_of, run_values

C = Cause


class Books:
    """Accounts of groups whose phase, step and reported seconds the test sets."""

    def __init__(self, groups: int = 1) -> None:
        self.accounts = Accounts()
        self.now = 1000.0
        self.phase: Any = "running"
        self.stable = 1e6
        self.groups = {g: GroupMemory(group=g, generation=1, phase="running") for g in range(groups)}
        self.ranks = {g: RankView(group=g, generation=1, rank=0, state="running", phase="step") for g in range(groups)}
        self.told: dict[tuple[int, int], dict[str, float]] = {}
        self.incidents: dict[str, Incident] = {}
        self.slow: list[Slow] = []

    def look(self, after: float = 0.0) -> dict[Cause, float]:
        self.now += after
        nodes = {f"n{g}": NodeView(name=f"n{g}", registered=True, ranks=(r,)) for g, r in self.ranks.items()}
        memory = Memory(phase=self.phase, groups=self.groups, incidents=self.incidents)
        observed = Observed(revision=1, now=self.now, store_stable_s=self.stable, nodes=nodes)
        self.accounts.look(memory, observed, self.told, self.slow)
        return {cause: round(s, 6) for cause, s in self.accounts.seconds.items()}

    def group(self, group: int = 0, **about: Any) -> None:
        self.groups[group] = replace(self.groups[group], **about)

    def rank(self, group: int = 0, **about: Any) -> None:
        self.ranks[group] = replace(self.ranks[group], **about)

    def tell(self, group: int = 0, **seconds: float) -> None:
        self.told[group, self.ranks[group].generation] = seconds


def test_what_a_trainer_tells_is_counted_and_the_rest_is_held() -> None:
    b = Books()
    b.tell(productive=500.0, quorum=20.0)  # before this term
    assert b.look() == {}
    assert b.look(5.0) == {}
    b.tell(productive=503.0, quorum=20.5)
    assert b.look() == {C.PRODUCTIVE: 3.0, C.QUORUM: 0.5}
    b.tell(productive=505.5, quorum=20.5, checkpoint=1.0)
    assert b.look(3.0) == {C.PRODUCTIVE: 5.5, C.QUORUM: 0.5, C.CHECKPOINT: 1.0}
    assert b.accounts.ettr == pytest.approx(5.5 / 7.0)


def test_nobody_tells_of_more_than_has_passed() -> None:
    """The agent was away while another led, for example."""
    b = Books()
    b.ranks.clear()
    b.look()
    b.look(10.0)
    b.ranks = {0: RankView(group=0, generation=1, rank=0, state="running")}
    b.tell(productive=900.0, data=100.0)
    assert b.look() == {C.PRODUCTIVE: 9.0, C.DATA: 1.0}


def test_a_trainer_that_tells_no_seconds_was_productive_until_it_committed() -> None:
    b = Books()
    b.look()
    assert b.look(2.0) == {}
    b.rank(step=80)
    assert b.look(0.5) == {}, "it has loaded a checkpoint, and committed nothing"
    b.rank(step=81, commits=1)
    assert b.look(0.5) == {C.PRODUCTIVE: 3.0}


def test_what_is_not_told_when_a_group_is_given_up_was_a_lost_step() -> None:
    b = Books()
    b.tell(productive=1.0)
    b.look()
    b.tell(productive=5.0)
    b.look(6.0)
    b.tell(productive=6.0)  # the last report of the old generation comes with the look at which it is given up
    b.group(phase="fencing", generation=2)
    assert b.look(0.5) == {C.PRODUCTIVE: 5.0, C.LOST_STEP: 1.5}
    assert b.look(2.0) == {C.PRODUCTIVE: 5.0, C.LOST_STEP: 1.5, C.PLACE: 2.0}


def test_of_a_lost_node_the_silence_is_no_lost_step() -> None:
    """Its end was not seen: one second until it was missed, the rest of its lease until the decision."""
    b = Books()
    b.tell(productive=10.0)
    b.look()
    b.look(0.5)  # a step was under way
    silent = replace(
        INCIDENT,
        id="i1",
        group=0,
        kind=Kind.SILENT,
        rung=Rung.RIDE_THROUGH,
        opened=b.now + 1.0,
        took_s=1.0,
        generation_before=1,
    )
    b.incidents = {"i1": silent}
    b.group(incident="i1")
    assert b.look(1.0) == {}, "it may train on"
    b.ranks.clear()
    b.look(4.0)
    b.incidents = {"i1": replace(silent, kind=Kind.NODE_LOST, rung=Rung.REPLACE)}
    b.group(phase="fencing", generation=2, seats=())
    lost = {C.LOST_STEP: 0.5, C.DETECT: 1.0, C.DECIDE: 6.0}
    assert b.look(2.0) == lost
    assert b.look(3.0) == {**lost, C.PLACE: 3.0}


def test_a_start_that_fails_while_its_incident_is_open_was_no_decision() -> None:
    b = Books()
    b.tell(productive=10.0)
    b.look()
    crash = replace(INCIDENT, id="i1", group=0, kind=Kind.CRASH, opened=b.now, generation_before=1)
    b.incidents = {"i1": crash}
    b.group(phase="starting", generation=2, incident="i1")
    b.look()
    b.ranks = {0: RankView(group=0, generation=2, rank=0, state="running", phase="starting")}
    b.tell(start=2.0)
    assert b.look(2.0) == {C.START: 2.0}
    b.look(30.0)
    b.group(phase="starting", generation=3)
    assert b.look() == {C.START: 2.0, C.LOST_STEP: 30.0}


def test_a_slow_group_that_is_given_up_had_a_step_under_way() -> None:
    b = Books()
    b.tell(productive=10.0)
    b.look()
    slow = replace(INCIDENT, id="i1", group=0, kind=Kind.STRAGGLER, opened=b.now, took_s=600.0)
    b.incidents = {"i1": slow}
    b.group(phase="fencing", generation=2, incident="i1")
    assert b.look(0.5) == {C.LOST_STEP: 0.5}


def test_a_hang_is_counted_from_the_last_word_on() -> None:
    b = Books(groups=2)
    for g in (0, 1):
        b.tell(g, productive=10.0)
    b.look()
    b.look(15.0)
    b.incidents = {"i1": replace(INCIDENT, id="i1", group=0, kind=Kind.HANG)}
    b.group(0, phase="fencing", generation=2, incident="i1")
    assert b.look(0.0) == {C.HUNG: 15.0}
    b.tell(1, productive=10.0, failed_step=14.0)
    assert b.look(2.0) == {C.HUNG: 15.0, C.PLACE: 2.0, C.FAILED_STEP: 14.0}


def test_who_trains_on_though_a_failure_was_seen_that_is_only_observed_is_counted_by_what_it_tells() -> None:
    b = Books()
    b.tell(productive=10.0)
    b.look()
    b.incidents = {"i1": replace(INCIDENT, id="i1", group=0, kind=Kind.GPU, shadow=True)}
    b.group(0, incident="i1", seats=(Seat("n0"),))
    b.look(1.0)
    b.tell(productive=15.0)
    assert b.look(4.0) == {C.PRODUCTIVE: 5.0}
    b.rank(state="exited")
    b.look(0.0)
    assert b.look(3.0) == {C.PRODUCTIVE: 5.0, C.DECIDE: 3.0}, "one that has ended, and is left so, trains no more"


def test_the_start_of_a_group() -> None:
    b = Books()
    b.ranks.clear()
    b.group(phase="placing")
    b.look()
    b.look(2.0)
    b.group(phase="starting")
    b.look()
    b.look(1.5)
    b.ranks = {0: RankView(group=0, generation=1, rank=0, state="running", step=1, phase="step")}
    b.tell(start=4.0, admission=0.25, heal=0.5, productive=0.25)
    b.look(5.0)
    b.group(phase="running")
    assert b.look() == {
        C.PLACE: 2.0, C.START: 4.0, C.ADMISSION: 0.25, C.HEAL: 0.5, C.PRODUCTIVE: 0.25, C.ACT: 1.5,
    }  # fmt: skip


def test_steps_that_were_committed_before_are_recomputed() -> None:
    for resume, cause in (("disk", C.RECOMPUTE), ("peers", C.PRODUCTIVE)):
        b = Books()
        b.rank(step=80)
        b.tell(productive=1.0)
        b.look()
        b.group(generation=2, resume=resume)
        b.look()
        b.rank(generation=2, step=50)
        b.tell(productive=0.0)
        b.look(1.0)
        b.rank(step=80)
        b.tell(productive=10.0)
        assert b.look(10.0)[cause] == 10.0
        b.rank(step=90)
        b.tell(productive=13.0)
        assert b.look(5.0)[C.PRODUCTIVE] == (3.0 if cause == C.RECOMPUTE else 13.0)


@pytest.mark.parametrize("for_data", [False, True])
def test_what_a_slow_group_costs_everybody_is_straggling(for_data: bool) -> None:
    b = Books(groups=2)
    slow = Slow(
        group=1, generation=1, step=5, reported=Reason.of(Code.GROUP_SLOW), evidence=Reason.of(Code.SLOW), rank=0,
        confidence=Confidence.LIKELY, sure=True, beyond=0.75, for_data=for_data,
    )  # fmt: skip
    for group in (0, 1):
        b.tell(group, productive=0.0, data=0.0)
    b.look()
    b.slow = [slow]
    b.tell(0, productive=7.0, data=1.0)
    b.tell(1, productive=2.0 if for_data else 8.0, data=6.0 if for_data else 0.0)
    whole = b.look(8.0)
    if for_data:  # it reports its wait for data itself
        assert whole == {C.PRODUCTIVE: 7.0 * 0.25 + 2.0, C.STRAGGLING: 7.0 * 0.75, C.DATA: 1.0 + 6.0}
    else:
        assert whole == {C.PRODUCTIVE: 15.0 * 0.25, C.STRAGGLING: 15.0 * 0.75, C.DATA: 1.0}
    b.slow = []
    b.tell(0, productive=8.0, data=1.0)
    assert b.look(1.0)[C.PRODUCTIVE] == whole[C.PRODUCTIVE] + 1.0


def test_what_is_made_again_is_so_also_for_the_next_leader() -> None:
    """A power cut: all groups went, and the leader too. Another leader sees them come back, from the disk."""
    b = Books()
    b.accounts = Accounts(step=160)
    b.group(resume="disk")
    b.rank(step=100, commits=0)
    b.tell(productive=0.0)
    b.look()
    for step, productive in ((130, 30.0), (160, 60.0), (170, 70.0)):
        b.rank(step=step, commits=step - 100)
        b.tell(productive=productive)
        b.look(30.0 if step <= 160 else 10.0)
    assert b.accounts.seconds == {C.RECOMPUTE: 60.0, C.PRODUCTIVE: 10.0}
    assert b.accounts.step == 170


def next_term(b: Books) -> None:
    """Replaces the accounts by what another leader knows of them."""
    old = b.accounts
    b.accounts = Accounts(
        old.step, before=old.since_launch, ran_s=old.ran_s, last=old.last, held_before=old.held
    )  # fmt: skip


def test_what_was_held_is_counted_by_the_next_leader() -> None:
    """I12: its trainer lives on, and reports the seconds that the last leader had not got."""
    b = Books()
    b.tell(productive=60.0, quorum=20.0)
    b.look()
    b.tell(productive=120.0, quorum=40.0)
    b.look(80.0)
    b.look(7.0)
    next_term(b)
    b.tell(productive=129.0, quorum=43.0)
    assert b.look(5.0) == {C.PRODUCTIVE: 9.0, C.QUORUM: 3.0}
    assert sum(b.accounts.since_launch.values()) == pytest.approx(b.accounts.ran_s) == 92.0


def test_a_next_leader_does_not_count_twice_what_a_dead_process_had_told() -> None:
    """A power cut: etcd's remaining record of the trainer was counted before."""
    b = Books()
    b.tell(productive=60.0)
    b.look()
    b.look(2.0)
    next_term(b)
    assert b.look(11.0) == {}
    b.group(phase="unplaced", generation=2)
    assert b.look() == {C.LOST_STEP: 13.0}


def test_what_was_held_of_a_process_that_the_next_leader_never_saw_was_a_lost_step() -> None:
    b = Books()
    b.tell(productive=60.0)
    b.look()
    b.look(2.0)
    b.group(phase="placing", generation=2)
    next_term(b)
    assert b.look(1.0) == {C.LOST_STEP: 2.0, C.PLACE: 1.0}


@pytest.mark.parametrize(
    ("phase", "cause"), [("quorum", C.QUORUM), ("healing", C.HEAL), ("checkpoint", C.CHECKPOINT), ("step", C.HUNG)]
)
def test_what_is_not_told_for_long_is_counted_by_what_it_is_in(phase: str, cause: Cause) -> None:
    b = Books()
    b.rank(phase=phase, step_s=10.0, stuck=StuckView(activity="compute") if cause == C.HUNG else None)
    b.tell(productive=1.0)
    b.look()
    assert b.look(HELD_S) == {}
    assert b.look(1.0) == {cause: HELD_S + 1.0}
    b.rank(step_s=100.0)
    assert b.look(3 * 100.0) == {cause: HELD_S + 1.0}, "three of its steps are no long time"


def test_a_long_step_that_is_no_hang_is_counted_once_it_is_told() -> None:
    """TorchTitan evaluates and compiles within a step, for minutes."""
    b = Books()
    b.rank(step=5, commits=5, step_s=1.0, phase="step")
    b.tell(productive=100.0)
    b.look()
    for _ in range(181):
        assert b.look(1.0) == {}
    b.rank(step=6, commits=6)
    b.tell(productive=101.0, evaluate=180.0)
    assert b.look() == {C.PRODUCTIVE: 1.0, C.EVALUATE: 180.0}


def test_nothing_is_said_of_what_runs_while_the_store_is_away() -> None:
    b = Books(groups=2)
    b.tell(0, productive=1.0)
    b.group(1, phase="fencing")
    b.look()
    b.stable = 0.5
    assert b.look(600.0) == {C.STORE_AWAY: 600.0}
    b.stable = 6.0
    b.tell(0, productive=600.0)
    assert b.look(0.0)[C.PRODUCTIVE] == 599.0


def test_a_run_that_has_ended_loses_no_more_time() -> None:
    b = Books()
    b.look()
    b.rank(step=3, commits=3)
    b.look(4.0)
    b.phase = "finished"
    b.group(phase="finished")
    assert b.look(1.0) == {C.PRODUCTIVE: 4.0, C.END: 1.0}
    assert b.look(90.0) == {C.PRODUCTIVE: 4.0, C.END: 1.0}


@pytest.mark.parametrize(
    ("kind", "cause"),
    [(Kind.HANG, C.HUNG), (Kind.SILENT, C.DECIDE), (Kind.STRAGGLER, C.PRODUCTIVE), (Kind.LEAVING, C.PRODUCTIVE)],
)
def test_the_kind_of_an_open_incident_says_where_the_time_goes(kind: Kind, cause: Cause) -> None:
    group = GroupMemory(group=0, phase="running", incident="i1")
    assert cause_of(group, replace(INCIDENT, kind=kind)) == cause
    assert cause_of(replace(group, phase="fencing"), replace(INCIDENT, kind=kind)) == C.PLACE
    assert cause_of(group, replace(INCIDENT, kind=Kind.SILENT, rung=Rung.RIDE_THROUGH)) == C.PRODUCTIVE, (
        "it may train on"
    )


def test_a_store_that_is_away_costs_those_without_a_process() -> None:
    found = []
    for phase in GROUP_PHASES:
        b = Books()
        b.group(phase=phase)
        b.look()
        b.stable = 0.5
        found += [phase for cause in b.look(9.0) if cause == C.STORE_AWAY]
    assert found == ["unplaced", "fencing", "placing"]


def test_what_agents_have_reported_of_rank_0() -> None:
    def trainer(run: str, rank: int, **seconds: float) -> TrainerObserved:
        progress = Progress(
            run=run, group=3, generation=2, rank=rank, pid=1, sequence=1, phase="step", seconds=seconds
        )  # fmt: skip
        return TrainerObserved(run=run, group=3, generation=2, rank=rank, pid=1, state="running", progress=progress)

    unborn = TrainerObserved(run="run", group=4, generation=1, rank=0, pid=0, state="starting")
    ranks = (trainer("run", 0, data=1.5), trainer("run", 1, data=9.0), trainer("other", 0, data=7.0), unborn)
    seated = GroupMemory(group=3, generation=2, phase="running", seats=(Seat("n1"),))
    values = {
        keys.observed("n1"): encode(NodeObserved(node="n1", sequence=1, trainers=ranks)),
        keys.memory("run", "group-3"): encode(seated),
    }
    found: Told = told(mirror_of(values), "run")
    assert found == {(3, 2): {"data": 1.5}}


_STEP = st.tuples(
    st.floats(0, 200), st.sampled_from(GROUP_PHASES), st.booleans(), st.floats(0, 50), st.floats(0, 50), st.booleans()
)


@settings(max_examples=50, derandomize=True, database=None)
@given(st.lists(_STEP, max_size=12))
def test_all_seconds_are_counted_once(steps: list[tuple[float, str, bool, float, float, bool]]) -> None:
    """For any reports at any times, the counted and the held seconds are all of the time that has passed."""
    b, whole, seconds = Books(), 0.0, {"productive": 1.0, "quorum": 1.0}
    b.tell(**seconds)
    b.look()
    before: dict[Cause, float] = {}
    for passed, phase, again, productive, quorum, tells in steps:
        whole += passed
        b.group(phase=phase, generation=b.groups[0].generation + again)
        if tells:
            seconds = {"productive": seconds["productive"] + productive, "quorum": seconds["quorum"] + quorum}
            b.tell(**seconds)
        now = b.look(passed)
        held = sum(group.held for group in b.accounts._groups.values())
        assert sum(b.accounts.seconds.values()) + held == pytest.approx(whole)
        assert all(now.get(cause, 0.0) >= s for cause, s in before.items())
        before = now


def test_a_node_reports_seconds_of_its_own_groups_alone() -> None:
    def reports(node: str, group: int, seconds: float) -> dict[str, bytes]:
        about: Any = {"run": "run", "group": group, "generation": 1, "rank": 0, "pid": 5}
        progress = Progress(**about, sequence=1, phase="step", seconds={"productive": seconds})
        trainer = TrainerObserved(**about, state="running", progress=progress)
        return {keys.observed(node): encode(NodeObserved(node=node, sequence=1, trainers=(trainer,)))}

    values = {**run_values(), **reports("n1", 0, 7.0), **reports("n2", 0, 1e9)}
    assert told(mirror_of(values), "run") == {(0, 1): {"productive": 7.0}}
