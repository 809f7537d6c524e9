"""Builds the submission of one node to Slurm: sbatch's options, and the script that becomes the node's shim."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from supervisor.core.model.spec import SlurmSpec
from supervisor.ports.engine import Request
from supervisor.wire.security import Security, node_name

HOST_AND_JOB = "{host}.{job}"
"""Name of a node whose host may carry several of ours."""

_OPTIONS = {
    "partition": "--partition",
    "account": "--account",
    "qos": "--qos",
    "constraint": "--constraint",
    "gres": "--gres",
    "time_limit": "--time",
}

SWITCH = '[[ "$SLURM_TOPOLOGY_ADDR_PATTERN" == switch.* ]] && switch="${SLURM_TOPOLOGY_ADDR%.*}" || switch='
"""Script line that takes the host's switches from what Slurm says: `spine.leaf.host`, with `switch.switch.node`."""


def of_setting(spec: SlurmSpec, name: str) -> list[str]:
    """Returns sbatch's options that come from one key of the run file; none if it is empty."""
    value = getattr(spec, name)
    if name == "flags":
        return list(value)
    return [f"{_OPTIONS[name]}={value}"] if value else []


def options(request: Request, comment: str) -> list[str]:
    """Returns sbatch's options. The user's own flags come last, because sbatch takes the last of repeated options."""
    spec = request.spec.slurm
    made = [
        f"--comment={comment}",
        f"--job-name=supervisor-{request.run}",
        f"--nodes={request.nodes}",
        "--no-requeue",
        # only to the main process: the shim
        f"--signal=B:USR1@{spec.warn_s}",
        # Slurm opens the output file before the script can make a folder
        "--output=/dev/null",
    ]
    if spec.exclusive:
        # --exclusive alone gives all of a host's processors, but only a job's default memory
        made += ["--exclusive", "--mem=0"]
    if request.exclude:
        made.append(f"--exclude={','.join(request.exclude)}")
    for name in _OPTIONS:
        made += of_setting(spec, name)
    return made + of_setting(spec, "flags")


def node_folder(spec: SlurmSpec, system: str) -> str:
    """Returns a node's folder for records and logs, by default below /tmp: unix sockets and locks need a local disk."""
    return spec.node_folder or f"/tmp/supervisor-{os.getuid()}/{system}"


def own_folder(spec: SlurmSpec, system: str) -> list[str]:
    """Returns script lines that end the job if the default node folder belongs to another user: anyone may create that
    name in /tmp. Returns none if the run file names the folder, which is the user's choice."""
    if spec.node_folder:
        return []
    folder = Path(node_folder(spec, system))
    return [f"[ -O {shlex.quote(str(folder))} ] && [ -O {shlex.quote(str(folder.parent))} ] || exit 1"]


def script(request: Request, etcd: Sequence[str], security: Security, system: str) -> str:
    """Returns a batch script. Its process becomes the shim, and the job ends with the shim."""
    spec = request.spec.slurm
    node = '"$SLURMD_NODENAME"' if spec.exclusive else '"$SLURMD_NODENAME.$SLURM_JOB_ID"'
    folder = shlex.quote(node_folder(spec, system))
    command = spec.agent_command or shlex.join([sys.executable, "-m", "agents.cli"])
    command += f' run --node {node} --host "$SLURMD_NODENAME" --home {folder} --etcd {shlex.quote(",".join(etcd))}'
    command += f" --address auto --allocation {shlex.quote(request.key)}"
    command += f" --slots {request.slots} --lease-s {request.lease_s}"
    if security.path:
        command += f" --security {_security(security)}"
    # only where Slurm knows switches: elsewhere the address is the host's name alone
    command += ' ${switch:+"--switch=$switch"}'
    lines = [
        "#!/bin/bash",
        # Slurm's warning may come before the shim handles it, and must not end the job
        "trap '' USR1",
        f"(umask 077 && mkdir -p {folder}/nodes/{node}) || exit 1",
    ]
    lines += own_folder(spec, system)
    lines += [f"exec >>{folder}/nodes/{node}/shim.log 2>&1", spec.setup, SWITCH, f"exec {command}", ""]
    return "\n".join(lines)


def _security(security: Security) -> str:
    """Returns the node's own file, at the same path on every node; the supervisor's if all is insecure."""
    if not security.tls:
        return shlex.quote(security.path)
    folder = shlex.quote(str(Path(security.path).parent))
    return f'{folder}/{node_name("")}"$SLURMD_NODENAME".toml'
