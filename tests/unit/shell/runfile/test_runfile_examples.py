"""The shipped examples start as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.core.model.spec import RunSpec
from supervisor.shell.runfile import parse

EXAMPLES = sorted((Path(__file__).parents[4] / "examples").rglob("*.toml"))


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_has_no_problems(path: Path) -> None:
    spec = parse.load(path)
    assert parse.contradictions(spec) == []
    assert spec != RunSpec(name=spec.name), "an example that changes nothing shows nothing"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_points_to_the_reference(path: Path) -> None:
    assert "docs/RUN_FILE.md" in path.read_text()
