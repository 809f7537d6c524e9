"""A run that trains and whose checkpoints are not written: it is reported, and nothing is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.evidence import checkpoint_lag
from supervisor.core.evidence.checkpoint_lag import BEHIND
from supervisor.core.model.reason import Code, Reason
from supervisor.shell.inspect.pending_reasons import held
from tests.unit.core.world import World

EVERY = 50
DISK = "checkpoint of step 250 failed: No space left on device (0 bytes left in /runs/run/checkpoints)"


def trains(w: World, step: int, began: int = 0, **about: str) -> None:
    """All groups commit this step, and all steps since they began. `about`: further fields of group 0's ranks."""
    for number, group in w.memory.groups.items():
        for rank in range(w.ranks):
            w.report(number, rank, commits=step - began, step=step, **(about if group.group == 0 else {}))
    assert w.round(1.0).actions == (), "nothing is done about it"


def shown(w: World) -> tuple[Reason, Reason] | None:
    """The reason that status shows, and the writer's report; the journal has the same, without the writer's own words."""
    found = held(w.memory, w.observed(), w.spec)
    assert tuple(why.about["reason"] for why in found) == tuple(why for why in w.last.waits if why.code == Code.UNSAVED)
    if not found:
        return None
    (both,) = found
    assert both.code == Code.AND
    return both.about["reason"], both.about["note"]


def unsaved(newest: int | None, more_than: int = BEHIND * EVERY) -> Reason:
    return Reason.of(Code.UNSAVED, newest=newest, every=EVERY, more_than=more_than)


def failed(rank: int) -> Reason:
    return Reason.of(Code.SAVE_FAILED, rank=rank, group=0, why=DISK)


NONE_FAILED = Reason.of(Code.NO_SAVE_FAILED)


def saved(w: World, step: int) -> None:
    for number in w.memory.groups:
        w.report(number, commits=1, step=step)
    w.save(0, step)
    assert w.verbs(1.0) == ["checkpoint"]
    assert w.waiting(Code.UNSAVED) == [], "at once"


@pytest.fixture
def w() -> World:
    made = World().bring_up()
    made.spec = replace(made.spec, titan=replace(made.spec.titan, checkpoint_interval_steps=EVERY))
    return made


def test_it_is_said_past_three_intervals_and_until_one_is_written(w: World) -> None:
    trains(w, 100)
    saved(w, 100)
    trains(w, 100 + BEHIND * EVERY)
    assert shown(w) is None, "the third is due just now"
    trains(w, 101 + BEHIND * EVERY)
    assert shown(w) == (unsaved(100), NONE_FAILED)
    saved(w, 250)
    trains(w, 300)
    assert shown(w) is None


def test_so_it_is_of_a_run_that_has_none_yet(w: World) -> None:
    trains(w, BEHIND * EVERY)
    assert shown(w) is None
    trains(w, BEHIND * EVERY + 1)
    assert shown(w) == (unsaved(None), NONE_FAILED)


def test_what_an_earlier_run_has_left_in_the_folder_is_where_it_began(w: World) -> None:
    trains(w, 5150, began=5000)
    assert shown(w) is None
    trains(w, 5151, began=5000)
    assert shown(w) == (unsaved(None), NONE_FAILED)
    # once both have healed from each other, neither knows where the run began: it counts from step 0
    for group, more_than in ((1, 150), (0, 4800)):
        w.crash(group)
        w.round(1.0)
        w.recover(group, step=5152)
        assert w.group(group).resume == "peers", "it has made one step itself, and healed the others"
        assert shown(w) == (unsaved(None, more_than), NONE_FAILED)


def test_the_reason_stays_the_same_until_twice_as_much_is_unsaved(w: World) -> None:
    saved(w, 100)
    reasons = []
    for step in range(251, 701):
        trains(w, step)
        reasons.append(shown(w))
    assert reasons == [(unsaved(100, 150), NONE_FAILED)] * 150 + [(unsaved(100, 300), NONE_FAILED)] * 300


def test_the_writer_says_why() -> None:
    w = World(ranks=2).bring_up()
    old = "checkpoint of step 100 failed: Permission denied"
    trains(w, 251, save_failed=DISK)
    assert shown(w) == (unsaved(None, 150), failed(rank=0))
    w.report(0, 0, commits=251, step=251)
    w.report(1, 0, commits=251, step=251, save_failed=old)
    w.round(1.0)
    assert shown(w) == (unsaved(None, 150), failed(rank=1)), "group 1 wrote before it"
    w.report(0, 1, commits=251, step=251)
    w.round(1.0)
    assert shown(w) == (unsaved(None, 150), NONE_FAILED)


def test_one_that_failed_alone_is_not_said(w: World) -> None:
    """The next one may be written."""
    saved(w, 100)
    trains(w, 200, save_failed=DISK)
    assert shown(w) is None


def test_where_none_is_due_none_is_missed(w: World) -> None:
    w.spec = replace(w.spec, titan=replace(w.spec.titan, checkpoint_interval_steps=0))
    trains(w, 100_000)
    assert shown(w) is None


def test_of_who_does_not_train_nothing_is_known() -> None:
    w = World().start_up()
    w.report(0, phase="built", step=500)
    assert checkpoint_lag.steps(w.memory.groups, None, w.observed()) is None
    for group in w.memory.groups:
        w.commit(group)
    w.round(1.0)
    assert checkpoint_lag.steps(w.memory.groups, None, w.observed()) == 1


def test_gone_back_behind_the_newest_nothing_is_unsaved(w: World) -> None:
    """The newest could not be read, for example, and the one before it was taken."""
    saved(w, 100)
    trains(w, 60)
    assert checkpoint_lag.steps(w.memory.groups, w.memory.checkpoint, w.observed()) == 0


def test_a_run_that_is_over_or_halted_says_nothing(w: World) -> None:
    trains(w, 1000)
    assert shown(w) == (unsaved(None, 600), NONE_FAILED)
    w.memory = replace(w.memory, phase="halted")
    assert held(w.memory, w.observed(), w.spec) == ()
