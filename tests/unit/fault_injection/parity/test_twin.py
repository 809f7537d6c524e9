"""Loss parity, on a model of one number: the records are trained again, and planted errors are found."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.chaos import certificate
from fault_injection.checkers.history_file import load, save
from fault_injection.parity import replay, twin
from fault_injection.testbed.waiting import eventually
from supervisor.shell.history.files import FaultDone, History
from tests.unit.fault_injection.broken import KILL, SETTING
from tests.unit.fault_injection.toy_model import ToyRun, again
from titan_actor.twin import PLAN, NoTwin, Plan, Step


def parity(run: ToyRun | History) -> dict[str, Any]:
    return twin.parity(run.history() if isinstance(run, ToyRun) else run, lambda _: None, again)


def passes(run: ToyRun, steps: int) -> None:
    body = parity(run)
    assert (body["answer"], body["steps"]) == ("pass", steps), body["why"]
    assert body["greatest"]["difference"] < 1e-12


def long(run: ToyRun) -> ToyRun:
    """Group 1 is killed, group 0 goes on, group 1 comes back and heals."""
    run.steps(5)
    run.quorum += 1
    run.step(0)
    run.start(1)
    run.quorum += 1
    run.step(0, heal=(1,))
    run.steps(5)
    return run


# --- right runs ---


def test_a_run_without_failures() -> None:
    run = ToyRun()
    run.steps(5)
    passes(run, 5)


def test_who_is_away_and_who_only_heals_has_no_part() -> None:
    run = long(ToyRun())
    passes(run, 12)
    parts = [sorted(one.parts) for one in replay.of_history(run.history()).steps]
    assert parts == [[0, 1]] * 5 + [[0]] * 2 + [[0, 1]] * 5


def test_one_that_was_killed_after_its_part_had_been_added() -> None:
    run = ToyRun()
    run.steps(3)
    run.step(silent=(1,))
    run.step(0)
    passes(run, 5)


def test_the_certificate_counts_what_the_twin_trains() -> None:
    """The counts include samples of a group that was killed after its part had been added."""
    run = ToyRun()
    run.steps(3)
    run.step(silent=(1,))
    run.step(0)
    counts = certificate.samples(run.history())
    assert (counts["once"], counts["never"], counts["never_at"]) == (2 * 4 * 2 + 2, 0, [])
    assert certificate.participation(run.history()) == {"1": 1, "2": 4}


def test_of_steps_that_were_made_again_the_newest_count() -> None:
    run = ToyRun()
    run.steps(4)
    run.step(0)
    for group in (0, 1):
        run.start(group, resumed=4)
    run.quorum += 100
    run.steps(2)
    assert certificate.participation(run.history()) == {"2": 6}
    run.start(0, resumed=3)
    run.quorum += 100
    run.step(0)
    assert certificate.participation(run.history()) == {"1": 1, "2": 3}


def test_one_that_did_not_commit_what_the_others_did() -> None:
    run = ToyRun()
    run.steps(3)
    run.step(failed=(1,))
    run.step(0, heal=(1,))
    run.steps(2)
    passes(run, 7)


def test_what_nobody_committed_is_not_trained() -> None:
    run = ToyRun()
    run.steps(3)
    run.fails()
    run.steps(2)
    passes(run, 5)


def test_a_batch_that_was_read_and_never_used() -> None:
    run = ToyRun()
    run.steps(3)
    run.reads(1)  # and then it is killed
    run.quorum += 1
    run.step(0)
    run.fails()
    run.reads(0)  # the quorum that the failure made did not come
    passes(run, 4)


def test_a_resume_from_disk_goes_back() -> None:
    run = ToyRun()
    run.steps(6)
    for group in (0, 1):
        run.start(group, resumed=4)
    run.quorum += 100
    run.steps(4)
    passes(run, 10)
    body = parity(run)
    assert [step for step, _ in body["curve"]] == list(range(1, 9)), "of a step that was made again the newest counts"
    history = run.history()
    assert [step for _, step in sorted(replay.of_history(history).kept())] == list(range(1, 9))
    counts = certificate.samples(history)
    assert (counts["once"], counts["never"]) == (8 * 4, 2 * 4), "steps 5 and 6 were thrown away"
    assert counts["never_at"] == [5, 6]


def test_one_that_starts_anew_before_there_is_a_checkpoint() -> None:
    run = ToyRun()
    run.steps(3)
    run.state, run.number = 8.0, 0
    for group in (0, 1):
        run.start(group)
    run.quorum += 100
    run.steps(4)
    passes(run, 7)


def test_the_file_says_as_much(tmp_path: Path) -> None:
    run = long(ToyRun())
    save(run.history(), tmp_path / "history.jsonl")
    assert parity(load(tmp_path / "history.jsonl")) == parity(run)


def test_two_ranks_are_one_group() -> None:
    run = ToyRun()
    run.steps(2)
    history = run.history()
    assert history.setting is not None
    history.setting = replace(history.setting, ranks=2)
    assert "of group 0 there are the records of 1 ranks of 2" in parity(history)["why"]
    history.steps += [replace(steps, rank=1) for steps in history.steps]
    plan, why = twin.planned(history, replay.of_history(history))
    assert (plan and plan.ranks, why) == (2, "")
    assert plan is not None
    assert [len(ranks) for ranks in plan.steps[0].parts.values()] == [2, 2]


# --- planted errors ---


def batches(run: ToyRun, group: int) -> list[dict[str, Any]]:
    return [line for line in run.of(group) if line["event"] == "batch"]


def test_swapped_samples_are_found_at_their_step() -> None:
    run = ToyRun()
    run.steps(8)
    third, sixth = batches(run, 1)[2], batches(run, 1)[5]
    third["samples"], sixth["samples"] = sixth["samples"], third["samples"]
    body = parity(run)
    assert body["answer"] == "fail"
    assert body["why"].startswith("step 3 has a loss of ")


def test_a_wrong_average_is_found_at_its_step_by_the_gradient_and_at_the_next_by_the_loss() -> None:
    run = ToyRun()
    run.steps(3)
    run.step(divided_by=1)
    run.steps(3)
    body = parity(run)
    assert body["answer"] == "fail"
    assert body["why"].startswith("step 4 has a gradient's norm of ")
    assert body["norms"]["difference"] >= 1.0, "twice of what it should be"
    history = run.history()
    for steps in history.steps:
        for line in steps.lines:
            line.pop("gradient_norm", None)  # a recipe need not log it at every step
    body = parity(history)
    assert (body["answer"], body["norms"]) == ("fail", None)
    assert body["why"].startswith("step 5 has a loss of ")


def test_a_healing_group_that_was_added_all_the_same_is_found() -> None:
    run = ToyRun()
    run.steps(3)
    run.step(0)
    run.start(1)
    run.step(0, heal=(1,), wrongly_counted=(1,))
    run.steps(2)
    body = parity(run)
    assert body["answer"] == "fail"
    assert body["why"].startswith("step 5 has a gradient's norm of ")


def test_groups_that_tell_different_losses_are_found() -> None:
    run = ToyRun()
    run.steps(3)
    next(line for line in reversed(run.of(1)) if line["event"] == "step")["loss"] += 0.01
    assert parity(run)["why"].startswith("step 3 has a loss of ")


def test_a_loss_that_is_no_number_is_a_fail() -> None:
    run = ToyRun()
    run.steps(3)
    body = twin.judged(replay.of_history(run.history()), twin.Retrained((1.0, math.nan, 1.0), (), ()))
    assert body["answer"] == "fail"
    assert body["greatest"]["step"] == 2


def test_which_states_were_the_same_is_told() -> None:
    run = ToyRun()
    for value in ("a", "b", "c"):
        run.step()
        run.of(0).append({"event": "digest", "step": run.number, "value": value})
    of_twin = twin.Retrained((0.0,) * 3, (0.0,) * 3, ({-1: "a"}, {-1: "x"}, {-1: "c"}))
    assert twin.judged(replay.of_history(run.history()), of_twin)["states"] == {"equal": 2, "of": 3, "first_other": 2}
    run.of(1).append({"event": "digest", "step": run.number, "value": "y"})
    both = replace(of_twin, states=({-1: "a"}, {-1: "b"}, {-1: "c", 1: "y"}))  # group 1 has a state of its own
    assert twin.judged(replay.of_history(run.history()), both)["states"]["equal"] == 3
    for wrong in ({-1: "c"}, {-1: "c", 0: "y"}, {-1: "y", 1: "c"}):
        none = replace(both, states=(*both.states[:2], wrong))
        assert twin.judged(replay.of_history(run.history()), none)["states"]["first_other"] == 3


def test_a_loss_that_is_no_number_beside_one_that_is_right_is_a_fail() -> None:
    """A set may give them in any order."""
    for number in (math.nan, math.inf):
        for told in ({3.0, number}, {number, 3.0}):
            assert not twin._pair(1, told, 3.0).apart <= twin.TOLERANCE


# --- states ---


def hashed(run: ToyRun, count: int) -> None:
    for _ in range(count):
        run.step()
        run.hash()


def digests(run: ToyRun, group: int) -> list[dict[str, Any]]:
    return [line for line in run.of(group) if line["event"] == "digest"]


def test_states_that_are_the_twins() -> None:
    run = ToyRun()
    hashed(run, 2)
    run.flip(1)
    hashed(run, 2)
    passes(run, 4)
    assert parity(run)["states"] == {"equal": 4, "of": 4, "first_other": None}


def test_a_state_that_is_not_the_twins_is_a_fail() -> None:
    """All losses are the twin's."""
    run = ToyRun()
    hashed(run, 5)
    for line in digests(run, 1)[2:]:
        line["value"] = "another"
    body = parity(run)
    assert (body["answer"], body["states"]) == ("fail", {"equal": 2, "of": 5, "first_other": 3})
    assert body["why"] == (
        "after step 3 the state of group 1 is not that of a fault-free twin, and that after step 2 was its own to the last bit"
    )
    for line in digests(run, 1):
        line["value"] = "another"
    assert parity(run)["why"] == (
        "after step 1 the state of group 1 is not that of a fault-free twin, and all numbers until then are its own to the last bit"
    )


def a_little_off(run: ToyRun, step: int) -> None:
    """Moves losses from this step on, but within the tolerance."""
    for group in (0, 1):
        for line in run.of(group):
            if line["event"] == "step" and line["step"] >= step:
                line["loss"] += 1e-6


def test_a_state_that_is_not_the_twins_is_a_fail_also_where_the_losses_are_within_the_tolerance() -> None:
    """An earlier loss shows that the twin is the run's to the last bit."""
    run = ToyRun()
    hashed(run, 5)
    a_little_off(run, 3)
    for line in digests(run, 0)[2:]:
        line["value"] = "another"
    assert parity(run)["why"].startswith("after step 3 the state of group 0 is not that of a fault-free twin")


def test_where_the_first_losses_are_within_the_tolerance_so_may_the_states_be() -> None:
    """The twin computes otherwise than the run did."""
    run = ToyRun()
    hashed(run, 5)
    a_little_off(run, 1)
    for group in (0, 1):
        for line in digests(run, group):
            line["value"] = "another"
    body = parity(run)
    assert (body["answer"], body["states"]["equal"]) == ("pass", 0)
    assert body["why"].endswith("; after 5 of 5 hashed steps the state is another, as it may be here")


def test_a_sum_over_three_groups_has_no_one_order() -> None:
    run = ToyRun()
    run.generation[2] = 0
    run.start(2)
    hashed(run, 1)
    run.step(0, 1, heal=(2,))
    run.hash()
    run.step(0, 1, 2)
    run.hash()
    hashed(run, 1)
    for line in digests(run, 0)[2:] + digests(run, 1)[2:]:
        line["value"] = "another"
    body = parity(run)
    assert (body["answer"], body["states"]) == ("pass", {"equal": 2, "of": 4, "first_other": 3}), body["why"]
    digests(run, 0)[1]["value"] = "another"
    assert parity(run)["why"].startswith("after step 2 the state of group 0 is not that of a fault-free twin")


def test_that_no_state_was_compared_is_said() -> None:
    run = ToyRun()
    run.steps(2)
    assert parity(run)["why"].endswith("; no state was compared: none was hashed")
    run.hash()
    history = run.history()
    assert history.setting is not None
    history.setting = replace(history.setting, ranks=2)
    history.steps += [replace(steps, rank=1) for steps in history.steps]
    told = replay.of_history(history)
    of_two = twin.Retrained(*(tuple(next(iter(of)) for of in each) for each in numbers(told)), ({}, {}))
    body = twin.judged(told, of_two)
    assert (body["answer"], body["states"]) == ("pass", None)
    assert body["why"].endswith("; no state was compared: each rank hashes its own part")


def numbers(told: replay.Replay) -> tuple[list[set[float]], list[set[float]]]:
    return [one.losses for one in told.steps], [one.norms for one in told.steps]


def test_a_twin_that_does_not_say_its_state_is_unknown() -> None:
    run = ToyRun()
    hashed(run, 3)
    body = twin.parity(run.history(), lambda _: None, lambda *about: replace(again(*about), states=({},) * 3))
    assert (body["answer"], body["no_twin"]) == ("unknown", "")
    assert body["why"] == "step 1: the twin does not say its state after it"


# --- flipped bits ---


def copies(run: ToyRun) -> list[tuple[list[int], int | None]]:
    """For each step, the groups with a copy of their own, and the one whose copy all take."""
    told = replay.of_history(run.history())
    assert told.why == ""
    return [(sorted(one.flips), one.taken) for one in told.steps]


def unknown_from(run: ToyRun | History, step: int, why: str) -> None:
    body = parity(run)
    assert (body["answer"], body["steps"]) == ("unknown", step - 1), body["why"]
    assert f"step {step}: {why}" in body["why"]
    assert body["no_twin"] == "", "not green"


def test_a_flip_is_in_its_groups_copy_until_that_starts_again() -> None:
    run = ToyRun()
    run.steps(2)
    run.flip(1)
    run.steps(2)
    run.fails()  # an uncommitted step has the same copies
    run.step()
    run.quorum += 1
    run.step(0)
    run.start(1)
    run.quorum += 1
    run.step(0, heal=(1,))
    run.step()
    assert copies(run) == [([], None)] * 2 + [([1], None)] * 3 + [([], None)] * 3
    passes(run, 8)
    assert "of the faults it makes 1, the flipped bit of step 3" in parity(run)["why"]
    history = run.history()
    history.steps = [
        replace(s, lines=tuple(line for line in s.lines if line["event"] != "flipped")) for s in history.steps
    ]
    assert parity(history)["answer"] == "fail"


def test_a_flip_in_the_only_group_that_goes_on_is_everybodys() -> None:
    run = ToyRun()
    run.steps(2)
    run.flip(0)
    run.step()
    run.quorum += 1
    run.step(0)
    run.start(1)
    run.quorum += 1
    run.step(0, heal=(1,))
    run.steps(2)
    assert copies(run) == [([], None)] * 2 + [([0], None), ([0], 0)] + [([], None)] * 3
    run.flip(1)
    run.step()
    run.flip(1)
    run.step()
    assert copies(run)[-2:] == [([1], None)] * 2
    passes(run, 9)


def test_a_group_that_heals_in_the_step_of_its_flip_has_it_no_more() -> None:
    run = ToyRun()
    run.step()
    run.flip(1)
    run.step(0, heal=(1,))
    run.step()
    assert copies(run) == [([], None)] * 3
    passes(run, 3)


def test_where_both_have_flips_it_is_unknown() -> None:
    run = ToyRun()
    run.step()
    run.flip(0)
    run.flip(1)
    run.steps(2)
    unknown_from(run, 2, "each group that goes on has flipped bits of its own")


def test_where_a_checkpoint_is_of_either_it_is_unknown_and_the_samples_are_counted_all_the_same() -> None:
    counted = []
    for flips in (False, True):
        run = ToyRun()
        run.step()
        if flips:
            run.flip(1)
        run.steps(3)
        run.quorum += 1
        for group in (0, 1):
            run.start(group, resumed=2)
        run.steps(2)
        counted.append(certificate.build(run.history(), [])["samples"])
    assert counted[0] == counted[1]
    assert counted[0]["never"] == 8, "of two steps of two groups, which were thrown away"
    told = replay.of_history(run.history())
    assert (told.why, len(told.steps)) == ("", 6)
    body = parity(run)
    assert (body["answer"], body["steps"]) == ("unknown", 4)
    assert "step 3: it goes on from a checkpoint of a step after which a bit was flipped in one group" in body["why"]


def test_where_a_third_heals_from_a_group_with_a_flip_or_from_another_it_is_unknown() -> None:
    for before, why in ((1, "a group healed, from one in which a bit was flipped or from another"),
                        (0, "a bit was flipped in the step in which another group healed")):  # fmt: skip
        run = ToyRun()
        run.step()
        run.generation[2] = 0
        run.start(2)
        run.flip(1)
        run.steps(before)
        run.step(0, 1, heal=(2,))
        unknown_from(run, 2 + before, why)


def test_who_goes_on_with_what_it_healed_in_a_step_that_failed_is_unknown() -> None:
    """The peer that it healed from is gone."""
    run = ToyRun()
    run.steps(2)
    run.flip(0)
    run.step()
    run.start(1)
    run.quorum += 1
    run.of(1).append({"event": "heal", "step": 3})
    run.reads(1)
    run.of(1).append({"event": "step", "t": run.t, "step": 3, "committed": False, "participants": 2,
                      "quorum_id": run.quorum, "participating_rank": 1, "loss": None})  # fmt: skip
    run.quorum += 1
    run.step(1)
    unknown_from(run, 4, "a group goes on that healed, from one in which a bit was flipped or from another")


def test_a_flip_after_the_heal_in_its_step_is_unknown() -> None:
    run = ToyRun()
    run.steps(2)
    run.start(1)
    run.of(1).append({"event": "heal", "step": 2})
    run.flip(1)
    run.step()
    unknown_from(run, 3, "a bit was flipped in the step in which its group healed")


def test_who_goes_back_behind_a_step_with_a_copy_of_its_own_is_unknown() -> None:
    """It stood still while another group made the step and left; then it makes that step itself."""
    run = ToyRun()
    run.steps(2)
    run.flip(1)
    run.step()
    run.quorum += 1
    run.step(0)
    run.number -= 1
    run.quorum += 1
    run.step(1)
    unknown_from_second = parity(run)
    assert unknown_from_second["answer"] == "unknown"
    assert "it goes back to a step after which a bit was flipped in one group" in unknown_from_second["why"]


def test_a_flip_of_which_nothing_was_written_down_is_unknown() -> None:
    """An older version writes down none, for example."""
    run = ToyRun()
    run.steps(5)
    history = run.history()
    history.faults = [replace(KILL, name="bit_flip", group=1, generation=1, drifts=True, made=3.5)]
    unknown_from(history, 3, "which bit bit_flip flipped in group 1 was not written down")


# --- missing records ---


def cut(run: ToyRun, group: int, event: str, number: int) -> None:
    lines = run.of(group)
    lines.remove([line for line in lines if line["event"] == event][number])


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ("step", "step 4: 2 groups took part, and there are the records of 1"),
        ("batch", "step 4: group 1 does not say which samples it read"),
    ],
)
def test_a_missing_record_is_unknown_from_its_step_on(event: str, why: str) -> None:
    run = ToyRun()
    run.steps(6)
    cut(run, 1, event, 3)
    body = parity(run)
    assert body["answer"] == "unknown"
    assert body["why"].startswith(f"{why}; before it 3 steps have the loss of a fault-free twin")


def holed(run: ToyRun) -> History:
    """A history in which two took part in a step of which one has a record."""
    cut(run, 1, "step", 3)
    history = run.history()
    history.setting = replace(SETTING, ranks=1, to_its_end=True)
    return history


def green(history: History) -> bool:
    return bool(certificate.build(history, [], parity(history))["green"])


def test_a_run_whose_records_have_holes_is_not_green() -> None:
    """The run has ended, and its ranks record what they train."""
    history = holed(long(ToyRun()))
    assert parity(history)["answer"] == "unknown"
    assert not green(history)


def test_what_cannot_have_a_twin_may_be_green() -> None:
    full = holed(long(ToyRun()))
    full.faults = [no_room()]
    device = long(ToyRun(device="cuda")).history()
    for history, kind in ((full, NoTwin.DISK_FULL), (device, NoTwin.DEVICE)):
        body = parity(history)
        assert (body["answer"], body["no_twin"], green(history)) == ("unknown", kind, True)


def no_room(**how: Any) -> FaultDone:
    """A full disk, all the time, of the group whose step record `holed` lacks."""
    return replace(KILL, **{"name": "disk_full", "group": 1, "began": 0.0, "made": 0.0, "over": None, **how})


@pytest.mark.parametrize("how", [{"group": 0}, {"made": None}, {"began": 5000.0}, {"over": 0.5}])
def test_a_full_disk_excuses_its_own_groups_records_while_it_is_full(how: dict[str, Any]) -> None:
    history = holed(long(ToyRun()))
    history.faults = [no_room(**how)]
    body = parity(history)
    assert (body["answer"], body["no_twin"], green(history)) == ("unknown", "", False)


def test_no_other_reason_for_which_there_is_no_twin_is_green() -> None:
    nobody = holed(long(ToyRun()))
    nobody.steps = [replace(s, lines=tuple(x for x in s.lines if x["event"] != "constructed")) for s in nobody.steps]
    live = holed(long(ToyRun()))
    live.setting = replace(SETTING, to_its_end=False)
    for history in (nobody, live):
        body = parity(history)
        assert (body["answer"], body["no_twin"], green(history)) == ("unknown", "", False)


@pytest.mark.parametrize(
    ("again_", "ended", "is_green"),
    [
        (twin.Retrained((), (), (), "the twin failed: ModuleNotFoundError: torch"), True, False),
        (twin.Retrained((), (), (), "the twin took longer than 2 s"), True, False),
        (twin.Retrained((), (), ()), True, False),
        (twin.Retrained((), (), (), "tensor_parallel_degree is above 1", NoTwin.PARALLELISM), True, True),
        (twin.Retrained((), (), (), "sample a is not in the data", NoTwin.ELSEWHERE), True, False),
        (twin.Retrained((), (), (), "sample a is not in the data", NoTwin.ELSEWHERE), False, True),
    ],
)
def test_a_twin_that_does_not_come_is_green_only_where_there_cannot_be_one(
    again_: twin.Retrained, ended: bool, is_green: bool
) -> None:
    history = long(ToyRun()).history()
    history.setting = replace(SETTING, to_its_end=ended)
    body = twin.parity(history, lambda _: None, lambda *_: again_)
    assert body["answer"] == "unknown"
    assert certificate.build(history, [], body)["green"] is is_green


def test_a_twin_that_ends_early_and_says_nothing_is_unknown() -> None:
    history = long(ToyRun()).history()
    body = twin.parity(history, lambda _: None, lambda *about: cut_short(again(*about), 3))
    assert (body["answer"], body["steps"], body["no_twin"]) == ("unknown", 3, "")
    assert body["why"].startswith("the twin came to 3 steps of 12; before it ")


def cut_short(whole: twin.Retrained, count: int) -> twin.Retrained:
    return twin.Retrained(whole.losses[:count], whole.norms[:count], whole.states[:count])


def test_what_a_live_run_did_while_it_was_read_is_not_missing() -> None:
    """Its groups had not all written down the last step."""
    run = long(ToyRun())
    cut(run, 1, "step", -1)
    cut(run, 1, "batch", -1)
    history = run.history()
    history.setting = replace(SETTING, to_its_end=False, ended=run.t)
    body = parity(history)
    assert (body["answer"], body["steps"], green(history)) == ("pass", 11, True), body["why"]
    assert (body["tolerance"], body["norm_tolerance"]) == (1e-4, 1e-3)
    assert "(0.0001 is allowed, and 0.001 of its gradient's norm)" in body["why"]
    history.setting = replace(SETTING, to_its_end=True, ended=run.t)
    assert not green(history), "of a run that had ended it is"


def of_step(history: History, number: int, **change: Any) -> None:
    """Changes all records of one step."""
    for steps in history.steps:
        for line in steps.lines:
            if (line["event"], line.get("step")) == ("step", number):
                line.update(change)


@pytest.mark.parametrize(
    ("what", "why"), [("loss", "no record tells its loss"), ("gradient_norm", "no record tells its gradient's norm")]
)
def test_a_step_that_does_not_tell_its_number_is_unknown_from_there_on(what: str, why: str) -> None:
    history = long(ToyRun()).history()
    of_step(history, 4, **{what: None})
    body = parity(history)
    assert (body["answer"], body["steps"], green(history)) == ("unknown", 3, False)
    assert body["why"].startswith(f"step 4: {why}; before it 3 steps have the loss of a fault-free twin, ")
    of_step(history, 6, loss=3.0)
    assert parity(history)["answer"] == "fail", "what is known to be wrong is"


def test_a_step_of_which_one_group_tells_the_numbers_is_compared() -> None:
    run = long(ToyRun())
    for line in run.of(1):
        if line["event"] == "step":
            line.update(loss=None, gradient_norm=None)
    passes(run, 12)


def test_nothing_that_comes_later_excuses_a_step_without_a_loss() -> None:
    full = holed(long(ToyRun()))
    full.faults = [no_room()]
    assert green(full)
    of_step(full, 2, loss=None)
    body = parity(full)
    assert (body["answer"], body["no_twin"], green(full)) == ("unknown", "", False)
    for number in range(1, 13):
        of_step(full, number, loss=None)
    body = parity(full)
    assert (body["why"], body["no_twin"], green(full)) == ("step 1: no record tells its loss", "", False)


def test_a_recipe_need_not_tell_the_norm_at_every_step() -> None:
    """TorchTitan records it at the first step and then at every Nth; a group that heals may record it at any."""
    run = long(ToyRun())
    history = run.history()
    for number in range(2, run.number + 1):
        if number % 3:
            of_step(history, number, gradient_norm=None)
    healed = next(line for line in run.of(1) if line.get("healed"))
    assert (healed["step"], healed["gradient_norm"]) == (7, None)
    healed["gradient_norm"] = twins_norm(run, 7)
    body = parity(history)
    assert (body["answer"], body["steps"]) == ("pass", 12), body["why"]
    assert "; 6 of them tell the gradient's norm" in body["why"]
    of_step(history, 9, gradient_norm=None)
    assert parity(history)["why"].startswith("step 9: no record tells its gradient's norm")


def twins_norm(run: ToyRun, step: int) -> float:
    """The twin's gradient norm at a step of a run that never went back."""
    plan, _ = twin.planned(run.history(), replay.of_history(run.history()))
    assert plan is not None
    return again(plan, 0.0).norms[step - 1]


def test_a_lost_step_is_unknown_and_not_stepped_over() -> None:
    run = ToyRun()
    run.steps(6)
    for group in (0, 1):
        cut(run, group, "step", 3)
        cut(run, group, "batch", 3)
    body = parity(run)
    assert (body["answer"], body["steps"]) == ("unknown", 3)
    assert body["why"].startswith("step 5: the one that it goes on from is not in the records")


def test_groups_that_go_on_from_different_steps_are_unknown() -> None:
    run = ToyRun()
    run.steps(6)
    run.start(1, resumed=4)
    run.quorum += 1
    run.step()
    assert "step 5: the groups do not go on from the same step" in parity(run)["why"]


def test_a_fail_before_what_is_missing_is_a_fail() -> None:
    run = ToyRun()
    run.steps(2)
    run.step(divided_by=1)
    run.steps(4)
    cut(run, 1, "step", 5)
    assert parity(run)["answer"] == "fail"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({"titan": {}}, "what is trained was changed during the run"),
        ({"device": "cuda"}, "the run trained on cuda, and its twin is made for a CPU"),
        ({"titan": {"steps": "many"}}, "what the ranks trained cannot be read"),
    ],
)
def test_what_has_no_twin_is_unknown(made: dict[str, Any], why: str) -> None:
    run = ToyRun(**made)
    run.steps(2)
    if made == {"titan": {}}:
        run.titan = {"steps": 100}
        run.start(1)
    body = parity(run)
    assert (body["answer"], body["greatest"], body["curve"]) == ("unknown", None, [])
    assert body["why"].startswith(why)


def test_records_that_are_torn_are_unknown() -> None:
    run = ToyRun()
    run.steps(3)
    run.of(1).append({"event": "digest", "step": 9, "value": "of a step that is not there"})
    passes(run, 3)
    del next(line for line in run.of(1) if line["event"] == "step")["participants"]
    assert parity(run)["why"] == "a step record is not as it should be: KeyError('participants')"


def test_a_history_of_others_is_unknown() -> None:
    run = ToyRun()
    assert parity(run)["why"] == "nothing was committed"
    run.steps(1)
    for group in (0, 1):
        cut(run, group, "constructed", 0)
    assert parity(run)["why"] == "the ranks do not say what they trained"


# --- the twin's process ---

SAYS = """
import sys, time
from titan_actor.twin import PLAN
print(*('{"loss": %d.5, "norm": 2.0, "states": {"-1": "s"}}' % n for n, _ in enumerate(PLAN.validate_json(sys.stdin.read()).steps)), sep="\\n", flush=True)
"""


def trained(monkeypatch: pytest.MonkeyPatch, more: str, seconds: float = 60.0) -> twin.Retrained:
    monkeypatch.setattr(twin, "PROGRAM", [sys.executable, "-c", SAYS + more])
    return twin.trained(PLAN_OF_TWO, seconds)


PLAN_OF_TWO: Plan = PLAN.validate_python(
    {
        "titan": {},
        "groups": 1,
        "ranks": 1,
        "reads": 9,
        "steps": [Step(after=-1, parts={0: [[["a"]]]}), Step(after=0, parts={})],
    }
)


def test_what_the_process_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained(monkeypatch, "") == twin.Retrained((0.5, 1.5), (2.0, 2.0), ({-1: "s"}, {-1: "s"}))
    unlike = trained(monkeypatch, """print('{"unknown": "no such sample", "no_twin": "elsewhere"}')""")
    assert unlike == twin.Retrained((0.5, 1.5), (2.0, 2.0), ({-1: "s"}, {-1: "s"}), "no such sample", NoTwin.ELSEWHERE)
    nan = trained(monkeypatch, """print('{"loss": null, "norm": null, "states": {}}')""")
    assert math.isnan(nan.losses[2])


def test_a_process_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained(monkeypatch, "raise SystemExit('no room')").why == "the twin failed: no room"
    killed = trained(monkeypatch, "import os; print('a warning', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)")
    assert killed.why == "the twin was ended by SIGKILL"


def test_what_a_process_that_does_not_end_has_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    class Begun(subprocess.Popen[bytes]):
        """Its time starts once it has reported everything: the speed of a process's start is not tested."""

        def communicate(self, input: bytes | None = None, timeout: float | None = None) -> tuple[bytes, bytes]:
            eventually(begun.exists, 60.0, "the process has begun")
            return super().communicate(input, timeout)

    says = f"""print('{{"loss": 0.5, "norm": 2.0, "states": {{"-1": "s"}}}}', flush=True)
import pathlib, time
pathlib.Path({str(begun)!r}).touch()
time.sleep(600)"""
    monkeypatch.setattr(subprocess, "Popen", Begun)
    monkeypatch.setattr(twin, "PROGRAM", [sys.executable, "-c", says])
    assert twin.trained(PLAN_OF_TWO, 1.0) == twin.Retrained(
        (0.5,), (2.0,), ({-1: "s"},), "the twin took longer than 1 s"
    )


def test_a_group_that_heals_from_the_only_one_that_goes_on_has_its_state() -> None:
    """Both take part in the step of the heal: it came back before a step was made without it."""
    for flipped, mine in ((1, [1]), (0, [])):
        run = ToyRun()
        run.step()
        run.flip(flipped)
        run.steps(2)
        run.start(0)
        run.step(0, 1, heal=(0,))
        run.steps(2)
        found = copies(run)
        assert (found[3][0], found[3][1]) == (mine, 1 if mine else None)
        passes(run, 6)
