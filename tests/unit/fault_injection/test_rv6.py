"""Lies that a real bug would tell, and that no checker of `supervisor chaos check` finds; and what is honest and is called a lie.

In the order of their gravity. Each test fails today."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.chaos import certificate, twin
from fault_injection.chaos import runner as runners
from fault_injection.chaos.schedule import Plan, Planned
from fault_injection.checkers import check
from fault_injection.faults.catalogue import FAULTS
from fault_injection.faults.fault import Fault, Target
from fault_injection.history import History
from fault_injection.promises import ALL
from fault_injection.recorded import load, save
from supervisor.ports.errors import Fatal
from tests.unit.fault_injection.broken import KILL, LOSE, SETTING, broken, fault
from tests.unit.fault_injection.files import Files, of_quorum, incident, place, note, seconds, step, story
from tests.unit.fault_injection.test_runner import Played, inject, run


def answers(history: History, folder: Path) -> dict[str, str]:
    save(history, folder / "history.jsonl")
    return {v.checker: v.answer for v in check(load(folder / "history.jsonl"), ALL)}


def steps_of(f: Files, number: int) -> list[tuple[list[dict[str, Any]], int]]:
    """Where a step was committed: (lines, place)."""
    return [
        (lines, at)
        for lines in f.steps.values()
        for at, x in enumerate(lines)
        if x.get("committed") and x["step"] == number
    ]


# --- 1: steps that are lost, or made twice ---


def made_twice_in_one_quorum(f: Files) -> History:
    """Each of two live groups commits step 12, then step 12 again, in the same process and quorum."""
    for lines, at in steps_of(f, 12):
        lines[at : at + 1] = [step(16.0, 16.5, 12), step(16.5, 17.0, 12)]
    return broken(f)


def jumped_over(f: Files) -> History:
    """From 11 to 13, of all groups, with no process ended: 12 was lost, or never made."""
    for lines, at in steps_of(f, 12):
        del lines[at]
    return broken(f)


def not_made_by_one_that_lives(f: Files) -> History:
    """Group 1 goes from 11 to 13 without healing; group 0 says that it took part in 12."""
    lines, at = steps_of(f, 12)[1]
    del lines[at]
    return broken(f)


def resumed_behind_the_newest_checkpoint(f: Files) -> History:
    """Both groups are started again at 31 s; step 15 is complete on disk, as decision 8 says, and they go on from step 10. Twin
    and digests agree with them: it is what the run did."""
    f.decide(24.0, 8, {0: 1, 1: 3}, [{"verb": "checkpoint", "key": "checkpoint:15", "reason": "r", "group": 0}])
    f.decide(30.0, 9, {0: 2, 1: 4}, [place(0, 2, "n1"), place(1, 4, "n3")])
    for node, group, generation in (("n1", 0, 2), ("n3", 1, 4)):
        f.shim(31.0, "spawned", node, group, generation)
        f.steps[node, group, generation] = seconds(32.0, 11, 3)
    return broken(f)


# --- 2: the fence, and the order of deciding and starting ---


def lives_on(f: Files) -> None:
    """The process of generation 2 lives on on n2 until 22 s; generation 3 begins on n3 at 19.5 s."""
    f.of_shim("n2", "leftover_killed", 1, 2)["t"] = 22.0


def moved_without_a_fence(f: Files) -> History:
    lives_on(f)
    f.of_decision(4, "intent")["actions"] = []
    return broken(f)


def moved_before_the_fence(f: Files) -> History:
    lives_on(f)
    f.of_decision(6, "intent")["actions"] = f.of_decision(4, "intent")["actions"]
    f.of_decision(4, "intent")["actions"] = []
    return broken(f)


def started_before_it_was_decided(f: Files) -> History:
    """Decision 5 places generation 3 at 19.0 s; its process has run since 18.6 s."""
    f.of_shim("n3", "spawned", 1, 3)["t"] = 18.6
    return broken(f)


# --- 3: the loss ---


def other_loss_in_one_group(f: Files) -> History:
    lines, at = steps_of(f, 12)[1]
    lines[at]["loss"] += 1e-3
    return broken(f)


def loss_is_no_number(f: Files) -> History:
    for number in (12, 13):
        for lines, at in steps_of(f, number):
            lines[at]["loss"] = float("nan")
    return broken(f)


def divided_by_two_when_alone(f: Files) -> History:
    """Group 1 is away and group 0 says that two took part."""
    (lines, at), *_ = steps_of(f, 7)
    lines.insert(at, note("batch", 12.0, samples=["a"]))
    lines[at + 1] |= {"quorum_id": 2, "participants": 2, "participating_rank": 0}
    return broken(f)


# --- 4: standing still where nobody looks ---


def later(f: Files, after: float, seconds: float) -> History:
    """All that comes after an instant comes so much later."""

    def moved(t: float) -> float:
        return t + seconds if t > after else t

    for x in (*f.journal, *(x for lines in f.shims.values() for x in lines)):
        x["t"] = moved(x["t"])
    for (_, group, _), lines in f.steps.items():
        for x in lines:
            x |= of_quorum(group, x)
            x["start"], x["t"] = moved(x["start"]), moved(x["t"])
    history = broken(f)
    history.setting = replace(SETTING, ended=moved(SETTING.ended))
    history.faults = [KILL, replace(LOSE, **{k: moved(getattr(LOSE, k)) for k in ("began", "made", "healed", "over")})]
    return history


def stands_still_between_two_faults(f: Files) -> History:
    """No group commits anything for 100 s, long after fault 1 was over and before fault 2; 3 s are allowed in a fault."""
    return later(f, 16.5, 100.0)


def not_back_when_all_is_said_to_be_well(f: Files) -> History:
    """Fault 1 is over at 14.3 s, says who broke it; group 1 commits its first step since at 18 s."""
    for number in (9, 10, 11, 12):
        lines, at = steps_of(f, number)[1]
        del lines[at]
    return broken(f)


# --- 5: faults that are not those of the plan ---


def another_fault_than_planned(f: Files) -> History:
    history = broken(f)
    fault(history, 1, name="sigabrt")
    return history


def fewer_than_the_plan_has(f: Files) -> History:
    history = broken(f)
    history.setting = replace(SETTING, plan=(*SETTING.plan, "  3  at step 14: hiccup, group 0 rank 0"))
    return history


def nothing_was_broken(f: Files) -> History:
    history = broken(f)
    history.setting, history.faults = replace(SETTING, plan=(), planned=0), []
    for at, decision in enumerate(history.decisions):
        history.decisions[at] = replace(decision, incidents=())
    return history


def one_fault_twice(f: Files) -> History:
    history = broken(f)
    history.faults.append(replace(LOSE))
    return history


def never_healed(f: Files) -> History:
    history = broken(f)
    fault(history, 2, healed=None)
    return history


def over_before_it_began(f: Files) -> History:
    history = broken(f)
    history.faults.append(
        replace(KILL, number=3, name="hiccup", began=16.0, made=16.1, healed=16.2, over=14.5, kinds=())
    )
    history.setting = replace(SETTING, plan=(*SETTING.plan, "  3  at step 13: hiccup, group 1 rank 0"), planned=3)
    return history


# --- 6: incidents ---


def about_another_node(f: Files) -> History:
    for number in (4, 6):
        f.of_decision(number, "intent")["incidents"][0]["node"] = "n1"
    return broken(f)


def another_host_is_cordoned(f: Files) -> History:
    f.of_decision(4, "intent")["actions"].append(
        {"verb": "cordon", "key": "cordon:n1:i2", "node": "n1", "incident": "i2", "reason": "r"}
    )
    return broken(f)


def three_incidents_of_two_faults_at_once(f: Files) -> History:
    for number, state in ((2, "acting"), (3, "recovered")):
        for name in ("i7", "i8"):
            f.of_decision(number, "intent")["incidents"].append(incident(name, "crash", 1, 1, 2, state))
    history = broken(f)
    history.faults.append(replace(KILL, number=3, name="sigabrt", began=10.6, made=10.65, healed=10.7))
    history.setting = replace(SETTING, plan=(*SETTING.plan, "  3  x"), planned=3)
    return history


def an_echo_that_is_never_over(f: Files) -> History:
    f.of_decision(3, "intent")["incidents"].append(incident("i7", "error", 0, 1, 1, "acting"))
    history = broken(f)
    fault(history, 1, echoes=("error",))
    return history


# --- 7: budgets, what is left, kills ---


def replaced_too_often(f: Files) -> History:
    for number in (4, 6):
        f.of_decision(number, "intent")["incidents"][0]["rung"] = 2
    history = broken(f)
    history.setting = replace(SETTING, budgets={"restart": 3, "replace": 0, "reallocate": 3})
    return history


def a_process_whose_end_nobody_saw(f: Files) -> History:
    f.shims["n3"].remove(f.of_shim("n3", "exited", 1, 3))
    return broken(f)


def an_allocation_that_nobody_gave_back(f: Files) -> History:
    """The run was stopped; what it had acquired it never released."""
    f.of_decision(5, "intent")["actions"].append({"verb": "acquire", "key": "acquire:run-a4", "reason": "r"})
    return broken(f)


def killed_by_a_policy_that_there_is_not(f: Files) -> History:
    f.shim(15.0, "signalled", "n1", 0, 1, signal=15, why="policy.nonsense")
    return broken(f)


# --- 8: seconds ---


def parts_of_a_step_are_ten_times_its_length(f: Files) -> History:
    for lines, at in steps_of(f, 12):
        lines[at]["seconds"] = {"data": 1.0, "compute": 9.0}
    return broken(f)


def two_lines_for_the_same_seconds(f: Files) -> History:
    """Steps 11 and 12 of both groups each take from 15 s to 17 s."""
    for number in (11, 12):
        for group, (lines, at) in enumerate(steps_of(f, number)):
            lines[at] = step(15.0, 17.0, number, quorum_id=3, participants=2, participating_rank=group)
    return broken(f)


def a_bound_that_is_no_number(f: Files) -> History:
    """A bound that is no number is no bound."""
    history = broken(f)
    fault(history, 2, within_s=float("nan"))
    return history


def nobody_says_what_became_of_decisions(f: Files) -> History:
    history = broken(f)
    history.outcomes.clear()
    return history


def an_epoch_that_never_began(f: Files) -> History:
    history = broken(f)
    history.epochs.clear()
    return history


def steps_of_a_process_that_nobody_spawned(f: Files) -> History:
    f.shims["n1"] = f.shims["n1"][:2]
    return broken(f)


def budgets_that_are_not_said(f: Files) -> History:
    history = broken(f)
    history.setting = replace(SETTING, budgets={})
    return history


def two_echoes_in_one_group(f: Files) -> History:
    for number, state in ((2, "acting"), (3, "recovered")):
        for name in ("i7", "i8"):
            f.of_decision(number, "intent")["incidents"].append(incident(name, "error", 0, 1, 1, state))
    history = broken(f)
    fault(history, 1, echoes=("error",), others_within_s=60.0)
    return history


def ended_before_its_faults(f: Files) -> History:
    history = broken(f)
    history.setting = replace(SETTING, ended=12.0)
    return history


LIES = [
    made_twice_in_one_quorum, resumed_behind_the_newest_checkpoint, jumped_over, not_made_by_one_that_lives,
    moved_without_a_fence, moved_before_the_fence, started_before_it_was_decided,
    other_loss_in_one_group, loss_is_no_number, divided_by_two_when_alone,
    stands_still_between_two_faults, not_back_when_all_is_said_to_be_well,
    another_fault_than_planned, fewer_than_the_plan_has, nothing_was_broken, one_fault_twice, never_healed, over_before_it_began,
    about_another_node, another_host_is_cordoned, three_incidents_of_two_faults_at_once, an_echo_that_is_never_over,
    replaced_too_often, a_process_whose_end_nobody_saw, an_allocation_that_nobody_gave_back, killed_by_a_policy_that_there_is_not,
    a_bound_that_is_no_number, nobody_says_what_became_of_decisions, an_epoch_that_never_began, steps_of_a_process_that_nobody_spawned,
    budgets_that_are_not_said, two_echoes_in_one_group, ended_before_its_faults,
    parts_of_a_step_are_ten_times_its_length, two_lines_for_the_same_seconds,
]  # fmt: skip


@pytest.mark.parametrize("plant", LIES, ids=[p.__name__ for p in LIES])
def test_a_lie_is_not_green(tmp_path: Path, plant: Callable[[Files], History]) -> None:
    assert set(answers(plant(story(tmp_path)), tmp_path).values()) != {"pass"}


def test_what_cannot_be_compared_for_want_of_records_is_not_green(tmp_path: Path) -> None:
    """No twin on a GPU is fine; records that contradict each other are no reason to leave the twin out."""
    parity = twin.unknown("step 7: 2 groups took part, and there are the records of 1")
    assert not certificate.build(broken(story(tmp_path)), parity=parity)["green"]


# --- 9: lines that are missing in the middle of the file ---


@pytest.mark.parametrize("kind", ["outcome", "signal", "process", "step", "observation"])
def test_a_file_with_lines_missing_is_not_green(tmp_path: Path, kind: str) -> None:
    files = story(tmp_path)
    files.shim(18.45, "signalled", "n2", 1, 2, signal=15)
    path = tmp_path / "history.jsonl"
    save(broken(files), path)
    rows = path.read_text().splitlines(keepends=True)
    lost = next(
        at
        for at, row in enumerate(rows)
        if (line := json.loads(row))["type"] == kind
        and (kind != "process" or line["node"] == "n1")
        and (kind != "step" or line["line"].get("step") == 12)
    )
    path.write_text("".join(rows[:lost] + rows[lost + 1 :]))
    assert {v.answer for v in check(load(path), ALL)} != {"pass"}


# --- 10: honest, and called a lie ---


def test_what_comes_with_a_hang_may_last_as_long_as_the_hang(tmp_path: Path) -> None:
    """Group 0 stands still for 2 s because group 1 hangs, of which 3 s are allowed; what comes with it (SIGKILL to the
    supervisor, of which 1.9 s are allowed) is not to blame."""
    history = broken(story(tmp_path))
    history.faults.append(
        replace(
            KILL, number=3, name="supervisor_killed", began=10.6, made=10.65, healed=10.7, kinds=(), others_within_s=1.9
        )
    )
    history.setting = replace(SETTING, plan=(*SETTING.plan, "  3  at once with it: supervisor_killed"), planned=3)
    assert answers(history, tmp_path)["others_go_on"] == "pass"


class BetweenTwoGenerations(Played):
    """As `LiveRun.target`: while a group is started again its node shows no rank of the new generation."""

    def target(self, planned: Planned, fault: Fault) -> Target:
        if planned.group in self.broken:
            raise Fatal(f"node n{planned.group} shows no rank 0 of group {planned.group}")
        return super().target(planned, fault)


def test_what_comes_while_its_own_group_is_mended_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """As seed 4 of `make chaos-long` draws it: slow_step of group 1, and during it a hiccup of group 1. No checker is to blame
    the supervisor for it (`every_fault_happened` does)."""
    monkeypatch.setattr(runners, "FAULTS", {name: replace(f, inject=inject(name, f)) for name, f in FAULTS.items()})
    plan = Plan(
        seed=4,
        faults=(
            Planned(number=1, name="sigkill", at_step=5, group=1, rank=0, together=""),
            Planned(number=2, name="hiccup", at_step=5, group=1, rank=0, together="during"),
        ),
        not_available={},
    )
    _, second = run(BetweenTwoGenerations(), plan)
    assert (second.made is not None, second.after) == (True, "")
