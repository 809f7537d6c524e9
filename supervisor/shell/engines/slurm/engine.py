"""The Slurm engine: one 1-node job for each allocation (ADR 8).

It has no state of its own. Slurm holds everything, under our key in each job's comment.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Literal

from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import RunSpec
from supervisor.ports.engine import Request, RequestDeferred, RequestRefused
from supervisor.ports.errors import PortError, Retryable
from supervisor.shell.engines.slurm import script as slurm_script
from supervisor.shell.engines.slurm.commands import ONCE_MORE_S, Commands, Job, Node, NumberUnknown, Refused
from supervisor.shell.engines.slurm.submission import cancelled, undone
from supervisor.wire.security import SecurityError, load

log = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds between lists, each a request to the cluster's slurmctld. A lost node shows by its lease anyway."""
SHARE = 0.1
"""Largest share of time spent on lists, for any number of jobs (0.2 s for 1000 in Slurm 22.05)."""
POLL_MAX_S = 10.0
"""Longest pause between lists, however slow. A lost node waits up to twice as long for Slurm's report."""
BOOT_MARGIN_S = 30
"""Seconds by which a boot must follow the job's start: a registration may be late, and clocks differ."""

TOO_MANY_S = 15.0
"""Seconds before a submission is repeated for which the user had too many jobs: one of them must end first."""

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
_AWAY = _LEAVING | {"DOWN"}
_SHARED = " shared"
"""Suffix of the key in the comment of a job that shares its host; such a node has another name format."""


class SlurmEngine:
    """Implements ports.engine.Engine."""

    name = "slurm"

    def __init__(self, etcd: Sequence[str], security_file: str, system: str) -> None:
        """Makes no calls. `system` is the content of keys.SYSTEM; `security_file` is the supervisor's own, or empty."""
        self.poll_s = POLL_S
        self._etcd = tuple(etcd)
        self._security_file = security_file
        self._system = system
        self._prefix = f"supervisor/{system}/"
        self._commands = Commands()
        self._cluster = ""
        self._released: set[str] = set()
        self._submitted: dict[str, tuple[int, frozenset[int]]] = {}
        """By key, the job's number and those of earlier jobs: no key is submitted again after a success."""
        self._replaced: set[str] = set()
        """Keys whose host was drained. It is not drained again after an administrator resumed it."""
        self._may_drain = True
        self._lost: set[str] = set()
        """Released keys whose host failed: only a boot of the host proves that their processes ended."""

    def acquire(self, request: Request) -> None:
        """Submits the job if it is not listed. Tries twice at most, since a failed try may have left a job. Raises
        RequestRefused if the submitted job cannot be recognized, and RequestDeferred if as many jobs as may wait do, or
        the user may have no more."""
        said = ""
        for attempt in range(3):
            everybodys = self._commands.jobs()
            ours = self._ours(everybodys)
            known = ours.get(request.key)
            if said and known is not None and _state(known) == "refused":
                raise RequestRefused(self._explained(request, said))
            if known is not None:
                return
            if request.key in self._submitted:
                break
            if attempt == 2:
                raise RequestRefused(self._explained(request, said))
            most, waiting = request.spec.slurm.max_pending, sum(_state(job) == "pending" for job in ours.values())
            if most and waiting >= most:
                raise RequestDeferred(
                    f"not submitted yet: {waiting} jobs wait, and allocation.slurm.max_pending = {most}"
                )
            options, script = self._submission(request)
            before = frozenset(job.id for job in everybodys)
            try:
                number = self._commands.submit(options, script)
            except Refused as words:
                if words.too_many:
                    raise RequestDeferred(f"not submitted yet: {words}", after_s=TOO_MANY_S) from words
                said = str(words)
                time.sleep(ONCE_MORE_S)
            except NumberUnknown as error:
                log.warning("%s", error)
                self._submitted[request.key] = 0, before
                break
            else:
                log.info("job %d is submitted for allocation %s", number, request.key)
                self._submitted[request.key] = number, before
                break
        number, before = self._submitted[request.key]
        words_of_it = undone(self._commands, number, self._comment(request), before)
        if words_of_it:
            raise RequestRefused(words_of_it)

    def replace(self, key: str, request: Request, because: str) -> None:
        """Drains the host first, so that Slurm does not give it to the new job. A repetition does the same."""
        job = self._jobs().get(key)
        if job is not None and job.node and request.spec.slurm.drain_suspects and key not in self._replaced:
            self._drain(job.node, f"supervisor, run {request.run}: {because}")
            self._replaced.add(key)
        try:
            self.acquire(request)
        except RequestDeferred:
            self.release(key)  # it may be the very job that is one too many
            raise
        self.release(key)

    def release(self, key: str) -> None:
        if key in self._lost:
            return
        job = self._jobs().get(key)
        if job is not None and not _ended(job):
            self._commands.cancel([job.id])
        self._released.add(key)

    def list(self) -> Sequence[Grant]:
        """Lists our jobs. Cancels second jobs of one key and jobs that an administrator requeued. Lists a job with a
        failed host even after its release, because a later boot proves that its processes ended."""
        began = time.monotonic()
        jobs = self._jobs()
        self._lost = {key for key, job in jobs.items() if key in self._released and _host_failed(job)}
        listed = {k: j for k, j in jobs.items() if k in self._lost or not (k in self._released and _ended(j))}
        nodes = self._commands.nodes() if any(job.node for job in listed.values()) else {}
        gone = [job.id for job in jobs.values() if _state(job) == "gone" and not _ended(job)]
        if gone:
            cancelled(self._commands, gone)
        self._cluster = self._cluster or self._commands.cluster()
        self.poll_s = min(max(POLL_S, (time.monotonic() - began) / SHARE), POLL_MAX_S)
        return [_grant(key, job, nodes.get(job.node)) for key, job in listed.items()]

    def events(self, changed: Callable[[], None]) -> None:
        """Never calls: Slurm sends no notifications."""

    def knows(self, grant: Grant) -> bool:
        """Returns true if the grant is of this cluster; before the first list only grants without an id are."""
        if not grant.engine_id:
            return True
        return bool(self._cluster) and grant.engine_id.startswith(f"slurm:{self._cluster}:")

    def check(self, request: Request) -> None:
        """Raises Fatal, with Slurm's words and the key of the run file, if Slurm would refuse this. Submits nothing.

        Slurm knows accounts and QOS only if it has a database, and checks a partition's limits only with
        EnforcePartLimits. Without them, such a job would wait, with Slurm's reason.
        """
        options, script = self._submission(request)
        words = self._commands.refusal(options, script)
        if words:
            raise RequestRefused(self._explained(request, words))

    def _jobs(self) -> dict[str, Job]:
        return self._ours(self._commands.jobs())

    def _ours(self, everybodys: Sequence[Job]) -> dict[str, Job]:
        """Returns our jobs by our keys. Of two jobs with one key the older one always counts and the other is
        cancelled, so that all observers agree."""
        ours: dict[str, Job] = {}
        more: list[Job] = []
        jobs = [job for job in everybodys if job.ours and job.comment.startswith(self._prefix)]
        for job in sorted(jobs, key=lambda job: (job.submitted_unix_s, job.id)):
            key = job.comment.removeprefix(self._prefix).removesuffix(_SHARED)
            if key in ours:
                more.append(job)
            else:
                ours[key] = job
        twice = [job.id for job in more if not _ended(job)]
        if twice and cancelled(self._commands, twice):
            log.warning("cancelled: a second job of the same allocation: %s", ", ".join(map(str, twice)))
        return ours

    def _comment(self, request: Request) -> str:
        return self._prefix + request.key + ("" if request.spec.slurm.exclusive else _SHARED)

    def _submission(self, request: Request) -> tuple[Sequence[str], str]:
        try:
            security = load(self._security_file)
        except SecurityError as error:
            raise RequestRefused(str(error)) from error
        if security.tls and not request.spec.slurm.exclusive:
            raise RequestRefused(
                "allocation.slurm.exclusive = false: nodes are then named HOST.JOBID, and no certificate can be made for a "
                "name that is not known in advance; set exclusive = true"
            )
        return (
            slurm_script.options(request, self._comment(request)),
            slurm_script.script(request, self._etcd, security, self._system),
        )

    def _explained(self, request: Request, words: str) -> str:
        """Adds to Slurm's words each key of the run file whose removal alone makes Slurm accept the job. For a time
        limit too long for its partition, that is both."""
        spec = request.spec.slurm
        options, script = self._submission(request)
        if not self._commands.refusal(options, script):
            return f"Slurm refuses the job: {words}"  # the request itself is not the reason
        anywhere = [option for option in options if not option.startswith("--exclude=")]
        if request.exclude and not self._commands.refusal(anywhere, script):
            return (
                f"Slurm refuses the job: all suitable hosts are excluded: {', '.join(request.exclude)}. They are cordoned, "
                "because they failed, or their node did not register (supervisor incidents, supervisor explain). Slurm's words: "
                f'{words}. Have them repaired; once the run is halted, supervisor resume {request.run} --because "..." clears '
                "all cordons"
            )
        found = []
        for name in ("partition", "account", "qos", "constraint", "gres", "time_limit", "flags"):
            value = getattr(spec, name)
            if not value:
                continue
            without = [option for option in options if option not in slurm_script.of_setting(spec, name)]
            if not self._commands.refusal(without, script):
                told = "[" + ", ".join(f'"{flag}"' for flag in value) + "]" if name == "flags" else f'"{value}"'
                found.append(f"allocation.slurm.{name} = {told}")
        return f"Slurm refuses {' with '.join(found) or 'the job'}: {words}"

    def _drain(self, host: str, reason: str) -> None:
        node = self._commands.nodes().get(host)
        if node is None or _AWAY.intersection(node.states):
            return  # an administrator's own reason stays
        words = self._commands.drain(host, reason)
        if not words:
            log.info("node %s is drained: %s", host, reason)
        elif self._may_drain:
            self._may_drain = False
            log.warning(
                "Slurm does not let us drain node %s: %s; suspect nodes are only excluded from our own jobs "
                "(allocation.slurm.drain_suspects = false silences this)",
                host,
                words,
            )


def before_launch(spec: RunSpec, etcd: Sequence[str], security_file: str) -> str:
    """Asks Slurm if it would take the run's jobs. Returns a note if Slurm cannot be asked here, because the supervisor
    may be elsewhere. Raises Fatal, with Slurm's words and our key, if it would not."""
    not_asked = "Slurm was not asked if it accepts the run's jobs"
    if shutil.which("sbatch") is None:
        return f"{not_asked}: there is no sbatch"
    request = Request(
        key=f"{spec.name}-check",
        run=spec.name,
        slots=spec.groups.slots,
        lease_s=spec.policy.node_lease_s,
        spec=spec.allocation,
    )
    try:
        SlurmEngine(etcd, security_file, "check").check(request)
    except Retryable as error:
        return f"{not_asked}: {error}"
    return ""


def knows_host(host: str) -> bool:
    """Returns true if Slurm has a node of this name; false without Slurm, or if it does not answer."""
    if shutil.which("sinfo") is None:
        return False
    try:
        return host in Commands().nodes()
    except PortError:
        return False


def _ended(job: Job) -> bool:
    return bool(_ENDED.intersection(job.states))


def _host_failed(job: Job) -> bool:
    return "NODE_FAIL" in job.states


def _booted_since(job: Job, node: Node | None) -> bool:
    """Returns true if the host booted after the job started, the only proof in Slurm that the processes ended. A job
    cancelled on a silent host is over for Slurm but lives on, and processes that left the job's tree outlive it. A
    thawed virtual machine seems to have booted later, but its slurmd has not started since."""
    if node is None or not job.started_unix_s:
        return False
    return min(node.booted_unix_s, node.slurmd_unix_s) > job.started_unix_s + BOOT_MARGIN_S


def _state(job: Job) -> Literal["pending", "granted", "gone", "refused"]:
    if "FAILED" in job.states and not job.node:
        return "refused"  # no node can satisfy it: sbatch fails, and leaves this job behind
    if job.restarts or _ended(job) or _TAKEN.intersection(job.states):
        return "gone"
    if _PENDING.intersection(job.states):
        return "pending"
    return "granted" if job.node else "pending"


def _grant(key: str, job: Job, node: Node | None) -> Grant:
    shared = job.comment.endswith(_SHARED)
    name = slurm_script.HOST_AND_JOB.format(host=job.node, job=job.id) if shared else job.node
    state = _state(job)
    if state == "pending":
        return Grant(key=key, state="pending", engine_id=_id(job), reason=job.why)
    nodes = (name,) if job.node else ()
    if state == "granted":
        grace_s = _grace_s(job)
        leaving = f"Slurm preempts job {job.id}, after a grace of {grace_s} s" if grace_s else _leaving(node)
        return Grant(
            key=key, state="granted", nodes=nodes, engine_id=_id(job), leaving=leaving, leaves_in_s=float(grace_s)
        )
    ended = state == "gone" and _booted_since(job, node)
    return Grant(key=key, state=state, nodes=nodes, engine_id=_id(job), reason=_end(job), ended=ended)


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


def _end(job: Job) -> str:
    said = ", ".join(job.states)
    if job.restarts:
        said = f"queued again by someone ({said}), which is cancelled"
    elif not _ended(job):
        said += ", which is cancelled"
    if job.preempted_unix_s and "PREEMPTED" not in job.states:
        said += ", PREEMPTED"  # Slurm omits it while the job is completing
    why = f" ({job.why})" if job.why else ""
    code = f", exit code {job.exit_code}" if job.exit_code else ""
    where = f" on {job.node}" if job.node else ""
    return f"Slurm's job {job.id}{where}: {said}{why}{code}"
