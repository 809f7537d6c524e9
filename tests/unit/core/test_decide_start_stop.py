"""`decide` at a run's begin, drain and end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.decide import decide
from supervisor.core.evidence.group_failure import ENGINE_AWAY_S
from supervisor.core.model.kinds import Kind
from supervisor.core.model.observed import Checkpoint
from supervisor.core.model.reason import Code, Reason
from tests.helpers.reasons import SEGFAULT, codes
from tests.unit.core.world import World


def test_the_first_round_seats_the_lighthouse_and_asks_for_every_node() -> None:
    w = World(groups=2, spares=1)
    w.host()
    assert w.verbs() == ["lighthouse", "acquire", "acquire", "acquire"]
    assert [a.state for a in w.memory.allocations.values()] == ["wanted"] * 3
    assert {g.phase for g in w.memory.groups.values()} == {"unplaced"}


def test_without_a_service_host_it_waits_for_one() -> None:
    w = World()
    w.round()
    assert w.waiting(Code.SEAT_NO_HOST) == [{}]
    w.host()
    assert w.verbs() == ["lighthouse"]


def test_nothing_starts_before_the_lighthouse_is_up() -> None:
    w = World()
    w.host()
    w.round()
    for number in (1, 2, 3):
        w.bring(number)
    assert w.verbs() == []
    assert w.waiting(Code.SEAT_NOT_UP) == [{}]
    w.open_gate()
    assert w.verbs() == ["place", "place"]


def test_a_gate_of_another_seat_does_not_count() -> None:
    w = World()
    w.host()
    w.round()
    for number in (1, 2, 3):
        w.bring(number)
    w.open_gate()
    assert w.gate is not None
    w.gate = replace(w.gate, generation=7)
    assert w.verbs() == []
    assert w.waiting(Code.SEAT_NOT_UP) == [{}]


def test_the_first_groups_start_together_and_the_spare_is_not_waited_for() -> None:
    w = World(groups=2, spares=1)
    w.host()
    w.round()
    w.open_gate()
    w.bring(1)
    assert w.verbs() == []
    assert w.waiting(Code.NODES_THERE) == [{"free": 1, "of": 2}]
    w.bring(3)
    assert w.verbs() == ["place", "place"]
    assert [(g.first_node, g.generation, g.phase, g.resume) for g in w.memory.groups.values()] == [
        ("n1", 1, "starting", "disk"),
        ("n3", 1, "starting", "disk"),
    ]


def test_with_too_few_nodes_in_time_it_begins_with_those_there_are() -> None:
    w = World(groups=3, spares=0, min_groups=2, allocation_timeout_s=60.0)
    w.host()
    w.round()
    w.open_gate()
    w.bring(1)
    w.bring(2)
    w.grant(3, "pending")
    assert w.verbs(after=30.0) == []
    assert w.last.look_again_at == pytest.approx(1060.0)
    assert w.verbs(after=31.0) == ["place", "place"]
    assert w.waiting(Code.LATE) == [{"group": 2, "allocation": "run-a3", "word": ""}]
    # the late allocation comes after all
    for group in (0, 1):
        w.commit(group)
    w.open_gate()
    w.round()
    w.bring(3)
    assert w.verbs() == ["place"]
    assert (w.group(2).first_node, w.group(2).resume) == ("n3", "peers")


def test_fewer_nodes_in_time_than_may_step_halts_with_the_reason() -> None:
    w = World(groups=2, spares=0, min_groups=2, allocation_timeout_s=60.0)
    w.host()
    w.round()
    w.open_gate()
    w.bring(1)
    w.grant(2)  # granted, and its node never comes
    w.round()
    assert w.verbs(after=61.0)[-1] == "halt"
    assert codes(w.memory.halt_reason) == {Code.TOO_FEW_NODES, Code.TOO_FEW_IN_TIME}
    w.round()
    w.round()
    assert w.memory.phase == "halted"
    assert {a.state for a in w.memory.allocations.values()} == {"released"}


def test_an_engine_that_refuses_halts_the_run_with_its_reason() -> None:
    w = World(groups=2, spares=0)
    w.host()
    w.round()
    w.open_gate()
    w.grant(1, "refused", reason="no such partition")
    w.grant(2, "refused", reason="no such partition")
    assert w.verbs() == ["halt"]
    refused = Reason.of(Code.ALL_REFUSED, word="no such partition")
    assert w.memory.halt_reason == Reason.of(Code.TOO_FEW_NODES, free=0, groups=2, least=1, why=refused)
    w.round()
    assert w.memory.phase == "halted"


def test_a_node_too_small_for_a_group_is_not_used() -> None:
    w = World(groups=1, spares=1, ranks=4)
    w.host()
    w.round()
    w.open_gate()
    w.grant(1)
    w.node(1, slots=2)
    w.grant(2)
    w.node(2, slots=4)
    assert w.verbs() == ["place"]
    assert w.group().first_node == "n2"


def test_a_group_runs_once_one_of_its_ranks_has_committed() -> None:
    w = World(groups=1, spares=0, ranks=2)
    w.host()
    w.round()
    w.bring(1)
    w.open_gate()
    w.round()
    w.report(0, 0)
    w.report(0, 1)
    w.round()
    assert w.group().phase == "starting"
    w.commit(0)
    w.round()
    assert w.group().phase == "running"


def test_a_large_run_begins_over_several_rounds_each_at_once_after_the_other() -> None:
    w = World(groups=90, spares=0)
    w.host()
    rounds = 0
    while len(w.memory.allocations) < 90:
        w.round()
        rounds += 1
        assert len(w.memory.allocations) == 90 or w.last.look_again_at == w.now
    assert rounds == 3
    for number in range(1, 91):
        w.bring(number)
    w.open_gate()
    started = 0
    while started < 90:
        started += w.verbs().count("place")
        rounds += 1
        assert started == 90 or w.last.look_again_at == w.now
        assert rounds < 20
    assert rounds > 4


def test_a_quiet_round_changes_nothing_and_returns_the_same_memory() -> None:
    w = World().bring_up()
    before = w.memory
    decision = w.round(5.0)
    assert decision.memory is before
    assert (decision.actions, decision.incidents, decision.waits) == ((), (), ())


def test_each_change_counts_one_decision_and_moves_the_clock() -> None:
    w = World().bring_up()
    before = w.memory
    w.crash(0)
    w.round(5.0)
    assert (w.memory.decisions, w.memory.clock) == (before.decisions + 1, w.now)


# --- checkpoints ---


def test_the_newest_complete_checkpoint_is_noted() -> None:
    w = World().bring_up()
    w.save(0, step=50)
    assert w.verbs() == ["checkpoint"]
    assert w.memory.checkpoint == Checkpoint(50, "step-50", 0, 1)
    assert w.verbs() == []
    w.save(0, step=40)
    assert w.verbs() == []
    assert w.memory.checkpoint == Checkpoint(50, "step-50", 0, 1)


@pytest.mark.parametrize(("generation", "written_by"), [(1, 1), (2, 1)])
def test_a_checkpoint_of_an_older_generation_is_not_believed(generation: int, written_by: int) -> None:
    """The old process's report is not believed, nor the new one's repetition of it."""
    w = World().bring_up()
    w.crash(0)
    w.round()
    w.recover(0)
    assert w.group().generation == 2
    w.save(0, step=50, generation=generation, written_by=written_by)
    assert w.verbs() == []
    assert w.memory.checkpoint is None


@pytest.mark.parametrize(("named", "step"), [(0, 50), (1, 10**9)])
def test_a_checkpoint_of_another_group_or_of_steps_that_no_one_else_made_is_not_believed(named: int, step: int) -> None:
    """A compromised node of group 1 would have the others start from nothing, and hide the real ones."""
    w = World().bring_up()
    w.report(1, commits=1, step=5, checkpoint=Checkpoint(step, "/etc/elsewhere", named, 1))
    assert w.verbs() == []
    w.save(0, step=50)
    assert w.verbs() == ["checkpoint"]
    assert w.memory.checkpoint == Checkpoint(50, "step-50", 0, 1)


def test_a_group_is_started_with_the_newest_checkpoint() -> None:
    w = World().bring_up()
    w.save(0, step=50)
    w.round()
    w.crash(1)
    w.round()
    w.recover(1)
    assert w.group(1).checkpoint == Checkpoint(50, "step-50", 0, 1)


# --- the end ---


def test_a_run_that_finishes_gives_everything_back() -> None:
    w = World(groups=2).bring_up()
    w.fail(0, code=0)
    assert w.verbs() == []
    assert w.memory.phase == "running"
    w.fail(1, code=0)
    assert w.verbs() == ["release", "release", "release"]
    assert w.memory.phase == "running", "the engine has not taken them yet"
    assert w.verbs() == []
    assert w.memory.phase == "finished"
    assert {a.state for a in w.memory.allocations.values()} == {"released"}
    assert w.verbs() == []


def test_a_group_has_finished_only_when_all_its_ranks_have() -> None:
    w = World(groups=1, ranks=2).bring_up()
    w.fail(0, code=0, rank=0)
    w.round()
    assert w.group().phase == "running"
    w.fail(0, code=0, rank=1)
    w.round()
    assert w.group().phase == "finished"


def test_stop_drains_all_groups_at_one_step() -> None:
    w = World(groups=2).bring_up()
    w.commit(0, step=30, step_s=2.0)
    w.commit(1, step=29, step_s=1.5)
    w.control = replace(w.control, stop=True)
    assert w.verbs() == ["stop"]
    assert w.memory.phase == "stopping"
    assert w.memory.stop_at_step == 30 + 2 + 5
    assert w.waiting(Code.DRAINING) == [{"step": w.memory.stop_at_step}]
    w.commit(0, step=36, step_s=0.1)
    w.round()
    assert w.memory.stop_at_step == 37, "it is chosen once"
    w.fail(0, code=0)
    w.fail(1, code=0)
    assert w.verbs() == ["release"] * 3
    assert w.waiting(Code.TAKEN_BACK) == [{"count": 3, "allocation": "run-a1"}]
    w.round()
    assert w.memory.phase == "stopped"


def test_an_engine_that_is_away_is_not_waited_for_with_the_end() -> None:
    w = World(groups=2).bring_up()
    w.engine_away = True
    w.fail(0, code=0)
    w.fail(1, code=0)
    w.round()
    assert w.verbs(after=ENGINE_AWAY_S - 1.0) == []
    assert w.memory.phase == "running"
    assert w.verbs(after=1.0) == []
    assert w.memory.phase == "finished"


def test_the_drain_is_at_most_twenty_steps_away() -> None:
    w = World(groups=1).bring_up()
    w.commit(0, step=30, step_s=0.001)
    w.control = replace(w.control, stop=True)
    w.round()
    assert w.memory.stop_at_step == 50


def test_stop_before_anything_runs_ends_at_once() -> None:
    w = World()
    w.host()
    w.round()
    w.control = replace(w.control, stop=True)
    assert w.verbs() == ["stop", "release", "release", "release"]
    assert w.memory.phase == "stopped"


def test_a_group_that_fails_while_draining_is_not_started_again() -> None:
    w = World(groups=2).bring_up()
    w.control = replace(w.control, stop=True)
    w.round()
    w.crash(0)
    assert w.verbs() == []
    assert w.group(0).phase == "finished"
    w.fail(1, code=0)
    w.round()
    w.round()
    assert w.memory.phase == "stopped"


@pytest.mark.parametrize("phase", ["finished", "stopped", "halted"])
def test_an_ended_run_is_left_alone(phase: str) -> None:
    w = World().bring_up()
    w.memory = replace(w.memory, phase=phase)  # type: ignore[arg-type]
    w.crash(0)
    decision = decide(w.observed(), w.spec, w.memory)
    assert decision.memory is w.memory
    assert decision.actions == ()


# --- a person's word ---


def test_a_requested_restart_draws_no_budget_and_counts_no_attempt() -> None:
    w = World(budget={"restart": 0}).bring_up()
    w.control = replace(w.control, restarts={0: 1})
    assert w.verbs() == ["start"]
    assert (w.group().generation, w.group().attempts, w.group().first_node) == (2, 0, "n1")
    assert w.memory.spent == {}
    assert w.incident.kind == Kind.REQUESTED
    w.recover()
    assert w.verbs() == [], "once is once"
    w.control = replace(w.control, restarts={0: 2})
    assert w.verbs() == ["start"]


def test_a_request_for_a_group_that_does_not_exist_is_passed_over() -> None:
    w = World().bring_up()
    w.control = replace(w.control, restarts={17: 1})
    assert w.verbs() == []


def test_paused_does_nothing_but_open_incidents_and_resume_acts() -> None:
    w = World(groups=3, spares=1).bring_up()
    w.control = replace(w.control, paused=True)
    w.crash(0)
    w.lapse("n2")
    w.hear(1, "gone")
    w.hear(2, "silent")
    before = w.memory
    assert w.verbs() == []
    assert [i.kind for i in w.memory.incidents.values()] == [Kind.CRASH, Kind.NODE_LOST, Kind.SILENT]
    assert {i.state for i in w.memory.incidents.values()} == {"open"}
    paused = w.waiting(Code.PAUSED)
    assert paused[0] == {"group": 0, "evidence": SEGFAULT}
    assert [(why["group"], why["evidence"].code) for why in paused[1:]] == [(1, Code.LAPSED_UNHEARD), (2, Code.UNHEARD)]
    assert w.verbs(after=3.0) == []
    assert w.memory.cordons == before.cordons
    assert w.memory.spent == before.spent
    assert [g.generation for g in w.memory.groups.values()] == [1, 1, 1]
    w.control = replace(w.control, paused=False)
    assert sorted(w.verbs()) == ["acquire", "cordon", "release", "ride_through", "start"]
    assert {i.state for i in w.memory.incidents.values()} == {"acting"}


def test_paused_before_the_start_asks_for_nothing() -> None:
    w = World()
    w.control = replace(w.control, paused=True)
    w.host()
    assert w.verbs() == []
    assert w.memory.allocations == {}
    w.control = replace(w.control, paused=False)
    assert "acquire" in w.verbs()


def test_paused_starts_nothing_that_was_decided_before() -> None:
    w = World().bring_up()
    w.lapse("n1")
    w.hear(0, "gone")
    w.round()
    assert w.group().phase == "fencing"
    w.control = replace(w.control, paused=True)
    w.admit(0)
    assert set(w.verbs()) <= {"fence"}, "a proof is a fact, and may be noted"
    assert w.group().phase == "placing"
    assert w.waiting(Code.PAUSED_STARTS) == [{}]
    w.control = replace(w.control, paused=False)
    assert w.verbs() == ["place"]


def test_what_heals_while_paused_leaves_no_open_incident() -> None:
    w = World().bring_up()
    w.control = replace(w.control, paused=True)
    w.lapse("n1")
    w.hear(0, "gone")
    w.round()
    assert len(w.memory.incidents) == 1
    w.node(1)
    w.hear(0, "beating")
    w.round(1.0)
    w.control = replace(w.control, paused=False)
    w.round(1.0)
    assert w.memory.incidents == {}
    assert w.group().incident == ""


def test_a_node_that_was_lost_while_paused_and_comes_back_silent_is_judged_as_stalled() -> None:
    w = World(silent_timeout_s=5.0).bring_up()
    w.hear(0, "silent")
    w.round()
    w.control = replace(w.control, paused=True)
    w.lapse("n1")
    w.round()
    assert w.incident.kind == Kind.NODE_LOST
    w.node(1)
    w.control = replace(w.control, paused=False)
    w.round(60.0)
    assert w.group().generation == 1, "it is only now seen to live: nobody was silent there for long"
    assert w.verbs(after=6.0) == ["start"]
    assert w.incident.kind == Kind.STALLED


@pytest.mark.parametrize("lost", [False, True])
def test_a_hiccup_that_looks_like_more_while_paused_and_heals_leaves_no_open_incident(lost: bool) -> None:
    w = World(silent_timeout_s=5.0).bring_up()
    w.hear(0, "silent")
    assert w.verbs() == ["ride_through"]
    w.control = replace(w.control, paused=True)
    if lost:
        w.lapse("n1")
    assert w.verbs(after=6.0) == []
    assert w.incident.kind == (Kind.NODE_LOST if lost else Kind.STALLED)
    w.node(1)
    w.hear(0, "beating")
    w.round()
    assert (w.incident.state, w.memory.incidents) == ("recovered", {})


def test_a_stall_that_was_seen_while_paused_is_acted_on_after() -> None:
    w = World(silent_timeout_s=30.0).bring_up()
    w.hear(0, "silent")
    assert w.verbs() == ["ride_through"]
    w.control = replace(w.control, paused=True)
    assert w.verbs(31.0) == []
    assert w.incident.kind == Kind.STALLED
    w.control = replace(w.control, paused=False)
    assert w.verbs(1.0) == ["start"]


def test_a_hiccup_or_a_wish_while_it_drains_ends_nobody() -> None:
    """Else the groups would not stop after the same step."""
    w = World(silent_timeout_s=30.0).bring_up()
    w.control = replace(w.control, stop=True)
    w.round()
    w.control = replace(w.control, restarts={1: 1})
    w.hear(0, "silent")
    w.round()
    assert [g.phase for g in w.memory.groups.values()] == ["running", "running"]
    w.hear(0, "beating")
    w.round(1.0)
    assert not w.memory.incidents
    w.hear(0, "silent")
    w.round()
    w.round(31.0)
    assert w.group(0).phase == "finished", "one that is stuck is not waited for"
    assert w.group(1).phase == "running"
