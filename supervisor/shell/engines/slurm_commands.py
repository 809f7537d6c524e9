"""Slurm's command line, as the engine needs it: every call has a deadline, and nobody looks at the text of an error.

A command that fails is Retryable while no controller answers `scontrol ping`; else it is tried once more, and then it is
Fatal with Slurm's own words. One that takes too long is Retryable: its outcome is not known.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.ports.errors import Fatal, Retryable
from supervisor.wire.programs import CONTROL_PLANE

COMMAND_S = 30.0
"""Slurm's commands give up by themselves after MessageTimeout, by default 10 s, or twice that."""
PING_S = 10.0
ONCE_MORE_S = 0.5
"""Before the second try: a controller that has just come back turns the first one away."""

_OURS = re.compile(
    r"SLURM_CONF$|(?!SLURM|SQUEUE_|SINFO_|SCANCEL_|SCONTROL_|SBATCH_(?:CLUSTERS|CLUSTER_CONSTRAINT|ARRAY_INX|WAIT|EXPORT)$)"
)
"""What the commands and the job see: not what other options these commands take from the environment (SQUEUE_PARTITION would
hide our jobs, SBATCH_CLUSTERS put them where we do not look, SBATCH_EXPORT keep the environment from them), and not what the
job says in which the supervisor itself may run."""
_NUMBER = re.compile(r"^(\d+)(?:;.*)?$", re.MULTILINE)
"""What sbatch --parsable answers with, among what a site's plugins print."""
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY|_(?:KEY|PASS|PAT|PWD)$", re.IGNORECASE
)


class Refused(Exception):
    """A command failed although the controller answers. The text is Slurm's."""


class NumberUnknown(Retryable):
    """sbatch succeeded, and has not said the job's number."""


@dataclass(frozen=True)
class Job:
    """One of `squeue --json`, as far as the engine needs it."""

    id: int
    cluster: str
    states: tuple[str, ...]
    """In capitals; one in Slurm 22.05, a base state and its flags in later ones."""
    why: str
    """Why it is pending, or failed; empty when Slurm gives no reason."""
    comment: str
    node: str
    restarts: int
    exit_code: int
    submitted_unix_s: int
    uid: int
    started_unix_s: int = 0
    """The last start, by slurmctld's clock; 0: not known."""
    preempted_unix_s: int = 0
    """When another job was given its host, by the same clock; 0: none was. It runs on for a grace, and is never taken back."""
    ends_unix_s: int = 0
    """When Slurm will end it, or has, by the same clock; 0: not known."""

    @property
    def ours(self) -> bool:
        """Whether our user's: anybody may write anything into a comment."""
        return self.uid == os.getuid()


@dataclass(frozen=True)
class Node:
    """One of `sinfo --json`."""

    name: str
    states: tuple[str, ...]
    """In capitals: the base state and the flags."""
    reason: str
    """The administrator's, or Slurm's."""
    booted_unix_s: int = 0
    """By slurmctld's clock, from the uptime that slurmd told when it registered last; 0: not known, as of Slurm 23.02 or later."""
    slurmd_unix_s: int = 0
    """When its slurmd started, by the node's own clock; 0: not known."""


def environment(of: Mapping[str, str] | None = None) -> dict[str, str]:
    """What sbatch exports to a job: the supervisor's own environment, as sbatch does for everybody, because what modules
    and containers need cannot be listed here. Without what carries a secret by its name: Slurm keeps a job's environment
    on the controller's disk and on the node's. Nor with what a control-plane job alone is to know."""
    everything = os.environ if of is None else of
    return {k: v for k, v in everything.items() if _OURS.match(k) and not _SECRET.search(k) and k != CONTROL_PLANE}


class Commands:
    """Slurm's commands. They may be called from one thread at a time."""

    def __init__(self, deadline_s: float = COMMAND_S) -> None:
        self._deadline_s = deadline_s

    def jobs(self) -> list[Job]:
        """All jobs that Slurm still knows, of everybody: 22.05 filters no JSON."""
        return parse_jobs(self._json("squeue", "--json", "--all", "--states=all"))

    def nodes(self) -> dict[str, Node]:
        return parse_nodes(self._json("sinfo", "--json", "--all"))

    def cluster(self) -> str:
        """The cluster's name, which is in every job too."""
        if name := self.config().get("ClusterName"):
            return name
        raise Fatal("`scontrol show config` names no cluster: is this Slurm's own scontrol?")

    def config(self) -> dict[str, str]:
        """What `scontrol show config` says, by name."""
        lines = self._again("scontrol", "show", "config").splitlines()
        return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}

    def submit(self, options: Sequence[str], script: str) -> int:
        """One sbatch; the job's number. Raises Refused: whether to try again is the caller's, who knows how to look
        whether it was done all the same; and NumberUnknown."""
        output = self._once("sbatch", "--parsable", *options, script=script).strip()
        numbers: list[str] = _NUMBER.findall(output)
        if not numbers:
            raise NumberUnknown(f"sbatch has not said the number of the job that it submitted: {output!r}")
        return int(numbers[-1])

    def refusal(self, options: Sequence[str], script: str) -> str:
        """Slurm's words if it would not take this submission, else an empty string. Submits nothing."""
        try:
            self._once("sbatch", "--test-only", *options, script=script)
        except Refused as words:
            return str(words)
        return ""

    def cancel(self, jobs: Sequence[int]) -> None:
        """Those that have ended already are no error."""
        if jobs:
            self._again("scancel", *map(str, jobs))

    def drain(self, host: str, reason: str) -> str:
        """Slurm's words if it does not let us, else an empty string."""
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
            # 22.05 says so in the body, with an empty list and exit code 0
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

    def _once(self, *argv: str, script: str | None = None) -> str:
        result = _run(argv, self._deadline_s, script)
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
    """Of `squeue --json`, of Slurm 22.05 and later."""
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
    """Of `sinfo --json`, by the nodes' names. Slurm 22.05 lists nodes; later ones list groups of like ones."""
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


def _run(argv: Sequence[str], deadline_s: float, script: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        result = subprocess.run(
            argv,
            input=(script or "").encode(errors="surrogateescape"),
            env=environment(),
            cwd="/",  # sbatch makes ours the job's: it may not be there on the node
            capture_output=True,
            check=False,
            timeout=deadline_s,
            start_new_session=True,  # Ctrl-C is for the supervisor: a submission cut short is one of unknown outcome
        )
    except FileNotFoundError as error:
        raise Fatal(f"there is no {argv[0]} here: the supervisor must run where Slurm's commands are") from error
    except subprocess.TimeoutExpired as error:
        # sbatch itself waits where Slurm has as many jobs as it may have (MaxJobCount), and says so
        words = "; ".join((error.stderr or b"").decode(errors="replace").split("\n")).strip("; ")
        said = f" ({words})" if words else ""
        raise Retryable(f"{argv[0]} has not answered within {deadline_s:g} s{said}", after_s=5.0) from error
    except OSError as error:
        raise Retryable(f"cannot run {argv[0]}: {error.strerror}", after_s=5.0) from error
    # in the names of everybody's jobs there may be anything
    output, errors = (found.decode(errors="replace") for found in (result.stdout, result.stderr))
    return subprocess.CompletedProcess(argv, result.returncode, output, errors)


def _said(errors: Sequence[Any]) -> str:
    return "; ".join(
        str(e.get("description") or e.get("error") or e) if isinstance(e, Mapping) else str(e) for e in errors
    )


def _words(value: Any) -> tuple[str, ...]:
    return tuple(str(word).upper() for word in ([value] if isinstance(value, str) else value))


def _number(value: Any) -> int:
    """Later versions wrap it: {"set": true, "infinite": false, "number": 7}."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) else 0
    return int(value or 0)


def _exit_code(value: Any) -> int:
    """What the main process exited with; 128 + N for signal N, as in a shell. 22.05 has one number for both, 23.02 and later
    name them apart, and the code is 0 then."""
    if isinstance(value, Mapping) and "return_code" in value:
        by = value.get("signal") or {}
        number = _number(by.get("id", by.get("signal_id")))
        return 128 + number if number else _number(value["return_code"])
    status = _number(value)
    return status >> 8 or ((status & 0x7F) and 128 + (status & 0x7F))
