"""Documents agree with the code that they describe."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_every_module_of_the_core_has_its_place_and_none_is_gone() -> None:
    text = (REPOSITORY / "docs/ARCHITECTURE.md").read_text()
    core = REPOSITORY / "supervisor/core"
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| `")
    ]
    named = {room: modules.split(", ") for room, _, modules in (row for row in rows if len(row) == 3)}
    rooms = {folder.name: folder for folder in core.iterdir() if folder.is_dir() and any(folder.glob("*.py"))}
    for room, folder in {"core": core, **rooms}.items():
        assert sorted(named[room]) == sorted({path.stem for path in folder.glob("*.py")} - {"__init__"}), room


def test_the_flow_names_functions_that_exist() -> None:
    lines = [
        line
        for line in (REPOSITORY / "docs/FLOW.md").read_text().splitlines()
        if line.startswith("| ") and ".py`" in line
    ]
    for line in lines:
        _, _, files, functions, _ = line.split("|")
        named = [re.findall(r"`(\w+)`", part) for part in functions.split(";")]
        paths = re.findall(r"`([\w/.]+)`", files)
        assert len(named) == len(paths), line
        for path, names in zip(paths, named, strict=True):
            source = (REPOSITORY / path).read_text()
            assert not [name for name in names if f"def {name}(" not in source], (path, names)
    assert len(lines) >= 15
