"""A consistent history passes; each planted violation is found by its own checker, and by no other that is not
named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.checkers.consistency import CHECKERS, OF_STEPS, check
from supervisor.shell.history.files import History
from tests.unit.fault_injection.broken import KILL
from tests.unit.fault_injection.files import Files, answers, incident, line, note, place, seconds, step, story


def test_a_consistent_history_passes(tmp_path: Path) -> None:
    assert story(tmp_path).answers() == dict.fromkeys(CHECKERS, "pass")


# --- violations ---


def of_step(f: Files, node: str, group: int, generation: int, number: int) -> dict[str, Any]:
    (body,) = [x for x in f.steps[node, group, generation] if x.get("committed") and x["step"] == number]
    return body


def late_line_of_an_old_leader(f: Files) -> dict[str, Any]:
    """Epoch 1 committed decision 5, at revision 191, and froze; epoch 200 decided 6 and 7; then the old leader
    wrote."""
    for body in f.journal:
        if body.get("decision", 0) > 5:
            body["epoch"] = 200
    late = f.of_decision(5, "outcome")
    f.journal.remove(late)
    f.journal.append(late)
    return late


def node_ended(f: Files) -> None:
    """The node's owner ends it: TERM to its shim."""
    f.shims["n1"].append({"t": 22.4, "event": "shim_stopping", "pid": 1})
    f.shim(22.45, "signalled", "n1", 0, 1, signal=15)


def spawned_twice(f: Files) -> None:
    f.shim(11.05, "spawned", "n2", 1, 2, pid=999)


def spawned_again_after_its_end(f: Files) -> None:
    f.shim(10.7, "spawned", "n2", 1, 1, pid=999)
    f.shim(10.9, "exited", "n2", 1, 1, pid=999, exit_code=1, signal=None)


def spawned_on_two_nodes(f: Files) -> None:
    f.shim(19.6, "spawned", "n1", 1, 3, pid=999)


def spawned_on_another_node(f: Files) -> None:
    moved = f.of_shim("n3", "spawned", 1, 3)
    f.shims["n3"].remove(moved)
    f.shims["n4"] = [moved]


def spawned_without_a_decision(f: Files) -> None:
    f.shim(12.0, "spawned", "n3", 0, 2)


def spawned_after_a_refused_decision(f: Files) -> None:
    f.of_decision(5, "outcome")["refused"] = "the epoch is over"


def started_by_two_decisions(f: Files) -> None:
    f.of_decision(6, "intent")["actions"] = [place(1, 3, "n3")]


def decision_committed_twice(f: Files) -> None:
    f.decide(14.5, 3, {0: 1, 1: 2}, [], [incident("i1", "crash", 1, 1, 2, "recovered")], epoch=2)


def generation_goes_back(f: Files) -> None:
    f.of_decision(6, "intent")["groups"]["1"]["generation"] = 2


def checkpoint_goes_back(f: Files) -> None:
    for number, at in ((3, 50), (5, 25)):
        act = {"verb": "checkpoint", "key": f"checkpoint:{at}", "reason": "r", "group": 0}
        f.of_decision(number, "intent")["actions"].append(act)


def stale_spawn(f: Files) -> None:
    f.of_shim("n2", "spawned", 1, 2)["t"] = 18.6
    f.leftover_killed(18.7)


def older_generation_commits(f: Files) -> None:
    f.steps["n2", 1, 2].append(step(22.0, 22.5, 17, healed=True))


def a_sample_in_two_groups(f: Files) -> None:
    for steps in (f.steps["n1", 0, 1], f.steps["n2", 1, 2]):
        steps.append(note("batch", 15.5, samples=["a"], position=0, quorum_id=3, step=12))


def step_goes_back(f: Files) -> None:
    """Group 1 resumed from disk while group 0 trained on."""
    f.steps["n3", 1, 3][3] = step(22.2, 22.8, 3)


def commits_after_its_end(f: Files) -> None:
    f.steps["n2", 1, 1].append(step(10.7, 10.9, 6, quorum_id=1, participants=2, participating_rank=1))


def commits_after_the_next_shim_began(f: Files) -> None:
    """Generation 2 takes part in step 14 of quorum 4 until 20 s; its node's next shim began at 18.38 s, empty."""
    f.steps["n2", 1, 2].append(step(18.0, 20.0, 14, quorum_id=4, participants=2, participating_rank=1))
    of_step(f, "n1", 0, 1, 14).update(quorum_id=4, participants=2, participating_rank=0)


def goes_on_after_its_fence(f: Files) -> None:
    """Generation 3 is decided at 19 s. Generation 2 makes step 14, which is in flight, and then step 15."""
    f.nobody_saw_it_end()
    for start, t, number in ((18.0, 20.0, 14), (20.0, 21.0, 15)):
        f.steps["n2", 1, 2].append(step(start, t, number, quorum_id=4, participants=2, participating_rank=1))
        of_step(f, "n1", 0, 1, number).update(quorum_id=4, participants=2, participating_rank=0)


def is_let_into_a_quorum_after_its_fence(f: Files) -> None:
    """Generation 2 asked for a quorum before 19 s, was frozen, and is given one that group 0 began after that."""
    f.nobody_saw_it_end()
    f.steps["n2", 1, 2].append(step(18.0, 20.9, 15, quorum_id=4, participants=2, participating_rank=1, healed=True))
    of_step(f, "n1", 0, 1, 14).update(quorum_id=3, participants=1, participating_rank=0)
    of_step(f, "n1", 0, 1, 15).update(quorum_id=4, participants=2, participating_rank=0)


def makes_a_step_beside_the_newer_one(f: Files) -> None:
    """Frozen in step 16 since before its fence, generation 2 ends it in the quorum in which generation 3 makes it."""
    f.nobody_saw_it_end()
    f.steps["n2", 1, 2].append(step(18.0, 21.99, 16, quorum_id=5, participants=2, participating_rank=1, healed=True))
    of_step(f, "n1", 0, 1, 15)["quorum_id"] = 5
    of_step(f, "n1", 0, 1, 15)["start"] = 18.9


def begun_beside_an_older_one(f: Files) -> None:
    f.of_shim("n2", "exited", 1, 1)["t"] = 11.02


def committed_on_two_nodes(f: Files) -> None:
    f.steps["n4", 1, 3] = [step(21.0, 22.5, 16, quorum_id=5, participants=2, participating_rank=1)]


def decides_on_after_its_term(f: Files) -> None:
    f.journal.append({"t": 20.0, "entry": "event", "event": "term", "epoch": 2})
    f.journal.sort(key=lambda x: x["t"])


def commits_after_its_term(f: Files) -> None:
    late_line_of_an_old_leader(f)["revision"] = 201  # and the new one committed for the first time at 223


def killed_without_a_decision(f: Files) -> None:
    f.shim(15.0, "signalled", "n1", 0, 1, signal=15)


def killed_by_a_refused_decision(f: Files) -> None:
    f.intent(22.0, 6, {0: 2, 1: 3}, [], [incident("i3", "crash", 0, 1, 2, "acting")])
    f.outcome(22.05, 6, refused="the epoch is over")
    f.journal.sort(key=lambda x: x["t"])
    f.shim(22.1, "signalled", "n1", 0, 1, signal=15)


def killed_for_what_an_older_one_had_done(f: Files) -> None:
    f.shim(20.0, "signalled", "n3", 1, 3, signal=9)


def killed_for_no_said_reason(f: Files) -> None:
    f.of_decision(4, "intent")["incidents"][0]["reason"] = ""
    f.shim(18.45, "signalled", "n2", 1, 2, signal=15)


def killed_before_the_decision(f: Files) -> None:
    f.shim(18.3, "signalled", "n2", 1, 2, signal=15)


def killed_for_a_halt_that_was_left(f: Files) -> None:
    f.decide(22.95, 8, {0: 1, 1: 3}, [{"verb": "resume", "key": "resume:1", "reason": "r"}])
    f.shim(23.0, "signalled", "n1", 0, 1, signal=15)


def killed_by_giving_back_its_allocation(f: Files) -> None:
    node_ended(f)
    f.of_decision(6, "intent")["actions"] = [{"verb": "release", "key": "release:a-n1", "reason": "r"}]


def killed_by_a_policy_that_there_is_not(f: Files) -> None:
    f.shim(15.0, "signalled", "n1", 0, 1, signal=15, why="it must not run on this node")


def two_quorums_at_once(f: Files) -> None:
    of_step(f, "n2", 1, 1, 3).update(quorum_id=7, participants=1, participating_rank=0)


def a_quorum_beside_the_newest(f: Files) -> None:
    f.steps["n2", 1, 2][-2] = step(18.0, 18.2, 13, quorum_id=4, participants=1, participating_rank=0)


def more_than_their_quorum_held(f: Files) -> None:
    for node, group in (("n1", 0), ("n2", 1)):
        of_step(f, node, group, 1, 3).update(quorum_id=1, participants=1, participating_rank=group)


def two_sizes_of_a_quorum(f: Files) -> None:
    of_step(f, "n2", 1, 1, 3).update(quorum_id=1, participants=3, participating_rank=2)


def two_at_one_place(f: Files) -> None:
    of_step(f, "n2", 1, 1, 3).update(quorum_id=1, participants=2, participating_rank=0)


def wherever(f: Files, number: int) -> list[tuple[list[dict[str, Any]], int]]:
    """The places where a step was committed: (lines, place)."""
    found = ((lines, at) for lines in f.steps.values() for at, _ in enumerate(lines))
    return [(lines, at) for lines, at in found if lines[at].get("committed") and lines[at]["step"] == number]


def made_twice_in_one_quorum(f: Files) -> None:
    """Each of two live groups commits step 12, then step 12 again, in the same process and quorum."""
    for lines, at in wherever(f, 12):
        lines[at : at + 1] = [step(16.0, 16.5, 12), step(16.5, 17.0, 12)]


def left_out_by_all(f: Files) -> None:
    """Both groups go from step 11 to 13, with no process ended: 12 was lost, or never made."""
    for lines, at in wherever(f, 12):
        del lines[at]


def left_out_by_one_that_lives(f: Files) -> None:
    """Group 1 goes from 11 to 13 without healing; group 0 reports that it took part in 12."""
    lines, at = wherever(f, 12)[1]
    del lines[at]


def resumed_behind_the_newest_checkpoint(f: Files) -> None:
    """Both groups go on from step 10 when 15 is complete on disk. Twin and digests agree, for the run did so."""
    resume(f)
    f.decide(24.0, 9, {0: 1, 1: 3}, [{"verb": "checkpoint", "key": "checkpoint:15", "reason": "r", "group": 0}])
    f.journal[-4:] = [*f.journal[-2:], *f.journal[-4:-2]]
    for body, number in zip(f.journal[-4:], (8, 8, 9, 9), strict=True):
        body["decision"] = number


def lives_on(f: Files) -> None:
    """The process of generation 2 lives on on n2 until 22 s; generation 3 begins on n3 at 19.5 s."""
    f.leftover_killed(22.0)


def moved_without_a_fence(f: Files) -> None:
    lives_on(f)
    f.of_decision(4, "intent")["actions"] = []


def moved_before_the_fence(f: Files) -> None:
    lives_on(f)
    f.of_decision(6, "intent")["actions"] = f.of_decision(4, "intent")["actions"]
    f.of_decision(4, "intent")["actions"] = []


def fenced_because_it_was_gone(f: Files) -> None:
    """A fence claims that generation 2 was gone, but it was not."""
    lives_on(f)
    f.of_decision(4, "intent")["actions"][0]["code"] = "node_has_none"


def started_before_it_was_decided(f: Files) -> None:
    """Decision 5 places generation 3 at 19.0 s; its process has run since 18.6 s."""
    f.of_shim("n3", "spawned", 1, 3)["t"] = 18.6


def steps_of_a_process_that_nobody_spawned(f: Files) -> None:
    f.shims["n1"] = f.shims["n1"][:2]


def another_loss_in_one_group(f: Files) -> None:
    lines, at = wherever(f, 12)[1]
    lines[at]["loss"] += 1e-3


def another_norm_in_one_group(f: Files) -> None:
    for norm, (lines, at) in zip((2.0, 1.0), wherever(f, 12), strict=True):
        lines[at]["gradient_norm"] = norm


def a_loss_that_is_no_number(f: Files) -> None:
    for lines, at in wherever(f, 12):
        lines[at]["loss"] = float("nan")


def a_loss_that_is_no_number_in_a_step_of_one_group(f: Files) -> None:
    ((lines, at),) = wherever(f, 6)
    lines[at]["loss"] = float("inf")


def killed_by_a_policy_that_does_not_kill(f: Files) -> None:
    f.shim(15.0, "signalled", "n1", 0, 1, signal=15, why="policy.nonsense")


def killed_as_cut_off_while_it_trained(f: Files) -> None:
    """It began steps at 13.5 s and 14 s, and committed them."""
    f.shim(15.0, "signalled", "n1", 0, 1, signal=15, why="it was cut off", cut_off_s=1.5)


def a_quorum_whose_id_goes_back(f: Files) -> None:
    """The id of the quorum of both until 10 s comes again at 21 s, as from a lighthouse that counts from one."""
    for number in (16, 17):
        for lines, at in wherever(f, number):
            lines[at] |= {"quorum_id": 1, "participants": 2}


def one_quorum_before_and_after_a_restart(f: Files) -> None:
    """Group 1 is started again at 11 s, and its quorum has the id that it had."""
    for lines in f.steps.values():
        for body in lines:
            if body.get("committed") and body["start"] < 18.0:
                body.update(quorum_id=1, participants=2, participating_rank=0 if lines is f.steps["n1", 0, 1] else 1)


PLANTS: list[tuple[Callable[[Files], None], str, str]] = [
    (spawned_twice, "one_actuation_per_decision", "group 1 generation 2 rank 0 was spawned 2 times"),
    (spawned_again_after_its_end, "one_actuation_per_decision", "group 1 generation 1 rank 0 was spawned 2 times"),
    (spawned_on_two_nodes, "one_actuation_per_decision", "was spawned on n1; it was decided on n3"),
    (spawned_on_another_node, "one_actuation_per_decision", "was spawned on n4; it was decided on n3"),
    (spawned_without_a_decision, "one_actuation_per_decision", "was spawned on n3; it was decided nowhere"),
    (spawned_after_a_refused_decision, "one_actuation_per_decision", "was spawned on n3; it was decided nowhere"),
    (started_by_two_decisions, "one_actuation_per_decision", "generation 3 of group 1 was started by 2 decisions"),
    (decision_committed_twice, "generations_grow", "decision 3 was committed twice (epochs 1, 2)"),
    (generation_goes_back, "generations_grow", "group 1 went back from generation 3 to 2 in decision 6"),
    (checkpoint_goes_back, "generations_grow", "the newest checkpoint went back from step 50 to 25"),
    (stale_spawn, "no_stale_actuation", "generation 2 was spawned on n2 after generation 3 was decided"),
    (older_generation_commits, "single_owner", "generation 2 on n2 committed step 17 after generation 3 had begun"),
    (commits_after_its_end, "single_owner", "committed step 6 after its shim had seen it end"),
    (commits_after_the_next_shim_began, "single_owner", "committed step 14 after its shim had seen it end"),
    (goes_on_after_its_fence, "single_owner", "generation 2 on n2 began step 15 after generation 3 was to begin on n3"),
    (is_let_into_a_quorum_after_its_fence, "single_owner", "generation 2 on n2 began step 15 after generation 3"),
    (makes_a_step_beside_the_newer_one, "single_owner", "generations 2 and 3 both committed step 16 in quorum 5"),
    (begun_beside_an_older_one, "single_owner", "was begun on n2 while generation 1 still ran there"),
    (committed_on_two_nodes, "single_owner", "generation 3 rank 0 committed on n3 and on n4"),
    (decides_on_after_its_term, "no_dead_epoch", "decision 6 was committed under epoch 1 when epoch 2 led"),
    (
        commits_after_its_term,
        "no_dead_epoch",
        "decision 5 of epoch 1 was committed at revision 201, when epoch 200 had",
    ),
    (killed_without_a_decision, "no_kill_without_reason", "group 0 generation 1 on n1 was sent signal 15 at 15.000"),
    (killed_by_a_refused_decision, "no_kill_without_reason", "group 0 generation 1 on n1 was sent signal 15"),
    (killed_for_what_an_older_one_had_done, "no_kill_without_reason", "generation 3 on n3 was sent signal 9"),
    (killed_for_no_said_reason, "no_kill_without_reason", "generation 2 on n2 was sent signal 15"),
    (killed_before_the_decision, "no_kill_without_reason", "generation 2 on n2 was sent signal 15"),
    (killed_for_a_halt_that_was_left, "no_kill_without_reason", "generation 1 on n1 was sent signal 15"),
    (killed_by_giving_back_its_allocation, "no_kill_without_reason", "generation 1 on n1 was sent signal 15"),
    (killed_by_a_policy_that_there_is_not, "no_kill_without_reason", "generation 1 on n1 was sent signal 15"),
    (two_quorums_at_once, "one_quorum_per_step", "in quorum 1 and by group 1 generation 1 in quorum 7"),
    (a_quorum_beside_the_newest, "one_quorum_per_step", "step 13 was committed by group 0 generation 1 in quorum 3"),
    (more_than_their_quorum_held, "one_quorum_per_step", "by groups [0, 1], which say that it held 1"),
    (two_sizes_of_a_quorum, "one_quorum_per_step", "by groups [0, 1], which say that it held 2 and 3"),
    (two_at_one_place, "one_quorum_per_step", "held two of them at the same place ([0, 0])"),
    (step_goes_back, "steps_not_lost", "group 1 generation 3 committed step 3 after step 16"),
    (
        made_twice_in_one_quorum,
        "steps_not_lost",
        "group 1 generation 2 committed step 12 after step 12, in one process",
    ),
    (left_out_by_all, "steps_not_lost", "group 0 generation 1 committed step 13 after step 11, and did not heal"),
    (left_out_by_one_that_lives, "steps_not_lost", "group 1 generation 2 committed step 13 after step 11, and did not"),
    (resumed_behind_the_newest_checkpoint, "steps_not_lost", "step 11 was committed after a resume, and step 15 was"),
    (a_sample_in_two_groups, "each_sample_once", "step 12 has samples 0 to 0 again"),
    (moved_without_a_fence, "single_owner", "generation 2 still ran on n2, and it was not fenced before"),
    (moved_before_the_fence, "single_owner", "generation 2 still ran on n2, and it was not fenced before"),
    (fenced_because_it_was_gone, "single_owner", "generation 2 still ran on n2, and it was not fenced before"),
    (started_before_it_was_decided, "one_actuation_per_decision", "was spawned 0.400 s before that was decided"),
    (steps_of_a_process_that_nobody_spawned, "one_actuation_per_decision", "on n1 wrote steps, and no one spawned it"),
    (another_loss_in_one_group, "one_quorum_per_step", "step 12 of quorum 3 has a loss of 6.0 and 6.001"),
    (another_norm_in_one_group, "one_quorum_per_step", "step 12 of quorum 3 has a gradient_norm of 1.0 and 2.0"),
    (a_loss_that_is_no_number, "one_quorum_per_step", "step 12 of group 0 generation 1 has a loss of nan"),
    (
        a_loss_that_is_no_number_in_a_step_of_one_group,
        "one_quorum_per_step",
        "step 6 of group 0 generation 1 has a loss of inf",
    ),
    (a_quorum_whose_id_goes_back, "one_quorum_per_step", "is of quorum 1, and quorum 4 had committed before it began"),
    (
        one_quorum_before_and_after_a_restart,
        "one_quorum_per_step",
        "generation 2 is of quorum 1, and so was generation 1",
    ),
    (killed_as_cut_off_while_it_trained, "no_kill_without_reason", "generation 1 on n1 was sent signal 15"),
    (killed_by_a_policy_that_does_not_kill, "no_kill_without_reason", "generation 1 on n1 was sent signal 15"),
]

ALSO: dict[Callable[[Files], None], dict[str, str]] = {
    # its group still runs on n1
    spawned_without_a_decision: {"single_owner": "fail"},
    # generation 3 has a part in that quorum
    older_generation_commits: {"one_quorum_per_step": "fail"},
    makes_a_step_beside_the_newer_one: {"one_quorum_per_step": "fail"},
    # no shim of n4 has spawned it
    committed_on_two_nodes: {"one_actuation_per_decision": "fail"},
}
"""Answers that other checkers rightly give to a violation too."""


@pytest.mark.parametrize(("plant", "checker", "says"), PLANTS, ids=[p.__name__ for p, _, _ in PLANTS])
def test_a_violation_is_found(tmp_path: Path, plant: Callable[[Files], None], checker: str, says: str) -> None:
    files = story(tmp_path)
    plant(files)
    verdicts = check(files.history())
    expected = {**dict.fromkeys(CHECKERS, "pass"), **ALSO.get(plant, {}), checker: "fail"}
    assert {v.checker: v.answer for v in verdicts} == expected
    (found,) = [v for v in verdicts if v.checker == checker]
    assert any(says in sentence for sentence in found.sentences), found.sentences


def _named(f: Files, *named: tuple[int, str, int]) -> None:
    for number, verb, at in named:
        key = f"checkpoint:{at}" if verb == "checkpoint" else f"load:0:2:{at}"
        act = {"verb": verb, "key": key, "reason": "r", "group": 0}
        f.of_decision(number, "intent")["actions"].append(act)


def test_a_start_from_disk_may_find_that_an_older_checkpoint_is_the_newest(tmp_path: Path) -> None:
    files = story(tmp_path)
    _named(files, (3, "checkpoint", 50), (4, "load", 25), (5, "checkpoint", 30))
    assert set(files.answers().values()) == {"pass"}


def test_what_a_start_from_disk_found_is_the_newest_from_then_on(tmp_path: Path) -> None:
    files = story(tmp_path)
    _named(files, (3, "checkpoint", 50), (4, "load", 75), (5, "checkpoint", 60))
    assert files.answers() == {**dict.fromkeys(CHECKERS, "pass"), "generations_grow": "fail"}


def test_a_decision_count_that_goes_back_is_found(tmp_path: Path) -> None:
    """Number 20 is followed by 4: the memory of the decisions between is lost."""
    files = story(tmp_path)
    for entry in ("intent", "outcome"):
        files.of_decision(3, entry)["decision"] = 20
    assert files.answers() == {**dict.fromkeys(CHECKERS, "pass"), "generations_grow": "fail"}


def test_every_checker_has_a_violation() -> None:
    assert {checker for _, checker, _ in PLANTS} == set(CHECKERS)


def test_a_violation_is_told_even_where_lines_are_missing(tmp_path: Path) -> None:
    files = story(tmp_path)
    spawned_twice(files)
    files.write()
    files.journal_file().write_text(files.journal_file().read_text() + "?\n")
    found = answers(files.load())
    assert found.pop("one_actuation_per_decision") == "fail"
    assert set(found.values()) == {"unknown"}


# --- epochs ---


def test_a_line_that_an_old_leader_writes_late_is_fine(tmp_path: Path) -> None:
    files = story(tmp_path)
    late_line_of_an_old_leader(files)
    assert set(files.answers().values()) == {"pass"}


def test_but_not_when_it_does_not_say_at_which_revision(tmp_path: Path) -> None:
    files = story(tmp_path)
    late_line_of_an_old_leader(files)["revision"] = None
    assert files.answers() == {**dict.fromkeys(CHECKERS, "pass"), "no_dead_epoch": "unknown"}


def test_after_a_restore_a_late_commit_is_found_all_the_same(tmp_path: Path) -> None:
    """Its epochs are far above its revisions. Those from before the restore are of another store."""
    far = 10**9
    for restored, answer in ((1, "pass"), (far, "fail")):
        files = story(tmp_path / str(restored))
        commits_after_its_term(files)
        for body in files.journal:
            if body.get("epoch") == 200:
                body["epoch"] = far + 200
            elif restored == far:
                body["epoch"] = far + 1
        files.journal.insert(0, {"t": 0.4, "entry": "event", "event": "term", "epoch": restored, "elected": 1})
        files.journal[0]["epoch"] = far + 1 if restored == far else 1
        at = next(n for n, body in enumerate(files.journal) if body["epoch"] == far + 200)
        files.journal.insert(at, {"t": 22.1, "entry": "event", "event": "term", "epoch": far + 200, "elected": 200})
        assert files.answers()["no_dead_epoch"] == answer


def test_what_an_old_leader_tries_and_is_refused_is_fine(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.journal.append({"t": 23.0, "entry": "event", "event": "term", "epoch": 2})
    files.intent(23.1, 8, {0: 2, 1: 3}, [place(0, 2, "n3")])
    files.outcome(23.2, 8, refused="the epoch is over")
    assert set(files.answers().values()) == {"pass"}


# --- reasons ---


def decided(f: Files) -> None:
    f.shim(18.45, "signalled", "n2", 1, 2, signal=15)


def drained(f: Files) -> None:
    f.shim(23.0, "signalled", "n1", 0, 1, signal=15)


def cut_off(f: Files) -> None:
    """Group 0 has begun no step since 18 s."""
    f.shim(20.0, "signalled", "n1", 0, 1, signal=15, why="it was cut off", cut_off_s=1.5)
    f.shim(20.5, "signalled", "n1", 0, 1, signal=9, why="it did not end in its grace")


def cut_off_by_a_shim_of_an_earlier_version(f: Files) -> None:
    why = "neither etcd nor the gate was reached for 1.6 s: policy.cut_off_stop_s is 1.5"
    f.shim(20.0, "signalled", "n1", 0, 1, signal=15, why=why)


def another_rank_failed(f: Files) -> None:
    for event, t, about in (("spawned", 2.0, {}), ("exited", 14.9, {"exit_code": 1, "signal": None})):
        f.shim(t, event, "n1", 0, 1, pid=7, **about)
        f.shims["n1"][-1]["name"] = "run.0.1.1"
    f.shim(15.0, "signalled", "n1", 0, 1, signal=15)


def given_back_after_a_move(f: Files) -> None:
    f.shims["n2"] += [{"t": 18.7, "event": "shim_stopping", "pid": 1}]
    f.of_decision(4, "intent")["actions"] += [{"verb": "release", "key": "release:a-n2", "reason": "r"}]
    f.shim(18.71, "signalled", "n2", 1, 2, signal=15)


@pytest.mark.parametrize(
    "reason",
    [
        decided,
        drained,
        cut_off,
        cut_off_by_a_shim_of_an_earlier_version,
        another_rank_failed,
        node_ended,
        given_back_after_a_move,
    ],
)
def test_a_signal_with_a_reason_is_fine(tmp_path: Path, reason: Callable[[Files], None]) -> None:
    files = story(tmp_path)
    reason(files)
    assert set(files.answers().values()) == {"pass"}


def test_a_node_that_does_not_say_whose_it_is_is_unknown(tmp_path: Path) -> None:
    """An older shim names no allocation, and does not record the order to end either."""
    files = story(tmp_path)
    killed_without_a_decision(files)
    del files.shims["n1"][0]["allocation"]
    assert files.answers() == {**dict.fromkeys(CHECKERS, "pass"), "no_kill_without_reason": "unknown"}


# --- owners and quorums ---


def test_a_step_that_a_frozen_process_ends_late_has_no_second_owner(tmp_path: Path) -> None:
    """It had begun in the older quorum, before the newer generation's first; its shim saw it end after that."""
    files = story(tmp_path)
    files.leftover_killed(22.6)
    files.steps["n2", 1, 2].append(step(18.0, 22.5, 14, quorum_id=3, participants=2, participating_rank=1))
    found = files.answers()
    assert found["single_owner"] == "pass"


def test_who_dies_after_its_commit_leaves_the_step_to_the_others(tmp_path: Path) -> None:
    """Group 1 commits step 6 and dies; group 0's attempt in the same quorum fails, and it commits 6 in the next."""
    files = story(tmp_path)
    files.steps["n2", 1, 1].append(step(10.0, 10.5, 6, quorum_id=1, participants=2, participating_rank=1))
    assert set(files.answers().values()) == {"pass"}


def test_who_heals_gives_its_own_copy_of_the_step_up(tmp_path: Path) -> None:
    files = story(tmp_path)
    a_quorum_beside_the_newest(files)
    of_step(files, "n1", 0, 1, 14)["healed"] = True
    assert set(files.answers().values()) == {"pass"}


def test_after_a_resume_from_disk_ids_may_be_given_again(tmp_path: Path) -> None:
    """The ids come from a new lighthouse, which could not learn the last ones."""
    files = story(tmp_path)
    resume(files)
    for lines in files.steps.values():
        for body in lines:
            if body.get("committed") and body["start"] > 23.0:
                body["quorum_id"] = 1
    assert files.answers()["one_quorum_per_step"] == "pass"


def test_who_heals_has_no_place_in_the_quorum(tmp_path: Path) -> None:
    files = story(tmp_path)
    of_step(files, "n1", 0, 1, 3).update(quorum_id=1, participants=1, participating_rank=0)
    of_step(files, "n2", 1, 1, 3).update(quorum_id=1, participants=1, participating_rank=None)
    assert set(files.answers().values()) == {"pass"}


def test_trainers_that_know_no_quorum_say_nothing_about_quorums(tmp_path: Path) -> None:
    files = story(tmp_path)
    of_step(files, "n2", 1, 1, 3).update(quorum_id=None, participants=2)
    assert files.answers() == {**dict.fromkeys(CHECKERS, "pass"), "one_quorum_per_step": "unknown"}


# --- steps that go back ---


def resume(f: Files, spawned: float = 31.0) -> Files:
    """Both groups are started again, and resume from a checkpoint of step 10."""
    f.decide(30.0, 8, {0: 2, 1: 4}, [place(0, 2, "n1"), place(1, 4, "n3")])
    for node, group, generation in (("n1", 0, 2), ("n3", 1, 4)):
        f.shim(spawned, "spawned", node, group, generation)
        f.steps[node, group, generation] = [line("start", spawned, spawned + 1), *seconds(spawned + 1, 11, 3)]
    return f


def test_a_resume_from_disk_after_all_have_ended_is_fine(tmp_path: Path) -> None:
    assert set(resume(story(tmp_path)).answers().values()) == {"pass"}


def test_a_resume_from_disk_while_another_group_lives_is_not(tmp_path: Path) -> None:
    files = resume(story(tmp_path))
    files.shims["n1"].remove(files.of_shim("n1", "exited", 0, 1))
    files.steps["n1", 0, 1] += seconds(23.1, 18, 15)  # it trains on
    assert files.answers()["steps_not_lost"] == "fail"


def test_a_moment_without_any_process_is_needed(tmp_path: Path) -> None:
    """Group 0 ended only when group 1 had begun again: it could have healed it."""
    files = resume(story(tmp_path))
    files.of_shim("n1", "exited", 0, 1)["t"] = 31.5
    assert files.answers()["steps_not_lost"] == "fail"


@pytest.mark.parametrize(("heals_at", "answer"), [(None, "pass"), (31.2, "fail"), (31.7, "pass")])
def test_who_was_to_heal_and_did_not_kept_no_steps(tmp_path: Path, heals_at: float | None, answer: str) -> None:
    """Group 1 is back, and group 0 is lost before it has given its state away; or after that."""
    files = resume(story(tmp_path), spawned=32.0)
    files.of_shim("n1", "exited", 0, 1)["t"] = 31.5
    files.decide(30.5, 9, {0: 2, 1: 5}, [place(1, 5, "n4")])
    files.shim(31.0, "spawned", "n4", 1, 5)
    files.shim(32.5, "exited", "n4", 1, 5)
    files.steps["n4", 1, 5] = [note("heal", heals_at)] if heals_at is not None else [line("start", 31.0, 31.1)]
    assert files.answers()["steps_not_lost"] == answer


def test_after_a_resume_steps_may_not_go_back_again(tmp_path: Path) -> None:
    files = resume(story(tmp_path))
    files.steps["n3", 1, 4].append(step(35.5, 36.0, 4))
    assert files.answers()["steps_not_lost"] == "fail"


def test_an_end_that_nobody_saw_does_not_forbid_a_resume(tmp_path: Path) -> None:
    """n2 was lost with its shim, so no record has the end of the process there."""
    files = resume(story(tmp_path))
    files.nobody_saw_it_end()
    assert set(files.answers().values()) == {"pass"}


def test_two_groups_apart_at_the_same_pace_are_found(tmp_path: Path) -> None:
    """Group 1 commits alone from step 3 on; group 0 commits during each of its steps."""
    files = story(tmp_path)
    files.steps["n3", 1, 3][2:4] = [step(20.6, 21.6, 3), step(21.6, 22.6, 4)]
    assert files.answers()["steps_not_lost"] == "fail"


def test_a_group_that_goes_back_at_once_is_found(tmp_path: Path) -> None:
    """The lines are as trainers write them: an attempt begins where the one before ended."""
    files = story(tmp_path)
    files.steps["n3", 1, 3][3] = step(22.0, 23.0, 3)
    assert files.answers()["steps_not_lost"] == "fail"


def test_groups_of_one_quorum_commit_moments_apart(tmp_path: Path) -> None:
    files = story(tmp_path)
    for number, body in enumerate(files.steps["n2", 1, 1]):
        if body["event"] == "step":
            files.steps["n2", 1, 1][number] = {**body, "t": body["t"] + 0.01}
    assert set(files.answers().values()) == {"pass"}


def test_groups_whose_machines_round_otherwise_tell_the_same_loss(tmp_path: Path) -> None:
    files = story(tmp_path)
    lines, at = wherever(files, 12)[1]
    lines[at]["loss"] += 1e-6
    assert set(files.answers().values()) == {"pass"}


def test_who_healed_in_a_step_that_failed_has_healed(tmp_path: Path) -> None:
    files = story(tmp_path)
    lines, at = wherever(files, 12)[1]
    lines[at] |= {"step": 11, "committed": False, "healed": True}
    assert files.answers()["steps_not_lost"] == "pass"


def test_toys_that_know_no_quorum_may_leave_steps_out(tmp_path: Path) -> None:
    """They count steps by a clock that they share."""
    files = story(tmp_path)
    for lines in files.steps.values():
        lines[:] = [{**x, "quorum_id": None} if x["event"] == "step" else x for x in lines]
    left_out_by_one_that_lives(files)
    assert files.answers()["steps_not_lost"] == "pass"


@pytest.mark.parametrize(
    ("began", "made", "answer"),
    [(23.1, 31.0, "pass"), (10.5, 14.0, "fail")],
    ids=["it was the newest", "it was one before it"],
)
def test_a_torn_checkpoint_is_no_newest_one(tmp_path: Path, began: float, made: float, answer: str) -> None:
    """Checkpoint 15 is complete at 24 s; at 30 s both groups go on from 10."""
    files = story(tmp_path)
    resumed_behind_the_newest_checkpoint(files)
    history = files.history()
    history.faults = [replace(KILL, name="checkpoint_torn", began=began, made=made)]
    assert answers(history)["steps_not_lost"] == answer


# --- unknown ---


def alone(f: Files) -> tuple[list[dict[str, Any]], int]:
    """Group 1 is away, and group 0 reports that two took part."""
    ((lines, at),) = wherever(f, 7)
    lines[at] |= {"quorum_id": 2, "participants": 2, "participating_rank": 0}
    return lines, at


def test_a_step_of_two_groups_with_the_records_of_one_is_unknown(tmp_path: Path) -> None:
    files = story(tmp_path)
    lines, at = alone(files)
    lines.insert(at, note("batch", 12.0, samples=["a"]))
    (found,) = [v for v in check(files.history()) if v.answer != "pass"]
    assert (found.checker, found.answer) == ("one_quorum_per_step", "unknown")
    assert found.sentences == ("step 7 of group 0 generation 1 had 2 groups, and there are the records of 1",)


def test_who_does_not_note_what_it_read_leaves_no_record_of_its_last_step(tmp_path: Path) -> None:
    files = story(tmp_path)
    alone(files)
    assert set(files.answers().values()) == {"pass"}


def test_of_a_run_that_goes_on_one_record_may_be_newer_than_the_other(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.steps["n1", 0, 1].append(note("batch", 22.5, samples=["a"]))
    del files.steps["n3", 1, 3][-3:]  # read before it had committed step 17
    assert files.answers()["one_quorum_per_step"] == "unknown"
    files.shims["n3"].remove(files.of_shim("n3", "exited", 1, 3))
    assert files.answers()["one_quorum_per_step"] == "pass"


@pytest.mark.parametrize(
    ("missing", "says"),
    [("outcomes", "decision 1 of epoch 1 has no outcome"), ("epochs", "decision 1 is of epoch 1, which never began")],
)
def test_outcomes_and_epochs_that_nobody_wrote_down_are_unknown(tmp_path: Path, missing: str, says: str) -> None:
    history = story(tmp_path).history()
    getattr(history, missing).clear()
    (found,) = [v for v in check(history) if v.answer != "pass"]
    assert (found.checker, found.answer) == ("no_dead_epoch", "unknown")
    assert says in found.sentences[0]


def test_an_empty_history_is_unknown(tmp_path: Path) -> None:
    assert answers(History("run")) == dict.fromkeys(CHECKERS, "unknown")
    without_decisions, without_processes = story(tmp_path / "a"), story(tmp_path / "b")
    without_decisions.journal = []
    without_processes.shims = {}
    assert without_decisions.answers() == dict.fromkeys(CHECKERS, "unknown")
    assert without_processes.answers() == dict.fromkeys(CHECKERS, "unknown")


def test_without_step_records_nothing_is_known_of_steps(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.steps = {}
    found = files.answers()
    assert {name for name, answer in found.items() if answer == "unknown"} == {c.__name__ for c in OF_STEPS}


@pytest.mark.parametrize("error", [AttributeError("no values"), ZeroDivisionError(), RecursionError()])
def test_a_checker_that_crashes_in_any_way_is_unknown(tmp_path: Path, error: Exception) -> None:
    def crashes(history: History) -> list[str]:
        raise error

    (verdict,) = check(story(tmp_path).history(), {"one": crashes})
    assert (verdict.answer, verdict.sentences) == ("unknown", (f"the checker crashed: {error!r}",))


def test_a_line_of_a_step_record_that_is_none_leaves_all_unknown(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.steps["n1", 0, 1][-1]["seconds"] = [1]
    history = files.history()
    assert history.unreadable == ["steps.jsonl of run.0.1.0: its seconds are not numbers by name"]
    assert "pass" not in answers(history).values()
