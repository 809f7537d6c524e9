"""TorchFT's private names are in one module, so that a new TorchFT changes one file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSIDE = ROOT / "titan_actor" / "torchft_names.py"
PACKAGES = ("supervisor", "agents", "titan_actor", "everstep_trainer", "fault_injection", "dashboards", "benchmarks")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yields line, owner and name of each private attribute of another object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls"):
                yield node.lineno, owner, node.attr


NAMES = {name for _, _, name in private(ast.parse(INSIDE.read_text()))}


def touched(source: str) -> list[tuple[int, str]]:
    """Returns line and name of everything private of TorchFT in a module: a name that the one module uses too, one of a
    manager, or one that is imported."""
    tree = ast.parse(source)
    found = [
        (line, f"{owner}.{name}")
        for line, owner, name in private(tree)
        if name in NAMES or owner.rpartition(".")[2].lstrip("_") == "manager"
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torchft":
            found += [(node.lineno, alias.name) for alias in node.names if is_private(alias.name)]
    return found


def test_no_other_module_touches_a_private_name_of_torchft() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path != INSIDE]
    assert INSIDE.exists()
    assert len(files) > 300, "the check looked at the real packages"
    found = [f"{path.relative_to(ROOT)}:{line}: {name}" for path in files for line, name in touched(path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "planted",
    [
        "made._store.get('replica_id')",
        "self.manager._step = 3",
        "self._manager._anything",
        "group._pg.abort()",
        "from torchft.manager import _ManagedWork",
    ],
)
def test_a_planted_one_is_found(planted: str) -> None:
    assert touched(planted)
