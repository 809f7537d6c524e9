"""Reads a grant from what Slurm lists of a job: its states, its hosts, and the steps of a job of several nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from supervisor.core.model.observed import Grant
from supervisor.shell.engines.slurm import group_job
from supervisor.shell.engines.slurm import script as slurm_script
from supervisor.shell.engines.slurm.commands import Job, Node

BOOT_MARGIN_S = 30
"""Seconds by which a boot must follow the job's start: a registration may be late, and clocks differ."""

_PENDING = {"PENDING", "CONFIGURING", "RESV_DEL_HOLD"}
_TAKEN = {"SUSPENDED", "STOPPED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
"""States of jobs that could go on later, in another's place: they are cancelled. Unknown states are ignored."""
_ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "COMPLETING",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "STAGE_OUT",
    "TIMEOUT",
}
_LEAVING = {"DRAIN", "FAIL", "REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED", "POWER_DOWN", "POWERING_DOWN"}
AWAY = _LEAVING | {"DOWN"}
SHARED = " shared"
"""Suffix of the key in the comment of a job that shares its host; such a node has another name format."""

State = Literal["pending", "granted", "gone", "refused"]


@dataclass(frozen=True)
class Held:
    """One of our keys, the job that has it, and its host."""

    key: str
    job: Job
    host: str
    """Empty while it is not known."""
    alone: bool = True
    """False in a job of several nodes, each with a step of its own."""
    there: bool = True
    """False if Slurm has taken its host out of the job."""
    step: str = ""
    """Its step, while that lives; only in a job of several nodes."""

    @property
    def over(self) -> bool:
        """True if it was one of several, and it has had its host: what is left of it can only end."""
        return not self.alone and bool(self.host)


def held_by(job: Job, prefix: str, steps: Mapping[tuple[int, str], str]) -> list[Held]:
    """Returns what a job with our prefix in its comment holds: one key, or those of a group."""
    name, _, listed = job.comment.removeprefix(prefix).removesuffix(SHARED).partition(" ")
    keys = group_job.keys_of(name)
    if keys == (name,):
        return [Held(name, job, job.node)]
    now = set(group_job.hosts(job.node))
    hosts = dict(zip(keys, group_job.hosts(listed), strict=False))
    return [
        Held(
            key,
            job,
            host := hosts.get(key, ""),
            alone=False,
            there=host in now,
            step=steps.get((job.id, key), "") if host in now else "",
        )
        for key in keys
    ]


def ended(job: Job) -> bool:
    return bool(_ENDED.intersection(job.states))


def host_failed(held: Held, node: Node | None) -> bool:
    """Returns true if its host failed. Of one of several Slurm says so only by the state of the node."""
    if held.alone:
        return "NODE_FAIL" in held.job.states
    return not held.there and node is not None and ("DOWN" in node.states or _booted_since(held.job, node))


def job_state(job: Job) -> State:
    """Returns the state of a job as a whole."""
    if "FAILED" in job.states and not job.node:
        return "refused"  # no node can satisfy it: sbatch fails, and leaves this job behind
    if job.restarts or ended(job) or _TAKEN.intersection(job.states):
        return "gone"
    if _PENDING.intersection(job.states):
        return "pending"
    return "granted" if job.node else "pending"


def state(held: Held) -> State:
    """Returns the state of one key. One of several is granted once all steps run, as long as its own does."""
    found = job_state(held.job)
    if found != "granted" or held.alone:
        return found
    if not held.host:
        return "pending"
    return "granted" if held.step else "gone"


def granted(held: Held, node: Node | None) -> Grant:
    """Returns the grant of a key, with its host as Slurm lists it."""
    key, job = held.key, held.job
    shared = job.comment.endswith(SHARED)
    name = slurm_script.HOST_AND_JOB.format(host=held.host, job=job.id) if shared else held.host
    now = state(held)
    if now == "pending":
        why = job.why or ("" if held.alone or not job.node else "its job has begun, and starts its nodes")
        return Grant(key=key, state="pending", engine_id=_id(job), reason=why)
    nodes = (name,) if held.host else ()
    if now == "granted":
        grace_s = _grace_s(job)
        leaving = f"Slurm preempts job {job.id}, after a grace of {grace_s} s" if grace_s else _leaving(node)
        return Grant(
            key=key, state="granted", nodes=nodes, engine_id=_id(job), leaving=leaving, leaves_in_s=float(grace_s)
        )
    over = now == "gone" and _booted_since(job, node)
    return Grant(key=key, state=now, nodes=nodes, engine_id=_id(job), reason=_end(held), ended=over)


def _booted_since(job: Job, node: Node | None) -> bool:
    """Returns true if the host booted after the job started, the only proof in Slurm that the processes ended. A job
    cancelled on a silent host is over for Slurm but lives on, and processes that left the job's tree outlive it. A
    thawed virtual machine seems to have booted later, but its slurmd has not started since."""
    if node is None or not job.started_unix_s:
        return False
    return min(node.booted_unix_s, node.slurmd_unix_s) > job.started_unix_s + BOOT_MARGIN_S


def _id(job: Job) -> str:
    return f"slurm:{job.cluster}:{job.id}"


def _grace_s(job: Job) -> int:
    """Returns how many seconds a preempted job runs on; 0 if it is not preempted. Both times are slurmctld's."""
    return max(1, job.ends_unix_s - job.preempted_unix_s) if job.preempted_unix_s else 0


def _leaving(node: Node | None) -> str:
    flags = sorted(_LEAVING.intersection(node.states)) if node is not None else []
    if node is None or not flags:
        return ""
    why = f": {node.reason}" if node.reason else ""
    return f"Slurm's node {node.name} is marked {', '.join(flags)}{why}"


def _end(held: Held) -> str:
    job = held.job
    if job_state(job) == "granted":
        what = "its step has ended" if held.there else "Slurm has taken the host out of the job"
        return f"Slurm's job {job.id} on {held.host}: {what}; the job goes on"
    said = ", ".join(job.states)
    if job.restarts:
        said = f"queued again by someone ({said}), which is cancelled"
    elif not ended(job):
        said += ", which is cancelled"
    if job.preempted_unix_s and "PREEMPTED" not in job.states:
        said += ", PREEMPTED"  # Slurm omits it while the job is completing
    why = f" ({job.why})" if job.why else ""
    code = f", exit code {job.exit_code}" if job.exit_code else ""
    where = f" on {held.host}" if held.host else ""
    return f"Slurm's job {job.id}{where}: {said}{why}{code}"
