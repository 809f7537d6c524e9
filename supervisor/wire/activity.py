"""What a trainer is doing inside a step: a few bytes in a mapped file, for whoever watches it on the same machine.

It changes many times a step, so it is no record: writing it costs about a microsecond. It can still be read when the
trainer cannot answer, stopped or with its interpreter locked.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Literal, get_args

Activity = Literal[
    "other", "data", "compute", "collective", "commit", "quorum", "heal", "checkpoint", "evaluate", "compile", "save"
]
NAMES: tuple[Activity, ...] = get_args(Activity)
"""New ones at the end: trainer and agent may be of different versions, and the place is all that is written."""
FILE = "activity"
"""In the rank's folder."""

LAYOUT = struct.Struct("<QB")
"""How often it has changed, and the place in NAMES. A reader may see one without the other for an instant."""


def read(folder: str | Path) -> tuple[int, Activity] | None:
    """How often it has changed, and what it is now; None before the trainer has made the file, where it cannot be read, or where a
    newer trainer does what this agent has no name for: then nothing is known of it."""
    try:
        changes, place = LAYOUT.unpack((Path(folder) / FILE).read_bytes())
    except (OSError, struct.error):
        return None
    return (changes, NAMES[place]) if place < len(NAMES) else None
