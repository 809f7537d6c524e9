"""Documents agree with the code that they describe."""

from __future__ import annotations

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
