"""Finds tests that make sentences of reasons: they belong to one folder, and all others assert codes and values."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

REPORT = "supervisor.core.report"
WORDING = "tests/unit/core/report/"
"""The folder of the tests that hold the wording."""

RENDER = (
    "tests/corpus/",
    "tests/unit/shell/inspect/test_decision_replay.py",
    "tests/unit/shell/inspect/test_status.py",
)
"""Tests that need sentences: digests of the corpus, other words for the same decision, and what --json prints."""


def check(tests: Path) -> list[str]:
    """Returns each place, as `path:line: what`, at which a test outside the folder makes or reads sentences."""
    root = tests.parent
    found = []
    for path in sorted(tests.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith((WORDING, *RENDER)):
            of_core = name.startswith("tests/unit/core/")
            found += [f"{name}:{line}: {what}" for line, what in _made(ast.parse(path.read_text()), of_core)]
    return found


def _made(tree: ast.Module, of_core: bool) -> Iterator[tuple[int, str]]:
    """Yields what imports a module of words; in tests of the core, also what explains an incident or reads a notice."""
    for node in ast.walk(tree):
        for module in _imported(node):
            if module.startswith(f"{REPORT}.words") or (of_core and module.startswith(f"{REPORT}.explain")):
                yield node.lineno, module  # type: ignore[attr-defined]
        if of_core and isinstance(node, ast.Attribute) and node.attr == "text":
            yield node.lineno, "the text of a notice"


def _imported(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Import):
        return tuple(alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return tuple(f"{node.module}.{alias.name}" for alias in node.names)
    return ()
