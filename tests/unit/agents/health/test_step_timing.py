"""The time that a step may take is learned from the rank itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.health.step_timing import KEPT, LEARNED_AT_LEAST, MOVES_ON, NEWEST, STANDS_S, WARM_UP_COMMITS, Own, Pace
from supervisor.core.model.observed import StuckView
from supervisor.core.model.spec import HangSpec
from supervisor.wire.activity import FILE, LAYOUT, NAMES, Activity, read
from supervisor.wire.records import Progress

LIMITS = HangSpec(factor=10.0, at_least_s=5.0, at_most_s=600.0)

NOTHING = Own()


class Rank:
    """A rank that steps by the test's clock."""

    def __init__(self, limits: HangSpec = LIMITS) -> None:
        self.limits = limits
        self.pace, self.now, self.commits, self.changes, self.quorum = Pace(), 0.0, 0, 0, 1
        self.failed = 0
        self.step_s = 0.0
        self.rounds = 1
        self.doing: Activity = "other"
        self.reaches = True
        self.untold = False
        self.starved_s = 0.0
        self.look()

    def look(self, phase: str = "step", own: Own = NOTHING) -> StuckView | None:
        progress = Progress(
            run="r", group=0, generation=1, rank=0, pid=1, sequence=self.changes, phase=phase,  # type: ignore[arg-type]
            step=self.commits, commits=self.commits, step_s=self.step_s, quorum_id=self.quorum,
            compute_s=own.compute_s, data_s=own.data_s, rounds=self.rounds,
            failed_commits=self.failed,
        )  # fmt: skip
        self.pace.look(self.now, progress, (self.changes, self.doing), self.reaches, self.untold, self.starved_s)
        return self.pace.stuck(self.now, self.pace.bound_s(self.limits), self.limits.at_most_s)

    def does(self, activity: Activity, seconds: float = 0.0) -> StuckView | None:
        self.doing = activity
        self.changes += 1
        self.look()
        self.now += seconds
        return self.look()

    def stays(self, seconds: float) -> StuckView | None:
        """Keeps the rank at its current activity."""
        self.now += seconds
        return self.look()

    def step(self, seconds: float, *, checkpoint_s: float = 0.0, own: Own = NOTHING) -> StuckView | None:
        """One step; returns the first report that it hangs, if any."""
        found = self.does("checkpoint", checkpoint_s) if checkpoint_s else None
        found = self.does("compute", seconds) or found
        self.commits += 1
        self.changes += 1
        self.step_s = seconds
        self.look(own=own)
        return found


@pytest.fixture
def learned() -> Rank:
    rank = Rank()
    for _ in range(WARM_UP_COMMITS + LEARNED_AT_LEAST + 10):
        assert rank.step(1.0) is None
    return rank


def test_a_step_of_more_rounds_may_take_longer_and_is_no_slower(learned: Rank) -> None:
    """A group alone in the place of many: its step takes as many times as long."""
    learned.rounds, learned.quorum = 20, 2
    for _ in range(KEPT):
        assert learned.step(20.0, own=Own(16.0, 2.0)) is None
    assert learned.pace.own == Own(0.8, 0.1)
    assert learned.pace.measured.step_s == 20.0
    assert learned.does("compute", 200.0) is None
    found = learned.stays(1.0)
    assert found is not None
    assert (found.bound_s, found.usual_s) == (200.0, 20.0)
    learned.rounds = 1
    learned.step(1.0)
    assert learned.pace.bound_s(LIMITS) == 10.0, "all are back"


def test_a_step_of_ten_times_the_usual_hangs(learned: Rank) -> None:
    assert learned.does("compute", 10.0) is None
    found = learned.stays(1.0)
    assert found is not None
    assert (found.activity, found.bound_s, found.usual_s) == ("compute", 10.0, 1.0)
    assert found.lasted_s == pytest.approx(11.0), "measured, not the bound"
    assert learned.stays(5.0) is not None, "until its step is over"
    learned.step(1.0)
    assert learned.look() is None


def test_steps_five_times_as_slow_do_not(learned: Rank) -> None:
    for _ in range(40):
        assert learned.step(5.0) is None


def test_a_pace_that_changes_is_learned(learned: Rank) -> None:
    for _ in range(64):
        learned.step(4.0)
    assert learned.does("compute", 39.0) is None
    assert learned.stays(2.0) is not None


def test_a_short_usual_step_is_bounded_from_below() -> None:
    rank = Rank()
    for _ in range(20):
        rank.step(0.01)
    assert rank.does("compute", 4.9) is None
    rank.now += 0.2
    assert rank.look() is not None


def test_the_first_steps_are_bounded_by_the_policy_alone() -> None:
    rank = Rank()
    rank.now += 1e6
    assert rank.look() is None, "before the first commit the policy's time for a start counts"
    assert rank.step(500.0) is None
    assert rank.does("compute", 599.0) is None, "it compiles"
    found = rank.stays(2.0)
    assert found is not None
    assert found.usual_s == 0.0


def test_the_first_checkpoint_is_bounded_by_the_policy_alone(learned: Rank) -> None:
    assert learned.step(1.0, checkpoint_s=300.0) is None
    learned.step(1.0)
    assert learned.does("compute", 11.0) is not None, "an ordinary step is bounded as before"


def test_the_first_checkpoint_bounds_the_next_one(learned: Rank) -> None:
    assert learned.step(1.0, checkpoint_s=2.0) is None
    assert learned.does("checkpoint", 29.0) is None
    learned.now += 2.0
    assert learned.look() is not None


def test_a_checkpoint_between_two_looks_is_part_of_its_step_and_one_that_lasts_is_seen(learned: Rank) -> None:
    for _ in range(70):
        learned.changes += 2  # one came and went
        learned.step(1.05)
    assert learned.pace.bound_s(LIMITS) == pytest.approx(10.5)
    assert learned.pace.measured.apart_s == 0.0
    assert learned.does("checkpoint", LIMITS.at_most_s - 1.0) is None, "no shorter one bounds it"
    assert learned.stays(3.0) is not None


# --- evaluation and compile ---


@pytest.mark.parametrize("pause", ["checkpoint", "evaluate", "compile", "save"])
def test_a_first_pause_is_bounded_by_the_policy_alone_and_one_that_never_ends_is_found(
    learned: Rank, pause: Activity
) -> None:
    assert learned.does(pause, LIMITS.at_most_s - 2.0) is None
    assert learned.does("compute", 1.0) is None, "it ends, and its step is made"
    learned.step(1.0)
    learned.step(1.0)
    found = learned.does(pause, LIMITS.at_most_s + 1.0)
    assert found is not None
    assert (found.activity, found.bound_s) == (pause, LIMITS.at_most_s)


def test_evaluations_of_one_group_again_and_again_are_no_hang(learned: Rank) -> None:
    """Each takes three times as long as an ordinary step may."""
    for _ in range(20):
        for _ in range(5):
            assert learned.step(1.0) is None
        assert learned.does("evaluate", 30.0) is None
    learned.step(1.0)
    assert learned.pace.bound_s(LIMITS) == 10.0, "an ordinary step is bounded as before"
    assert (learned.pace.measured.pause_s, learned.pace.measured.apart_s) == (30.0, 0.0)


def test_an_evaluation_is_bounded_by_those_before_it_and_by_no_checkpoint(learned: Rank) -> None:
    learned.step(1.0, checkpoint_s=3.0)
    assert learned.does("evaluate", 8.0) is None
    assert learned.pace.bound_s(LIMITS) == LIMITS.at_most_s, "none has ended"
    learned.step(1.0)
    assert learned.does("evaluate", 89.0) is None
    learned.now += 2.0
    found = learned.look()
    assert found is not None
    assert found.bound_s == 90.0, "ten times the longest and a step"


@pytest.mark.parametrize("pause", ["evaluate", "checkpoint"])
def test_the_first_of_several_parts_says_nothing_of_the_next(learned: Rank, pause: Activity) -> None:
    """Two data sets after one step; or a wait for the checkpoint before, and then the next one."""
    for _ in range(2):
        assert learned.does(pause, 2.0) is None
        assert learned.does("other", 0.1) is None
        assert learned.does(pause, 300.0) is None
        assert learned.step(1.0) is None
    assert learned.does(pause, 2.0) is None
    assert learned.does("compute", 11.0) is None, "what comes after is bounded by what they took together"


def test_a_compile_teaches_no_bound_for_the_next(learned: Rank) -> None:
    """The first compiles find everything in a cache; another shape is in none."""
    for _ in range(5):
        assert learned.does("compile", 0.2) is None
        assert learned.step(1.0) is None
    assert learned.does("compile", 300.0) is None
    assert learned.step(1.0) is None


def test_compiles_of_one_step_count_together_once_they_are_over(learned: Rank) -> None:
    for _ in range(6):
        assert learned.does("compile", 20.0) is None
        assert learned.does("compute", 2.0) is None
    assert learned.pace.bound_s(LIMITS) == min(LIMITS.at_most_s, 10.0 * (1.0 + 120.0))
    learned.step(1.0)
    assert learned.pace.bound_s(LIMITS) == 10.0


def test_what_hangs_after_a_compile_is_found_by_what_that_took(learned: Rank) -> None:
    learned.does("compile", 4.0)
    assert learned.does("compute", 45.0) is None
    found = learned.stays(2.0)
    assert found is not None
    assert (found.activity, found.bound_s) == ("compute", 50.0)


def test_a_compile_inside_of_an_evaluation_does_not_end_it(learned: Rank) -> None:
    """An evaluation runs another graph than the training does: it compiles the first time, and then takes its time."""
    learned.does("evaluate", 0.5)
    learned.does("compile", 5.0)
    assert learned.does("evaluate", 300.0) is None
    learned.step(1.0)
    assert learned.pace.measured.pause_s == 300.5


def test_what_a_newer_trainer_does_is_not_known_and_hangs_as_such(learned: Rank, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(LAYOUT.pack(7, len(NAMES)))
    assert read(tmp_path) is None
    progress = Progress(
        run="r", group=0, generation=1, rank=0, pid=1, sequence=9, phase="step", commits=learned.commits, quorum_id=1
    )
    learned.pace.look(learned.now, progress, read(tmp_path), True)
    learned.pace.look(learned.now + 11.0, progress, read(tmp_path), True)
    found = learned.pace.stuck(learned.now + 11.0, learned.pace.bound_s(LIMITS), LIMITS.at_most_s)
    assert found is not None
    assert (found.activity, found.bound_s) == ("", 10.0)


def test_the_places_of_activities_are_what_trainers_of_every_version_write(tmp_path: Path) -> None:
    assert NAMES[:11] == (
        "other", "data", "compute", "collective", "commit", "quorum", "heal", "checkpoint", "evaluate", "compile", "save",
    )  # fmt: skip
    for place, name in enumerate(NAMES):
        (tmp_path / FILE).write_bytes(LAYOUT.pack(3, place))
        assert read(tmp_path) == (3, name)


# --- unfinished checkpoints ---


@pytest.fixture
def saves() -> Rank:
    """A rank under the default policy: every tenth step copies the state for two seconds, and a thread writes it."""
    rank = Rank(HangSpec())
    for step in range(1, 41):
        assert rank.step(1.0, checkpoint_s=2.0 if step % 10 == 0 else 0.0) is None
    return rank


@pytest.mark.parametrize("copies_s", [2.0, 0.0])
def test_to_wait_until_it_is_written_is_not_bounded_by_how_long_a_copy_took(saves: Rank, copies_s: float) -> None:
    """A wait lasts until the last checkpoint is written, or until the one that is being written at the last step is."""
    if copies_s:
        assert saves.does("checkpoint", copies_s) is None
    assert saves.does("save", 45.0) is None
    saves.now += saves.limits.at_most_s
    found = saves.look()
    assert found is not None, "one that never ends is found"
    assert (found.activity, found.bound_s) == ("save", saves.limits.at_most_s)


def test_what_was_waited_for_once_bounds_no_other(saves: Rank) -> None:
    """A checkpoint that was written before the next one began is no measure for one on a slow store."""
    for _ in range(3):
        assert saves.does("save", 0.5) is None
        assert saves.step(1.0) is None
    assert saves.does("save", 600.0) is None


# ---


def test_one_that_cannot_tell_its_progress_and_goes_on_does_not_hang(learned: Rank) -> None:
    """A full disk loses the records of its steps, but not of its activity."""
    learned.untold = True
    for _ in range(200):
        for activity in ("data", "quorum", "compute", "collective", "commit"):
            assert learned.does(activity, 0.4) is None  # type: ignore[arg-type]
    assert learned.does("collective", 11.0) is not None, "who stands still for so long hangs all the same"


def test_once_it_can_tell_it_again_its_steps_count(learned: Rank) -> None:
    learned.untold = True
    for _ in range(100):
        learned.does("compute", 0.5)
        learned.does("quorum", 0.5)
    learned.untold = False
    learned.commits += 99
    assert learned.step(1.0) is None
    for _ in range(int(MOVES_ON * 10) + 1):
        found = learned.does("compute", 0.6) or learned.does("data", 0.4)
    assert found is not None, "whoever goes from one thing to the next and commits nothing"


def test_a_step_with_a_new_quorum_is_not_learned_from(learned: Rank) -> None:
    for quorum in range(2, 70):
        learned.quorum = quorum
        learned.step(8.0)
    assert learned.pace.bound_s(LIMITS) == 10.0


def test_but_it_is_bounded_like_any_other(learned: Rank) -> None:
    learned.quorum += 1
    learned.step(1.0)
    assert learned.pace.bound_s(LIMITS) == 10.0
    learned.quorum += 1
    assert learned.does("compute", 11.0) is not None


def test_waiting_for_a_gate_that_is_away_is_no_hang(learned: Rank) -> None:
    learned.reaches = False
    for _ in range(100):
        assert learned.does("quorum", 9.0) is None
    learned.reaches = True
    assert learned.does("quorum", 9.0) is None
    assert learned.does("quorum", 2.0) is not None


@pytest.mark.parametrize("phase", ["draining", "finished", "failed"])
def test_a_rank_that_ends_does_not_hang(learned: Rank, phase: str) -> None:
    learned.now += 100.0
    assert learned.look(phase) is None


def test_one_that_does_not_say_what_it_does_is_bounded_too(learned: Rank) -> None:
    progress = Progress(
        run="r", group=0, generation=1, rank=0, pid=1, sequence=9, phase="step", commits=learned.commits, quorum_id=1
    )
    learned.pace.look(learned.now, progress, None, True)
    learned.now += 11.0
    learned.pace.look(learned.now, progress, None, True)
    found = learned.pace.stuck(learned.now, learned.pace.bound_s(LIMITS), LIMITS.at_most_s)
    assert found is not None
    assert found.activity == ""


def test_what_it_takes_itself_is_told_and_what_it_took_at_first() -> None:
    rank = Rank()
    for _ in range(WARM_UP_COMMITS + LEARNED_AT_LEAST - 1):
        rank.step(1.0, own=Own(0.4, 0.1))
    assert rank.pace.own == Own(), "not enough was seen"
    for _ in range(KEPT):
        rank.step(1.0, own=Own(0.4, 0.1))
    for _ in range(2 * KEPT):
        rank.step(2.0, own=Own(0.8, 0.3))
    assert (rank.pace.own, rank.pace.past) == (Own(0.8, 0.3), Own(0.4, 0.1))


@pytest.mark.parametrize("pause", ["checkpoint", "evaluate", "compile", "save"])
def test_a_step_with_something_else_in_it_says_nothing_of_what_a_step_takes_itself(pause: Activity) -> None:
    """The first step after an evaluation reads its data again; one that compiles computes nothing meanwhile."""
    rank = Rank()
    for _ in range(WARM_UP_COMMITS + KEPT + 1):
        rank.step(1.0, own=Own(0.4, 0.1))
    for _ in range(KEPT):
        rank.does(pause, 0.2)
        rank.step(5.0, own=Own(2.0, 3.0))
    assert (rank.pace.own, rank.pace.past) == (Own(0.4, 0.1), Own(0.4, 0.1))


# --- durations that timeouts must allow ---


def test_nothing_is_measured_before_it_was_learned() -> None:
    rank = Rank()
    for _ in range(WARM_UP_COMMITS + LEARNED_AT_LEAST - 1):
        rank.step(1.0)
    assert (rank.pace.measured.step_s, rank.pace.measured.longest_step_s) == (0.0, 0.0)
    rank.step(3.0)
    assert (rank.pace.measured.step_s, rank.pace.measured.longest_step_s) == (1.0, 3.0)


def test_a_collective_counts_once_its_step_is_committed(learned: Rank) -> None:
    assert learned.pace.measured.collective_s == 0.0
    learned.does("collective", 0.5)
    learned.does("collective", 4.0)
    learned.does("compute", 0.1)
    assert learned.pace.measured.collective_s == 0.0, "it may still be given up"
    learned.step(1.0)
    assert learned.pace.measured.collective_s == 4.0


def test_a_collective_that_failed_or_that_had_a_new_quorum_says_nothing_of_healthy_ones(learned: Rank) -> None:
    learned.does("collective", 9.0)
    learned.failed += 1
    learned.step(1.0)
    learned.does("collective", 8.0)
    learned.quorum += 1
    learned.step(1.0)
    assert learned.pace.measured.collective_s == 0.0
    learned.does("collective", 2.0)
    learned.step(1.0)
    assert learned.pace.measured.collective_s == 2.0


def test_a_start_is_measured_to_the_first_commit_and_only_by_who_saw_it() -> None:
    rank = Rank()
    rank.now += 40.0
    rank.step(2.0)
    rank.step(5.0)
    assert rank.pace.measured.start_s == 42.0
    rank.pace, rank.commits = Pace(), 0
    rank.reaches = False
    rank.look()
    rank.now += 1000.0
    rank.look()
    rank.reaches = True
    rank.step(3.0)
    assert rank.pace.measured.start_s == 3.0, "to wait for a lighthouse that is away is no part of it"
    rank.pace = Pace()  # another agent takes over
    rank.look()
    rank.step(5.0)
    assert rank.pace.measured.start_s == 0.0


def test_the_longest_checkpoint_is_measured(learned: Rank) -> None:
    learned.step(1.0, checkpoint_s=7.0)
    learned.step(1.0, checkpoint_s=3.0)
    assert learned.pace.measured.apart_s == 7.0


# --- a wait that is over ---


@pytest.mark.parametrize("waits", ["quorum", "collective", "commit", "heal"])
def test_one_that_has_waited_for_others_and_goes_on_does_not_hang(learned: Rank, waits: Activity) -> None:
    """Its peer came: at that instant the rank computes, for no time at all, and causes no hang."""
    learned.does("compute", 0.2)
    learned.does(waits, LIMITS.at_most_s + 1.0)
    assert learned.look() is not None, "it waits for longer than a step may take, and says so"
    learned.does("compute", 0.1)
    assert learned.look() is None


def test_one_that_goes_on_by_itself_is_not_told_where_it_has_not_stayed(learned: Rank) -> None:
    learned.does("data", 20.0)
    assert learned.does("collective", 0.5 * STANDS_S) is None
    learned.now += STANDS_S
    found = learned.look()
    assert found is not None
    assert found.activity == "collective"


@pytest.mark.parametrize("again", ["compute", "data"])
def test_one_whose_first_try_of_a_step_failed_is_not_told_while_it_is_at_the_second(
    learned: Rank, again: Activity
) -> None:
    """A peer stood still for a moment: the commit failed, and the second attempt at the step is a slow one."""
    bound = 10.0
    learned.does("compute", 0.6 * bound)
    learned.does("commit", 0.4)
    learned.failed += 1
    assert learned.does("compute", 0.45 * bound) is None
    assert learned.does(again, STANDS_S + 0.2) is None, "it has begun with this only now"
    found = learned.stays(10.0 * bound)
    assert found is not None
    assert found.activity == again, "who stays there hangs"


@pytest.mark.parametrize("before", [0.0, 0.3, 0.9])
def test_a_hang_is_told_within_its_bound_whatever_went_before(learned: Rank, before: float) -> None:
    bound = 10.0
    learned.does("compute", before * bound)
    learned.does("data")
    assert learned.stays(bound + 0.1) is not None


def test_what_it_takes_itself_after_a_wait_counts(learned: Rank) -> None:
    bound = learned.pace.bound_s(LIMITS)
    learned.does("compute", 0.6 * bound)
    learned.does("collective", 20.0 * bound)
    learned.does("compute", 0.6 * bound)
    found = learned.look()
    assert found is not None
    assert found.activity == "compute"


def test_one_that_goes_from_wait_to_wait_and_commits_nothing_hangs_by_what_it_does_between(learned: Rank) -> None:
    bound = learned.pace.bound_s(LIMITS)
    for _ in range(int(MOVES_ON / 0.05) + 1):
        assert learned.look() is None
        learned.does("quorum", 0.3 * bound)
        learned.does("compute", 0.05 * bound)
    assert learned.look() is not None


def test_a_run_that_has_become_slower_is_bounded_by_its_newest_steps(learned: Rank) -> None:
    """Other work on its machine: a step five times as long as these is fifteen times as long as those before."""
    for _ in range(60):
        learned.step(1.0)
    assert learned.pace.bound_s(LIMITS) == pytest.approx(10.0)
    for _ in range(NEWEST):
        assert learned.step(3.0) is None
    assert learned.does("compute", 15.0) is None
    learned.step(3.0)
    for _ in range(NEWEST):
        learned.step(1.0)
    assert learned.pace.bound_s(LIMITS) == pytest.approx(10.0), "and by all of them once it is as quick as before"


def in_vain(rank: Rank, seconds: float, waits_s: float = 2.0, own_s: float = 3.5) -> StuckView | None:
    """Repeats a step whose commit fails, as when a collective exceeds its timeout. Returns the first report of a
    hang."""
    until = rank.now + seconds
    while rank.now < until:
        found = rank.does("compute", own_s - 0.5) or rank.does("data", 0.5) or rank.does("collective", waits_s)
        rank.failed += 1
        if found is not None:
            return found
    return None


def test_one_that_comes_to_a_commit_again_and_again_has_the_longest_time_of_the_policy(learned: Rank) -> None:
    """Such a group was killed after a minute, on two cores with six times too much work. It commits once they have
    less."""
    assert in_vain(learned, LIMITS.at_most_s - 10.0) is None, "nor is it told, each time, for whom it waits"
    found = in_vain(learned, 20.0)
    assert found is not None, "waits for others do not lengthen it"


def test_one_whose_attempts_are_starved_has_it_too(learned: Rank) -> None:
    """An attempt takes 100 s, of which 75 are others'."""
    for _ in range(5):
        learned.starved_s = 0.75
        for _ in range(50):
            assert learned.does("compute", 1.0) is None
            assert learned.does("data", 1.0) is None
        learned.failed += 1


def test_who_tried_in_vain_and_waited_long_for_another_then_does_not_hang_as_it_goes_on(learned: Rank) -> None:
    assert in_vain(learned, 400.0) is None
    learned.does("quorum", 100.0)
    assert learned.does("compute", 0.2) is None


def test_one_that_came_to_a_commit_in_vain_and_hangs_then_is_found_within_the_bound(learned: Rank) -> None:
    bound = learned.pace.bound_s(LIMITS)
    assert in_vain(learned, 3 * bound) is None
    assert learned.does("compute", 0.9 * bound) is None
    assert learned.stays(0.2 * bound) is not None
    learned.step(1.0)
    assert in_vain(learned, 3 * bound) is None
    assert learned.does("collective", 0.9 * bound) is None
    assert learned.stays(0.2 * bound) is not None, "who waits is told too, once that wait has lasted"
    learned.step(1.0)
    in_vain(learned, 0.8 * bound)
    for _ in range(int(2 * MOVES_ON * bound)):
        found = learned.does("compute", 0.6) or learned.does("data", 0.4)
    assert found is not None, "no attempt came to its end for so long"


def test_one_commit_that_fails_changes_nothing(learned: Rank) -> None:
    """A commit fails wherever a peer is lost."""
    bound = learned.pace.bound_s(LIMITS)
    assert learned.does("compute", 0.5 * bound) is None
    learned.failed += 1
    assert learned.does("data", 0.45 * bound) is None
    assert learned.stays(0.1 * bound) is not None


def test_the_time_in_which_others_had_its_processor_is_none_of_its_own(learned: Rank) -> None:
    assert learned.does("compute") is None
    learned.starved_s = 0.8
    for _ in range(45):
        assert learned.stays(1.0) is None, "a fifth of the time is its own: nine seconds of forty-five"
    learned.starved_s = 0.0
    assert learned.stays(2.0) is not None


def test_what_it_begins_in_the_middle_of_a_starved_time_begins_then(learned: Rank) -> None:
    learned.does("compute", 1.0)
    learned.does("data")
    learned.starved_s = 5.0
    assert learned.does("compute") is None
    learned.starved_s = 0.0
    found = learned.stays(11.0)
    assert found is not None
    assert found.activity_s == 11.0


def unseen(rank: Rank, seconds: float) -> None:
    rank.pace.unseen()
    rank.now += seconds


def test_what_is_not_seen_counts_for_nothing_and_takes_nothing_back(learned: Rank) -> None:
    assert learned.does("compute", 6.0) is None
    unseen(learned, 600.0)
    assert learned.look() is None
    learned.now += 3.0
    assert learned.look() is None
    learned.now += 1.0
    assert learned.look() is not None, "ten seconds were seen"


def test_a_disk_that_does_not_answer_now_and_then_hides_no_hang(learned: Rank) -> None:
    learned.does("compute")
    for _ in range(3):
        learned.now += 3.0
        assert learned.look() is None
        unseen(learned, 1.5)
        learned.look()
    learned.now += 3.0
    assert learned.look() is not None


def test_nor_does_one_that_is_late_at_each_look(learned: Rank) -> None:
    learned.does("compute")
    looks = 0
    while learned.look() is None:
        looks += 1
        assert looks < 30, "it is never found"
        unseen(learned, 1.5)


@pytest.mark.parametrize("ends_unseen", [False, True])
def test_a_checkpoint_that_was_not_seen_whole_bounds_no_other(learned: Rank, ends_unseen: bool) -> None:
    """A checkpoint keeps the disk busy itself, so a late look in the middle of it is nothing out of the ordinary."""
    learned.does("checkpoint", 100.0)
    unseen(learned, 100.0)
    if not ends_unseen:
        learned.look()
        learned.now += 1.0
    learned.step(1.0)
    learned.step(1.0)
    assert learned.pace.measured.apart_s == 0.0
    assert learned.does("checkpoint", 200.0) is None


def test_one_that_hangs_when_an_agent_takes_over_is_found_by_the_step_that_it_told_last(learned: Rank) -> None:
    learned.does("data", 3.0)
    learned.pace = Pace()
    learned.look()
    assert learned.stays(19.0) is None, "what it was at before is not known, nor how its steps differ"
    found = learned.stays(1.5)
    assert found is not None
    assert (found.activity, found.bound_s) == ("data", 20.0)


@pytest.mark.parametrize("steps", [0, WARM_UP_COMMITS])
def test_the_first_steps_tell_an_agent_that_takes_over_nothing(steps: int) -> None:
    rank = Rank()
    for _ in range(steps):
        rank.step(0.1)
    rank.pace = Pace()
    rank.look()
    assert rank.does("compute", 0.9 * LIMITS.at_most_s) is None


def test_one_that_an_agent_takes_over_in_the_middle_of_a_checkpoint_teaches_nothing_of_it(learned: Rank) -> None:
    learned.does("checkpoint", 100.0)
    learned.pace = Pace()
    learned.look()
    learned.now += 1.0
    for _ in range(WARM_UP_COMMITS + LEARNED_AT_LEAST + 10):
        learned.step(1.0)
    assert learned.does("checkpoint", 101.0) is None
