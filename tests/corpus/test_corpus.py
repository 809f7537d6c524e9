"""Every decision of the corpus is made again as it was."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.corpus.file import read

PARTS = 8
"""So that a lane's workers share it."""


@pytest.mark.parametrize("part", range(PARTS))
def test_every_decision_is_what_it_was(part: int) -> None:
    seen, differ = 0, []
    for number, line in islice(enumerate(read()), part, None, PARTS):
        seen += 1
        today = line.today()
        if today != line.answered:
            names = today.keys() | line.answered.keys()
            what = {n: (line.answered.get(n), today.get(n)) for n in names if line.answered.get(n) != today.get(n)}
            differ.append(f"decision {number} ({line.source}): then, and today: {what}")
    assert seen
    assert not differ, f"{len(differ)} of {seen} decisions differ; the first ones:\n" + "\n".join(differ[:3])
