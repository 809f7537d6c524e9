"""A group that no restart in place can mend leaves its node at once where a spare is there."""

from __future__ import annotations

from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import FirstRungSpec
from tests.helpers.reasons import codes
from tests.unit.core.evidence.test_hang_attribution import hangs
from tests.unit.core.world import World

SLEEPS = Reason.of(Code.PASSED, rung="restart", why=Reason.of(Code.UNINTERRUPTIBLE, rank=0))


def hangs_in_its_disk(w: World) -> None:
    """Makes its rank 0 wait for its data, from a disk that does not answer."""
    hangs(w, 0, "data", process="uninterruptible")
    w.others_wait(0)
    w.round()


def test_a_hang_in_uninterruptible_sleep_begins_at_a_spare() -> None:
    w = World(groups=2, spares=1).bring_up()
    hangs_in_its_disk(w)
    assert (w.incident.kind, w.incident.group, w.incident.rung) == (Kind.HANG, 0, Rung.REPLACE)
    assert w.incident.considered == (SLEEPS,)
    assert Code.UNINTERRUPTIBLE in codes(w.incident.reason)
    w.start_again(0)
    assert w.group(0).first_node == "n3"


def test_without_a_spare_it_is_restarted_where_it_is() -> None:
    w = World(groups=2, spares=0).bring_up()
    hangs_in_its_disk(w)
    assert (w.incident.rung, w.incident.considered) == (Rung.RESTART, ())


def test_nor_where_no_budget_is_left_for_it() -> None:
    w = World(groups=2, spares=1, budget={"replace": 0}).bring_up()
    hangs_in_its_disk(w)
    assert w.incident.rung == Rung.RESTART


def test_what_the_policy_says_of_a_hang_counts() -> None:
    w = World(groups=2, spares=1, first_rung=FirstRungSpec(hang="reallocate")).bring_up()
    hangs_in_its_disk(w)
    assert w.incident.rung == Rung.REALLOCATE


def test_a_rank_that_only_waits_for_the_one_that_hangs_says_nothing_of_it() -> None:
    w = World(groups=2, spares=1, ranks=2).bring_up()
    hangs(w, 0, "data", rank=0)
    hangs(w, 0, "commit", rank=1, process="uninterruptible")
    w.others_wait(0)
    w.round(100.0)
    assert (w.incident.kind, w.incident.rank, w.incident.rung) == (Kind.HANG, 0, Rung.RESTART)


def test_a_start_beside_a_process_that_does_not_end_is_tried_once() -> None:
    """No spare was healthy when its end was ordered; one is now."""
    w = World(groups=2, spares=1).bring_up()
    w.node(3, facts={"disk_full": "no room"})
    hangs_in_its_disk(w)
    assert w.incident.rung == Rung.RESTART
    w.start_again(0)
    w.go_on()
    w.node(3, facts={})
    w.round(w.spec.policy.start_timeout_s + 1.0)
    assert (w.group(0).generation, w.incident.rung) == (3, Rung.REPLACE)
    why = Reason.of(Code.NOT_ENDED, rank=0, generation=1)
    assert w.incident.considered == (Reason.of(Code.PASSED, rung="restart", why=why),)


def test_a_start_that_takes_too_long_is_tried_there_again_where_the_one_before_has_ended() -> None:
    w = World(groups=2, spares=1).bring_up()
    hangs(w, 0, "data")
    w.others_wait(0)
    w.round()
    w.report(0, generation=1, state="exited", signal=9)
    w.start_again(0)
    w.go_on()
    w.round(w.spec.policy.start_timeout_s + 1.0)
    assert (w.group(0).generation, w.incident.rung) == (3, Rung.RESTART)
