"""Slurm's command line, as the engine needs it: every call has a deadline, and error texts are never parsed.

A failed command is Retryable while no controller answers `scontrol ping`. Otherwise most are tried once more, then
Fatal with Slurm's own words. A command that takes too long is Retryable: its outcome is unknown.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.ports.errors import Fatal, Retryable
from supervisor.wire.environment import SECRET
from supervisor.wire.programs import CONTROL_PLANE

COMMAND_S = 30.0
"""Deadline of a command. Slurm's commands give up after MessageTimeout, 10 s by default, or twice that."""
PING_S = 10.0
ONCE_MORE_S = 0.5
"""Seconds before the second try: a controller that has just come back rejects the first one."""

_OURS = re.compile(
    r"SLURM_CONF$|(?!SLURM|SQUEUE_|SINFO_|SCANCEL_|SCONTROL_|SBATCH_(?:CLUSTERS|CLUSTER_CONSTRAINT|ARRAY_INX|WAIT|EXPORT)$)"
)
"""Environment variables that the commands and the job see. Options of these commands are left out: SQUEUE_PARTITION
would hide our jobs, SBATCH_CLUSTERS misplace them, SBATCH_EXPORT strip their environment. Variables of the job in
which the supervisor itself may run are left out as well."""
_NUMBER = re.compile(r"^(\d+)(?:;.*)?$", re.MULTILINE)
"""The job number in the output of sbatch --parsable, among the lines of a site's plugins."""

_STEP = re.compile(r"^((\d+)\.\d+)\|(.+)$", re.MULTILINE)
"""A line of `squeue --steps`: a step with a number of its own, not the batch script's."""

_TOO_MANY = re.compile(r"\b(?:Assoc|QOS)(?:Max|Grp)Submit\w*Limit\b")
"""Codes of reasons such as QOSMaxSubmitJobPerUserLimit and AssocGrpSubmitJobsLimit."""


class Refused(Exception):
    """A command failed although the controller answers. The text is Slurm's."""

    @property
    def too_many(self) -> bool:
        """True if the user, account or QOS has as many jobs as it may have: Slurm gives its reason's code, as in squeue."""
        return _TOO_MANY.search(str(self)) is not None


class NumberUnknown(Retryable):
    """sbatch succeeded without printing the job's number."""


@dataclass(frozen=True)
class Job:
    """One job of `squeue --json`, as far as the engine needs it."""

    id: int
    cluster: str
    states: tuple[str, ...]
    """In capitals: one state in Slurm 22.05, a base state and its flags in later versions."""
    why: str
    """Why it is pending, or failed; empty if Slurm gives no reason."""
    comment: str
    node: str
    """Its host; of a job of several what Slurm lists, such as `n[1-3]`."""
    restarts: int
    exit_code: int
    submitted_unix_s: int
    uid: int
    started_unix_s: int = 0
    """Last start, by slurmctld's clock; 0 if unknown."""
    preempted_unix_s: int = 0
    """When another job was given its host, by the same clock; 0 if none was. The job runs on for a grace period, and
    preemption is never taken back."""
    ends_unix_s: int = 0
    """When Slurm will end it, or ended it, by the same clock; 0 if unknown."""

    @property
    def ours(self) -> bool:
        """True if the job is our user's: anyone may write any comment."""
        return self.uid == os.getuid()


@dataclass(frozen=True)
class Node:
    """One node of `sinfo --json`."""

    name: str
    states: tuple[str, ...]
    """In capitals: the base state and the flags."""
    reason: str
    """The reason given by the administrator or by Slurm."""
    booted_unix_s: int = 0
    """Boot time by slurmctld's clock, from slurmd's last registration; 0 if unknown, as in Slurm 23.02 or later."""
    slurmd_unix_s: int = 0
    """When its slurmd started, by the node's own clock; 0 if unknown."""


def environment(of: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment that sbatch exports to a job: the supervisor's own, since the needs of modules and
    containers cannot be listed. Variables with names of secrets are left out, because Slurm stores a job's
    environment on disk. So is what only a control-plane job may know."""
    everything = os.environ if of is None else of
    return {k: v for k, v in everything.items() if _OURS.match(k) and not SECRET.search(k) and k != CONTROL_PLANE}


class Commands:
    """Slurm's commands. One thread at a time may call them."""

    def __init__(self, deadline_s: float = COMMAND_S) -> None:
        self._deadline_s = deadline_s

    def jobs(self) -> list[Job]:
        """Returns our user's jobs that Slurm still knows. 22.05 lists those of all users: it cannot filter JSON."""
        return parse_jobs(self._json("squeue", "--json", "--all", "--states=all", f"--user={os.getuid()}"))

    def steps(self) -> dict[tuple[int, str], str]:
        """Returns the steps of our user's jobs that live, by the job's number and the step's name."""
        output = self._again("squeue", "--steps", "--noheader", "--all", "--format=%i|%j", f"--user={os.getuid()}")
        return {(int(job), name): step for step, job, name in _STEP.findall(output)}

    def nodes(self) -> dict[str, Node]:
        return parse_nodes(self._json("sinfo", "--json", "--all"))

    def cluster(self) -> str:
        """Returns the cluster's name, which every job has as well."""
        if name := self.config().get("ClusterName"):
            return name
        raise Fatal("`scontrol show config` names no cluster: is this Slurm's own scontrol?")

    def config(self) -> dict[str, str]:
        """Returns the output of `scontrol show config` by name."""
        lines = self._again("scontrol", "show", "config").splitlines()
        return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}

    def submit(self, options: Sequence[str], script: str, more: Mapping[str, str] | None = None) -> int:
        """Runs sbatch once and returns the job's number. `more`: variables of the job beside those of `environment`. Raises Refused, without a second try: only the caller can look
        if the job exists all the same. Raises NumberUnknown."""
        output = self._once("sbatch", "--parsable", *options, script=script, more=more).strip()
        numbers: list[str] = _NUMBER.findall(output)
        if not numbers:
            raise NumberUnknown(f"sbatch did not print the number of the job that it submitted: {output!r}")
        return int(numbers[-1])

    def refusal(self, options: Sequence[str], script: str) -> str:
        """Returns Slurm's words if it would refuse this submission, else an empty string, as for one that only has to
        wait until the user has fewer jobs. Submits nothing."""
        try:
            self._once("sbatch", "--test-only", *options, script=script)
        except Refused as words:
            return "" if words.too_many else str(words)
        return ""

    def cancel(self, jobs: Sequence[int]) -> None:
        """Cancels jobs. Those that have ended already are no error."""
        if jobs:
            self._again("scancel", *map(str, jobs))

    def end_step(self, step: str, signal: str) -> None:
        """Sends a signal to every process of a step. One that has ended already is no error."""
        with contextlib.suppress(Refused):
            self._once("scancel", f"--signal={signal}", step)

    def drain(self, host: str, reason: str) -> str:
        """Drains a host. Returns Slurm's words if it refuses, else an empty string."""
        try:
            self._once("scontrol", "update", f"nodename={host}", "state=drain", f"reason={reason}")
        except Refused as words:
            return str(words)
        return ""

    def _json(self, *argv: str) -> Mapping[str, Any]:
        words = ""
        for attempt in range(2):
            if attempt:
                time.sleep(ONCE_MORE_S)
            try:
                body = json.loads(self._once(*argv))
            except Refused as error:
                words = str(error)
                continue
            except ValueError as error:
                raise Fatal(
                    f"`{' '.join(argv)}` prints no JSON ({error}): Slurm needs its JSON serializer (22.05 or later)"
                ) from error
            # 22.05 reports errors in the body, with an empty list and exit code 0
            if not body.get("errors"):
                return dict(body)
            words = _said(body["errors"])
            self._or_away(argv[0], words)
        raise Fatal(f"{argv[0]}: {words}")

    def _again(self, *argv: str) -> str:
        try:
            return self._once(*argv)
        except Refused:
            time.sleep(ONCE_MORE_S)
        try:
            return self._once(*argv)
        except Refused as words:
            raise Fatal(f"{argv[0]}: {words}") from words

    def _once(self, *argv: str, script: str | None = None, more: Mapping[str, str] | None = None) -> str:
        result = _run(argv, self._deadline_s, script, more)
        if result.returncode == 0:
            return result.stdout
        words = "; ".join(
            (result.stderr.strip() or result.stdout.strip() or f"exit code {result.returncode}").splitlines()
        )
        self._or_away(argv[0], words)
        raise Refused(words)

    def _or_away(self, program: str, words: str) -> None:
        try:
            up = _run(("scontrol", "ping"), PING_S).returncode == 0
        except Retryable:
            up = False
        if not up:
            raise Retryable(f"{program}: {words} (and no controller of Slurm answers `scontrol ping`)")


def parse_jobs(body: Mapping[str, Any]) -> list[Job]:
    """Parses `squeue --json` of Slurm 22.05 and later."""
    return [
        Job(
            id=_number(job["job_id"]),
            cluster=job.get("cluster") or "",
            states=_words(job["job_state"]),
            why=": ".join(
                part for part in (job.get("state_reason"), job.get("state_description")) if part and part != "None"
            ),
            comment=job.get("comment") or "",
            node=job.get("nodes") or "",
            restarts=_number(job.get("restart_cnt")),
            exit_code=_exit_code(job.get("exit_code")),
            submitted_unix_s=_number(job.get("submit_time")),
            uid=_number(job["user_id"]),
            started_unix_s=_number(job.get("start_time")),
            preempted_unix_s=_number(job.get("preempt_time")),
            ends_unix_s=_number(job.get("end_time")),
        )
        for job in body.get("jobs") or ()
    ]


def parse_nodes(body: Mapping[str, Any]) -> dict[str, Node]:
    """Parses `sinfo --json`, by node name. Slurm 22.05 lists nodes; later versions list groups of equal ones."""
    found = {}
    for entry in body.get("nodes") or body.get("sinfo") or ():
        if isinstance(entry.get("nodes"), Mapping):
            names = entry["nodes"].get("nodes") or ()
            states = _words(entry["node"]["state"])
            reason = (entry.get("reason") or {}).get("description") or ""
        else:
            names = [entry["name"]]
            states = _words(entry["state"]) + _words(entry.get("state_flags") or ())
            reason = entry.get("reason") or ""
        since = {"booted_unix_s": entry.get("boot_time"), "slurmd_unix_s": entry.get("slurmd_start_time")}
        for name in names:
            found[name] = Node(name=name, states=states, reason=reason, **{k: _number(v) for k, v in since.items()})
    return found


def _run(
    argv: Sequence[str], deadline_s: float, script: str | None = None, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        result = subprocess.run(
            argv,
            input=(script or "").encode(errors="surrogateescape"),
            env={**environment(), **(more or {})},
            cwd="/",  # sbatch makes ours the job's: it may not exist on the node
            capture_output=True,
            check=False,
            timeout=deadline_s,
            start_new_session=True,  # Ctrl-C is for the supervisor: an interrupted submission has an unknown outcome
        )
    except FileNotFoundError as error:
        raise Fatal(f"there is no {argv[0]} here: the supervisor must run where Slurm's commands are") from error
    except subprocess.TimeoutExpired as error:
        # sbatch itself waits while Slurm has its maximum of jobs (MaxJobCount), and says so
        words = "; ".join((error.stderr or b"").decode(errors="replace").split("\n")).strip("; ")
        said = f" ({words})" if words else ""
        raise Retryable(f"{argv[0]} has not answered within {deadline_s:g} s{said}", after_s=5.0) from error
    except OSError as error:
        raise Retryable(f"cannot run {argv[0]}: {error.strerror}", after_s=5.0) from error
    # names of other users' jobs may hold any bytes
    output, errors = (found.decode(errors="replace") for found in (result.stdout, result.stderr))
    return subprocess.CompletedProcess(argv, result.returncode, output, errors)


def _said(errors: Sequence[Any]) -> str:
    return "; ".join(
        str(e.get("description") or e.get("error") or e) if isinstance(e, Mapping) else str(e) for e in errors
    )


def _words(value: Any) -> tuple[str, ...]:
    return tuple(str(word).upper() for word in ([value] if isinstance(value, str) else value))


def _number(value: Any) -> int:
    """Returns the number. Later versions wrap it: {"set": true, "infinite": false, "number": 7}."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) else 0
    return int(value or 0)


def _exit_code(value: Any) -> int:
    """Returns the main process's exit code; 128 + N for signal N, as in a shell. 22.05 has one number for both; 23.02
    and later separate them, and the code is 0 then."""
    if isinstance(value, Mapping) and "return_code" in value:
        by = value.get("signal") or {}
        number = _number(by.get("id", by.get("signal_id")))
        return 128 + number if number else _number(value["return_code"])
    status = _number(value)
    return status >> 8 or ((status & 0x7F) and 128 + (status & 0x7F))
