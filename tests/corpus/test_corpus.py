"""Today's `decide` repeats every decision of the corpus."""

from __future__ import annotations

from itertools import islice

import pytest

from supervisor.core import words
from supervisor.core.reason import Code
from tests.corpus.file import read

PARTS = 8
FAST = 1
"""Parts that `make check` plays; `make test-long` plays all."""


@pytest.mark.parametrize("part", [pytest.param(n, marks=() if n < FAST else pytest.mark.long) for n in range(PARTS)])
def test_every_decision_is_what_it_was(part: int) -> None:
    differ = differences(part)
    assert not differ, f"{len(differ)} decisions differ; the first ones:\n" + "\n".join(differ[:3])


def test_no_decision_depends_on_how_a_reason_is_worded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_WORDS", dict.fromkeys(Code, "nothing cheaper is left, another group is the cause"))
    differ = differences(0, "words")
    assert not differ, "\n".join(differ[:3])


def differences(part: int, but_for: str = "") -> list[str]:
    seen, differ = 0, []
    for number, line in islice(enumerate(read()), part, None, PARTS):
        seen += 1
        today = line.today()
        names = (today.keys() | line.answered.keys()) - {but_for}
        what = {n: (line.answered.get(n), today.get(n)) for n in names if line.answered.get(n) != today.get(n)}
        if what:
            differ.append(f"decision {number} ({line.source}): then, and today: {what}")
    assert seen
    return differ
