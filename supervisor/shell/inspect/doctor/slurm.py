"""Examines Slurm where it is installed: its answers, partitions and our jobs; inside a job, what the job needs."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from supervisor.shell.inspect.doctor.finding import Finding, bad, good, note
from supervisor.shell.inspect.doctor.folders import kind_of, writable

DEADLINE_S = 5.0
"""A healthy controller answers within milliseconds; with the controller away, commands hang for minutes."""

OLDEST = (22, 5)
"""Oldest version whose `squeue --json` and `sinfo --json` the engine understands."""

NODE_ENDS_WITHIN_S = 14.0
"""Twice `--grace-s` (5 s) and four seconds (docs/NODES.md). After KillWait, Slurm kills what is left."""

LEAST_JOB_AGE_S = 60
"""Least MinJobAge. Below it, a supervisor that is replaced meanwhile may miss why a job ended."""

COMMENT = re.compile(r"supervisor/([^/]+)/.+")


class _Trouble(Exception):
    """A command gave no answer; the text says which and why."""


def wanted(environment: Mapping[str, str]) -> bool:
    """Returns true if the environment points to Slurm. Its commands may be installed without being used."""
    return bool(environment.get("SLURM_CONF") or environment.get("SLURM_JOB_ID"))


def examine(home: Path, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Yields the findings; none without Slurm. A command that hangs takes `DEADLINE_S`, and no further one is asked."""
    if not wanted(environment) and shutil.which("scontrol") is None:
        return
    try:
        yield _version(_ask("sinfo", "--version"))
        said = " ".join(_ask("scontrol", "ping").split())
    except _Trouble as trouble:
        if wanted(environment):
            yield bad(str(trouble), "check SLURM_CONF, munge and slurmctld; `scontrol ping` has details")
        else:
            yield note(f"{trouble}", 'only `engine = "slurm"` needs it: then set SLURM_CONF')
        return
    yield good(f"Slurm's controller answers: {said}")
    try:
        yield from partitions(_ask("sinfo", "--noheader", "--format=%R|%a|%l|%D"))
        _json("sinfo")
        yield from jobs(_json("squeue"), _user())
        config = _ask("scontrol", "show", "config")
    except _Trouble as trouble:
        yield bad(str(trouble), "the supervisor needs the same answer; Slurm's log has details")
        return
    yield from _ages(config)
    yield _shared(home)
    if environment.get("SLURM_JOB_ID"):
        yield from _inside(environment, config)


def _ask(*command: str) -> str:
    told = " ".join(command)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=DEADLINE_S,
            check=False, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _Trouble(f"`{told}` gave no answer within {DEADLINE_S:g} s") from None
    except OSError as error:
        raise _Trouble(f"`{told}` cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()[-1:] or done.stdout.strip().splitlines()[:1] or ["it printed nothing"]
        raise _Trouble(f"`{told}` ended with {done.returncode}: {words[0]}")
    return done.stdout


def _json(command: str) -> Any:
    try:
        return json.loads(_ask(command, "--json"))
    except ValueError as error:
        raise _Trouble(f"`{command} --json` gave no JSON ({error}): its plugin serializer/json is missing") from None


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _version(text: str) -> Finding:
    told = text.strip()
    found = re.search(r"(\d+)\.(\d+)", told)
    if found is None or (int(found[1]), int(found[2])) >= OLDEST:
        return good(f"Slurm: {told}")
    return bad(
        f"Slurm: {told} is too old: its `squeue --json` differs or is missing",
        f"{OLDEST[0]}.{OLDEST[1]:02d} or later is needed",
    )


def partitions(text: str) -> Iterator[Finding]:
    """Parses `sinfo --format=%R|%a|%l|%D`."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    up = [f"{name} ({count} nodes, at most {limit})" for name, state, limit, count in rows if state == "up"]
    if up:
        yield good(f"Slurm's partitions: {', '.join(sorted(up))}")
    else:
        yield bad("Slurm has no partition that is up", "ask its administrator")


def jobs(body: Any, user: str) -> Iterator[Finding]:
    """Counts this user's jobs of ours in `squeue --json`, by system."""
    found: dict[str, Counter[str]] = {}
    for job in body.get("jobs", ()) if isinstance(body, dict) else ():
        ours = COMMENT.fullmatch(str(job.get("comment") or ""))
        if ours is None or user not in (job.get("user_name"), str(job.get("user_id"))):
            continue
        state = job.get("job_state")
        found.setdefault(ours[1], Counter())[str(state[0] if isinstance(state, list) and state else state)] += 1
    for system, states in sorted(found.items()):
        yield good(f"Slurm: jobs of {user} for system {system}: " + _counted(states))
    if not found:
        yield good(f"Slurm: {user} has no job of this program")


def _counted(states: Counter[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


def _seconds(config: str, name: str) -> int | None:
    found = re.search(rf"^{name}\s*=\s*(\d+)", config, re.MULTILINE)
    return int(found[1]) if found else None


def _ages(config: str) -> Iterator[Finding]:
    age_s = _seconds(config, "MinJobAge")
    if age_s is not None and 0 < age_s < LEAST_JOB_AGE_S:
        yield note(
            f"Slurm forgets an ended job after {age_s} s (MinJobAge): why it ended may be lost",
            "ask its administrator for MinJobAge = 300, Slurm's default",
        )


def _shared(home: Path) -> Finding:
    kind, shared = kind_of(home)
    if shared:
        return good(f"{home} is on {kind}: checkpoints below it are seen by all nodes that mount it")
    return note(
        f"{home} is on {kind}, which looks like this machine's own",
        "checkpoints belong on a file system that all nodes share: check that another node has this folder (srun ls)",
    )


def _inside(environment: Mapping[str, str], config: str) -> Iterator[Finding]:
    """Checks what a job needs so that a node can run in it."""
    job, host = environment["SLURM_JOB_ID"], environment.get("SLURMD_NODENAME", "")
    if host:
        yield good(f"inside job {job} on {host}")
    else:
        yield note(f"inside job {job}, but SLURMD_NODENAME is not set", "give the node's name by hand: --host NAME")
    wait_s = _seconds(config, "KillWait")
    if wait_s is not None and wait_s < NODE_ENDS_WITHIN_S:
        yield note(
            f"Slurm kills {wait_s} s after TERM (KillWait); a node takes up to {NODE_ENDS_WITHIN_S:g} s to end",
            "ask its administrator for KillWait = 30, Slurm's default; else allocation.slurm.agent_command = a script of yours "
            f'that ends with: exec supervisor-agent "$@" --grace-s {max(0.0, (wait_s - 4) / 2):g}',
        )
    elif wait_s is not None:
        yield good(f"Slurm kills {wait_s} s after TERM (KillWait): a node has ended by then")
    yield from node_folder(Path("/tmp"))


def node_folder(folder: Path) -> Iterator[Finding]:
    """Checks the folder that holds a node's records, sockets and logs by default."""
    kind, shared = kind_of(folder)
    if not writable(folder):
        yield bad(f"{folder} cannot be written on this node", "give another: allocation.slurm.node_folder")
    elif shared:
        yield note(
            f"{folder} is on {kind}: a node's records must not be on a shared file system",
            "give a folder on the node's own disk: allocation.slurm.node_folder",
        )
    else:
        free = shutil.disk_usage(folder).free / 2**30
        say = good if free >= 1 else lambda what: note(what, "logs and records need a gigabyte: free some")
        yield say(f"{folder} is this node's own ({kind}), {free:.1f} GiB free")
