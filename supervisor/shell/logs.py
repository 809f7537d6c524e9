"""The trainers' own output, as far as this machine has it."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from supervisor.shell.up import system_folder


@dataclass(frozen=True, kw_only=True)
class LogTail:
    """The last lines of one rank's output."""

    node: str
    group: int
    generation: int
    rank: int
    path: str
    lines: tuple[str, ...]


def kept_in(home: Path) -> Path:
    """The folder that holds `nodes/`: that of `supervisor up`, or an agent's own home, as an engine starts it."""
    return home if (home / "nodes").is_dir() else system_folder(home)


def tails(system: Path, run: str, group: int | None, rank: int, lines: int) -> list[LogTail]:
    """By group and generation; `system` is the folder that holds `nodes/`."""
    found = []
    for path in system.glob(f"nodes/*/ranks/{run}.*/output.log"):
        match = re.fullmatch(rf"{re.escape(run)}\.(\d+)\.(\d+)\.(\d+)", path.parent.name)
        if match is None:
            continue
        g, generation, r = (int(part) for part in match.groups())
        if r != rank or group not in (None, g):
            continue
        with path.open(errors="replace") as file:
            last = tuple(line.rstrip("\n") for line in deque(file, maxlen=lines))
        node = path.parts[-4]
        found.append(LogTail(node=node, group=g, generation=generation, rank=r, path=str(path), lines=last))
    return sorted(found, key=lambda t: (t.group, t.generation))


def render(found: list[LogTail]) -> str:
    """Plain text."""
    return "\n".join(
        f"== group {t.group} generation {t.generation} rank {t.rank} on {t.node}: {t.path}\n" + "\n".join(t.lines)
        for t in found
    )
