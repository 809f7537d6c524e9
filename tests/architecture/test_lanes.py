"""`make check` needs only Python, make, gcc and git. A test that needs more is in another folder, and `make test`
installs that first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAST = ("unit", "properties", "architecture", "corpus")
ASKS = re.compile(r"\bpytest\.(skip|importorskip)\(|\bmark\.skip|\bshutil\.which\(")


def asking(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if ASKS.search(line)]


@pytest.mark.parametrize(
    "line", ['@pytest.mark.skipif(True, reason="x")', '    pytest.skip("x")', 'found = shutil.which("ip")']
)
def test_a_planted_one_is_caught(line: str) -> None:
    assert asking(f"import pytest\n{line}\n") == [line.strip()]


@pytest.mark.parametrize("folder", FAST)
def test_no_test_of_the_fast_lane_depends_on_what_is_installed(folder: str) -> None:
    files = [p for p in (ROOT / "tests" / folder).rglob("*.py") if p != Path(__file__)]
    assert files
    assert {str(p.relative_to(ROOT)): found for p in files if (found := asking(p.read_text()))} == {}


def test_what_needs_packages_comes_after_them() -> None:
    """`make check` alone installs no packages."""
    rules = re.findall(r"^([\w-]+):([^=\n#]*)", (ROOT / "Makefile").read_text(), re.M)
    needs = {name: words.split() for name, words in rules}
    assert needs["check"] == ["install-dev"]
    assert needs["test"] == ["debian", "check"]
