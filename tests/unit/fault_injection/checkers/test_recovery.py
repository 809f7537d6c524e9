"""A run that was broken and mended as promised passes. Each planted violation is found by its own checker, and by no
other that is not named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_jsonable_python

from fault_injection.checkers import recovery
from fault_injection.checkers.consistency import check
from fault_injection.checkers.history_file import load, save
from fault_injection.checkers.recovery import ALL, PROMISES
from fault_injection.faults.catalogue import FAULTS
from supervisor.core.goodput.causes import Interval
from supervisor.core.model.reason import Code, Reason
from supervisor.shell.history.files import FaultDone, History, Left, Steps
from supervisor.shell.history.incidents import incidents
from tests.unit.fault_injection.broken import KILL, LOSE, SETTING, broken, fault
from tests.unit.fault_injection.files import Files, digest, incident, note, of_quorum, place, story


def judged(history: History, folder: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Judges the history by way of its file, as `supervisor chaos check` does."""
    save(history, folder / "history.jsonl")
    return {v.checker: (v.answer, v.sentences) for v in check(load(folder / "history.jsonl"), ALL)}


def answers(history: History, folder: Path) -> dict[str, str]:
    return {name: answer for name, (answer, _) in judged(history, folder).items()}


PASS = dict.fromkeys(ALL, "pass")
OTHER_KINDS = PASS | {"every_fault_happened": "fail"}
"""Answers where a test gives a fault other right incidents than those of the catalogue."""


def test_what_went_as_promised_passes(tmp_path: Path) -> None:
    assert answers(broken(story(tmp_path)), tmp_path) == PASS


def test_the_incidents_about_which_something_was_done(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.intent(15.0, 3, {0: 1, 1: 2}, [], [incident("i9", "silent", 0, 1, 1, "acting", rung=0)])
    files.outcome(15.1, 3)
    assert [(i.id, i.kind, i.group, i.rung, i.opened, i.acted, i.recovered) for i in incidents(files.history())] == [
        ("i1", "crash", 1, 1, 10.8, 10.9, 14.3), ("i2", "node_lost", 1, 2, 18.4, 18.5, 22.3),
    ]  # fmt: skip


def test_an_incident_that_halted_the_run_is_over_when_a_person_resumes_it(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.intent(15.0, 3, {0: 1, 1: 2}, [], [incident("i9", "same_error", 0, 1, 1, "halted", rung=4)])
    files.outcome(15.1, 3)
    files.intent(16.0, 4, {0: 1, 1: 2}, [], [])
    files.outcome(16.1, 4)
    assert [i.recovered for i in incidents(files.history()) if i.id == "i9"] == [None]
    files.intent(17.0, 5, {0: 1, 1: 2}, [{"verb": "resume", "key": "resume:1"}], [])
    files.outcome(17.1, 5)
    assert [i.recovered for i in incidents(files.history()) if i.id == "i9"] == [17.1]


# --- violations ---


Plant = Callable[[Files], History]


def of_fault(number: int, **change: Any) -> Plant:
    """Returns a plant that changes one fault."""

    def plant(files: Files) -> History:
        history = broken(files)
        fault(history, number, **change)
        return history

    return plant


def with_setting(**change: Any) -> Plant:
    """Returns a plant that changes the setting."""

    def plant(files: Files) -> History:
        history = broken(files)
        history.setting = replace(SETTING, **change)
        return history

    return plant


given_up = with_setting(given_up="nothing moved for 300 s")
without_evidence = of_fault(1, evidence="")
not_well_before = of_fault(2, before="group 0 is starting")
an_incident_without_a_fault = of_fault(1, kinds=(), others_within_s=60.0)
one_of_another_group = of_fault(1, group=0, others_within_s=60.0)
budget_overdrawn = with_setting(budgets={"restart": 0, "replace": 4, "reallocate": 3})
others_stood_still = of_fault(1, others_within_s=1.9)  # from 10 to 12
too_slow = of_fault(2, within_s=4.0)
never_over = of_fault(2, over=None)
no_time = with_setting(ended=0.5)
replaced_too_often = with_setting(budgets={"restart": 3, "replace": 0, "reallocate": 3})
whatever_is_right = of_fault(1, kinds=("crash", "error", "oom"))
another_fault_than_planned = of_fault(1, name="sigabrt")
fewer_than_the_plan_has = with_setting(plan=(*SETTING.plan, "  3  at step 14: hiccup, group 0 rank 0"))
never_healed = of_fault(2, healed=None)
over_before_it_was_made = of_fault(2, made=22.4)
a_bound_that_is_no_number = of_fault(2, within_s=float("nan"))
stood_still_after_the_last_fault = with_setting(ended=323.0)
"""All was well after it, and then nothing moved for 300 s."""
no_bound_at_all = of_fault(2, within_s=float("inf"))
no_bound_for_the_others = of_fault(2, others_within_s=float("inf"))
planned_in_other_words = with_setting(plan=(SETTING.plan[0], "  2  something"))
ended_before_its_faults = with_setting(ended=12.0)
healed_before_it_began = of_fault(1, healed=KILL.began - 5.0)
another_victim_than_planned = with_setting(plan=(SETTING.plan[0].replace("group 1", "group 0"), SETTING.plan[1]))
a_bound_of_thirty_thousand_years = of_fault(2, within_s=1e12)
another_bound_of_thirty_thousand_years = of_fault(2, others_within_s=1e12)


def not_made(files: Files) -> History:
    history = broken(files)
    del history.faults[1]
    files_of_two = [d for d in history.decisions if any(i["id"] == "i2" for i in d.incidents)]
    for decision in files_of_two:  # nor is there its incident
        at = history.decisions.index(decision)
        history.decisions[at] = replace(decision, incidents=())
    return history


def wrong_kind(files: Files) -> History:
    files.of_decision(2, "intent")["incidents"][0]["kind"] = "error"
    return broken(files)


def two_incidents(files: Files) -> History:
    for number, state in ((2, "acting"), (3, "recovered")):
        files.of_decision(number, "intent")["incidents"].append(incident("i7", "crash", 1, 1, 2, state))
    return broken(files)


def incident_left_open(files: Files) -> History:
    files.journal.remove(files.of_decision(6, "intent"))
    files.journal.remove(files.of_decision(6, "outcome"))
    return broken(files)


def another_digest(files: Files) -> History:
    (line,) = [x for x in files.steps["n2", 1, 2] if x["event"] == "digest"]
    line["value"] = "z"
    return broken(files)


def process_left(files: Files) -> History:
    history = broken(files)
    history.left = Left(processes=("run.1.2.0 (pid 102) on n2",), allocations=())
    return history


def allocation_left(files: Files) -> History:
    history = broken(files)
    history.left = Left(processes=(), allocations=("run-a4 on n3",))
    return history


def asked_for_too_often(files: Files) -> History:
    keys = [{"verb": verb, "key": f"{verb}:run-a4", "reason": "r"} for verb in ("acquire", "release")]
    files.of_decision(5, "intent")["actions"] += [keys[0] | {"rung": 3}, keys[1]]
    history = broken(files)
    history.setting = replace(SETTING, budgets={"restart": 3, "replace": 4, "reallocate": 0})
    return history


def about_another_node(files: Files) -> History:
    for number in (4, 6):
        files.of_decision(number, "intent")["incidents"][0]["node"] = "n1"
    return broken(files)


def of_two_nodes(files: Files, before: list[str], after: list[str], **about: Any) -> History:
    """Group 1 has two nodes, and its second incident is about n1."""
    for number, nodes in ((1, before), (2, before), (5, after)):
        for action in files.of_decision(number, "intent")["actions"]:
            action["nodes"] = nodes if action["group"] == 1 else ["n1", "n9"]
    for number in (4, 6):
        files.of_decision(number, "intent")["incidents"][0] |= {"node": "n1", **about}
    return broken(files)


def test_an_incident_about_a_group_of_several_nodes_as_a_whole_is_about_no_other_node(tmp_path: Path) -> None:
    def found(name: str, before: list[str], after: list[str], **about: Any) -> list[str]:
        return PROMISES["one_incident_each"](of_two_nodes(story(tmp_path / name), before, after, **about))

    blamed = "was on node n2, and its incident i2 is about n1"
    assert not found("all-move", ["n1", "n2"], ["n3", "n4"])
    assert not found("all-stay", ["n1", "n2"], ["n1", "n2"])
    assert blamed in found("one-stays", ["n1", "n2"], ["n3", "n2"])[0]
    assert blamed in found("a-rank", ["n1", "n2"], ["n3", "n4"], rank=0)[0]


def another_host_is_cordoned(files: Files) -> History:
    files.of_decision(4, "intent")["actions"].append(
        {"verb": "cordon", "key": "cordon:n1:i2", "node": "n1", "incident": "i2", "reason": "r"}
    )
    return broken(files)


def three_incidents_of_two_faults_at_once(files: Files) -> History:
    for number, state in ((2, "acting"), (3, "recovered")):
        for name in ("i7", "i8"):
            files.of_decision(number, "intent")["incidents"].append(incident(name, "crash", 1, 1, 2, state))
    return beside(broken(files), name="sigabrt")


def two_echoes_in_one_group(files: Files) -> History:
    for number, state in ((2, "acting"), (3, "recovered")):
        for name in ("i7", "i8"):
            files.of_decision(number, "intent")["incidents"].append(incident(name, "error", 0, 1, 1, state))
    history = broken(files)
    fault(history, 1, echoes=("error",), others_within_s=60.0)
    return history


def an_echo_that_is_never_over(files: Files) -> History:
    files.of_decision(3, "intent")["incidents"].append(incident("i7", "error", 0, 1, 1, "acting"))
    history = broken(files)
    fault(history, 1, echoes=("error",))
    return history


def right_by_its_own_word(files: Files) -> History:
    """Its incident is taken for another kind, and the history claims that this one is right."""
    for number in (2, 3):
        files.of_decision(number, "intent")["incidents"][0]["kind"] = "oom"
    history = broken(files)
    fault(history, 1, kinds=("oom",))
    return history


def no_such_fault(files: Files) -> History:
    history = broken(files)
    fault(history, 1, name="hiccough")
    plan = [sentence.replace(": sigkill,", ": hiccough,") for sentence in SETTING.plan]
    history.setting = replace(SETTING, plan=tuple(plan))
    return history


def one_fault_twice(files: Files) -> History:
    history = broken(files)
    history.faults.append(replace(LOSE))
    return history


def not_back_when_all_is_said_to_be_well(files: Files) -> History:
    """Fault 1 is over at 14.3 s by its author's report; group 1 commits its first step since at 18 s."""
    lines = files.steps["n2", 1, 2]
    lines[:] = [x for x in lines if not (x["event"] == "step" and x["step"] in (9, 10, 11, 12))]
    return broken(files)


def later(files: Files, after: float, seconds: float) -> History:
    """Delays everything after an instant by these seconds."""

    def moved(t: float) -> float:
        return t + seconds if t > after else t

    for x in (*files.journal, *(x for lines in files.shims.values() for x in lines)):
        x["t"] = moved(x["t"])
    for (_, group, _), lines in files.steps.items():
        for x in lines:
            x |= of_quorum(group, x)
            x["start"], x["t"] = moved(x["start"]), moved(x["t"])
    history = broken(files)
    history.setting = replace(SETTING, ended=moved(SETTING.ended))
    when: Any = {k: moved(getattr(LOSE, k)) for k in ("began", "made", "healed", "over")}
    history.faults = [KILL, replace(LOSE, **when)]
    return history


def stood_still_between_two_faults(files: Files) -> History:
    """No group commits anything for 100 s, long after fault 1 was over and before fault 2."""
    return later(files, 16.5, 100.0)


def a_step_that_was_under_way_is_none_since(files: Files) -> History:
    """Fault 1 came while group 1 was in its step 5, which it committed; it commits no other until 18 s."""
    history = not_back_when_all_is_said_to_be_well(files)
    fault(history, 1, began=9.5, made=9.6)
    return history


def parts_below_zero(files: Files) -> History:
    for lines in files.steps.values():
        for x in lines:
            if x.get("step") == 12:
                x["seconds"] = {"quorum": -5.0, "compute": 6.0}
    return broken(files)


def parts_of_a_step_are_less_than_it(files: Files) -> History:
    for lines in files.steps.values():
        for x in lines:
            if x.get("step") == 12:
                x["seconds"] = {"compute": 1e-6}
    return broken(files)


def an_end_that_nobody_saw(files: Files) -> History:
    files.shims["n3"].remove(files.of_shim("n3", "exited", 1, 3))
    return broken(files)


def an_allocation_that_nobody_gave_back(files: Files) -> History:
    """The run was stopped, but never released its allocations."""
    files.of_decision(5, "intent")["actions"].append({"verb": "acquire", "key": "acquire:run-a4", "reason": "r"})
    return broken(files)


def parts_of_a_step_are_ten_times_its_length(files: Files) -> History:
    for lines in files.steps.values():
        for x in lines:
            if x.get("step") == 12:
                x["seconds"] = {"data": 1.0, "compute": 9.0}
    return broken(files)


def two_lines_for_the_same_seconds(files: Files) -> History:
    """Steps 11 and 12 of both groups each take from 15 s to 17 s."""
    for (_, group, _), lines in files.steps.items():
        for x in lines:
            if x["event"] == "step" and x["step"] in (11, 12):
                x |= of_quorum(group, x) | {"start": 15.0, "t": 17.0}
    return broken(files)


def beside(history: History, **about: Any) -> History:
    """Adds a third fault, at once with the first."""
    third = {"number": 3, "began": 10.6, "made": 10.65, "healed": 10.7}
    history.faults.append(replace(KILL, **(third | about)))
    planned = f"  3  at once with it: {history.faults[-1].name}, group 1 rank 0"
    history.setting = replace(SETTING, plan=(*SETTING.plan, planned), planned=3)
    return history


def a_leader_that_was_killed_leads_on(files: Files) -> History:
    return beside(broken(files), name="supervisor_killed", kinds=())


def a_leader_was_killed_after_the_last_decision(files: Files) -> History:
    late = {"began": 22.95, "made": 22.96, "healed": 22.96, "over": 22.98}
    return beside(broken(files), name="supervisor_killed", kinds=(), **late)


def the_next_leader_leads(files: Files) -> History:
    """The third fault killed the first one."""
    for x in files.journal:
        x["epoch"] = 2 if x["t"] > 10.7 else x["epoch"]
    return a_leader_that_was_killed_leads_on(files)


def a_lighthouse_that_was_killed_has_no_successor(files: Files) -> History:
    return beside(broken(files), name="lighthouse_killed", kinds=())


def a_lighthouse_that_was_open_already(files: Files) -> History:
    files.of_decision(1, "intent")["actions"].append({"verb": "lighthouse", "key": "lighthouse:1", "generation": 1})
    return a_lighthouse_that_was_killed_has_no_successor(files)


def sigkill_that_was_an_exit(files: Files) -> History:
    files.of_shim("n2", "exited", 1, 1).update(exit_code=7, signal=None)
    return broken(files)


def who_was_killed_had_ended_before(files: Files) -> History:
    files.of_shim("n2", "exited", 1, 1)["t"] = 10.4
    return broken(files)


def restarted_after_its_incident_was_over(files: Files) -> History:
    """Generation 2 is spawned at 11 s."""
    files.of_decision(3, "intent")["t"] = 10.95
    return broken(files)


def moved_after_its_incident_was_over(files: Files) -> History:
    """Generation 3 is spawned at 19.5 s."""
    files.of_decision(6, "intent")["t"] = 19.2
    return broken(files)


def started_again_after_the_stop(files: Files) -> History:
    files.decide(23.4, 8, {0: 2, 1: 3}, [place(0, 2, "n1")])
    files.shim(23.6, "spawned", "n1", 0, 2)
    files.shim(23.8, "exited", "n1", 0, 2, exit_code=0, signal=None)
    return broken(files)


def given_back_before_it_was_asked_for(files: Files) -> History:
    for number, verb in ((1, "release"), (7, "acquire")):
        files.of_decision(number, "intent")["actions"].append({"verb": verb, "key": f"{verb}:run-a1", "reason": "r"})
    return broken(files)


PLANTS: list[tuple[Plant, str, str]] = [
    (not_made, "every_fault_happened", "fault 2 of the plan was not made: 2  at step 13: node_killed"),
    (without_evidence, "every_fault_happened", "fault 1 (sigkill of group 1 rank 0 at step 5) left no evidence"),
    (not_well_before, "every_fault_happened", "not well before it: group 0 is starting"),
    (wrong_kind, "one_incident_each", "has no incident that is crash, but i1 error of group 1"),
    (two_incidents, "one_incident_each", "fault 1 (sigkill of group 1 rank 0 at step 5) has 2 incidents: i1, i7"),
    (an_incident_without_a_fault, "one_incident_each", "incident i1 (crash of group 1) has no fault"),
    (one_of_another_group, "one_incident_each", "has no incident that is crash, but i1 crash of group 1"),
    (budget_overdrawn, "within_budgets", "1 times restart of group 1 within 3600 s: its budget is 0"),
    (others_stood_still, "others_go_on", "group 0 stood still for 2.0 s, at most 1.9 s are allowed"),
    (too_slow, "recovered_in_time", "it took 4.1 s until all was well, at most 4.0 s"),
    (never_over, "recovered_in_time", "fault 2 (node_killed of group 1 rank 0 at step 13): not everything trained again"),
    (incident_left_open, "recovered_in_time", "its incident i2 is not over"),
    (another_digest, "digests_equal", "the groups' states differ at step 10 (rank 0): a, z"),
    (process_left, "nothing_left", "a process is left: run.1.2.0 (pid 102) on n2"),
    (allocation_left, "nothing_left", "an allocation is left: run-a4 on n3"),
    (no_time, "badput_adds_up", "the run ended 0.5 s before it began"),
    (right_by_its_own_word, "every_fault_happened", "may cause (('oom',), (), False), it says, and such a fault may cause (('crash',), (), False)"),
    (whatever_is_right, "every_fault_happened", "may cause (('crash', 'error', 'oom'), (), False)"),
    (no_such_fault, "every_fault_happened", "fault 1 (hiccough of group 1 rank 0 at step 5) is no fault that there is"),
    (another_fault_than_planned, "every_fault_happened", "at step 5) is not what was planned: 1  at step 5: sigkill, group 1 rank 0"),
    (given_up, "every_fault_happened", "the plan was given up: nothing moved for 300 s"),
    (fewer_than_the_plan_has, "every_fault_happened", "2 faults were planned, the plan has 3, 2 are recorded"),
    (one_fault_twice, "every_fault_happened", "2 faults were planned, the plan has 2, 3 are recorded"),
    (about_another_node, "one_incident_each", "at step 13) was on node n2, and its incident i2 is about n1"),
    (another_host_is_cordoned, "one_incident_each", "n1 was cordoned for i2, which is about n2"),
    (three_incidents_of_two_faults_at_once, "one_incident_each", "2 faults at once have 3 incidents"),
    (two_echoes_in_one_group, "one_incident_each", "fault 1 (sigkill of group 1 rank 0 at step 5) has 2 incidents of group 0"),
    (replaced_too_often, "within_budgets", "1 times replace within 3600 s: its budget is 0"),
    (asked_for_too_often, "within_budgets", "1 times reallocate within 3600 s: its budget is 0"),
    (stood_still_between_two_faults, "others_go_on", "group 0 stood still for 101.0 s, and no fault was there"),
    (an_echo_that_is_never_over, "recovered_in_time", "its incident i7 is not over"),
    (never_healed, "recovered_in_time", "it was not begun, made, healed and over in this order"),
    (over_before_it_was_made, "recovered_in_time", "it was not begun, made, healed and over in this order"),
    (not_back_when_all_is_said_to_be_well, "recovered_in_time", "all was reported well, and group 1 committed no step"),
    (a_bound_that_is_no_number, "recovered_in_time", "it took 4.1 s until all was well, at most nan s"),
    (an_end_that_nobody_saw, "nothing_left", "no one saw group 1 generation 3 rank 0 on n3 end"),
    (an_allocation_that_nobody_gave_back, "nothing_left", "run-a4 was acquired and never released"),
    (ended_before_its_faults, "badput_adds_up", "at step 13) is not within the run's time"),
    (parts_of_a_step_are_ten_times_its_length, "badput_adds_up", "step 12 took 1.00 s, and its parts 10.00 s"),
    (two_lines_for_the_same_seconds, "badput_adds_up", "group 1 generation 2: from 15.00 to 17.00 twice"),
    (stood_still_after_the_last_fault, "others_go_on", "group 1 stood still for 300.0 s, and no fault was there"),
    (a_step_that_was_under_way_is_none_since, "recovered_in_time", "all was reported well, and group 1 committed no step"),
    (no_bound_at_all, "recovered_in_time", "it took 4.1 s until all was well, at most inf s"),
    (no_bound_for_the_others, "others_go_on", "group 0 stood still for 2.0 s, at most inf s are allowed"),
    (planned_in_other_words, "every_fault_happened", "at step 13) is not what was planned: 2  something"),
    (parts_below_zero, "badput_adds_up", "step 12 has -5 s of quorum"),
    (parts_of_a_step_are_less_than_it, "badput_adds_up", "step 12 took 1.00 s, and its parts 0.00 s"),
    (a_leader_that_was_killed_leads_on, "every_fault_happened", "was made, it says, but the epoch that led, 1, made decision 2 after it"),
    (a_leader_was_killed_after_the_last_decision, "every_fault_happened", "was made, it says, but no epoch came after 1, which led"),
    (a_lighthouse_that_was_killed_has_no_successor, "every_fault_happened", "was made, it says, but no lighthouse was opened again"),
    (a_lighthouse_that_was_open_already, "every_fault_happened", "was made, it says, but no lighthouse was opened again"),
    (sigkill_that_was_an_exit, "every_fault_happened", "was made, it says, but its process ended with 7, not with 137"),
    (who_was_killed_had_ended_before, "every_fault_happened", "was made, it says, but its process ended 0.1 s before it"),
    (healed_before_it_began, "recovered_in_time", "it was not begun, made, healed and over in this order"),
    (another_victim_than_planned, "every_fault_happened", "at step 5) has another victim than planned: 1  at step 5: sigkill, group 0 rank 0"),
    (restarted_after_its_incident_was_over, "recovered_in_time", "incident i1 was over before generation 2 of group 1 had begun"),
    (moved_after_its_incident_was_over, "recovered_in_time", "incident i2 was over before generation 3 of group 1 had begun"),
    (a_bound_of_thirty_thousand_years, "recovered_in_time", "it took 4.1 s until all was well, at most 1000000000000.0 s"),
    (another_bound_of_thirty_thousand_years, "others_go_on", "group 0 stood still for 2.0 s, at most 1000000000000.0 s are allowed"),
    (started_again_after_the_stop, "nothing_left", "group 0 was started again once the run was stopped"),
    (given_back_before_it_was_asked_for, "nothing_left", "run-a1 was acquired and never released"),
]  # fmt: skip

ALSO: dict[Plant, dict[str, str]] = {
    # group 1 stands still without a fault that was made
    not_made: {"others_go_on": "fail"},
    one_of_another_group: {"every_fault_happened": "fail"},  # nor was it the one that was planned
    an_incident_without_a_fault: {"every_fault_happened": "fail"},  # no such fault causes that incident
    two_echoes_in_one_group: {"every_fault_happened": "fail"},
    an_echo_that_is_never_over: {"every_fault_happened": "fail"},
    a_leader_was_killed_after_the_last_decision: {
        "digests_equal": "unknown"
    },  # it came before the states were compared
}
"""Answers that other checkers rightly give to a violation too."""


NAMES = {plant: name for name, plant in globals().items() if callable(plant)}


@pytest.mark.parametrize(("plant", "checker", "says"), PLANTS, ids=[NAMES[plant] for plant, _, _ in PLANTS])
def test_a_violation_is_found(tmp_path: Path, plant: Plant, checker: str, says: str) -> None:
    verdicts = judged(plant(story(tmp_path)), tmp_path)
    assert {name: answer for name, (answer, _) in verdicts.items()} == {**PASS, **ALSO.get(plant, {}), checker: "fail"}
    assert any(says in sentence for sentence in verdicts[checker][1]), verdicts[checker]


def test_every_promise_has_a_violation() -> None:
    assert {checker for _, checker, _ in PLANTS} == set(PROMISES)


def test_seconds_under_no_cause_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = recovery.ledger

    def loses_one(*args: object) -> list[Interval]:
        found = real(*args)  # type: ignore[arg-type]
        return [i for i in found if i.end < 10] + [i for i in found if i.start > 12]

    monkeypatch.setattr(recovery, "ledger", loses_one)
    answer, sentences = judged(broken(story(tmp_path)), tmp_path)["badput_adds_up"]
    assert answer == "fail"
    assert any("s of 22.0 s are under a cause" in s for s in sentences)
    assert any("under no cause" in s for s in sentences)


# --- no violations ---


def test_what_a_person_asked_for_draws_no_budget(tmp_path: Path) -> None:
    files = story(tmp_path)
    for number in (2, 3):
        files.of_decision(number, "intent")["incidents"][0]["kind"] = "requested"
    history = broken(files)
    fault(history, 1, kinds=("requested",))
    history.setting = replace(SETTING, budgets={"restart": 0, "replace": 4, "reallocate": 3})
    assert answers(history, tmp_path) == OTHER_KINDS


def test_draws_that_are_further_apart_than_the_window(tmp_path: Path) -> None:
    files = story(tmp_path)
    for number in (4, 6):
        files.of_decision(number, "intent")["incidents"][0] |= {"kind": "crash", "rung": 1}
    history = broken(files)
    fault(history, 2, kinds=("crash",))
    budgets = {"restart": 1, "replace": 4, "reallocate": 3}
    history.setting = replace(SETTING, budgets=budgets)
    assert answers(history, tmp_path)["within_budgets"] == "fail"
    history.setting = replace(SETTING, budgets=budgets, window_s=7.0)
    assert answers(history, tmp_path)["within_budgets"] == "pass"


def test_states_may_drift_apart_while_a_fault_makes_them(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.steps["n1", 0, 1].append(digest(14.0, 9, "a"))
    files.steps["n2", 1, 2].append(digest(14.0, 9, "b"))
    history = broken(files)
    assert answers(history, tmp_path)["digests_equal"] == "fail"
    fault(history, 1, drifts=True)
    assert answers(history, tmp_path) == OTHER_KINDS


@pytest.mark.parametrize("size", [{"ranks": 0}, {"groups": 0}])
def test_a_run_of_nobody_is_judged_by_nobody(tmp_path: Path, size: dict[str, int]) -> None:
    history = broken(story(tmp_path))
    history.setting = replace(SETTING, **size)
    found = answers(history, tmp_path)
    assert {found[name] for name in ("every_fault_happened", "one_incident_each", "others_go_on", "digests_equal")} == {
        "unknown"
    }


def test_of_a_step_that_was_made_again_the_newest_state_counts(tmp_path: Path) -> None:
    """The generations' records may be read in any order: by the names of their nodes."""
    files = story(tmp_path)
    files.steps["n1", 0, 1].append(digest(13.8, 9, "c"))
    files.steps["n2", 1, 2].append(digest(13.8, 9, "c"))
    files.steps["n9", 0, 1] = [digest(13.6, 9, "b")]
    assert answers(broken(files), tmp_path)["digests_equal"] == "pass"
    files.steps["n9", 0, 1] = [digest(13.9, 9, "b")]
    assert answers(broken(files), tmp_path)["digests_equal"] == "fail"


def test_a_step_that_is_made_again_after_a_resume_from_disk_was_compared_all_the_same(tmp_path: Path) -> None:
    """Also when the fault before it has no other comparison: found by `make chaos`, whose torn checkpoint came next."""
    files = story(tmp_path)
    history = broken(files)
    shared = recovery.digests(history, 2)
    assert {stretch for stretch, _, _ in shared} == {0}
    at = max(at for at, _ in shared.values())
    (step,) = {step for (_, step, _), (t, _) in shared.items() if t == at}
    history.processes = [replace(p, exited=min(p.exited or at + 0.1, at + 0.1)) for p in history.processes]
    again = replace(history.processes[-1], generation=9, spawned=at + 1.0, exited=None)
    history.processes.append(again)
    lines = (
        {"committed": True, "t": at + 1.5, "step": step},
        {"event": "digest", "t": at + 2.0, "step": step, "value": "z"},
    )
    history.steps += [Steps(group, 9, 0, "n1", lines) for group in (0, 1)]
    found = {key: values for key, (_, values) in recovery.digests(history, 2).items() if key[1] == step}
    assert found == {(0, step, 0): shared[0, step, 0][1], (1, step, 0): {"z"}}


def test_what_the_others_show_of_it(tmp_path: Path) -> None:
    history = broken(story(tmp_path))
    fault(history, 1, group=0, kinds=(), echoes=("crash",), others_within_s=60.0)
    assert answers(history, tmp_path)["one_incident_each"] == "pass"


def test_what_begins_with_the_next_fault_is_not_this_ones(tmp_path: Path) -> None:
    """Fault 1 is over at 18.2 s, fault 2 comes at 18.25 s, and group 0 commits nothing from 18 s to 20 s."""
    files = story(tmp_path)
    (slow,) = [x for x in files.steps["n1", 0, 1] if x.get("step") == 6]
    slow["t"] = 11.8
    history = broken(files)
    fault(history, 1, over=18.2, others_within_s=1.9)
    assert judged(history, tmp_path)["others_go_on"] == ("pass", ())
    fault(history, 2, began=19.95, made=19.96)
    assert judged(history, tmp_path)["others_go_on"][0] == "fail"


def test_two_faults_on_one_group_at_once_may_share_an_incident(tmp_path: Path) -> None:
    history = broken(story(tmp_path))
    beside(history, name="sigabrt", kinds=("oom",))
    assert answers(history, tmp_path) == OTHER_KINDS
    fault(history, 3, group=0, others_within_s=60.0)
    assert answers(history, tmp_path)["one_incident_each"] == "fail"


def test_a_group_that_is_hit_itself_is_none_of_the_others(tmp_path: Path) -> None:
    history = broken(story(tmp_path))
    fault(history, 1, others_within_s=1.0)
    history.faults.append(replace(KILL, number=3, group=0, began=10.6, kinds=("crash",), others_within_s=9.0))
    assert answers(history, tmp_path)["others_go_on"] == "pass"


def test_where_nothing_is_to_be_done_the_group_itself_has_to_go_on(tmp_path: Path) -> None:
    history = broken(story(tmp_path))
    fault(history, 1, kinds=())
    assert "group 1 stood still for" in judged(history, tmp_path)["others_go_on"][1][0]


def test_what_comes_with_a_hang_may_last_as_long_as_the_hang(tmp_path: Path) -> None:
    """Group 0 stands still for 2 s because group 1 hangs, of which 3 s are allowed. The other fault (SIGKILL to the
    supervisor, of which 1.9 s are allowed) is not to blame."""
    history = the_next_leader_leads(story(tmp_path))
    fault(history, 3, others_within_s=1.9)
    assert answers(history, tmp_path) == PASS


def test_a_lighthouse_that_is_opened_anew_bears_out_that_one_was_killed(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.of_decision(2, "intent")["actions"].append({"verb": "lighthouse", "key": "lighthouse:2", "generation": 2})
    assert answers(a_lighthouse_that_was_killed_has_no_successor(files), tmp_path) == PASS


def test_who_hears_sigterm_may_exit_by_itself(tmp_path: Path) -> None:
    for how in ({"exit_code": 143, "signal": None}, {"exit_code": None, "signal": 15}):
        files = story(tmp_path)
        files.of_shim("n2", "exited", 1, 1).update(how)
        history = broken(files)
        fault(history, 1, name="sigterm")
        history.setting = replace(SETTING, plan=(SETTING.plan[0].replace("sigkill", "sigterm"), SETTING.plan[1]))
        assert answers(history, tmp_path) == PASS


def test_how_a_process_ended_that_two_faults_broke_is_not_asked(tmp_path: Path) -> None:
    assert answers(beside(sigkill_that_was_an_exit(story(tmp_path)), name="sigabrt"), tmp_path) == PASS


def test_the_faults_of_whoever_writes_are_those_of_the_catalogue() -> None:
    assert {name for name, fault in FAULTS.items() if fault.writers} == recovery.WRITERS


def test_an_incident_that_is_over_with_its_group_needs_no_generation(tmp_path: Path) -> None:
    """The run is stopped while the group is being moved, and all open incidents are closed."""
    files = story(tmp_path)
    files.of_decision(6, "intent")["t"] = 19.2
    files.of_decision(6, "intent")["groups"]["1"]["phase"] = "finished"
    assert answers(broken(files), tmp_path)["recovered_in_time"] == "pass"


def test_who_was_slow_is_back_with_its_next_step(tmp_path: Path) -> None:
    """All was well, and its step took a moment longer: found by a short run whose rank stood still for 1.5 s."""
    history = broken(story(tmp_path))
    fault(history, 1, over=13.9)
    assert answers(history, tmp_path) == PASS


def test_a_fault_that_makes_states_drift_apart_is_seen_to_do_so(tmp_path: Path) -> None:
    """An order's mark is written before the act: only the states show its effect."""
    files = story(tmp_path)
    for node, generation, group in (("n1", 1, 0), ("n2", 2, 1)):
        files.steps[node, group, generation].append(digest(14.0, 9, "a"))
    history = broken(files)
    fault(history, 1, drifts=True)
    never = (
        "fail",
        ("fault 1 (sigkill of group 1 rank 0 at step 5): the groups' states never differed while it lasted",),
    )
    assert judged(history, tmp_path)["digests_equal"] == never
    history = broken(story(tmp_path))
    fault(history, 1, drifts=True)
    answer, (says,) = judged(history, tmp_path)["digests_equal"]
    assert answer == "unknown"
    assert says.endswith("the groups' states were not compared while it lasted")


def test_every_ranks_states_are_compared(tmp_path: Path) -> None:
    """No record of rank 1 exists."""
    history = broken(story(tmp_path))
    history.setting = replace(SETTING, ranks=2)
    answer, (says,) = judged(history, tmp_path)["digests_equal"]
    assert answer == "unknown"
    assert "the groups' states of rank 1 were not compared before the next" in says
    history.steps += [replace(steps, rank=1) for steps in history.steps]
    assert judged(history, tmp_path)["digests_equal"][0] == "pass"


def test_a_node_that_is_left_before_it_goes_draws_no_budget(tmp_path: Path) -> None:
    files = story(tmp_path)
    for number in (4, 6):
        files.of_decision(number, "intent")["incidents"][0]["kind"] = "leaving"
    history = broken(files)
    fault(history, 2, kinds=("leaving",))
    history.setting = replace(SETTING, budgets={"restart": 3, "replace": 0, "reallocate": 3})
    assert answers(history, tmp_path) == OTHER_KINDS


HOLDS, AWAY = (to_jsonable_python(Reason.of(code)) for code in (Code.BREAKER_HOLDS, Code.SHARED_AWAY))


@pytest.mark.parametrize(
    ("reason", "answer"),
    [
        ("because", "fail"),
        ("another group is the cause: it hung", "fail"),  # the causes of all others were unknown
        (HOLDS, "fail"),  # the breaker did not hold
        (AWAY, "fail"),  # one host alone has shown it
        ({"code": "of a newer version", "about": {}}, "fail"),
        (
            "one cause, not its node's: started again where it was, at no budget (the breaker holds)",
            "fail",
        ),  # version 1
    ],
)
def test_who_is_not_to_blame_draws_no_budget(tmp_path: Path, reason: Any, answer: str) -> None:
    assert answers(for_one_cause(story(tmp_path), reason), tmp_path)["within_budgets"] == answer


def for_one_cause(files: Files, reason: Any) -> History:
    for number in (2, 3):
        files.of_decision(number, "intent")["incidents"][0] |= {"kind": "error", "reason": reason}
    history = broken(files)
    fault(history, 1, kinds=("error",))
    history.setting = replace(SETTING, budgets={"restart": 0, "replace": 4, "reallocate": 3})
    return history


@pytest.mark.parametrize(("let_go", "answer"), [(None, "pass"), (8.0, "pass"), (7.0, "fail")])
def test_the_breaker_is_believed_where_the_journal_has_it_hold(
    tmp_path: Path, let_go: float | None, answer: str
) -> None:
    """This includes its window after it has let go: group 1 is restarted at 10.8 s."""
    files = story(tmp_path)
    files.of_decision(1, "intent")["actions"].append({"verb": "hold", "key": "hold:0", "reason": "r"})
    if let_go is not None:
        files.decide(let_go, 2, {0: 1, 1: 1}, [{"verb": "let_go", "key": "let_go:1", "reason": "r"}])
        files.journal[3:] = [*files.journal[-2:], *files.journal[3:-2]]
        for line in files.journal[5:]:
            line["decision"] += 1
    for line in files.journal:
        for found in line.get("incidents", []):
            if found["id"] == "i1":
                found |= {"kind": "error", "reason": HOLDS}
    history = broken(files)
    fault(history, 1, kinds=("error",))
    no_restart = {"restart": 0, "replace": 4, "reallocate": 3}
    history.setting = replace(SETTING, budgets=no_restart, breaker_window_s=3.0)
    assert answers(history, tmp_path) == OTHER_KINDS | {"within_budgets": answer}


def test_what_nodes_share_is_believed_where_processes_ended_on_two_of_them(tmp_path: Path) -> None:
    files = story(tmp_path)
    assert answers(for_one_cause(files, AWAY), tmp_path)["within_budgets"] == "fail"
    ended = files.of_shim("n1", "exited", 0, 1)
    ended |= {"t": 10.5, "exit_code": 1}
    assert answers(for_one_cause(files, AWAY), tmp_path)["within_budgets"] == "pass"


def test_nobody_moves_for_one_cause(tmp_path: Path) -> None:
    """Another node was taken, at no budget, though the reason names no node's fault."""
    files = story(tmp_path)
    files.of_decision(1, "intent")["actions"].append({"verb": "hold", "key": "hold:0", "reason": "r"})
    for number in (4, 6):
        files.of_decision(number, "intent")["incidents"][0] |= {"rung": 1, "reason": HOLDS}
    history = broken(files)
    history.setting = replace(SETTING, budgets={"restart": 1, "replace": 4, "reallocate": 3})
    answer, sentences = judged(history, tmp_path)["within_budgets"]
    assert (answer, sentences) == ("fail", ("2 times restart of group 1 within 3600 s: its budget is 1",))


@pytest.mark.parametrize(("window_s", "answer"), [(60.0, "pass"), (4.0, "fail"), (None, "unknown")])
def test_what_a_person_gives_up_draws_no_budget_for_the_breakers_window(
    tmp_path: Path, window_s: float | None, answer: str
) -> None:
    """The person's order comes at 14.2 s; a node is left at 18.4 s."""
    files = story(tmp_path)
    history = replaced_too_often(files)
    assert answers(history, tmp_path)["within_budgets"] == "fail"
    files.of_decision(3, "intent")["actions"].append({"verb": "resume", "key": "evict:1", "reason": "a person says: r"})
    history = replaced_too_often(files)
    assert history.setting is not None
    history.setting = replace(history.setting, breaker_window_s=window_s)
    assert answers(history, tmp_path) == PASS | {"within_budgets": answer}


def test_an_incident_that_climbs_may_be_about_one_node_after_the_other(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.of_decision(5, "intent")["incidents"] = [incident("i2", "node_lost", 1, 3, 4, "acting", node="n1")]
    another_host_is_cordoned(files)
    cordon = files.of_decision(4, "intent")["actions"].pop()
    files.of_decision(5, "intent")["actions"].append(cordon)
    assert answers(broken(files), tmp_path)["one_incident_each"] == "pass"


def test_of_a_run_that_goes_on_the_end_is_not_asked_for(tmp_path: Path) -> None:
    history = an_end_that_nobody_saw(story(tmp_path))
    history.setting = replace(SETTING, to_its_end=False)
    assert answers(history, tmp_path) == PASS


def test_an_end_that_was_lost_with_its_node_is_not_asked_for(tmp_path: Path) -> None:
    """It was fenced, and its group is elsewhere."""
    files = story(tmp_path)
    files.nobody_saw_it_end()
    assert answers(broken(files), tmp_path) == PASS


# --- unknown ---


def test_a_fault_whose_trace_the_history_does_not_hold_is_unknown(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.of_shim("n2", "exited", 1, 1).update(exit_code=None, signal=None)
    says = ("fault 1 (sigkill of group 1 rank 0 at step 5): no shim saw how its process ended",)
    assert judged(broken(files), tmp_path)["every_fault_happened"] == ("unknown", says)
    history = a_leader_was_killed_after_the_last_decision(story(tmp_path))
    assert history.setting is not None
    history.setting = replace(history.setting, to_its_end=False)  # the next one may have decided nothing yet
    answer, sentences = judged(history, tmp_path)["every_fault_happened"]
    assert (answer, sentences[0].partition(": ")[2]) == ("unknown", "nothing tells who led after it")


def test_an_incident_whose_new_generation_no_shim_tells_of_is_unknown(tmp_path: Path) -> None:
    history = broken(story(tmp_path))
    history.processes = [p for p in history.processes if p.generation != 3]
    answer, sentences = judged(history, tmp_path)["recovered_in_time"]
    assert answer == "unknown"
    assert "incident i2 is over, and no shim tells when generation 3 of group 1 began" in sentences[0]


def test_a_run_in_which_nothing_was_broken_is_unknown(tmp_path: Path) -> None:
    history = broken(story(tmp_path))
    history.setting, history.faults = replace(SETTING, plan=(), planned=0), []
    assert answers(history, tmp_path)["every_fault_happened"] == "unknown"


def test_budgets_that_are_not_said_are_unknown(tmp_path: Path) -> None:
    history = broken(story(tmp_path))
    history.setting = replace(SETTING, budgets={"restart": 3})
    answer, sentences = judged(history, tmp_path)["within_budgets"]
    assert (answer, sentences) == (
        "unknown", ("the history does not say what the budget of reallocate and replace is",),
    )  # fmt: skip


def test_an_incident_whose_last_word_may_not_have_been_committed_is_unknown(tmp_path: Path) -> None:
    """Its supervisor died before it could report the outcome, and none of the next decided anything."""
    files = story(tmp_path)
    last = files.of_decision(6, "intent")
    del files.journal[files.journal.index(last) + 1 :]
    answer, sentences = judged(broken(files), tmp_path)["recovered_in_time"]
    assert answer == "unknown"
    assert "its incident i2 is over if decision 6 was committed, and nothing says whether it was" in sentences[0]
    files.outcome(23.0, 6, refused="another leads")
    answer, sentences = judged(broken(files), tmp_path)["recovered_in_time"]
    assert (answer, sentences[0].endswith("its incident i2 is not over")) == ("fail", True)


def test_states_that_were_not_compared_are_unknown(tmp_path: Path) -> None:
    files = story(tmp_path)
    for node, group, generation in (("n1", 0, 1), ("n2", 1, 2)):
        files.steps[node, group, generation] = [
            x for x in files.steps[node, group, generation] if not (x["event"] == "digest" and x["step"] == 10)
        ]
    answer, sentences = judged(broken(files), tmp_path)["digests_equal"]
    assert answer == "unknown"
    assert "fault 1 (sigkill of group 1 rank 0 at step 5): the groups' states were not compared" in sentences[0]


def test_nobody_hashed(tmp_path: Path) -> None:
    files = story(tmp_path)
    for lines in files.steps.values():
        lines[:] = [x for x in lines if x["event"] != "digest"]
    assert answers(broken(files), tmp_path) == {**PASS, "digests_equal": "unknown"}


def test_nobody_looked_what_was_left(tmp_path: Path) -> None:
    history = broken(story(tmp_path))
    history.left = None
    assert answers(history, tmp_path) == {**PASS, "nothing_left": "unknown"}


def test_no_committed_steps(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.steps = {("n1", 0, 1): [note("heal", 3.0)]}
    assert answers(broken(files), tmp_path)["others_go_on"] == "unknown"


def test_a_fault_that_is_not_made_is_no_failed_recovery(tmp_path: Path) -> None:
    history = broken(story(tmp_path))
    gone = FaultDone(
        number=3, name="hiccup", group=0, rank=0, generation=1, node="n1", step=15, began=22.5, made=None, evidence="",
        healed=None, over=22.6, after="there is no process 7 any more", within_s=5.0, others_within_s=5.0,
    )  # fmt: skip
    history.faults.append(gone)
    planned = "  3  at step 15: hiccup, group 0 rank 0"
    history.setting = replace(SETTING, plan=(*SETTING.plan, planned), planned=3)
    verdicts = judged(history, tmp_path)
    assert verdicts["every_fault_happened"][1] == (
        "fault 3 (hiccup of group 0 rank 0 at step 15) left no evidence: there is no process 7 any more",
    )
    assert verdicts["recovered_in_time"][0] == "pass"
