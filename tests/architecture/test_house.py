"""The counts of the sources: what is a branch on prose, and what a set of kinds."""

from __future__ import annotations

import ast

import pytest

from tests.architecture import house

OTHER = ast.parse('HELD = "every group hangs: none is ended"\nNAME = "held"\n')


@pytest.mark.parametrize(
    ("code", "counted"),
    [
        ('if why == "the node is gone":\n    pass', 1),
        ('found = [w for w in waits if w.startswith(("breaker: ", "x"))]', 1),
        ("if text.endswith(other.HELD):\n    pass", 1),
        ("from core.other import HELD\nif HELD in text:\n    pass", 1),
        ("from core.other import NAME\nif NAME in text:\n    pass", 0),
        ("HELD = 1\nif HELD == text:\n    pass", 0),
        ('if why == "gone" or key in {1: "the node is gone"}:\n    pass', 0),
        ('raise Fatal("the node is gone")', 0),
    ],
)
def test_a_branch_on_prose_is_counted(code: str, counted: int) -> None:
    tree = ast.parse(code)
    named = house.constants({"core/other.py": OTHER, "core/one.py": tree})
    assert len(list(house.branches(tree, "one", named))) == counted


@pytest.mark.parametrize(
    ("code", "counted"),
    [
        ("ENDED = frozenset({Kind.CRASH, Kind.OOM})", 1),
        ("if kind in (Kind.CRASH, model.Kind.OOM):\n    pass", 1),
        ("COST = {Kind.CRASH: 1, Kind.OOM: 2}", 1),
        ("TRAITS: Mapping[Kind, Traits] = {Kind.CRASH: 1, Kind.OOM: 2}", 0),
        ("if kind in (Kind.CRASH,) or kind == Kind.OOM:\n    pass", 0),
    ],
)
def test_a_set_of_kinds_is_counted(code: str, counted: int) -> None:
    assert len(list(house.sets_of_kinds(ast.parse(code)))) == counted
