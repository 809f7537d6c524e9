"""The checker `within_budgets`: an uncharged restart is accepted only as far as other evidence supports it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.checkers.budgets import within_budgets
from tests.unit.fault_injection.broken import SETTING, broken
from tests.unit.fault_injection.files import incident, story

ANOTHERS = "another group is the cause: its own numbers were finite, those of group 0 were not"
"""The text that versions before codes wrote."""


def opened(kind: str, group: int = 0, **about: Any) -> dict[str, Any]:
    return incident("i0", kind, group, 1, 1, "open", **about)


@pytest.mark.parametrize(
    ("other", "at", "kind", "pays"),
    [
        (opened("numerics"), 2, "error", False),
        (opened("gpu"), 2, "error", False),
        (None, 2, "error", True),
        (opened("hang"), 2, "error", True),  # its numbers spoil no other's
        (opened("numerics"), 2, "crash", True),  # a group that another's numbers end gets an error
        (opened("numerics", group=1), 2, "error", True),  # its own
        (opened("error", reason=ANOTHERS), 2, "error", True),  # each blames the other
        (opened("numerics"), 1, "error", True),  # before this one's process began
        (opened("numerics"), 3, "error", True),  # after it was started again
    ],
    ids=["numerics", "gpu", "none", "hang", "crash", "its own", "each other", "before", "after"],
)
def test_another_group_is_the_cause_where_it_has_an_incident_of_its_own(
    tmp_path: Path, other: dict[str, Any] | None, at: int, kind: str, pays: bool
) -> None:
    """Group 1 ends and is restarted by decision 2; its process began after decision 1."""
    files = story(tmp_path)
    for number in (2, 3):
        files.of_decision(number, "intent")["incidents"][0] |= {"kind": kind, "reason": ANOTHERS}
    if other is not None:
        files.of_decision(at, "intent")["incidents"].append(other)
    history = broken(files)
    history.setting = replace(SETTING, budgets={"restart": 0, "replace": 4, "reallocate": 3})
    found = within_budgets(history)
    assert found == (["1 times restart of group 1 within 3600 s: its budget is 0"] if pays else [])


@pytest.mark.parametrize(("tries", "apart"), [(10, False), (11, False), (20, True)])
def test_a_group_that_is_started_again_and_again_for_one_incident_is_found_whatever_the_budgets_are(
    tmp_path: Path, tries: int, apart: bool
) -> None:
    files = story(tmp_path)
    for n in range(tries):
        number = 100 + n
        again = incident(f"i{number if apart else 100}", "crash", 1, 1 + n, 2 + n, "acting", rung=1)
        files.decide(40.0 + n, number, {1: 2 + n}, [], [again])
    history = broken(files)
    history.setting = replace(SETTING, budgets={"restart": 60, "replace": 60, "reallocate": 60})
    assert within_budgets(history) == (
        [] if apart or tries == 10 else ["incident i100: 11 generations of its group, at most 10"]
    )
