"""Groups of two ranks: each has a record of its own, and the records are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.checkers.consistency import CHECKERS, check
from supervisor.shell.history.files import History, Steps
from tests.unit.fault_injection.broken import KILL, SETTING, broken
from tests.unit.fault_injection.files import answers, story

Line = dict[str, Any]


def of_two_ranks(folder: Path) -> History:
    """The story, with a second rank of each process that writes and does the same as the first."""
    history = broken(story(folder))
    history.setting = replace(SETTING, ranks=2)
    history.steps = [
        replace(s, rank=rank, lines=tuple({**x, "gradient_norm": 0.75} for x in s.lines))
        for s in history.steps
        for rank in (0, 1)
    ]
    history.processes = [replace(p, rank=rank, pid=p.pid + rank) for p in history.processes for rank in (0, 1)]
    return history


def of_rank_1(history: History, group: int, generation: int, change: Callable[[Line], Line | None]) -> None:
    """Changes each line of rank 1; None: the line is missing."""

    def changed(steps: Steps) -> Steps:
        if (steps.group, steps.generation, steps.rank) != (group, generation, 1):
            return steps
        return replace(steps, lines=tuple(x for x in map(change, steps.lines) if x is not None))

    history.steps = [changed(steps) for steps in history.steps]


def but_for(*numbers: int) -> Callable[[Line], Line | None]:
    return lambda x: None if x["event"] == "step" and x["step"] in numbers else x


def test_two_ranks_that_say_the_same_pass(tmp_path: Path) -> None:
    assert answers(of_two_ranks(tmp_path)) == dict.fromkeys(CHECKERS, "pass")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"loss": float("nan")}, "step 12 of rank 1 of group 0 generation 1 has a loss of nan"),
        ({"gradient_norm": float("inf")}, "step 12 of rank 1 of group 0 generation 1 has a gradient_norm of inf"),
        ({"loss": 12.0}, "the ranks of group 0 generation 1 tell of step 12 a loss of 6.0 and 12.0"),
        ({"gradient_norm": 2.25}, "the ranks of group 0 generation 1 tell of step 12 a gradient_norm of 0.75 and 2.25"),
    ],
)
def test_what_another_rank_than_the_first_tells_is_looked_at(tmp_path: Path, change: Line, says: str) -> None:
    history = of_two_ranks(tmp_path)
    of_rank_1(history, 0, 1, lambda x: x | change if x.get("step") == 12 else x)
    (found,) = (v for v in check(history) if v.answer != "pass")
    assert (found.checker, found.answer, found.sentences) == ("one_quorum_per_step", "fail", (says,))


@pytest.mark.parametrize("change", [{"loss": 6.0 + 1e-6}, {"loss": None}, {"loss": -1.0}])
def test_ranks_may_round_otherwise_and_may_have_no_loss(tmp_path: Path, change: Line) -> None:
    """A rank has no loss if it lacks the last part of a model which is cut into a pipeline."""
    history = of_two_ranks(tmp_path)
    of_rank_1(history, 0, 1, lambda x: x | change if x.get("step") == 12 else x)
    assert set(answers(history).values()) == {"pass"}


@pytest.mark.parametrize(
    ("group", "generation", "missing", "answer"),
    [
        (0, 1, range(12, 18), "unknown"),
        (0, 1, [17], "unknown"),  # it ended well
        (1, 1, [5], "pass"),  # it was killed
        (1, 1, [4, 5], "unknown"),
        (1, 1, range(1, 6), "unknown"),
    ],
    ids=["from 12 on", "the last, ended well", "the last, killed", "the last two", "all"],
)
def test_a_rank_without_a_step_of_its_group_is_unknown(
    tmp_path: Path, group: int, generation: int, missing: list[int], answer: str
) -> None:
    history = of_two_ranks(tmp_path)
    of_rank_1(history, group, generation, but_for(*missing))
    assert answers(history)["one_quorum_per_step"] == answer


def test_a_rank_of_which_one_generation_has_no_record_is_unknown(tmp_path: Path) -> None:
    history = of_two_ranks(tmp_path)
    history.steps = [s for s in history.steps if (s.group, s.generation, s.rank) != (1, 3, 1)]
    (found,) = (v for v in check(history, {"one": CHECKERS["one_quorum_per_step"]}))
    assert found.answer == "unknown"
    assert found.sentences == (
        "rank 1 of group 1 generation 3 has no record of step 16, which another rank of it committed, nor of 1 more",
    )


def test_toys_have_the_record_of_one_rank(tmp_path: Path) -> None:
    history = of_two_ranks(tmp_path)
    history.steps = [s for s in history.steps if s.rank == 0]
    assert answers(history)["one_quorum_per_step"] == "pass"


def test_a_full_disk_keeps_a_rank_from_writing_a_step_down(tmp_path: Path) -> None:
    history = of_two_ranks(tmp_path)
    of_rank_1(history, 0, 1, but_for(10, 11))
    assert answers(history)["one_quorum_per_step"] == "unknown"
    history.faults = [replace(KILL, name="disk_full", group=0, began=14.5, over=16.5)]
    assert answers(history)["one_quorum_per_step"] == "pass"
