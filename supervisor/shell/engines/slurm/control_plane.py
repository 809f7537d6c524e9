"""Runs the control plane as Slurm jobs: each is `supervisor up --nodes 0`, a supervisor and a service host, on its own
host.

The jobs' comments in Slurm hold all state, so that a repeated command continues. They differ from the engine's
comments: the engine cancels requeued jobs, but these jobs are requeued when their host is lost.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from supervisor.core.model.spec import SlurmSpec
from supervisor.ports.engine import RequestRefused
from supervisor.ports.errors import Fatal
from supervisor.ports.store import Store
from supervisor.shell.dev.home import system_folder
from supervisor.shell.engines.slurm import script as slurm_script
from supervisor.shell.engines.slurm.commands import ONCE_MORE_S, Commands, Job, NumberUnknown, Refused
from supervisor.shell.engines.slurm.submission import cancelled, undone
from supervisor.wire import keys
from supervisor.wire.programs import CONTROL_PLANE

VARIABLE = CONTROL_PLANE
"""Environment variable that tells a control-plane job how to submit its successor (JSON)."""

MEMORY = "2G"
"""Enough for a supervisor, an agent, a gate and TorchFT's lighthouse, several times over."""

POLL_S = 1.0

KEYS = ("partition", "account", "qos", "time_limit")
"""Keys of [allocation.slurm] that also apply to the control plane: it needs no GPU, and no host for itself."""

_LIVE = {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "RESIZING", "SIGNALING", "STOPPED", "RESV_DEL_HOLD"}
_LIVE |= {"REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"}

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ControlPlane:
    """The settings that all control-plane jobs of a system share."""

    system: str
    etcd: str
    home: str
    """Folder of the runs, on a disk that all hosts share."""
    slurm: SlurmSpec
    security: str = ""
    partition_from: str = "allocation.slurm.partition"
    """Where the partition was given, to explain a refusal by Slurm."""

    @property
    def job_name(self) -> str:
        return f"supervisor-control-{self.system}"

    @property
    def logs(self) -> Path:
        return system_folder(Path(self.home)) / "control"

    @property
    def etcd_mark(self) -> str:
        """A digest of etcd's endpoints, in any order and spelling. A job with other endpoints serves another etcd, or
        one that is lost."""
        endpoints = sorted({_endpoint(part) for part in self.etcd.split(",")} - {""})
        return hashlib.sha256(",".join(endpoints).encode()).hexdigest()[:8]

    @property
    def comments(self) -> str:
        """Prefix of the comments of all this system's control-plane jobs, for any etcd."""
        return f"supervisor-control/{self.system}/"

    def comment(self, key: str) -> str:
        return f"{self.comments}{self.etcd_mark}/{key}"


def plane_of(
    spec: SlurmSpec, *, system: str, etcd: str, home: Path, security: str = "", partition: str = ""
) -> ControlPlane:
    """Returns the control plane for a run with this Slurm configuration. `partition` overrides the run's."""
    where = {"partition_from": "--partition"} if partition else {}
    ours = SlurmSpec(
        **{name: getattr(spec, name) for name in KEYS},
        warn_s=spec.warn_s,
        setup=spec.setup,
        node_folder=spec.node_folder,
    )
    ours = replace(ours, partition=partition or ours.partition)
    return ControlPlane(system=system, etcd=etcd, home=str(home.resolve()), slurm=ours, security=security, **where)


def check(commands: Commands, plane: ControlPlane) -> None:
    """Raises Fatal, with Slurm's words, if Slurm would refuse such a job. Submits nothing."""
    options = _options(plane, plane.comment("check"))
    words = commands.refusal(options, _script(plane))
    if words:
        raise Fatal(_explained(commands, plane, options, words))


def living(commands: Commands, plane: ControlPlane) -> list[Job]:
    """Returns the system's control-plane jobs, oldest first. Of two with one comment, from two concurrent commands, it
    cancels the younger."""
    ours: dict[str, Job] = {}
    twice: list[int] = []
    for job in sorted(commands.jobs(), key=lambda job: (job.submitted_unix_s, job.id)):
        if not job.ours or not job.comment.startswith(plane.comment("")) or not _lives(job):
            continue
        if job.comment in ours:
            twice.append(job.id)
        else:
            ours[job.comment] = job
    if twice:
        cancelled(commands, twice)
    return list(ours.values())


def cancel_others(commands: Commands, plane: ControlPlane, say: Say) -> None:
    """Cancels the system's control-plane jobs that have other etcd endpoints: they follow another etcd, or wait for a
    lost one. Runs before any submission, since new jobs may get their hosts. Raises Fatal if Slurm refuses."""
    for job in commands.jobs():
        if not job.ours or not job.comment.startswith(plane.comments) or not _lives(job):
            continue
        if not job.comment.startswith(plane.comment("")):
            commands.cancel([job.id])
            say(f"cancelled job {job.id}: a control-plane job of this system with other endpoints than {plane.etcd}")


ONCE_AGAIN = 1
"""Jobs that one command may submit beyond those wanted: one may have got a host that just failed. If more end, they
cannot start at all."""


def ensure(commands: Commands, plane: ControlPlane, wanted: int, say: Say, within_s: float) -> None:
    """Submits jobs until `wanted` of them live, each on another host. It submits one once the one before has a host,
    and excludes that host. Cancels those with other etcd endpoints. A repeated call continues from what exists.
    Raises Fatal if Slurm refuses, or gives no host `within_s`."""
    plane.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    until, said, submitted = time.monotonic() + within_s, "", 0
    # only once: two concurrent commands with different endpoints would cancel each other's jobs forever
    cancel_others(commands, plane, say)
    while True:
        jobs = living(commands, plane)
        if len(jobs) >= wanted:
            return
        waiting = [job for job in jobs if not job.node]
        if not waiting:
            if submitted == wanted + ONCE_AGAIN:
                raise Fatal(f"{submitted} jobs were submitted and ended at once: their logs are in {plane.logs}")
            submitted += 1
            free = next(n for n in range(1, wanted + 1) if plane.comment(str(n)) not in {j.comment for j in jobs})
            number = _submit(commands, plane, plane.comment(str(free)), [job.node for job in jobs])
            say(f"submitted job {number}: a supervisor and a service host")
            continue
        if time.monotonic() > until:
            raise Fatal(f"{_pending(waiting)} after {within_s:g} s, and stays in the queue: repeat this later")
        said = _say_once(say, said, waiting)
        time.sleep(POLL_S)


def wait_for_leader(store: Store, commands: Commands, plane: ControlPlane, say: Say, within_s: float) -> None:
    """Waits for a leader. Raises Fatal, with Slurm's reasons for waiting jobs, if there is none `within_s`."""
    until, said = time.monotonic() + within_s, ""
    while store.get(keys.LEADER) is None:
        jobs = living(commands, plane)
        if not jobs:
            raise Fatal(f"the control plane's jobs have ended and no supervisor leads: their logs are in {plane.logs}")
        waiting = [job for job in jobs if not job.node]
        if time.monotonic() > until:
            why = _pending(waiting) if len(waiting) == len(jobs) else f"the logs of the jobs are in {plane.logs}"
            raise Fatal(f"no supervisor leads after {within_s:g} s: {why}; the jobs stay, so repeat this later")
        said = _say_once(say, said, waiting)
        time.sleep(POLL_S)


def told(jobs: Sequence[Job]) -> str:
    """Describes the jobs in words."""
    return ", ".join(f"job {job.id} {f'on {job.node}' if job.node else 'waits for a host'}" for job in jobs)


def succeed(commands: Commands, environment: Mapping[str, str]) -> str:
    """Submits the successor of a control-plane job near its time limit, once. Returns what was done. Raises Retryable;
    Fatal if Slurm refuses.

    The successor may get the host of this job: it then waits there for this job's end.
    """
    try:
        plane = TypeAdapter(ControlPlane).validate_json(environment[VARIABLE])
    except (KeyError, ValidationError) as error:
        raise Fatal(f"{VARIABLE} cannot be read: no successor is submitted ({type(error).__name__})") from error
    own = int(environment["SLURM_JOB_ID"])
    jobs = living(commands, plane)
    comment = plane.comment(f"after-{own}")
    known = [job.id for job in jobs if job.comment == comment]
    if known:
        return f"near the time limit: job {known[0]} follows this one already"
    others = [job.node for job in jobs if job.node and job.id != own]
    try:
        number = _submit(commands, plane, comment, others)
    except RequestRefused:
        # on another job's host it waits for that job's end, which is better than no successor
        number = _submit(commands, plane, comment, ())
    return f"near the time limit: job {number} follows this one"


def _submit(commands: Commands, plane: ControlPlane, comment: str, exclude: Sequence[str]) -> int:
    """Submits a job, in at most two tries. Looks it up by its comment, also if the answer was lost."""
    options, script = _options(plane, comment, exclude), _script(plane)
    before = frozenset(job.id for job in commands.jobs())
    said = ""
    for attempt in range(3):
        known = [job.id for job in living(commands, plane) if job.comment == comment] if attempt else []
        if known:
            return known[0]
        if attempt == 2:
            break
        try:
            number = commands.submit(options, script)
        except Refused as words:
            said = str(words)
            time.sleep(ONCE_MORE_S)
            continue
        except NumberUnknown:
            number = 0
        useless = undone(commands, number, comment, before)
        if useless:
            raise Fatal(useless)
        found = number or next((job.id for job in living(commands, plane) if job.comment == comment), 0)
        if not found:
            raise Fatal(
                "Slurm accepted a control-plane job without printing its number, and it has ended already: its log is the newest "
                f"in {plane.logs}"
            )
        return found
    raise RequestRefused(_explained(commands, plane, options, said))


def _options(plane: ControlPlane, comment: str, exclude: Sequence[str] = ()) -> list[str]:
    made = [
        f"--comment={comment}",
        f"--job-name={plane.job_name}",
        *("--nodes=1", "--ntasks=1", f"--mem={MEMORY}"),
        # it replaces a standby: Slurm's two minutes are soon enough
        *("--requeue", "--open-mode=append"),
        f"--signal=B:USR1@{plane.slurm.warn_s}",
        f"--output={plane.logs}/%j.log",
    ]
    made += [f"--exclude={','.join(exclude)}"] if exclude else []
    return made + [option for name in KEYS for option in slurm_script.of_setting(plane.slurm, name)]


def _script(plane: ControlPlane) -> str:
    """Returns a batch script. Its process becomes `up`, which receives Slurm's warning."""
    command = [sys.executable, "-m", "supervisor.cli", "up", "--nodes", "0", "--address", "auto"]
    command += ["--etcd", plane.etcd, "--home", plane.home]
    command += ["--security", plane.security] if plane.security else []
    lines = [
        "#!/bin/bash",
        # the warning may come before `up` handles it, and must not end the job
        "trap '' USR1",
        "umask 077",
        *slurm_script.folder_lines(plane.slurm, plane.system),
        slurm_script.SAY,
        f"export {VARIABLE}={shlex.quote(TypeAdapter(ControlPlane).dump_json(plane).decode())}",
        plane.slurm.setup,
        f'exec {shlex.join(command)} --name "service-$SLURMD_NODENAME" --node-folder {slurm_script.FOLDER}',
        "",
    ]
    return "\n".join(lines)


def _explained(commands: Commands, plane: ControlPlane, options: Sequence[str], words: str) -> str:
    """Adds to Slurm's words the one key without which Slurm would take the job, if there is one."""
    script, said = _script(plane), "Slurm refuses the control plane's job"
    excluded = [option for option in options if option.startswith("--exclude=")]
    if excluded and not commands.refusal([option for option in options if option not in excluded], script):
        hosts = excluded[0].removeprefix("--exclude=")
        return f"{said}: {words} (on another host than {hosts}: give fewer --supervisors, or a --partition with more hosts)"
    for name in KEYS:
        own = slurm_script.of_setting(plane.slurm, name)
        if own and not commands.refusal([option for option in options if option not in own], script):
            key = plane.partition_from if name == "partition" else f"allocation.slurm.{name}"
            return f'{said}: {key} = "{getattr(plane.slurm, name)}": {words}'
    return f"{said}: {words}"


def _endpoint(text: str) -> str:
    """Normalizes an endpoint for comparison: the scheme is optional."""
    return text.strip().lower().rpartition("://")[2].rstrip("/")


def _lives(job: Job) -> bool:
    return bool(_LIVE.intersection(job.states)) and "COMPLETING" not in job.states


def _pending(jobs: Sequence[Job]) -> str:
    said = ", ".join(f"{job.id} ({job.why or 'no reason given'})" for job in jobs)
    return f"Slurm has not started job {said}"


def _say_once(say: Say, said: str, waiting: Sequence[Job]) -> str:
    """Reports why jobs wait, when that has changed. Right after a submission Slurm has no reason yet."""
    sentence = _pending(waiting)
    if sentence == said or not any(job.why for job in waiting):
        return said
    say(sentence)
    return sentence
