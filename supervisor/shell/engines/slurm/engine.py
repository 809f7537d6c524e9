"""The Slurm engine: a job of one node for each allocation, or one job for those of a group (ADR 8).

It has no state of its own. Slurm holds everything, under our key in each job's comment.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import RunSpec
from supervisor.ports.engine import Request, RequestDeferred, RequestRefused
from supervisor.ports.errors import PortError, Retryable
from supervisor.shell.engines.slurm import group_job
from supervisor.shell.engines.slurm import script as slurm_script
from supervisor.shell.engines.slurm.commands import ONCE_MORE_S, Commands, Job, NumberUnknown, Refused
from supervisor.shell.engines.slurm.grants import (
    AWAY,
    SHARED,
    Held,
    ended,
    granted,
    held_by,
    host_failed,
    job_state,
)
from supervisor.shell.engines.slurm.submission import cancelled, undone
from supervisor.wire import enrollment
from supervisor.wire.security import Security, SecurityError, load

log = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds between lists, each a request to the cluster's slurmctld. A lost node shows by its lease anyway."""
SHARE = 0.1
"""Largest share of time spent on lists, for any number of jobs (0.2 s for 1000 in Slurm 22.05)."""
POLL_MAX_S = 10.0
"""Longest pause between lists, however slow. A lost node waits up to twice as long for Slurm's report."""
TOO_MANY_S = 15.0
"""Seconds before a submission is repeated for which the user had too many jobs: one of them must end first."""

KILL_AFTER_S = 30.0
"""Seconds from SIGTERM to SIGKILL for a step that is given back, as Slurm's default for jobs (KillWait), and to the next
SIGKILL: a host that is silent keeps its step until Slurm has seen that."""


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
        self._ending: dict[str, float] = {}
        """Steps that got a signal, with the time of the newest (`monotonic`)."""

    def acquire(self, request: Request) -> None:
        """Submits the job if it is not listed. Tries twice at most, since a failed try may have left a job. Raises
        RequestRefused if the submitted job cannot be recognized, and RequestDeferred if as many jobs as may wait do, or
        the user may have no more."""
        said = ""
        for attempt in range(3):
            everybodys = self._commands.jobs()
            ours = self._ours(everybodys, {})
            known = ours.get(request.key)
            if said and known is not None and job_state(known.job) == "refused":
                raise RequestRefused(self._explained(request, said))
            if known is not None:
                return
            if request.key in self._submitted:
                break
            if attempt == 2:
                raise RequestRefused(self._explained(request, said))
            jobs = {held.job.id: held.job for held in ours.values()}.values()
            most, waiting = request.spec.slurm.max_pending, sum(job_state(job) == "pending" for job in jobs)
            if most and waiting >= most:
                raise RequestDeferred(
                    f"not submitted yet: {waiting} jobs wait, and allocation.slurm.max_pending = {most}"
                )
            options, script = self._submission(request)
            before = frozenset(job.id for job in everybodys)
            try:
                number = self._commands.submit(options, script, self._given(request))
            except Refused as words:
                if words.too_many:
                    raise RequestDeferred(f"not submitted yet: {words}", after_s=TOO_MANY_S) from words
                said = str(words)
                time.sleep(ONCE_MORE_S)
            except NumberUnknown as error:
                log.warning("%s", error)
                self._note_submitted(request, 0, before)
                break
            else:
                log.info("job %d is submitted for allocation %s", number, ", ".join(_keys(request)))
                self._note_submitted(request, number, before)
                break
        number, before = self._submitted[request.key]
        words_of_it = undone(self._commands, number, self._comment(request), before)
        if words_of_it:
            raise RequestRefused(words_of_it)

    def replace(self, key: str, request: Request, because: str) -> None:
        """Drains the host first, so that Slurm does not give it to the new job. A repetition does the same."""
        held = self._jobs().get(key)
        if held is not None and held.host and request.spec.slurm.drain_suspects and key not in self._replaced:
            self._drain(held.host, f"supervisor, run {request.run}: {because}")
            self._replaced.add(key)
        try:
            self.acquire(request)
        except RequestDeferred:
            self.release(key)  # it may be the very job that is one too many
            raise
        self.release(key)

    def release(self, key: str) -> None:
        """Cancels the key's job. One of several in a job is noted, and given back by the next list: with all of them
        the job is cancelled at once."""
        if key in self._lost:
            return
        held = self._jobs().get(key)
        if held is not None and held.alone and not ended(held.job):
            self._commands.cancel([held.job.id])
        self._released.add(key)

    def list(self) -> Sequence[Grant]:
        """Lists our jobs. Cancels second jobs of one key and jobs that an administrator requeued. Lists a job with a
        failed host even after its release, because a later boot proves that its processes ended. Gives back what was
        released of a job of several nodes."""
        began = time.monotonic()
        ours = self._ours(self._commands.jobs())
        nodes = self._commands.nodes() if any(self._is_of_interest(held) for held in ours.values()) else {}
        self._lost = {k for k, held in ours.items() if k in self._released and host_failed(held, nodes.get(held.host))}
        jobs = {held.job.id: held.job for held in ours.values()}.values()
        gone = [job.id for job in jobs if job_state(job) == "gone" and not ended(job)]
        if gone:
            cancelled(self._commands, gone)
        self._give_back_parts([held for held in ours.values() if not held.alone and not ended(held.job)])
        self._cluster = self._cluster or self._commands.cluster()
        self.poll_s = min(max(POLL_S, (time.monotonic() - began) / SHARE), POLL_MAX_S)
        return [
            granted(held, nodes.get(held.host))
            for key, held in ours.items()
            if key in self._lost or key not in self._released or not (held.over or ended(held.job))
        ]

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

    def _is_of_interest(self, held: Held) -> bool:
        """Returns true if the state of its host matters."""
        over = held.alone and held.key in self._released and ended(held.job)
        return bool(held.host) and not (over and not host_failed(held, None))

    def _give_back_parts(self, parts: Sequence[Held]) -> None:
        """Ends what was released of jobs of several nodes: with all keys the job, else the steps of those nodes. Their
        hosts stay idle in the job, unless its script can shrink it."""
        whole: list[int] = []
        for job, held in groupby(parts, lambda part: part.job):
            of_job = [*held]
            if job_state(job) == "gone":
                continue
            if all(part.key in self._released for part in of_job):
                whole.append(job.id)
                continue
            for part in of_job:
                if part.key in self._released and part.step:
                    self._end(part)
        if whole:
            cancelled(self._commands, whole)
        self._ending = {step: since for step, since in self._ending.items() if step in {part.step for part in parts}}

    def _end(self, part: Held) -> None:
        now = time.monotonic()
        since = self._ending.get(part.step)
        if since is None:
            log.info("the step of allocation %s ends on %s; job %d goes on", part.key, part.host, part.job.id)
            self._commands.end_step(part.step, "TERM")
        elif now >= since + KILL_AFTER_S:
            self._commands.end_step(part.step, "KILL")
        else:
            return
        self._ending[part.step] = now

    def _jobs(self) -> dict[str, Held]:
        return self._ours(self._commands.jobs(), {})

    def _ours(self, everybodys: Sequence[Job], steps: Mapping[tuple[int, str], str] | None = None) -> dict[str, Held]:
        """Returns what we hold by our keys. Of two jobs with one key the older one always counts and the other is
        cancelled, so that all observers agree. Asks for the steps of jobs of several nodes, if none are given."""
        ours: dict[str, Held] = {}
        more: list[Job] = []
        jobs = [job for job in everybodys if job.ours and job.comment.startswith(self._prefix)]
        if steps is None:
            together = any(group_job.MARK in job.comment and not ended(job) for job in jobs)
            steps = self._commands.steps() if together else {}
        for job in sorted(jobs, key=lambda job: (job.submitted_unix_s, job.id)):
            found = held_by(job, self._prefix, steps)
            if any(held.key in ours for held in found):
                more.append(job)
            else:
                ours |= {held.key: held for held in found}
        twice = [job.id for job in more if not ended(job)]
        if twice and cancelled(self._commands, twice):
            log.warning("cancelled: a second job of the same allocation: %s", ", ".join(map(str, twice)))
        return ours

    def _note_submitted(self, request: Request, number: int, before: frozenset[int]) -> None:
        self._submitted |= dict.fromkeys(_keys(request), (number, before))

    def _comment(self, request: Request) -> str:
        if request.together:
            return self._prefix + group_job.named(request.together)
        return self._prefix + request.key + ("" if request.spec.slurm.exclusive else SHARED)

    def _submission(self, request: Request) -> tuple[Sequence[str], str]:
        try:
            security = load(self._security_file)
        except SecurityError as error:
            raise RequestRefused(str(error)) from error
        if shared := _key_is_shared(security):
            log.warning("%s", shared)  # a launch refuses it; a run that trains gets its nodes all the same
        if security.tls and not request.spec.slurm.exclusive:
            raise RequestRefused(
                "allocation.slurm.exclusive = false: nodes are then named HOST.JOBID, and no user of etcd can be made for a "
                "name that is not known in advance; set exclusive = true"
            )
        return (
            slurm_script.options(request, self._comment(request)),
            slurm_script.script(request, self._etcd, security, self._system, self._comment(request)),
        )

    def _given(self, request: Request) -> dict[str, str]:
        """Returns the job's variables for its nodes' certificates: in neither options nor script, which Slurm shows."""
        try:
            security = load(self._security_file)
            made = enrollment.given(security, _keys(request)) if security.signs else None
        except SecurityError as error:
            raise RequestRefused(str(error)) from error
        return {enrollment.VARIABLE: made.encode()} if made is not None else {}

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
        if node is None or AWAY.intersection(node.states):
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
    may be elsewhere. Raises Fatal, with Slurm's words and our key, if it would not; SecurityError if trainers could read
    the supervisor's key."""
    if refusal := _key_is_shared(load(security_file)):
        raise SecurityError(refusal)
    not_asked = "Slurm was not asked if it accepts the run's jobs"
    if shutil.which("sbatch") is None:
        return f"{not_asked}: there is no sbatch"
    several = spec.groups.nodes_per_group if spec.allocation.slurm.shape == "job_per_group" else 1
    request = Request(
        key=f"{spec.name}-check1",
        run=spec.name,
        slots=spec.groups.slots,
        lease_s=spec.policy.node_lease_s,
        spec=spec.allocation,
        together=tuple(f"{spec.name}-check{n}" for n in range(1, several + 1)) if several > 1 else (),
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


def _key_is_shared(security: Security) -> str:
    """Returns a sentence if the supervisor's key lies in the folder that all hosts share for the nodes; empty if not, or
    if that is accepted."""
    nodes = security.nodes_folder.resolve()
    if (
        not security.tls
        or security.signs
        or security.accepts_holes
        or not Path(security.key).resolve().is_relative_to(nodes)
    ):
        return ""
    return (
        f"the supervisor's key {security.key} lies in {nodes}, the folder of the nodes' files, where every trainer can "
        "read it: move the supervisor's files to a folder on its own hosts alone, and name the nodes' folder by "
        f'`nodes = "FOLDER"` in {security.path} (docs/TLS.md); or write `insecure = true` there'
    )


def _keys(request: Request) -> tuple[str, ...]:
    return request.together or (request.key,)
