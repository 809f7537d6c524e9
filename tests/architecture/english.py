"""Counts docstrings that break the style page's rules on openings and words."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

OPENINGS = ("Of", "Whether", "What", "Whoever", "Who", "That")
"""A docstring opens with a verb or a noun phrase instead."""

WORDS = ("told", "said", "anew", "nobody", "somebody", "whoever", "is to", "so many", "whereupon")
"""Words with a plainer equivalent: reported, logged, again, no one, someone, must, N."""

_OPENING = re.compile(rf"(?:{'|'.join(OPENINGS)})\b")
_WORD = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
_CODE = re.compile(r"`[^`]*`")


def docstrings(source: str) -> Iterator[str]:
    """Yields the docstrings of the module, of its classes and functions, and those that follow a name."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                yield each.value.value


def check(folder: Path) -> Counter[str]:
    """Counts docstrings: `all`, those with a listed opening (`opening`), and those with a listed word (`word`)."""
    found: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.py")):
        for text in docstrings(path.read_text()):
            found["all"] += 1
            found["opening"] += _OPENING.match(text.strip()) is not None
            found["word"] += _WORD.search(_CODE.sub("", text)) is not None
    return found
