"""A consistent history passes; each planted violation is found by its own checker, and by no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fault_injection.checkers import CHECKERS, check
from fault_injection.history import History
from tests.unit.fault_injection.files import Files, answers, incident, line, place, seconds, step, story


def test_a_consistent_history_passes(tmp_path: Path) -> None:
    assert story(tmp_path).answers() == dict.fromkeys(CHECKERS, "pass")


# --- violations ---


def spawned_twice(f: Files) -> None:
    f.shim(11.05, "spawned", "n2", 1, 2, pid=999)


def spawned_again_after_its_end(f: Files) -> None:
    f.shim(10.7, "spawned", "n2", 1, 1, pid=999)


def spawned_on_two_nodes(f: Files) -> None:
    f.shim(19.6, "spawned", "n1", 1, 3, pid=999)


def spawned_on_another_node(f: Files) -> None:
    moved = f.of_shim("n3", "spawned", 1, 3)
    f.shims["n3"].remove(moved)
    f.shims["n4"] = [moved]


def spawned_without_a_decision(f: Files) -> None:
    f.shim(12.0, "spawned", "n1", 0, 2)


def spawned_after_a_refused_decision(f: Files) -> None:
    f.of_decision(5, "outcome")["refused"] = "the epoch is over"


def started_by_two_decisions(f: Files) -> None:
    f.of_decision(6, "intent")["actions"] = [place(1, 3, "n3")]


def decision_committed_twice(f: Files) -> None:
    f.decide(14.5, 3, {0: 1, 1: 2}, [], [incident("i1", "crash", 1, 1, 2, "recovered")], epoch=2)


def generation_goes_back(f: Files) -> None:
    f.of_decision(6, "intent")["groups"]["1"]["generation"] = 2


def stale_spawn(f: Files) -> None:
    f.of_shim("n2", "spawned", 1, 2)["t"] = 18.6
    f.of_shim("n2", "leftover_killed", 1, 2)["t"] = 18.7


def older_generation_commits(f: Files) -> None:
    f.steps["n2", 1, 2].append(step(22.0, 22.5, 17))


def step_goes_back(f: Files) -> None:
    """Group 1 resumed from disk while group 0 trained on."""
    f.steps["n3", 1, 3][3] = step(22.2, 22.8, 3)


PLANTS: list[tuple[Callable[[Files], None], str, str]] = [
    (spawned_twice, "one_actuation_per_decision", "group 1 generation 2 rank 0 was spawned 2 times"),
    (spawned_again_after_its_end, "one_actuation_per_decision", "group 1 generation 1 rank 0 was spawned 2 times"),
    (spawned_on_two_nodes, "one_actuation_per_decision", "was spawned on n1; it was decided on n3"),
    (spawned_on_another_node, "one_actuation_per_decision", "was spawned on n4; it was decided on n3"),
    (spawned_without_a_decision, "one_actuation_per_decision", "was spawned on n1; it was decided nowhere"),
    (spawned_after_a_refused_decision, "one_actuation_per_decision", "was spawned on n3; it was decided nowhere"),
    (started_by_two_decisions, "one_actuation_per_decision", "generation 3 of group 1 was started by 2 decisions"),
    (decision_committed_twice, "generations_grow", "decision 3 was committed twice (epochs 1, 2)"),
    (generation_goes_back, "generations_grow", "group 1 went back from generation 3 to 2 in decision 6"),
    (stale_spawn, "no_stale_actuation", "generation 2 was spawned on n2 after generation 3 was decided"),
    (older_generation_commits, "single_owner", "generation 2 committed step 17 after generation 3 had begun"),
    (step_goes_back, "steps_not_lost", "group 1 generation 3 committed step 3 after step 16"),
]


@pytest.mark.parametrize(("plant", "checker", "says"), PLANTS, ids=[p.__name__ for p, _, _ in PLANTS])
def test_a_violation_is_found(tmp_path: Path, plant: Callable[[Files], None], checker: str, says: str) -> None:
    files = story(tmp_path)
    plant(files)
    verdicts = check(files.history())
    assert {v.checker: v.answer for v in verdicts} == {**dict.fromkeys(CHECKERS, "pass"), checker: "fail"}
    (found,) = [v for v in verdicts if v.answer == "fail"]
    assert any(says in sentence for sentence in found.sentences), found.sentences


def test_a_decision_count_that_goes_back_is_found(tmp_path: Path) -> None:
    """Number 20 is followed by 4: the memory of what was between is lost."""
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


def test_after_a_resume_steps_may_not_go_back_again(tmp_path: Path) -> None:
    files = resume(story(tmp_path))
    files.steps["n3", 1, 4].append(step(35.5, 36.0, 4))
    assert files.answers()["steps_not_lost"] == "fail"


def test_an_end_that_nobody_saw_does_not_forbid_a_resume(tmp_path: Path) -> None:
    """n2 was lost with its shim: nobody wrote down when the process there ended."""
    files = resume(story(tmp_path))
    files.shims["n2"].remove(files.of_shim("n2", "leftover_killed", 1, 2))
    assert set(files.answers().values()) == {"pass"}


def test_two_groups_apart_at_the_same_pace_are_found(tmp_path: Path) -> None:
    """Group 1 commits alone from step 3 on; group 0 commits during each of its steps."""
    files = story(tmp_path)
    files.steps["n3", 1, 3][2:4] = [step(20.6, 21.6, 3), step(21.6, 22.6, 4)]
    assert files.answers()["steps_not_lost"] == "fail"


def test_a_group_that_goes_back_at_once_is_found(tmp_path: Path) -> None:
    """As trainers write it: an attempt begins where the one before ended."""
    files = story(tmp_path)
    files.steps["n3", 1, 3][3] = step(22.0, 23.0, 3)
    assert files.answers()["steps_not_lost"] == "fail"


def test_groups_of_one_quorum_commit_moments_apart(tmp_path: Path) -> None:
    files = story(tmp_path)
    for number, body in enumerate(files.steps["n2", 1, 1]):
        if body["event"] == "step":
            files.steps["n2", 1, 1][number] = {**body, "t": body["t"] + 0.01}
    assert set(files.answers().values()) == {"pass"}


# --- unknown ---


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
    assert (found["single_owner"], found["steps_not_lost"]) == ("unknown", "unknown")


@pytest.mark.parametrize(
    ("checker", "plant"),
    [
        ("one_actuation_per_decision", lambda f: f.of_decision(5, "intent")["actions"].append({"verb": "place"})),
        ("steps_not_lost", lambda f: f.steps["n1", 0, 1][3].pop("start")),
    ],
)
def test_a_crashed_checker_is_unknown(tmp_path: Path, checker: str, plant: Callable[[Files], None]) -> None:
    files = story(tmp_path)
    plant(files)
    verdicts = {v.checker: v for v in check(files.history())}
    assert {name: v.answer for name, v in verdicts.items()} == {**dict.fromkeys(CHECKERS, "pass"), checker: "unknown"}
    assert verdicts[checker].sentences[0].startswith("the checker crashed: KeyError(")
