"""Today's `decide` repeats every decision of the corpus."""

from __future__ import annotations

from itertools import islice

import pytest

from supervisor.core.decide import decide
from supervisor.core.model.reason import Code
from supervisor.core.report import words
from supervisor.core.report.notifications import due
from tests.corpus.file import INPUT, read

PLANTED = "nothing cheaper is left, another group is the cause"

PARTS = 16
FAST = 1
"""Parts that `make check` plays; `make test-nightly` plays all."""


@pytest.mark.parametrize("part", [pytest.param(n, marks=() if n < FAST else pytest.mark.long) for n in range(PARTS)])
def test_every_decision_is_what_it_was(part: int) -> None:
    differ = differences(part)
    assert not differ, f"{len(differ)} decisions differ; the first ones:\n" + "\n".join(differ[:3])


def test_nothing_depends_on_how_a_reason_is_worded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is decided nor what is waited for, nor what a person is notified of."""
    for number, line in islice(enumerate(read()), 0, None, PARTS):
        given = INPUT.validate_python(line.given)
        before = decide(given.observed, given.spec, given.memory)
        with monkeypatch.context() as planted:
            planted.setattr(words, "_WORDS", dict.fromkeys(Code, PLANTED))
            today = decide(given.observed, given.spec, given.memory)
            waits = (why.about["why"] if why.code == Code.ABOUT_GROUP else why for why in today.waits)
            assert set(words.said(waits)) <= {PLANTED}, "no wait has a sentence of its own"
            of = [notice.about for notice in due("run", given.memory, today)]
        assert today == before, f"decision {number} ({line.source})"
        assert of == [notice.about for notice in due("run", given.memory, before)], f"decision {number} ({line.source})"


def differences(part: int) -> list[str]:
    seen, differ = 0, []
    for number, line in islice(enumerate(read()), part, None, PARTS):
        seen += 1
        today = line.today()
        names = today.keys() | line.answered.keys()
        what = {n: (line.answered.get(n), today.get(n)) for n in names if line.answered.get(n) != today.get(n)}
        if what:
            differ.append(f"decision {number} ({line.source}): then, and today: {what}")
    assert seen
    return differ
