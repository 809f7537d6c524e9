"""The programs that one package starts in another: no import crosses, only `python -m NAME`."""

from __future__ import annotations

import json
import os
import sys

TRAINER = "titan_actor.trainer"
"""`python -m titan_actor.trainer LAUNCH_JSON`: one rank, started cold."""

WARM = "titan_actor.warm"
"""`python -m titan_actor.warm --fd N`: the warm process; N is its end of a Unix socket pair."""

LIGHTHOUSE = "titan_actor.lighthouse"
"""`python -m titan_actor.lighthouse ...`: TorchFT's lighthouse, a child of the gate."""

CHECK = "titan_actor.check"
"""`python -m titan_actor.check`: reads a RunSpec record on stdin, prints what is wrong with its Titan part."""

GATE = "agents.gate"
"""`python -m agents.gate ...`: the gate, which starts its lighthouse."""

AGENT = "agents.agent"
"""`python -m agents.agent ...`: a child of the shim."""

CHECKS = "agents.checks.run"
"""`python -m agents.checks.run ...`: looks at the machine, prints a CheckResult a line."""

CHECK_DEVICE = "titan_actor.check_device"
"""`python -m titan_actor.check_device --ranks N`: the same for what needs torch: devices, arithmetic, their memory."""

SEAM = "SUPERVISOR_PROGRAMS"
"""Environment variable, for tests only: a JSON object that replaces some of the module names above by those of toys."""

_MODULES = {
    "trainer": TRAINER,
    "warm": WARM,
    "lighthouse": LIGHTHOUSE,
    "gate": GATE,
    "agent": AGENT,
    "check": CHECK,
    "checks": CHECKS,
    "check_device": CHECK_DEVICE,
}

CONTROL_PLANE = "SUPERVISOR_CONTROL_PLANE"
"""Environment variable in which a control-plane job of Slurm finds how to submit its successor (JSON). Nobody else's: it
holds what the run file says of Slurm."""

PART = "SUPERVISOR_PART"
"""Environment variable by which the next `supervisor up` of a home finds what the last one has started. Children do not get it."""

QUORUM_IDS_ABOVE = "SUPERVISOR_QUORUM_IDS_ABOVE"
"""Environment variable of the lighthouse: its quorum ids are to begin above this. TorchFT counts from 1 again, and a
manager that meets its own old id does not reconfigure, while others meet stale keys under it and hang."""


def command(program: str, *arguments: str) -> list[str]:
    """The argv that runs one of our programs with this interpreter. KeyError for a program that there is not."""
    modules = {**_MODULES, **json.loads(os.environ.get(SEAM, "{}"))}
    return [sys.executable, "-m", modules[program], *arguments]
