"""Docstrings follow the style page's rules on openings and words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.english import check

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "package",
    ["supervisor", "agents", "fault_injection", "titan_actor", "everstep_trainer", "dashboards", "benchmarks", "tests"],
)
def test_docstrings_open_plainly_and_use_plain_words(package: str) -> None:
    found = check(ROOT / package)
    assert found["all"] > 0
    assert (found["opening"], found["word"]) == (0, 0), "see tests/architecture/english.py"


def test_what_is_counted(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        '"""Whether it runs."""\n\n\ndef f() -> None:\n    """Starts `what is told`."""\n\n\nX = 1\n"""As it was told."""\n'
    )
    assert check(tmp_path) == {"all": 3, "opening": 1, "word": 1}
