"""Counts docstrings that the style page would not have: openings and words, by a list."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

OPENINGS = ("Of", "Whether", "What", "Whoever", "Who", "That")
"""A docstring opens with a verb or a noun phrase."""

WORDS = ("told", "said", "anew", "nobody", "somebody", "whoever", "is to", "so many", "whereupon")
"""Where a plainer word serves: reported, logged, again, no one, someone, must, N."""

_OPENING = re.compile(rf"(?:{'|'.join(OPENINGS)})\b")
_WORD = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
_CODE = re.compile(r"`[^`]*`")


def docstrings(source: str) -> Iterator[str]:
    """Of the module, its classes and functions, and those that follow a name."""
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
    """How many docstrings there are (`all`), open so (`opening`), and hold such a word (`word`)."""
    found: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.py")):
        for text in docstrings(path.read_text()):
            found["all"] += 1
            found["opening"] += _OPENING.match(text.strip()) is not None
            found["word"] += _WORD.search(_CODE.sub("", text)) is not None
    return found
