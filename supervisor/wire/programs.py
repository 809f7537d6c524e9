"""Programs that one package starts in another: by `python -m NAME`, never by import."""

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
"""`python -m titan_actor.check`: reads a RunSpec record on stdin, prints the problems of its Titan part."""

GATE = "agents.gate"
"""`python -m agents.gate ...`: the gate, which starts its lighthouse."""

AGENT = "agents.agent"
"""`python -m agents.agent ...`: a child of the shim."""

CHECKS = "agents.health.checks.run"
"""`python -m agents.health.checks.run ...`: checks the machine, prints one CheckResult a line."""

CHECK_DEVICE = "titan_actor.check_device"
"""`python -m titan_actor.check_device --ranks N`: the same for what needs torch: devices, arithmetic, memory."""

MESH_WORKER = "titan_actor.mesh_worker"
"""`python -m titan_actor.mesh_worker URL READY`: a Monarch worker at URL, which touches the file READY once it listens."""

SEAM = "SUPERVISOR_PROGRAMS"
"""Environment variable, for tests only: a JSON object that replaces some of these module names by toys."""

_MODULES = {
    "trainer": TRAINER,
    "warm": WARM,
    "lighthouse": LIGHTHOUSE,
    "gate": GATE,
    "agent": AGENT,
    "check": CHECK,
    "checks": CHECKS,
    "check_device": CHECK_DEVICE,
    "mesh_worker": MESH_WORKER,
}

CONTROL_PLANE = "SUPERVISOR_CONTROL_PLANE"
"""Environment variable that tells a control-plane job of Slurm how to submit its successor (JSON). Other processes must
not get it: it holds the run file's Slurm settings."""

PART = "SUPERVISOR_PART"
"""Environment variable by which a home's next `supervisor up` finds the last one's parts. Children do not get it."""

QUORUM_IDS_ABOVE = "SUPERVISOR_QUORUM_IDS_ABOVE"
"""Environment variable of the lighthouse: its quorum ids must begin above this. TorchFT would count from 1 again. A
manager that meets its own old id does not reconfigure, while others meet stale keys under it and hang."""


def command(program: str, *arguments: str) -> list[str]:
    """Returns the argv that runs one of our programs with this interpreter. Raises KeyError for an unknown program."""
    modules = {**_MODULES, **json.loads(os.environ.get(SEAM, "{}"))}
    return [sys.executable, "-m", modules[program], *arguments]
