"""Documents agree with the code that they describe."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_every_module_of_the_core_has_its_place_and_none_is_gone() -> None:
    text = (REPOSITORY / "docs/ARCHITECTURE.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| `supervisor/core` |")]
    named = re.findall(r"[a-z_]+", ":".join(part.partition(":")[2] for part in row.split("pure.", 1)[1].split(". ")))
    modules = {path.stem for path in (REPOSITORY / "supervisor/core").glob("*.py")} - {"__init__"}
    assert sorted(named) == sorted(modules)
