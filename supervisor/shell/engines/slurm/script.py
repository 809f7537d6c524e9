"""Builds a submission to Slurm: sbatch's options, and the script that becomes the node's shim, or that starts a step on
each node of a group, which does."""

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

SWITCH = '[[ "$SLURM_TOPOLOGY_ADDR_PATTERN" == *?.node ]] && switch="${SLURM_TOPOLOGY_ADDR%.*}" || switch='
"""Script line that takes the host's switches from what Slurm says: `spine.leaf.host`, with `switch.switch.node`
(topology/tree), or `block.host`, with `block.node` (topology/block). A cluster without a topology says `node`."""

GROUPED = f"{SWITCH}; switch=${{switch:+$switch.}}job-$SLURM_JOB_ID"
"""The same in a job of a group, whose hosts count as those of an innermost switch: groups take nodes of one job first."""

HOSTS_TRIES = 60
"""Tries, a second apart, to add the hosts to the comment. A job that cannot ends, and its nodes are asked for again."""

_STEPS = rf"""
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
for i in "${{!keys[@]}}"; do
  srun --nodes=1 --ntasks=1 --nodelist="${{hosts[i]}}" --job-name="${{keys[i]}}" --no-kill --mem=0 --cpu-bind=none \
    --input=none --output=none --error=none bash -c "$node" shim "${{keys[i]}}" &
  pids+=($!)
done
lives() {{ kill -0 "${{pids[$1]}}" 2>/dev/null; }}
all_run() {{
  local i steps
  steps=$(squeue --steps --jobs="$SLURM_JOB_ID" --noheader --format=%j) || return
  for i in "${{!keys[@]}}"; do
    lives "$i" && ! grep -qxF -- "${{keys[i]}}" <<<"$steps" && return 1
  done
  return 0
}}
for ((tries = 0; ; tries++)); do
  all_run && scontrol update JobId="$SLURM_JOB_ID" Comment="$comment $SLURM_JOB_NODELIST" && break
  ((tries < {HOSTS_TRIES})) || {{ echo "the hosts of job $SLURM_JOB_ID cannot be written to its comment"; exit 1; }}
  sleep 1
done
code=0
while ((${{#pids[@]}})); do
  wait -n
  for i in "${{!pids[@]}}"; do
    lives "$i" && continue
    wait "${{pids[i]}}" || code=$?
    unset "pids[i]"
    echo "the step of ${{keys[i]}} on ${{hosts[i]}} has ended"
    listed=$(scontrol show hostnames "$(squeue --jobs="$SLURM_JOB_ID" --noheader --format=%N)")
    if ((i && ${{#pids[@]}})) && grep -qxF -- "${{hosts[i]}}" <<<"$listed"; then
      left=$(grep -vxF -- "${{hosts[i]}}" <<<"$listed" | paste -sd,)
      # scontrol leaves scripts for a shell of the job in its working directory
      (cd "$folder" && scontrol update JobId="$SLURM_JOB_ID" NodeList="$left" && rm -f "slurm_job_${{SLURM_JOB_ID}}_resize".*sh)
    fi
  done
done
exit "$code"
"""
"""Lines of the batch script of a job of several nodes. The batch script's own host is never given back: Slurm would end
the script."""


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
        f"--nodes={len(request.together) or request.nodes}",
        "--no-requeue",
        # the shim alone, which is the job's main process; in a job of a group, all processes of the steps
        f"--signal={'' if request.together else 'B:'}USR1@{spec.warn_s}",
        # Slurm opens the output file before the script can make a folder
        "--output=/dev/null",
    ]
    if request.together:
        made.append("--no-kill")  # a lost node leaves the others as they are
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


FOLDER = '"$supervisor_folder"'
"""The node's folder, as a word of the script after `folder_lines`."""

SAY = '[ -z "$supervisor_says" ] || echo "$supervisor_says"'
"""Script line for its log: tells why the node's folder is another than usual."""


def folder_lines(spec: SlurmSpec, system: str) -> list[str]:
    """Returns script lines that make the node's folder and name it in a variable. If the default one is a link, another
    user's, or writable by others, it is a new one: anyone may create that name in /tmp. One that the run file names is
    the user's choice."""
    folder = Path(node_folder(spec, system))
    lines = [f"supervisor_folder={shlex.quote(str(folder))}", "supervisor_says="]
    if spec.node_folder:
        return [*lines, f"(umask 077 && mkdir -p {FOLDER}) || exit 1"]
    usual = shlex.join([str(folder.parent), str(folder)])
    return [
        *lines,
        f"for each in {usual}; do",
        '  mkdir -m 700 "$each" 2>/dev/null',
        '  if [ -L "$each" ] || [ ! -d "$each" ] || [ ! -O "$each" ] || [ "$(find "$each" -maxdepth 0 -perm /022)" ]; then',
        f"    supervisor_folder=$(mktemp -d {shlex.quote(f'{folder.parent}.XXXXXX')}) || exit 1",
        "    supervisor_says=\"$each is not this user's alone: records and logs are in $supervisor_folder; remove $each, or"
        ' set allocation.slurm.node_folder"',
        "    break",
        "  fi",
        '  chmod go-rwx "$each"',
        "done",
    ]


def script(request: Request, etcd: Sequence[str], security: Security, system: str, comment: str = "") -> str:
    """Returns a batch script. Its process becomes the shim, and the job ends with the shim. That of a job of several
    nodes starts the shims, and ends with the last of them; it adds the hosts to `comment`, that of the job."""
    if request.together:
        return _several(request, _node(request, etcd, security, system, '"$1"', GROUPED), system, comment)
    return "#!/bin/bash\n" + _node(request, etcd, security, system, shlex.quote(request.key), SWITCH)


def _node(request: Request, etcd: Sequence[str], security: Security, system: str, allocation: str, switch: str) -> str:
    """Returns the lines of one node. `allocation` is its key, as a word of the shell."""
    spec = request.spec.slurm
    node = '"$SLURMD_NODENAME"' if spec.exclusive else '"$SLURMD_NODENAME.$SLURM_JOB_ID"'
    command = spec.agent_command or shlex.join([sys.executable, "-m", "agents.cli"])
    command += f' run --node {node} --host "$SLURMD_NODENAME" --home {FOLDER} --etcd {shlex.quote(",".join(etcd))}'
    command += f" --address auto --allocation {allocation}"
    command += f" --slots {request.slots} --lease-s {request.lease_s}"
    if security.path and not security.signs:
        command += f" --security {_security(security)}"
    # only where Slurm knows switches: elsewhere the address is the host's name alone
    command += ' ${switch:+"--switch=$switch"}'
    lines = [
        # Slurm's warning may come before the shim handles it, and must not end the job
        "trap '' USR1",
        *folder_lines(spec, system),
        f"(umask 077 && mkdir -p {FOLDER}/nodes/{node}) || exit 1",
        f"exec >>{FOLDER}/nodes/{node}/shim.log 2>&1",
        SAY,
    ]
    lines += [spec.setup, switch, f"exec {command}", ""]
    return "\n".join(lines)


def _several(request: Request, node: str, system: str, comment: str) -> str:
    """Returns the batch script of a job of several nodes, which starts a step named after its key on each. Once all
    run, it adds the hosts to the job's comment, in the order of the keys. Slurm takes a host back whose step has ended,
    where it lets jobs shrink; where not, the host idles until the job ends."""
    spec = request.spec.slurm
    return "\n".join(
        [
            "#!/bin/bash",
            *folder_lines(spec, system),
            f"folder={FOLDER}",
            'exec >>"$folder/job-$SLURM_JOB_ID.log" 2>&1',
            SAY,
            f"keys=({shlex.join(request.together)})",
            f"node={shlex.quote(node)}",
            f"comment={shlex.quote(comment)}",
            _STEPS,
        ]
    )


def _security(security: Security) -> str:
    """Returns the node's own file, at the same path on every node; the supervisor's if all is insecure."""
    if not security.tls:
        return shlex.quote(security.path)
    folder = shlex.quote(str(security.nodes_folder))
    return f'{folder}/{node_name("")}"$SLURMD_NODENAME".toml'
