"""`decide`: groups leave a node that the engine is about to take away before its end, charged to no budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from supervisor.core import invariants
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import StuckView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import FirstRungSpec, SlurmSpec, TrainerSpec
from supervisor.core.remediation.drain import SUCCESSORS_A_NODE
from tests.unit.core.world import World

WARN_S = 300.0
NEAR = "its time limit is near"
DRAINED = "drained: disk is failing"


def world(groups: int = 2, spares: int = 1, **about: object) -> World:
    w = World(groups=groups, spares=spares, **about)  # type: ignore[arg-type]
    w.spec = replace(w.spec, allocation=replace(w.spec.allocation, slurm=SlurmSpec(warn_s=int(WARN_S))))
    return w.bring_up()


def limit(w: World, number: int) -> None:
    """Notifies the node's shim that its time is nearly over."""
    w.node(number, leaving=NEAR)


def drain(w: World, number: int, why: str = DRAINED) -> None:
    key = f"run-a{number}"
    w.grants[key] = replace(w.grants[key], leaving=why)


def wanted(w: World) -> list[str]:
    return sorted(key for key, a in w.memory.allocations.items() if a.state == "wanted")


def settle(w: World) -> None:
    """Plays rounds that follow each other at once."""
    w.round()
    while w.last.look_again_at is not None and w.last.look_again_at <= w.now:
        w.round()


def follow(w: World, group: int) -> None:
    """Fences the old generation, places the new one, and lets it commit."""
    w.admit(group)
    w.round()
    assert w.group(group).phase == "starting", (w.group(group), w.last.waits)
    w.commit(group, step=10)
    w.round(1.0)
    w.hear(group, "beating")
    assert w.group(group).phase == "running"
    settle(w)


# --- where a failure is only observed ---


STUCK = StuckView(activity="data", activity_s=31.0, bound_s=30.0, usual_s=1.0)


@pytest.mark.parametrize("leaves", [limit, drain])
@pytest.mark.parametrize("how", ["hang", "crash"])
def test_a_group_whose_failure_is_only_observed_leaves_as_any_other(how: str, leaves: object) -> None:
    w = world(groups=3, mode="observe")
    if how == "hang":
        w.report(1, commits=1, step=50, stuck=STUCK)
        w.others_wait(1)
    else:
        w.crash(1)
    settle(w)
    assert w.incident.shadow
    leaves(w, 2)  # type: ignore[operator]
    settle(w)
    assert (w.group(1).phase, w.group(1).last_node) == ("fencing", "n2")
    assert (w.incidents["i1"].state, w.incidents["i1"].shadow) == ("halted", True), "it has not recovered by itself"
    assert (w.incident.id, w.incident.kind, w.incident.rung, w.incident.shadow) == (
        "i2",
        Kind.LEAVING,
        Rung.REPLACE,
        False,
    )
    follow(w, 1)
    assert (w.group(1).first_node, w.incident.state) == ("n4", "recovered")
    assert (w.memory.spent, w.memory.cordons) == ({}, {})


def test_alone_it_is_handed_over_as_any_other() -> None:
    w = world(groups=1, mode="observe")
    w.report(0, commits=1, step=50, stuck=STUCK)
    settle(w)
    assert w.incident.shadow
    limit(w, 1)
    settle(w)
    assert w.memory.handover_at_step is not None


def test_one_that_hangs_and_is_left_so_is_nobody_to_heal_from() -> None:
    w = world(groups=2, mode="observe")
    w.report(1, commits=1, step=50, stuck=STUCK)
    w.others_wait(1)
    limit(w, 1)
    settle(w)
    assert w.group(0).phase == "running"
    assert w.waiting(Code.NO_ONE_TO_HEAL_FROM) == [{"group": 0, "node": "n1", "why": NEAR}]


def test_one_that_is_slow_and_left_so_may_be_healed_from() -> None:
    w = world(groups=2, first_rung=FirstRungSpec(straggler="restart"), observe=("straggler",), straggler_for_s=300.0)
    for step in (50, 114):
        for group, seconds in enumerate((0.4, 0.9)):
            w.commit(group, step=step, compute_s=seconds, compute_past_s=0.4)
        w.round(301.0)
    assert (w.incident.kind, w.incident.shadow) == (Kind.STRAGGLER, True)
    limit(w, 1)
    settle(w)
    assert w.group(0).phase == "fencing"


# --- a node that is leaving ---


@pytest.mark.parametrize(("leaves", "why"), [(limit, NEAR), (drain, DRAINED)])
def test_its_successor_is_asked_for_at_once_and_only_once(leaves: Callable[[World, int], None], why: str) -> None:
    w = world(spares=0)
    leaves(w, 1)
    (acquire,) = w.round().actions
    assert (acquire.verb, acquire.rung) == ("acquire", None)
    assert acquire.reason == Reason.of(Code.IN_PLACE_OF_LEAVING, allocation="run-a1", why=why)
    assert w.memory.allocations["run-a1"].successor == "run-a3"
    assert [w.verbs(after=10.0) for _ in range(5)] == [[]] * 5
    pending = {"allocation": "run-a3", "state": "pending", "word": ""}
    assert w.waiting(Code.NO_OTHER_YET) == [{"group": 0, "node": "n1", "why": why, **pending}]


@pytest.mark.parametrize("leaves", [limit, drain])
def test_the_group_moves_to_the_node_that_stays_and_nothing_is_paid(leaves: object) -> None:
    w = world(spares=0)
    leaves(w, 1)  # type: ignore[operator]
    w.round()
    w.bring(3)
    assert w.verbs() == ["move"]
    assert (w.group().phase, w.group().last_node, w.group().generation) == ("fencing", "n1", 2)
    assert (w.incident.kind, w.incident.rung, w.incident.node) == (Kind.LEAVING, Rung.REPLACE, "n1")
    assert wanted(w) == ["run-a1", "run-a2", "run-a3"], "what must still be proved gone is not given back"
    follow(w, 0)
    assert (w.group().first_node, w.group().resume, w.group().attempts) == ("n3", "peers", 0)
    assert wanted(w) == ["run-a2", "run-a3"]
    assert (w.memory.spent, w.memory.cordons) == ({}, {})
    assert w.incident.state == "recovered"


def test_a_spare_that_is_leaving_is_none_and_is_given_back() -> None:
    w = world(spares=1)
    limit(w, 3)
    assert sorted(w.verbs()) == ["acquire", "release"]
    assert wanted(w) == ["run-a1", "run-a2", "run-a4"]
    w.crash(0)
    w.fail(1, 1)
    assert w.verbs() == ["start", "start"]


def test_one_group_moves_at_a_time() -> None:
    w = world(groups=3, spares=2)
    for number in (1, 2):
        limit(w, number)
    w.round()
    assert [g.phase for g in w.memory.groups.values()] == ["fencing", "running", "running"]
    assert w.verbs(after=5.0) == []
    assert w.waiting(Code.ONE_AT_A_TIME) == [{"group": 1, "node": "n2", "why": NEAR, "other": 0}]
    follow(w, 0)
    assert w.group(1).phase == "fencing"
    follow(w, 1)
    assert {g.first_node for g in w.memory.groups.values()} == {"n3", "n4", "n5"}


@pytest.mark.parametrize("why", ["silent", "incident"])
def test_it_waits_for_somebody_to_heal_from(why: str) -> None:
    w = world()
    if why == "silent":
        w.hear(1, "silent")
        w.round()
    else:
        w.hear(1, "absent")
    drain(w, 1)
    w.round()
    w.round()
    assert w.group().phase == "running"
    assert w.waiting(Code.NO_ONE_TO_HEAL_FROM) == [{"group": 0, "node": "n1", "why": DRAINED}]
    w.hear(1, "beating")
    w.round()
    assert "move" in w.verbs() or w.group().phase == "fencing"


@pytest.mark.parametrize("held", ["paused", "store"])
def test_nothing_of_it_while_the_run_is_held(held: str) -> None:
    w = world()
    if held == "paused":
        w.control = replace(w.control, paused=True)
    else:
        w.stable = 1.0
    limit(w, 1)
    before = w.memory
    assert w.verbs() == []
    assert w.memory == before
    w.control = replace(w.control, paused=False)
    w.stable = 1e6
    assert w.verbs() == ["acquire", "move"]


def test_a_restart_on_a_leaving_node_goes_elsewhere() -> None:
    w = world(spares=2)
    drain(w, 1)
    w.crash(0)
    w.hear(0, "gone")
    assert w.verbs() == ["move"]
    assert (w.incident.kind, w.incident.rung) == (Kind.CRASH, Rung.RESTART)
    follow(w, 0)
    assert w.group().first_node != "n1"
    assert (w.group().generation, list(w.memory.spent)) == (2, ["restart:0"])


def test_a_group_whose_new_node_fails_is_judged_as_any_other() -> None:
    """Having left a node is no rung that was tried."""
    w = world(spares=1)
    limit(w, 1)
    w.round()
    w.admit(0)
    w.round()
    assert w.group().first_node == "n3"
    w.crash(0)
    w.round()
    assert (w.incident.kind, w.incident.rung, w.group().first_node) == (Kind.CRASH, Rung.RESTART, "n3")


def test_a_leaving_node_that_goes_first_is_no_suspect_and_its_successor_counts() -> None:
    w = world(spares=0)
    limit(w, 1)
    w.round()
    w.grant(1, "gone", reason="TIMEOUT")
    w.nodes["n1"] = replace(w.nodes["n1"], registered=False, leaving="")
    w.hear(0, "gone")
    assert w.verbs() == ["release"]
    assert (w.incident.kind, w.incident.rung) == (Kind.ALLOCATION_LOST, Rung.REALLOCATE)
    assert w.incident.reason == Reason.of(Code.SUCCEEDED, kind=w.incident.kind.value, allocation="run-a3")
    assert (w.memory.spent, w.memory.cordons) == ({}, {})
    w.bring(3)
    follow(w, 0)
    assert wanted(w) == ["run-a2", "run-a3"]


def test_everybodys_limit_at_once_asks_for_nothing_twice() -> None:
    w = world(groups=2, spares=1)
    w.now += w.spec.policy.healthy_after_s
    for number in (1, 2, 3):
        limit(w, number)
    w.round()
    assert len(w.memory.allocations) == 6
    for number in (1, 2, 3):
        w.grant(number, "gone", reason="TIMEOUT")
        w.nodes[f"n{number}"] = replace(w.nodes[f"n{number}"], registered=False, leaving="")
    w.round()
    w.round()
    assert len(w.memory.allocations) == 6
    assert w.memory.spent == {}
    for number in (4, 5, 6):
        w.bring(number)
    w.admit(0)
    w.admit(1)
    w.round()
    assert [g.phase for g in w.memory.groups.values()] == ["starting", "starting"]


def test_a_limit_shorter_than_its_warning_does_not_ask_for_ever_more() -> None:
    """Each successor is leaving the moment it comes: the next is requested after a warning's time."""
    w = world(groups=2, spares=0)
    drain(w, 1)
    for number in range(1, 100):
        for key in wanted(w):
            if int(key[5:]) > 2 and key not in w.grants:
                w.bring(int(key[5:]))
                limit(w, int(key[5:]))
        w.round(10.0)
        assert len(w.memory.allocations) <= 3 + 10.0 * number / WARN_S


@pytest.mark.parametrize(("told_s", "ends_s"), [(30.0, 280.0), (60.0, 360.0)])
def test_a_limit_that_is_not_well_above_its_warning_is_bounded_by_the_budget(told_s: float, ends_s: float) -> None:
    """Each job gets notice of its end soon after its group has come to it, and ends."""
    w = world(groups=2, spares=0)
    began = {1: w.now, 2: w.now}
    end, step = w.now + 3600.0, 10
    while w.now < end and w.memory.phase == "running":
        for key in wanted(w):
            number = int(key[5:])
            if number not in began:
                began[number] = w.now
                w.bring(number)
            elif w.now - began[number] > ends_s and w.grants[key].state == "granted":
                w.grant(number, "gone", "TIMEOUT")
                w.nodes[f"n{number}"] = replace(w.nodes[f"n{number}"], registered=False)
            elif w.now - began[number] > told_s and w.nodes[f"n{number}"].registered:
                limit(w, number)
        step += 1
        for g, m in w.memory.groups.items():
            if m.phase in ("starting", "running") and w.nodes[m.first_node].registered:
                w.commit(g, step=step, step_s=0.5)
        w.open_gate()
        w.round(1.0)
    assert len(w.memory.spent.get("reallocate", ())) <= w.spec.policy.budget.reallocate
    free = 2 * SUCCESSORS_A_NODE
    assert len(w.memory.allocations) <= 2 + free + 2 * 3600.0 / ends_s + w.spec.policy.budget.reallocate


def test_a_drain_that_is_taken_back_is_forgotten() -> None:
    w = world(spares=0)
    drain(w, 1)
    w.round()
    drain(w, 1, "")
    assert w.verbs() == []
    assert w.memory.allocations["run-a1"].leaving_since is None
    drain(w, 1)
    assert w.verbs() == [], "its successor is there already"
    w.lapse("n1")
    drain(w, 1, "")


# --- handing over ---


def all_limits(w: World) -> None:
    for number in range(1, len(w.memory.groups) + 1):
        limit(w, number)


def begun(w: World) -> int:
    """Brings all nodes to their limit, with no successor; returns the step after which all end."""
    for g in w.memory.groups:
        w.commit(g, step=100, step_s=1.0)
    all_limits(w)
    w.round()
    w.round(WARN_S / 2 - 1.0)
    assert w.memory.handover_at_step is None
    assert w.verbs(after=1.0) == ["hand_over"]
    step = w.memory.handover_at_step
    assert step is not None
    assert 100 < step <= 100 + 2 + 10
    return step


def test_all_are_handed_over_through_one_checkpoint() -> None:
    w = world(spares=0)
    step = begun(w)
    w.save(0, step)
    w.fail(0, 0, step=step, checkpoint=w.nodes["n1"].ranks[0].checkpoint)
    w.round()
    assert (w.group(0).phase, w.group(0).generation) == ("fencing", 2)
    w.admit(0)
    w.bring(3)
    w.round()
    assert w.group(0).phase == "placing", "nobody starts while another still steps"
    assert w.memory.handover_at_step == step
    w.fail(1, 0, step=step)
    w.round()
    w.admit(1)
    settle(w)
    assert w.memory.handover_at_step is None
    assert (w.group(0).phase, w.group(0).first_node, w.group(0).resume) == ("starting", "n3", "disk")
    assert w.group(0).checkpoint is not None
    assert w.group(0).checkpoint.step == step
    w.round()
    assert wanted(w) == ["run-a3", "run-a4"]
    w.bring(4)
    w.round()
    assert w.group(1).first_node == "n4"
    assert w.group(1).checkpoint == w.group(0).checkpoint
    assert (w.memory.phase, w.memory.spent, w.memory.cordons) == ("running", {}, {})
    for g in (0, 1):
        w.commit(g, step=step + 1)
    w.round()
    assert {i.state for i in w.incidents.values()} == {"recovered"}


def test_a_restart_that_is_asked_for_while_all_end_and_the_run_is_paused_is_no_group_without_a_reason() -> None:
    w = world(spares=0)
    step = begun(w)
    w.control = replace(w.control, paused=True, restarts={0: 1})
    w.round()
    assert (w.incident.kind, w.incident.decided) == (Kind.REQUESTED, None)
    w.fail(0, 0, step=step)
    w.fail(1, 0, step=step)
    w.round()
    w.bring(3)
    w.bring(4)
    for g in (0, 1):
        w.admit(g)
    w.control = replace(w.control, paused=False)
    reasons = [a.reason for _ in range(3) for a in w.round().actions if a.verb in ("start", "place") and a.group == 0]
    handed_over = Reason.of(Code.HANDED_OVER, step=step, node="n1", why=NEAR)
    assert reasons[0] == Reason.of(Code.LEFT_BEFORE, why=handed_over)


def test_a_drained_host_never_forces_it() -> None:
    w = world(spares=0)
    drain(w, 1)
    limit(w, 2)
    assert [w.round(WARN_S).memory.handover_at_step for _ in range(10)] == [None] * 10


def test_a_node_that_came_in_time_makes_it_needless() -> None:
    w = world(spares=0)
    all_limits(w)
    w.round()
    w.bring(3)
    w.round(WARN_S)
    assert w.memory.handover_at_step is None
    assert w.group(0).phase == "fencing"


@pytest.mark.parametrize("leaves", [limit, drain])
def test_a_group_alone_is_handed_over_as_soon_as_there_is_a_node(leaves: object) -> None:
    w = world(groups=1, spares=0)
    w.commit(0, step=50, step_s=1.0)
    leaves(w, 1)  # type: ignore[operator]
    assert w.verbs() == ["acquire"]
    w.bring(2)
    assert w.verbs() == ["hand_over"]
    step = w.memory.handover_at_step
    assert step is not None
    w.save(0, step)
    w.fail(0, 0, step=step, checkpoint=w.nodes["n1"].ranks[0].checkpoint)
    w.round()
    w.admit(0)
    settle(w)
    assert (w.group().phase, w.group().first_node) == ("starting", "n2")
    assert w.memory.checkpoint is not None
    assert w.memory.checkpoint.step == step


def test_a_group_that_fails_meanwhile_starts_with_the_others() -> None:
    w = world(spares=0)
    step = begun(w)
    w.crash(1)
    w.hear(1, "gone")
    w.round()
    assert w.group(1).phase in ("placing", "fencing")
    w.save(0, step)
    w.fail(0, 0, step=step, checkpoint=w.nodes["n1"].ranks[0].checkpoint)
    settle(w)
    w.admit(0)
    w.admit(1)
    settle(w)
    assert w.memory.handover_at_step is None
    w.bring(3)
    w.bring(4)
    w.round()
    assert [(g.phase, g.first_node, g.generation) for g in w.memory.groups.values()] == [
        ("starting", "n3", 2),
        ("starting", "n4", 2),
    ]
    assert {g.checkpoint.step for g in w.memory.groups.values() if g.checkpoint} == {step}


def test_a_group_that_only_starts_ends_at_once() -> None:
    w = world(spares=0)
    for g in w.memory.groups:
        w.commit(g, step=100, step_s=1.0)
    all_limits(w)
    w.round()
    w.crash(1)
    w.hear(1, "gone")
    w.round()
    assert w.group(1).phase == "starting"
    assert w.verbs(after=WARN_S / 2) == ["hand_over", "move"]
    assert (w.group(1).phase, w.group(1).generation, w.incidents[w.group(1).incident].kind) == (
        "fencing",
        3,
        Kind.CRASH,
    )


def test_the_time_of_a_start_bounds_it() -> None:
    """If a group never comes to the step, the run goes on from what is on disk."""
    w = world(spares=0, start_timeout_s=200.0)
    step = begun(w)
    w.bring(3)
    w.bring(4)
    w.round(199.0)
    assert w.waiting(Code.HANDING_OVER) == [{"step": step, "still": (0, 1)}]
    assert w.verbs(after=2.0)[:2] == ["move", "move"]
    w.admit(0)
    w.admit(1)
    w.round()
    assert w.memory.handover_at_step is None
    assert [g.phase for g in w.memory.groups.values()] == ["starting", "starting"]


def test_their_nodes_disappearing_ends_it() -> None:
    w = world(spares=0)
    begun(w)
    for number in (1, 2):
        w.grant(number, "gone", reason="TIMEOUT")
        w.nodes[f"n{number}"] = replace(w.nodes[f"n{number}"], registered=False, leaving="")
    w.round()
    w.admit(0)
    w.admit(1)
    w.round()
    w.round()
    assert w.memory.handover_at_step is None
    assert len(w.memory.allocations) == 4
    assert w.memory.spent == {}


def test_a_run_that_reaches_its_last_step_meanwhile_is_finished() -> None:
    w = world(spares=0)
    begun(w)
    for g in w.memory.groups:
        w.fail(g, 0, step=w.spec.titan.steps)
    w.round()
    w.round()
    assert w.memory.phase == "finished"
    assert wanted(w) == []


def test_a_run_that_is_stopped_meanwhile_ends() -> None:
    w = world(spares=0)
    step = begun(w)
    w.control = replace(w.control, stop=True)
    w.round()
    assert (w.memory.phase, w.memory.handover_at_step) == ("stopping", None)
    for g in w.memory.groups:
        w.fail(g, 0, step=step)
    w.round()
    w.round()
    assert w.memory.phase == "stopped"


def test_the_invariants_see_a_group_that_starts_too_early() -> None:
    w = world(spares=0)
    begun(w)
    groups = {**w.memory.groups, 1: replace(w.group(1), generation=2, phase="starting")}
    found = invariants.violations(w.memory, replace(w.memory, groups=groups), w.observed(), w.spec)
    assert any(sentence.startswith("I16") for sentence in found)
    ended = replace(w.memory, handover_at_step=None)
    assert any(s.startswith("I16") for s in invariants.violations(w.memory, ended, w.observed(), w.spec))
    again = {**w.memory.allocations, "run-a1": replace(w.memory.allocations["run-a1"], successor="run-a9")}
    changed = replace(w.memory, allocations=again)
    assert any(s.startswith("I17") for s in invariants.violations(w.memory, changed, w.observed(), w.spec))


@pytest.mark.parametrize("reports", ["steps", "output"])
def test_a_command_without_a_quorum_needs_no_other_group_to_heal_from(reports: str) -> None:
    w = world()
    w.spec = replace(w.spec, trainer=TrainerSpec(command=("x",), reports=reports))  # type: ignore[arg-type]
    for group in (0, 1):
        w.hear(group, "absent")
    drain(w, 1)
    settle(w)
    moved = w.group(0).generation == 2
    assert moved == (reports == "output"), w.last.waits
