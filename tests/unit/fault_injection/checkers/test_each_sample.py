"""The checker of a token store's samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.chaos import certificate
from fault_injection.checkers.consistency import CHECKERS, check
from supervisor.shell.history.files import History
from tests.unit.fault_injection.broken import KILL, a_broken_run
from tests.unit.shell.history.test_samples import Line, batch, of, two


@pytest.fixture
def history(tmp_path: Path) -> History:
    return a_broken_run(tmp_path)


def verdict(history: History, first: list[Line], second: list[Line]) -> tuple[str, tuple[str, ...]]:
    history.steps = of(first, second).steps
    (found,) = check(history, {"each_sample_once": CHECKERS["each_sample_once"]})
    return found.answer, found.sentences


def test_it_passes_and_fails(history: History) -> None:
    first, second = two()
    assert verdict(history, first, second) == ("pass", ())
    again = [*second[:2], batch(11.0, 1, 2, 4), *second[3:]]
    assert verdict(history, first, again) == (
        "fail",
        ("step 2 has samples 4 to 5 again", "step 3 skips samples 6 to 7"),
    )


def test_missing_records_are_unknown_unless_a_fault_explains_them(history: History) -> None:
    first, second = two()
    lacking = second[:2] + second[4:]
    assert verdict(history, first, lacking) == ("unknown", ("step 2: 2 groups took part, 1 noted samples",))
    history.faults = [replace(KILL, name="disk_full", began=10.0, made=10.1, over=14.0)]
    assert verdict(history, first, lacking) == ("pass", ())


def test_the_certificate_counts_the_stream(history: History) -> None:
    history.steps = of(*two()).steps
    counts = {"once": 12, "twice": 0, "never": 0, "twice_at": [], "never_at": []}
    assert certificate.samples(history) == {**counts, "unknown_steps": 0}
    first, second = two()
    history.steps = of(first, second[:2] + second[4:]).steps
    assert certificate.samples(history) == {**counts, "once": 10, "unknown_steps": 1}
    history.steps = of(*two(first=40)).steps
    assert certificate.samples(history) == {**counts, "unknown_steps": 10}
