"""One problem that a check finds in a run file's Titan part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One error in a run file's Titan part; `key` is its path from the top of the run file."""

    key: str
    value: Any
    message: str
    nearest: str = ""
