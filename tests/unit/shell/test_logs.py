"""Where the output of ranks is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.shell import logs


@pytest.mark.parametrize("kept", [".supervisor", "."])
def test_it_is_found_in_the_home_of_up_and_in_an_agents_own(tmp_path: Path, kept: str) -> None:
    for generation, words in ((1, "first\n"), (2, "one\ntwo\nthree\n")):
        folder = tmp_path / kept / "nodes" / "n1" / "ranks" / f"run.0.{generation}.0"
        folder.mkdir(parents=True)
        (folder / "output.log").write_text(words)
    found = logs.tails(logs.kept_in(tmp_path), "run", 0, rank=0, lines=2)
    assert [(t.node, t.generation, t.lines) for t in found] == [("n1", 1, ("first",)), ("n1", 2, ("two", "three"))]
