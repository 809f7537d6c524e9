"""Checks [allocation.slurm] before Slurm is asked for anything."""

from __future__ import annotations

import dataclasses
import re

from supervisor.core.model.spec import AllocationSpec, RunSpec, SlurmSpec
from supervisor.core.remediation.handover import EARLY_S

_OURS = "the supervisor sets it: "
_KNOWN = _OURS + "it identifies the job"
_NOTHING = "sbatch would submit nothing"
_USER = "the supervisor looks only for jobs of its own user"
_FILES = _OURS + "set allocation.slurm.node_folder to place the logs"
_CLUSTER = "the supervisor looks for its jobs on one cluster: that of the supervisor's own SLURM_CONF"
_ONE_NODE = _OURS + "a job is one node; set allocation.nodes for their number"
_ANY_NODE = "a job is one node, of any name; set allocation.slurm.constraint, or a --reservation"
_ENVIRONMENT = "a node needs the supervisor's environment; set allocation.slurm.setup for more variables"

FLAGS = {
    "--account": "set allocation.slurm.account",
    "--array": _ONE_NODE,
    "--begin": "a lost node's replacement would wait for it too; submit the run when it may begin",
    "--chdir": _OURS + "set allocation.slurm.setup to change the folder",
    "--cluster-constraint": _CLUSTER,
    "--clusters": _CLUSTER,
    "--comment": _KNOWN,
    "--constraint": "set allocation.slurm.constraint",
    "--deadline": "Slurm would remove the jobs; set allocation.slurm.time_limit, and titan.steps for the run's end",
    "--dependency": "a lost node's replacement would wait for it too, or never start; submit the run when it may begin",
    "--error": _FILES,
    "--exclude": _OURS + "failed hosts are excluded automatically",
    "--exclusive": "set allocation.slurm.exclusive",
    "--export": _ENVIRONMENT,
    "--export-file": _ENVIRONMENT,
    "--gres": "set allocation.slurm.gres",
    "--gid": _USER,
    "--help": _NOTHING,
    "--hold": "a held job never starts, and the run would wait for it",
    "--job-name": _KNOWN,
    "--kill-on-invalid-dep": _OURS + "jobs do not depend on each other",
    "--no-kill": _OURS + "a job ends with its node",
    "--no-requeue": _OURS + "a job that ends is requested again",
    "--nodefile": _ANY_NODE,
    "--nodelist": _ANY_NODE,
    "--nodes": _ONE_NODE,
    "--ntasks": _OURS + "set groups.ranks_per_group",
    "--ntasks-per-node": _OURS + "set groups.ranks_per_group",
    "--open-mode": _FILES,
    "--output": _FILES,
    "--oversubscribe": "set allocation.slurm.exclusive = false",
    "--parsable": _OURS + "it reads the answer",
    "--partition": "set allocation.slurm.partition",
    "--qos": "set allocation.slurm.qos",
    "--quiet": _OURS + "it reads the answer",
    "--requeue": _OURS + "a job that ends is requested again",
    "--signal": "set allocation.slurm.warn_s",
    "--test-only": "supervisor launch --check asks Slurm without starting anything",
    "--time": "set allocation.slurm.time_limit",
    "--uid": _USER,
    "--usage": _NOTHING,
    "--version": _NOTHING,
    "--wait": _OURS + "nothing waits for the end of a job",
    "--wrap": "set allocation.slurm.setup, or allocation.slurm.agent_command",
}
"""Flags of sbatch that users may not set, with what to do instead."""

_SHORT = {
    "-A": "--account", "-a": "--array", "-b": "--begin", "-C": "--constraint", "-D": "--chdir", "-d": "--dependency", "-e": "--error",
    "-F": "--nodefile", "-H": "--hold", "-h": "--help", "-J": "--job-name", "-k": "--no-kill", "-M": "--clusters",
    "-N": "--nodes", "-n": "--ntasks", "-o": "--output", "-p": "--partition", "-q": "--qos", "-Q": "--quiet",
    "-s": "--oversubscribe", "-t": "--time", "-V": "--version", "-W": "--wait", "-w": "--nodelist", "-x": "--exclude",
}  # fmt: skip

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def problems(allocation: AllocationSpec) -> list[str]:
    """Returns the problems as sentences; empty if all is right."""
    if allocation.engine != "slurm" and not allocation.pool:  # a run on a pool may have the file of the pool
        return [
            f"allocation.slurm.{name} = {value!r} is for Slurm, and allocation.engine = {allocation.engine!r}: "
            'set allocation.engine = "slurm", or leave it out'
            for name, value in _given(allocation.slurm)
        ]
    return [
        *_shape(allocation.slurm),
        *_times(allocation.slurm),
        *_flags(allocation.slurm.flags),
        *_lines(allocation.slurm),
    ]


def _shape(slurm: SlurmSpec) -> list[str]:
    if slurm.shape == "job_per_node":
        return []
    shape, found = 'allocation.slurm.shape = "job_per_group"', []
    if not slurm.exclusive:
        found.append(
            f"{shape}: needs hosts of its own, and allocation.slurm.exclusive = false lets jobs share a host; leave one of them out"
        )
    if re.search(r"(^|[\s;&|/])srun(\s|$)", slurm.agent_command):
        found.append(
            f"{shape}: starts a step on each node itself, and allocation.slurm.agent_command starts one in it with srun; leave "
            "srun out, or leave the shape out"
        )
    return found


def notes(spec: RunSpec) -> list[str]:
    """Returns what a person should know who launches this run; empty without one."""
    if spec.allocation.slurm.shape == "job_per_node" or spec.groups.nodes_per_group == 1:
        return []
    several = f"{spec.groups.count} jobs of {spec.groups.nodes_per_group} nodes"
    return [
        f'allocation.slurm.shape = "job_per_group": asks for {several}, and one for each other node. Slurm ends such a job with '
        "all its nodes where the batch script on its first node is ended, as when an administrator sets that node down; the "
        "group then waits for new nodes. A node that is given back may idle until its job ends (docs/SLURM.md)"
    ]


def time_limit_s(text: str) -> int | None:
    """Parses a time limit as sbatch does, in seconds; None if it has none of sbatch's formats."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if found is None:
        return None
    days, *rest = found.groups()
    numbers = [int(part) for part in rest if part is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:  # minutes[:seconds]
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _given(slurm: SlurmSpec) -> list[tuple[str, object]]:
    default = SlurmSpec()
    pairs = [(field.name, getattr(slurm, field.name)) for field in dataclasses.fields(slurm)]
    return [(name, value) for name, value in pairs if value != getattr(default, name)]


def _times(slurm: SlurmSpec) -> list[str]:
    found: list[str] = []
    if not slurm.time_limit:
        return found
    limit = time_limit_s(slurm.time_limit)
    if limit is None or limit == 0:
        found.append(
            f"allocation.slurm.time_limit = {slurm.time_limit!r}: must be minutes, minutes:seconds, hours:minutes:seconds, "
            f"days-hours, days-hours:minutes or days-hours:minutes:seconds; nearest: {_nearest(slurm.time_limit)!r}"
        )
    elif limit < (needed := slurm.warn_s + max(slurm.warn_s, int(EARLY_S))):
        found.append(
            f"allocation.slurm.time_limit = {slurm.time_limit!r} ({limit} s) is below twice allocation.slurm.warn_s = "
            f"{slurm.warn_s}: a job would be leaving for most of its time, and Slurm may warn {EARLY_S:g} s early; at least "
            f"{_written(needed)!r}, or a smaller warn_s"
        )
    return found


def _nearest(text: str) -> str:
    """Returns the nearest limit: 2h -> 2:00:00, 1h30m -> 1:30:00, 90 s -> 1:30, unlimited -> empty, others -> a day."""
    if text.lower() in ("0", "unlimited", "infinite", "infinity", "none"):
        return ""
    parts = re.findall(r"(\d+)\s*([dhms])[a-z]*", text.lower())
    seconds = sum(int(number) * _UNITS[unit] for number, unit in parts)
    return _written(seconds) if seconds else "1-00:00:00"


def _written(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _flags(flags: tuple[str, ...]) -> list[str]:
    found = []
    for flag in flags:
        if not re.match(r"--?[A-Za-z]", flag):
            found.append(
                f'allocation.slurm.flags: {flag!r} is not a flag: give each with its value as one string, as "--reservation=llm"'
            )
            continue
        reserved = _reserved(flag)
        if reserved is not None:
            found.append(f"allocation.slurm.flags: {flag!r} cannot be set in flags: {FLAGS[reserved]}")
    return found


def _reserved(flag: str) -> str | None:
    """Returns the reserved flag that it means; sbatch takes --ar for --array, and -n4 for -n 4."""
    if not flag.startswith("--"):
        return _SHORT.get(flag[:2])
    name = flag.partition("=")[0].split()[0]
    if name in FLAGS:
        return name
    # sbatch rejects an ambiguous flag itself
    return next((known for known in FLAGS if known.startswith(name)), None)


def _lines(slurm: SlurmSpec) -> list[str]:
    """Checks for line breaks: one would end the option, and begin a command of the script."""
    names = ("partition", "account", "qos", "constraint", "gres", "agent_command", "node_folder")
    found = [
        f"allocation.slurm.{name} = {getattr(slurm, name)!r}: must be one line"
        for name in names
        if re.search(r"[\r\n\0]", getattr(slurm, name))
    ]
    if slurm.node_folder and not slurm.node_folder.startswith("/"):
        found.append(
            f"allocation.slurm.node_folder = {slurm.node_folder!r}: must be an absolute path, the same on every node"
        )
    return found
