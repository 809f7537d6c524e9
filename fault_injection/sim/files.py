"""The files that the same run would leave in the real world: its journal, its shims' histories, its trainers' step records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fault_injection.sim.world import World


def write(world: World, folder: Path) -> None:
    """As `fault_injection.history.read` reads them, with `folder` as run folder and as system folder."""
    run = world.spec.name
    _lines(folder / "journal.jsonl", world.journal)
    for node, lines in world.shims.items():
        _lines(folder / "nodes" / node / "shim.jsonl", lines)
    for (group, generation, node), rows in world.training.rows.items():
        _lines(folder / "nodes" / node / "ranks" / f"{run}.{group}.{generation}.0" / "steps.jsonl", rows)


def _lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
