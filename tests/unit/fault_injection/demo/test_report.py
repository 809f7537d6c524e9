"""The report of a small run, against numbers worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.checkers.consistency import CHECKERS, check
from fault_injection.demo.report import build, verdict
from fault_injection.faults.acts import Injected
from supervisor.core.goodput.causes import Cause, totals
from supervisor.shell.history.files import History
from supervisor.shell.history.goodput import Span, ledger
from tests.unit.fault_injection.files import KILL, LOSE, Files, digest, incident, line, place, seconds, step, story

SPAN = Span(1.0, 23.0)


def report(history: History, *faults: Injected) -> dict[str, Any]:
    return build(history, list(faults), SPAN, 2, check(history))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return story(tmp_path)


# --- the whole ---


def test_a_fault_and_its_numbers(files: Files) -> None:
    body = report(files.history(), KILL)
    (incident,) = body["incidents"]
    assert incident == {
        "fault": "kill_trainer",
        "evidence": "SIGKILL to pid 1",
        "id": "i1",
        "kind": "crash",
        "group": 1,
        "node": "n2",
        "rung": 1,
        "generation_before": 1,
        "generation_after": 2,
        "detected_s": 0.3,  # 10.8
        "decided_s": 0.4,  # 10.9
        "acted_s": 0.5,  # 11.0
        "recovered_s": 3.7,  # 14.2: seen then
        "recovered_unix_s": 14.2,
        "lasted_s": None,  # the journal of this story has no run clock
        "steps_lost": 1,  # group 0's attempt from 10 to 11
        "others_steps": 4,  # at 12, 13, 13.5, 14
        "others_longest_stall_s": 2.0,  # from 10 to 12
        "reason": "because",
    }
    assert body["run"] == "run"
    assert body["seconds"] == 22.0
    assert body["steps_committed"] == 17
    assert body["samples"] == (17 + 5 + 5 + 2) * 2
    assert (body["loss_first"], body["loss_last"]) == (8.75, 5.25)  # step 1; the mean of steps 13 to 17
    assert {name: c["answer"] for name, c in body["checkers"].items()} == dict.fromkeys(body["checkers"], "pass")
    assert set(body["checkers"]) == set(CHECKERS)
    assert verdict(body, 1.0) == []
    json.dumps(body)


def test_a_move_and_its_numbers(files: Files) -> None:
    body = report(files.history(), KILL, LOSE)
    moved = body["incidents"][1]
    assert (moved["id"], moved["kind"], moved["generation_before"], moved["generation_after"]) == (
        "i2", "node_lost", 2, 3,
    )  # fmt: skip
    assert [moved[f"{name}_s"] for name in ("detected", "decided", "acted", "recovered")] == [
        pytest.approx(x) for x in (0.15, 0.25, 1.25, 3.95)
    ]
    assert (moved["steps_lost"], moved["others_steps"], moved["others_longest_stall_s"]) == (0, 3, 2.0)


def test_times_are_ordered(files: Files) -> None:
    for found in report(files.history(), KILL, LOSE)["incidents"]:
        times = [found[f"{name}_s"] for name in ("detected", "decided", "acted", "recovered")]
        assert times == sorted(times)
        assert times[0] >= 0


def test_ettr_and_badput_are_all_of_the_time(files: Files) -> None:
    body = report(files.history(), KILL)
    assert body["ettr"] == round(29 / 44, 3)
    seconds = {
        "allocate": 0.2,
        "act": 0.9 + 0.9 + 0.1 + 0.4,
        "start": 2 + 2 + 1 + 1,
        "admission": 1 + 1 + 1 + 0.5,
        "failed_step": 1,
        "lost_step": 0.6 + 0.375,
        "detect": 0.3 + 0.125,
        "place": 0.6,
    }
    assert body["badput"] == {cause: pytest.approx(s / 44, abs=1e-4) for cause, s in seconds.items()}


def test_what_contradicts_the_ledger_is_in_the_report(files: Files) -> None:
    assert report(files.history(), KILL)["badput_wrong"] == []
    files.steps["n1", 0, 1].append(step(10.0, 11.0, 8))
    (wrong,) = report(files.history(), KILL)["badput_wrong"]
    assert wrong.startswith("group 0 generation 1: from 10.00 to ")


def test_each_groups_ledger(files: Files) -> None:
    history = files.history()
    assert totals(ledger(history, 0, SPAN)) == {
        Cause.ALLOCATE: pytest.approx(0.1),
        Cause.ACT: pytest.approx(0.9),
        Cause.START: 2.0,
        Cause.ADMISSION: 1.0,
        Cause.FAILED_STEP: 1.0,
        Cause.PRODUCTIVE: 17.0,
    }
    assert totals(ledger(history, 1, SPAN)) == {
        Cause.ALLOCATE: pytest.approx(0.1),
        Cause.ACT: pytest.approx(0.9 + 0.1 + 0.4),
        Cause.START: 4.0,
        Cause.ADMISSION: 2.5,
        Cause.PRODUCTIVE: 12.0,
        Cause.LOST_STEP: pytest.approx(0.6 + 0.375),
        Cause.DETECT: pytest.approx(0.3 + 0.125),
        Cause.PLACE: pytest.approx(0.6),
    }


def test_after_a_clean_end_the_rest_is_end(files: Files) -> None:
    found = ledger(files.history(), 1, Span(1.0, 30.0))
    assert found[-1].cause == Cause.END
    assert totals(found)[Cause.END] == pytest.approx(7.0)


# --- a group without a working process ---


def test_the_end_of_a_silent_process_is_no_detection_any_more(files: Files) -> None:
    """Its node was cut off at 18; the incident opens at 18.5; its process ends there by itself at 18.875, while the
    move goes on. It counts as detected from 18 on, and as placed from 18.5 on, wherever its process ends."""
    files.leftover_killed(18.875)
    found = totals(ledger(files.history(), 1, SPAN))
    assert found[Cause.DETECT] == pytest.approx(0.3 + 0.5)
    assert found[Cause.LOST_STEP] == pytest.approx(0.6)
    assert found[Cause.PLACE] == pytest.approx(0.6)


def test_what_a_fenced_process_does_after_the_decision_is_not_kept(files: Files) -> None:
    """It is a failed attempt that ends only when the new generation was decided."""
    files.nobody_saw_it_end()
    files.steps["n2", 1, 2].append(step(18.0, 18.8, 14, committed=False))
    found = totals(ledger(files.history(), 1, SPAN))
    assert Cause.FAILED_STEP not in found
    assert found[Cause.DETECT] == pytest.approx(0.3 + 0.5)
    assert found[Cause.PLACE] == pytest.approx(0.6)


def test_what_runs_on_after_its_allocation_is_gone_counts_until_its_last_step(files: Files) -> None:
    """It committed once more after the decision at 18.5, and was ended at 18.875: from there on it is placing."""
    files.leftover_killed(18.875)
    files.steps["n2", 1, 2].append(step(18.0, 18.75, 14))
    found = totals(ledger(files.history(), 1, SPAN))
    assert found[Cause.PRODUCTIVE] == pytest.approx(12.75)
    assert found[Cause.DETECT] == pytest.approx(0.3)
    assert found[Cause.LOST_STEP] == pytest.approx(0.6)
    assert found[Cause.PLACE] == pytest.approx(0.35)


# --- incidents ---


def test_a_fault_without_an_incident(files: Files) -> None:
    late = replace(KILL, unix_s=22.95)
    body = report(files.history(), late)
    assert body["incidents"] == [{"fault": "kill_trainer", "group": 1, "node": "n2", "id": None}]
    assert verdict(body, 1.0) == ["kill_trainer: group 1 did not recover"]


def test_an_incident_that_has_not_recovered(files: Files) -> None:
    """Its group has committed steps, but none of them was seen to be with the others."""
    files.journal = [x for x in files.journal if x.get("decision") != 3]
    found = report(files.history(), KILL)["incidents"][0]
    assert (found["acted_s"], found["recovered_s"]) == (0.5, None)


def test_an_incident_that_was_open_before_is_not_the_faults(files: Files) -> None:
    """i1 is closed only after the node is lost."""
    for entry in ("intent", "outcome"):
        files.of_decision(3, entry)["t"] += 4.1
    assert report(files.history(), LOSE)["incidents"][0]["id"] == "i2"


def test_an_incident_that_passed_by_itself_has_no_times_before_the_fault(files: Files) -> None:
    """It was silent for a moment, and its generation went on: nothing was spawned; it recovered after the fault."""
    about = ("i9", "silent", 0, 1, 1)
    files.journal = [x for x in files.journal if x.get("decision") != 3]
    files.decide(14.6, 3, {0: 1, 1: 2}, [], [incident(*about, "acting")])
    files.decide(15.0, 3, {0: 1, 1: 2}, [], [incident(*about, "recovered")])
    files.journal.sort(key=lambda x: x["t"])
    found = report(files.history(), Injected(name="pause", group=0, node="n1", unix_s=14.5, evidence=""))["incidents"][
        0
    ]
    assert (found["id"], found["acted_s"], found["recovered_s"]) == ("i9", None, 0.5)


def test_others_that_stand_still_to_the_end_have_stalled(files: Files) -> None:
    """Group 0 never commits again after 10; group 1 comes back alone at 14."""
    files.steps["n1", 0, 1] = [x for x in files.steps["n1", 0, 1] if x["t"] <= 10.0]
    found = report(files.history(), KILL)
    assert found["incidents"][0]["others_steps"] == 0
    assert found["incidents"][0]["others_longest_stall_s"] >= 4.0
    assert "kill_trainer: the other groups stood still" in verdict(found, 1.0)[0]


def test_a_broken_groups_others_may_be_restarted_ones(files: Files) -> None:
    """Steps of group 1 are counted over its generations: 14 and 15 by the second, 22 and 23 by the third."""
    i3 = ("i3", "crash", 0, 1, 2)
    files.decide(15.6, 8, {0: 2, 1: 2}, [place(0, 2, "n1", "start")], [incident(*i3, "acting")])
    files.shim(16.0, "spawned", "n1", 0, 2)
    files.steps["n1", 0, 2] = [step(16.0, 22.0, 16)]
    files.decide(22.1, 9, {0: 2, 1: 2}, [], [incident(*i3, "recovered")])
    fault = Injected(name="pause", group=0, node="n1", unix_s=15.5, evidence="")
    files.journal.sort(key=lambda x: x["t"])
    (found,) = report(files.history(), fault)["incidents"]
    assert (found["id"], found["others_steps"], found["others_longest_stall_s"]) == ("i3", 4, 4.0)


# --- digests ---


def test_equal_digests(files: Files) -> None:
    body = report(files.history())
    assert (body["digests_equal"], body["digests_compared_at"], body["digests_different_at"]) == (True, [10, 17], [])


def test_different_digests(files: Files) -> None:
    files.steps["n3", 1, 3][-2]["value"] = "c"
    body = report(files.history())
    assert (body["digests_equal"], body["digests_compared_at"], body["digests_different_at"]) == (False, [10, 17], [17])
    assert verdict(body, 1.0) == ["the groups' parameters differ at steps [17]"]


def test_a_digest_of_one_group_alone_is_not_compared(files: Files) -> None:
    files.steps["n1", 0, 1].append(digest(20.0, 14, "x"))
    assert report(files.history())["digests_compared_at"] == [10, 17]


def test_no_digest_to_compare_is_not_equal(files: Files) -> None:
    for lines in files.steps.values():
        lines[:] = [x for x in lines if x["event"] != "digest"]
    body = report(files.history())
    assert (body["digests_equal"], body["digests_compared_at"]) == (False, [])
    assert verdict(body, 1.0) == ["the groups' parameters differ at steps none compared"]


def test_two_generations_with_other_digests_of_a_step_differ(files: Files) -> None:
    files.steps["n3", 1, 3].append(digest(23.0, 10, "z"))
    assert report(files.history())["digests_different_at"] == [10]


# --- the verdict ---


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b["incidents"][0].update(recovered_s=None), "kill_trainer: group 1 did not recover"),
        (
            lambda b: b["incidents"][0].update(others_steps=0, others_longest_stall_s=2.1),
            "kill_trainer: the other groups stood still for 2.1 s",
        ),
        (
            lambda b: b.update(digests_equal=False, digests_different_at=[10]),
            "the groups' parameters differ at steps [10]",
        ),
        (lambda b: b.update(loss_last=9.0), "the loss did not fall: 8.75 to 9.0"),
        (lambda b: b.update(loss_last=float("nan")), "the loss did not fall: 8.75 to nan"),
        (lambda b: b.update(loss_first=None, loss_last=None), "the loss did not fall: None to None"),
        (lambda b: b["badput_wrong"].append("10 s twice"), "the badput ledger: 10 s twice"),
        (
            lambda b: b["checkers"].update(x={"answer": "fail", "sentences": ["this", "and that"]}),
            "checker x: fail: this; and that",
        ),
        (
            lambda b: b["checkers"].update(x={"answer": "unknown", "sentences": ["no lines"]}),
            "checker x: unknown: no lines",
        ),
    ],
)
def test_each_condition_has_a_sentence(files: Files, change: Any, says: str) -> None:
    body = report(files.history(), KILL)
    assert verdict(body, 1.0) == []
    change(body)
    assert verdict(body, 1.0) == [says]


def test_a_short_stall_is_no_failure(files: Files) -> None:
    body = report(files.history(), KILL)
    body["incidents"][0].update(others_steps=0, others_longest_stall_s=2.0)
    assert verdict(body, 1.0) == []


def test_a_run_that_never_trained(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.decide(1.0, 1, {0: 1, 1: 0}, [place(0, 1, "n1")])
    files.shim(2.0, "spawned", "n1", 0, 1)
    files.steps["n1", 0, 1] = [line("start", 2.0, 3.0)]
    body = report(files.history())
    assert (body["steps_committed"], body["samples"], body["ettr"], body["loss_first"]) == (0, 0, 0.0, None)
    assert len(verdict(body, 1.0)) == 2
    assert sum(body["badput"].values()) == pytest.approx(1.0, abs=0.01)


def test_losses_of_a_short_run(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.steps["n1", 0, 1] = seconds(2.0, 1, 2)
    body = report(files.history())
    assert (body["loss_first"], body["loss_last"]) == (8.75, 8.625)
