"""Which module stands for which program. One hidden seam, so that tests can put toys in their place."""

from __future__ import annotations

import json
import os
import sys

from supervisor.wire import programs

_MODULES = {
    "trainer": programs.TRAINER,
    "warm": programs.WARM,
    "lighthouse": programs.LIGHTHOUSE,
    "gate": programs.GATE,
    "agent": programs.AGENT,
    "checks": programs.CHECKS,
    "check_device": programs.CHECK_DEVICE,
}

SEAM = "SUPERVISOR_PROGRAMS"
"""Environment variable, for tests only: a JSON object that replaces some of the module names above."""


def command(program: str, *arguments: str) -> list[str]:
    """The argv that runs one of our programs with this interpreter. KeyError for a program that there is not."""
    modules = {**_MODULES, **json.loads(os.environ.get(SEAM, "{}"))}
    return [sys.executable, "-m", modules[program], *arguments]
