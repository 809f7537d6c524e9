"""A group that ends at once after each start, on two hosts, while the others train: they go on without it."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import ControlView, CordonView, StuckView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import FirstRungSpec
from supervisor.core.model.stacks import of_text
from supervisor.core.remediation.resume import fresh_start
from supervisor.core.report.notifications import due
from tests.helpers.reasons import codes
from tests.unit.core.world import World, replace

BUG = "ValueError: no shard 7"


def begun(groups: int = 2, **about: Any) -> World:
    """A world in which all groups train; group 0 has just ended for another reason, and starts again."""
    w = World(groups=groups, **{"spares": 1, **about}).bring_up()
    w.crash(0, 15)
    w.round()
    w.start_again()
    return w


def ends(w: World, error: str = BUG, **about: Any) -> Rung:
    """Ends group 0 before its first commit, while the others go on and save."""
    others = [g for g in w.memory.groups if g != 0]
    step = 10 * w.rounds
    for g in others:
        if w.group(g).phase == "running":
            w.commit(g, step=step)
    w.save(others[0], step=step)
    w.fail(0, 1, error, **{"step": 0, "commits": 0, **about})
    w.round(61.0)
    return w.incidents[w.group(0).incident].rung


def starts(w: World) -> None:
    """Starts group 0 again, on a new node if one was requested."""
    if w.incidents[w.group(0).incident].rung == Rung.REALLOCATE:
        w.bring(len(w.memory.allocations))
    w.start_again()


def left_out(w: World) -> World:
    """Ends group 0 again and again, until it is left out."""
    for rung in (Rung.RESTART, Rung.REPLACE):
        assert ends(w) == rung
        w.start_again()
    assert ends(w) == Rung.RIDE_THROUGH
    return w


def test_the_others_go_on_without_it_and_nothing_more_is_spent() -> None:
    w = left_out(begun())
    group = w.group(0)
    assert group.left_out == Reason.of(Code.NO_NODE_CURES, times=3, hosts=("n1", "n3"))
    assert (w.incident.state, w.incident.rung, w.incident.followed) == ("acting", Rung.RIDE_THROUGH, True)
    spent = w.memory.spent
    assert (len(spent["restart:0"]), len(spent["replace"]), "reallocate" in spent) == (2, 1, False)
    for _ in range(10):
        w.admit(0)
        w.commit(1, step=1000 + w.rounds)
        w.round(600.0)
    assert (w.group(0).phase, w.group(0).first_node, w.group(1).generation) == ("placing", "", 1)
    assert (w.memory.phase, w.memory.spent, w.memory.cordons) == ("running", spent, {})
    out = {"group": 0, "reason": group.left_out, "incident": "i1", "spent": False}
    assert w.waiting(Code.STAYS_OUT) == [out]


def test_it_is_journaled_and_a_person_is_told_once() -> None:
    w = begun()
    for _ in range(2):
        ends(w)
        w.start_again()
    before = w.memory
    ends(w)
    (act,) = [a for a in w.last.actions if a.verb == "ride_through"]
    assert act.key.startswith("leave_out:0:")
    assert act.reason == Reason.of(Code.LEFT_OUT, reason=w.group(0).left_out)
    (notice,) = due("run", before, w.last)
    assert notice.about == f"{w.incident.id}-left-out-{w.group(0).generation}"
    assert (notice.group, notice.kind, notice.rung) == (0, "error", 0)
    before = w.memory
    assert due("run", before, w.round(1.0)) == []


def test_its_node_is_a_spare_for_the_others() -> None:
    w = left_out(begun())
    w.admit(0)
    w.round(1.0)
    left = w.group(1).first_node
    w.lapse(left)
    w.hear(1, "gone")
    w.round(1.0)
    w.recover(1, step=5000)
    assert w.group(1).first_node == "n3", "on which group 0 was"
    assert w.group(0).left_out


def test_without_a_spare_it_is_tried_on_one_new_node() -> None:
    w = begun(spares=0)
    rungs = []
    for number in range(4):
        rungs.append(ends(w))
        if number < 3:
            starts(w)
    assert rungs == [Rung.RESTART, Rung.RESTART, Rung.REALLOCATE, Rung.RIDE_THROUGH]
    assert len(w.memory.spent["reallocate"]) == 1


def test_a_person_who_asks_for_it_begins_anew() -> None:
    w = left_out(begun())
    w.admit(0)
    w.round(1.0)
    generation = w.group(0).generation
    w.control = ControlView(restarts={0: 1})
    w.round(1.0)
    w.recover(0, step=9000)
    group = w.group(0)
    assert (group.phase, group.left_out, group.seen, group.generation) == ("running", None, None, generation)
    assert w.incident.state == "recovered"
    assert w.memory.restarts_done == {0: 1}


def test_after_which_it_may_be_left_out_again() -> None:
    w = left_out(begun())
    w.admit(0)
    w.control = ControlView(restarts={0: 1})
    w.round(1.0)
    w.start_again()
    for _ in range(9):
        if ends(w) == Rung.RIDE_THROUGH:
            break
        starts(w)
    assert w.group(0).left_out
    assert w.memory.phase == "running"


def test_not_when_too_few_would_be_left_to_step() -> None:
    w = begun(min_groups=2)
    for rung in (Rung.RESTART, Rung.REPLACE):
        assert ends(w) == rung
        w.start_again()
    assert ends(w) == Rung.REALLOCATE


def test_not_when_it_had_committed_a_step() -> None:
    """Its later ends differ each time, so they are for the budgets."""
    w = begun(groups=3)
    for n in range(5):
        ends(w, step=30 + n, commits=2)
        assert w.group(0).left_out is None
        starts(w)


def test_not_what_may_pass() -> None:
    w = begun()
    for _ in range(5):
        ends(w, "ConnectionError: Couldn't reach the store")
        assert w.group(0).left_out is None
        starts(w)


def test_not_where_it_is_only_observed() -> None:
    w = begun(observe=("error",))
    for _ in range(4):
        w.fail(0, 1, BUG, step=0, commits=0)
        w.round(61.0)
    assert w.group(0).left_out is None


def test_the_run_is_over_when_the_others_have_finished() -> None:
    w = left_out(begun())
    w.admit(0)
    w.round(1.0)
    w.fail(1, 0, step=100000)
    for _ in range(4):
        w.round(1.0)
    assert w.memory.phase == "finished"
    assert w.incident.state == "halted"


def test_the_same_in_the_last_that_trains_stops_the_run() -> None:
    w = left_out(begun())
    w.admit(0)
    for _ in range(2):
        w.fail(1, 1, BUG, step=20000, commits=3)
        w.round(61.0)
        if w.memory.phase == "running":
            w.recover(1, step=19000)
    assert (w.incident.kind, w.incident.rung, w.incident.state) == (Kind.SAME_ERROR, Rung.STOP, "halted")


def test_a_node_that_is_to_be_left_does_not_wait_for_it() -> None:
    w = left_out(begun(groups=3, spares=2))
    w.admit(0)
    w.round(1.0)
    key = w.group(1).last_seats[0].allocation
    w.grants[key] = replace(w.grants[key], leaving="preempted")
    node = w.group(1).first_node
    w.round(1.0)
    for _ in range(3):
        w.admit(1)
        w.round(1.0)
    assert w.group(1).first_node not in ("", node)


def test_a_run_that_is_stopped_does_not_wait_for_it() -> None:
    w = left_out(begun())
    w.admit(0)
    w.control = ControlView(stop=True)
    w.round(1.0)
    w.fail(1, 0, step=100000)
    for _ in range(4):
        w.round(1.0)
    assert w.memory.phase == "stopped"


def test_a_run_that_is_resumed_or_restored_starts_it_too() -> None:
    w = left_out(begun())
    assert fresh_start(w.memory, w.now, 1000).groups[0].left_out is None
    w.admit(0)
    for _ in range(2):
        w.fail(1, 1, BUG, step=20000, commits=3)
        w.round(61.0)
        if w.memory.phase == "running":
            w.recover(1, step=19000)
    for _ in range(3):
        w.round(1.0)
    assert w.memory.phase == "halted"
    w.control = ControlView(resumes=1, because="the shard is mended")
    w.round(1.0)
    assert [g.left_out for g in w.memory.groups.values()] == [None, None]


def test_when_the_run_halts_in_the_same_round_that_alone_is_told() -> None:
    """Its incident is closed with the run's."""
    w = begun()
    ends(w)
    w.start_again()
    ends(w)
    w.start_again()
    w.fail(1, 1, "ValueError: bad batch", step=20000, commits=3)
    w.round(1.0)
    w.recover(1, step=19000)
    w.fail(1, 1, "ValueError: bad batch", step=20000, commits=3)
    w.fail(0, 1, BUG, step=0, commits=0)
    before = w.memory
    w.round(61.0)
    assert (w.memory.phase, bool(w.group(0).left_out), w.memory.incidents) == ("stopping", True, {})
    (notice,) = due("run", before, w.last)
    assert (notice.group, notice.rung) == (1, Rung.STOP)


def test_a_hang_of_the_others_is_found_as_if_it_were_not_there() -> None:
    """The others do not wait for it: it is not being started."""
    w = left_out(begun(groups=4))
    w.admit(0)
    w.round(1.0)
    for group, place in enumerate(("barrier", "all_reduce", "all_reduce"), 1):
        where = of_text(f"in {place} (work.py:1)")
        w.commit(group, step=5000, stuck=StuckView(activity="collective", activity_s=31.0, bound_s=30.0, where=where))
    w.round(1.0)
    assert (w.incident.kind, w.incident.group, w.incident.rung) == (Kind.HANG, 1, Rung.RESTART)


def test_one_of_the_others_that_is_slow_is_mended() -> None:
    w = begun(groups=4, first_rung=FirstRungSpec(straggler="restart"), straggler_for_s=300.0)
    left_out(w).admit(0)
    for step in (5000, 5100):
        for group, seconds in ((1, 0.4), (2, 0.9), (3, 0.4)):
            w.commit(group, step=step, compute_s=seconds)
        w.round(301.0)
    assert (w.incident.kind, w.incident.group, w.incident.rung) == (Kind.STRAGGLER, 2, Rung.RESTART)


@pytest.mark.parametrize("signal", [0, 11])
def test_what_ends_all_the_others_stops_the_run_and_costs_no_node(signal: int) -> None:
    """Its own earlier, different end does not distinguish it from the others."""
    w = left_out(begun(groups=7, spares=2))
    w.admit(0)
    w.round(1.0)
    spent = len(w.memory.spent["replace"])
    for _ in range(3 if signal else 1):
        for group in range(1, 7):
            if signal:
                w.crash(group, signal, step=9000)
            else:
                w.fail(group, 1, "ValueError: bad batch", step=9000)
        w.round(1.0)
        for group in range(1, 7):
            if w.memory.phase == "running":
                w.start_again(group)
    assert w.memory.phase == "stopping"
    assert codes(w.memory.halt_reason) & {
        Code.SAME_EVERYWHERE,
        Code.SAME_END_AGAIN,
        Code.SHARED_TOO_LONG,
        Code.SAME_STEP_AGAIN,
    }
    assert (len(w.memory.spent["replace"]), w.memory.cordons) == (spent, {})


def test_the_last_of_two_is_not_every_group() -> None:
    w = left_out(begun())
    w.admit(0)
    w.fail(1, 1, "ValueError: bad batch", step=9000)
    w.round(1.0)
    assert w.memory.phase == "running"


def test_the_last_that_trains_leaves_a_drained_host_through_a_checkpoint() -> None:
    """It does so like a run of one group: the other does not come, to be healed from."""
    w = left_out(begun(spares=2))
    w.admit(0)
    w.round(1.0)
    left = w.group(1).first_node
    w.cordons[left] = CordonView(drain="maintenance")
    acts = w.verbs(1.0) + w.verbs(1.0)
    assert "hand_over" in acts
    step = w.memory.handover_at_step
    assert step is not None
    w.save(1, step)
    w.fail(1, 0, step=step, checkpoint=w.nodes[left].ranks[-1].checkpoint)
    w.round(1.0)
    w.start_again(1)
    assert w.group(1).first_node not in ("", left)
    assert w.group(0).left_out
