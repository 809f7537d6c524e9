"""A trainer's activity inside a step: a few bytes in a mapped file, for observers on the same machine.

It changes many times a step, so it is not a record: writing it costs about a microsecond. It can be read even while the
trainer cannot answer, because it is stopped or its interpreter is locked.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Literal, get_args

Activity = Literal[
    "other", "data", "compute", "collective", "commit", "quorum", "heal", "checkpoint", "evaluate", "compile", "save"
]
NAMES: tuple[Activity, ...] = get_args(Activity)
"""Append new ones: trainer and agent may have different versions, and only the index is written."""
FILE = "activity"
"""File name in the rank's folder."""

LAYOUT = struct.Struct("<QB")
"""Number of changes, and index in NAMES. A reader may briefly see one without the other."""


def read(folder: str | Path) -> tuple[int, Activity] | None:
    """Returns the number of changes, and the current activity. None if the file is missing or unreadable, or a newer
    trainer's activity has no name here."""
    try:
        changes, place = LAYOUT.unpack((Path(folder) / FILE).read_bytes())
    except (OSError, struct.error):
        return None
    return (changes, NAMES[place]) if place < len(NAMES) else None
