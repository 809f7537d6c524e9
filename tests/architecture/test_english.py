"""Docstrings that the style page would not have become fewer, never more: these numbers may only fall, to zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.english import check

ROOT = Path(__file__).parents[2]

MOST = {
    "supervisor": (439, 307),
    "agents": (93, 92),
    "fault_injection": (203, 156),
    "titan_actor": (40, 21),
    "dashboards": (11, 2),
}
"""By package: docstrings that open with a clause, and those with a word that a plainer one serves for."""


@pytest.mark.parametrize("package", MOST)
def test_docstrings_open_plainly_and_use_plain_words(package: str) -> None:
    found, most = check(ROOT / package), MOST[package]
    now = (found["opening"], found["word"])
    assert all(a <= b for a, b in zip(now, most, strict=True)), (
        f"{now}, at most {most}: see tests/architecture/english.py"
    )
    assert now == most, f"fewer now: lower MOST to {now}"


def test_what_is_counted(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        '"""Whether it runs."""\n\n\ndef f() -> None:\n    """Starts `what is told`."""\n\n\nX = 1\n"""As it was told."""\n'
    )
    assert check(tmp_path) == {"all": 3, "opening": 1, "word": 1}
