"""A group whose budgets are spent while others train does not halt them. It is left out, a person is notified, and it
is tried again once a budget has one left."""

from __future__ import annotations

from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import ControlView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.report.notifications import due
from tests.helpers.reasons import held_against, spent
from tests.unit.core.world import World, replace

SPENT = Reason.of(Code.NOTHING_LEFT, passed=(spent("reallocate"),))


def _passed(out: Reason | None) -> tuple[Reason, ...]:
    assert out is not None
    assert out.code == Code.NOTHING_LEFT
    found: tuple[Reason, ...] = out.about["passed"]
    return found


def taken(w: World, group: int) -> None:
    """Lets the engine take the group's allocation; its agent is gone."""
    node, number = w.group(group).first_node, int(w.group(group).last_seats[0].allocation.removeprefix("run-a"))
    w.grant(number, "gone", "preempted")
    w.nodes[node] = replace(w.nodes[node], registered=False)


def twice_taken(**about: int) -> World:
    """A world in which one allocation was taken from each of two groups, and the budget is for one."""
    w = World(groups=4, **{"spares": 0, **about}, budget={"reallocate": 1}).bring_up()
    for group in (0, 1):
        taken(w, group)
        w.round(1.0)
        w.admit(group)
        if w.memory.phase == "running" and not w.group(group).left_out:
            w.bring(5)
            w.round(1.0)
            w.recover(group)
    return w


def train(w: World, for_s: float, *groups: int) -> None:
    for group in groups:
        w.commit(group, step=100 + 10 * w.rounds)
    w.round(for_s)


def test_the_others_train_on_and_a_person_is_told() -> None:
    w = World(groups=4, spares=0, budget={"reallocate": 1}).bring_up()
    taken(w, 0)
    w.round(1.0)
    taken(w, 1)
    before = w.memory
    w.round(1.0)
    assert (w.memory.phase, w.group(1).left_out) == ("running", SPENT)
    (notice,) = due("run", before, w.last)
    assert notice.about == f"{w.incident.id}-left-out-{w.group(1).generation}"
    assert (notice.group, notice.incident) == (1, w.incident.id)
    assert "acquire" not in [a.verb for a in w.last.actions]
    assert [w.group(g).phase for g in (2, 3)] == ["running", "running"]


def test_it_is_tried_again_once_the_budget_has_one_left() -> None:
    w = twice_taken()
    assert w.group(1).left_out == SPENT
    first = w.memory.spent["reallocate"][0]
    while w.now < first + 3500.0:
        train(w, 60.0, 0, 2, 3)
        assert w.group(1).left_out == SPENT
        assert len(w.memory.spent["reallocate"]) == 1
    (out,) = w.waiting(Code.STAYS_OUT)
    assert out == {"group": 1, "reason": SPENT, "incident": "i2", "spent": True}
    assert w.last.look_again_at == first + 3600.0
    train(w, 120.0, 0, 2, 3)
    assert w.group(1).left_out is None
    assert (w.incident.kind, w.incident.rung) == (Kind.ALLOCATION_LOST, Rung.REALLOCATE)
    assert [t for t in w.memory.spent["reallocate"] if t > first] == [w.now]
    w.bring(6)
    w.round(1.0)
    w.recover(1)
    assert (w.group(1).phase, w.incident.state) == ("running", "recovered")


def test_not_in_the_round_in_which_its_old_generation_is_shut_out() -> None:
    """A record about a generation then must be about the current one."""
    w = World(groups=4, spares=0, budget={"reallocate": 0}).bring_up()
    taken(w, 0)
    w.round(1.0)
    assert w.group(0).phase == "fencing"
    w.spec = replace(w.spec, policy=replace(w.spec.policy, budget=replace(w.spec.policy.budget, reallocate=1)))
    w.admit(0)
    for action in w.round(1.0).actions:
        assert action.group != 0 or action.generation == w.group(0).generation
    w.round(0.0)
    assert w.group(0).left_out is None
    assert [a.verb for a in w.last.actions] == ["acquire"]


def test_a_spare_that_it_takes_then_is_paid_for_and_asked_for_anew() -> None:
    w = World(groups=4, spares=2, budget={"replace": 1, "reallocate": 0}).bring_up()
    for group in (0, 1):
        w.lapse(w.group(group).first_node)
        w.hear(group, "gone")
        w.round(1.0)
        w.admit(group)
    w.round(1.0)
    w.recover(0)
    assert _passed(w.group(1).left_out)[0] == spent("replace")
    train(w, 60.0, 0, 2, 3)
    assert w.group(1).first_node == "", "a spare is there, and no budget to take it"
    wanted = [a.key for a in w.memory.allocations.values() if a.state == "wanted"]
    train(w, 3600.0, 0, 2, 3)
    w.round(1.0)
    assert (w.group(1).phase, w.incident.rung) == ("starting", Rung.REPLACE)
    asked = [a.key for a in w.memory.allocations.values() if a.state == "wanted" and a.key not in wanted]
    assert len(asked) == 1
    assert len(w.memory.spent["replace"]) == 1, "the first is out of the window"


def test_its_host_is_held_to_it_as_if_it_had_moved() -> None:
    w = World(groups=3, spares=0, budget={"restart": 1, "replace": 0, "reallocate": 0}).bring_up()
    w.crash(1)
    w.round()
    w.recover(1)
    w.crash(1)
    w.round(1.0)
    assert _passed(w.group(1).left_out)[0].about["rung"] == "restart"
    assert w.memory.cordons == {"n2": held_against("i2", Kind.CRASH)}
    assert w.memory.allocations["run-a2"].state == "released"


def test_not_before_the_store_has_been_back_for_a_lease() -> None:
    w = twice_taken()
    w.stable = 1.0
    train(w, 4000.0, 0, 2, 3)
    assert w.group(1).left_out == SPENT
    w.stable = 1e6
    train(w, 1.0, 0, 2, 3)
    assert w.group(1).left_out is None


def test_a_person_may_try_it_at_once() -> None:
    w = twice_taken()
    w.control = ControlView(restarts={1: 1})
    w.round(1.0)
    w.round(1.0)
    w.control = ControlView(restarts={1: 2})
    w.round(1.0)
    assert w.group(1).left_out is None
    w.bring(6)
    w.round(1.0)
    w.recover(1)
    assert w.group(1).phase == "running"


def test_the_run_is_halted_where_too_few_would_be_left_to_step() -> None:
    w = World(groups=4, spares=0, min_groups=3, budget={"reallocate": 1}).bring_up()
    taken(w, 0)
    w.round(1.0)
    taken(w, 1)
    w.round(1.0)
    assert w.memory.phase == "stopping"
    assert w.memory.halt_reason is not None
    assert w.memory.halt_reason.about["reason"] == SPENT


def test_many_at_one_moment_do_not_halt_those_that_are_left() -> None:
    w = World(groups=16, spares=0).bring_up()
    for group in range(4):
        taken(w, group)
    w.round(1.0)
    assert w.memory.phase == "running"
    assert [bool(w.group(g).left_out) for g in range(5)] == [False, False, False, True, False]
