"""The decisions of a journal that took effect, for all that read journals."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.shell.history.outcomes import of_journal


def intent(number: int, epoch: int = 1, changed: bool = True) -> dict[str, Any]:
    return {"entry": "intent", "epoch": epoch, "decision": number, "changed": changed}


def outcome(number: int, epoch: int = 1, refused: str = "") -> dict[str, Any]:
    return {"entry": "outcome", "epoch": epoch, "decision": number, "refused": refused}


@pytest.mark.parametrize(
    ("lines", "took_effect"),
    [
        ([intent(5), outcome(5)], [True]),
        ([intent(5), outcome(5, refused="another leads")], [False]),
        ([intent(5)], [None]),
        ([intent(5), intent(6, 2)], [True, None]),
        ([intent(5), intent(5, 2)], [False, None]),
        ([intent(5), intent(5), outcome(5)], [False, True]),
        ([intent(5), intent(5, 2), intent(6, 3), outcome(6, 3)], [False, True, True]),
        ([intent(5), intent(5, 2), outcome(5, 2, "another leads")], [None, False]),
        ([intent(5), intent(5, changed=False)], [None, True]),
        ([intent(5), intent(4, changed=False)], [False, True]),
        ([intent(4), intent(5), intent(5, 2), outcome(5, 2)], [True, False, True]),
    ],
    ids=[
        "told", "refused", "the last one", "a later one was made on it", "its number was given again", "of the same leader",
        "the second of two", "a refused one says nothing of it", "one that only waits has found it", "one that only waits has not",
        "between two leaders",
    ],
)  # fmt: skip
def test_what_took_effect(lines: list[dict[str, Any]], took_effect: list[bool | None]) -> None:
    found = of_journal(lines, lambda line: None)
    assert [found.took_effect(each) for each in found.intents] == took_effect


def test_an_outcome_is_the_newest_intents() -> None:
    found = of_journal([intent(5), intent(5), outcome(5), outcome(5), outcome(7)], lambda line: None)
    assert [each.outcome is not None for each in found.intents] == [False, True]
    assert [(at, each.at if each is not None else None) for at, _, each in found.named] == [(2, 1), (3, 1), (4, None)]


def test_a_supervisor_that_lost_the_store_went_on() -> None:
    unknown = {"entry": "event", "event": "outcome_unknown", "epoch": 1, "decision": 5}
    found = of_journal([intent(4), intent(5), unknown], lambda line: None)
    assert [each.went_on for each in found.intents] == [False, True]
