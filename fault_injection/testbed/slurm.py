"""Runs what breaks a run on a real Slurm, and finds out which of it this user may do from this machine."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import SlurmSpec
from supervisor.ports.errors import Fatal, PortError
from supervisor.shell.engines.slurm.commands import PING_S, Commands, Job, Node, Refused, environment, parse_jobs
from supervisor.shell.engines.slurm.script import of_setting

AWAY_S = 5.0
"""Seconds for which slurmctld stays stopped after `scontrol ping` was seen to fail."""

DEAD_MARGIN = 2.0
"""Least ratio of SlurmdTimeout to the time for which slurmctld is stopped. It contacts its nodes every third of that
timeout, and would otherwise take all of them for dead when it goes on."""

FILLS_MIN = 10
"""Limit of a job that fills hosts, in minutes: it ends by itself if its cancellation fails."""

FILLER = f"#!/bin/sh\nexec sleep {60 * FILLS_MIN}\n"


class SlurmHere(Commands):
    """Slurm's commands, with those that only an administrator or another user runs."""

    def jobs(self) -> list[Job]:
        """Returns the jobs of all users: a run may be another's."""
        return parse_jobs(self._json("squeue", "--json", "--all", "--states=all"))

    def job(self, number: int) -> Job:
        """Returns a job. Raises Fatal if Slurm does not know it."""
        found = next((job for job in self.jobs() if job.id == number), None)
        if found is None:
            raise Fatal(f"squeue does not know job {number}")
        return found

    def node(self, host: str) -> Node:
        """Returns a node. Raises Fatal if Slurm does not know it."""
        found = self.nodes().get(host)
        if found is None:
            raise Fatal(f"sinfo does not know node {host}")
        return found

    def undrain(self, host: str, reason: str) -> None:
        """Resumes a host that is drained for this very reason alone. Raises Fatal with Slurm's words if it refuses."""
        node = self.node(host)
        if drained(node) and node.reason.startswith(reason):
            self._again("scontrol", "update", f"nodename={host}", "state=resume")

    def idle(self, partition: str) -> list[str]:
        """Returns hosts of a partition that run nothing and take jobs; an empty partition is the default one."""
        said = self._again("sinfo", "--all", "--Node", "--noheader", "--format=%N %T %P").splitlines()
        wanted = partition.split(",")
        return sorted(
            {
                host
                for host, state, of in (line.split() for line in said)
                if state == "idle" and (of.rstrip("*") in wanted if partition else of.endswith("*"))
            }
        )

    def fill(self, spec: SlurmSpec, hosts: Sequence[str], name: str) -> int:
        """Submits a job that takes these hosts for itself, and returns its number. Raises Fatal with Slurm's words."""
        try:
            return self.submit(filling(spec, hosts, name), FILLER)
        except Refused as words:
            raise Fatal(f"Slurm refuses the job that must fill {', '.join(hosts)}: {words}") from words

    def empty(self, name: str) -> None:
        """Cancels the jobs of that name."""
        self._again("scancel", "--me", f"--name={name}")

    def silent(self) -> str:
        """Returns what `scontrol ping` prints when no controller answers; empty if one does."""
        try:
            result = subprocess.run(
                ["scontrol", "ping"], env=environment(), cwd="/", capture_output=True, text=True, check=False, timeout=PING_S
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"`scontrol ping` is not answered within {PING_S:g} s"
        except OSError as error:
            raise Fatal(f"cannot run scontrol: {error.strerror}") from error
        said = (result.stdout + result.stderr).strip().partition("\n")[0]
        return f"`scontrol ping` says: {said}" if result.returncode else ""

    # --- why not ---

    def no_administrator(self) -> str:
        """Returns why this user may change neither nodes nor others' jobs; empty if he may. It follows Slurm's rule,
        since slurmctld logs a security violation for an attempt without the right."""
        config, user = self.config(), pwd.getpwuid(os.getuid()).pw_name
        owner, _, uid = config.get("SlurmUser", "root(0)").rstrip(")").partition("(")
        if os.getuid() in (0, int(uid)):
            return ""
        why = f"only root, {owner} and Slurm's administrators may, and user {user} is none of them"
        if not config.get("AccountingStorageType", "").endswith("/slurmdbd"):
            return why  # a database could name no one
        try:
            level = self._again(
                "sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=AdminLevel"
            ).strip()
        except PortError as error:
            return f"{why} ({error})"
        return "" if level == "Administrator" else why

    def no_filling(self, spec: SlurmSpec, of_the_run: Sequence[str]) -> str:
        if not spec.exclusive:
            return (
                "the run's jobs share their hosts (allocation.slurm.exclusive = false): none is ever taken as a whole"
            )
        hosts = self.idle(spec.partition) or list(of_the_run)
        words = self.refusal(filling(spec, hosts, "chaos"), FILLER) if hosts else "the run has no host"
        return f"Slurm would not take the job that must fill {', '.join(hosts)}: {words}" if words else ""

    def controller(self) -> int:
        """Returns the pid of slurmctld. Raises Fatal if it cannot be stopped from here, or would take nodes with it."""
        config = self.config()
        first, *more = (value.partition("(")[0] for name, value in config.items() if name.startswith("SlurmctldHost["))
        if more:
            raise Fatal(f"a second slurmctld, on {more[0]}, takes over when the first is away")
        if first.partition(".")[0] != socket.gethostname().partition(".")[0]:
            raise Fatal(f"slurmctld runs on {first}: break it there")
        path = Path(config.get("SlurmctldPidFile", ""))
        try:
            pid = int(path.read_text())
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except (OSError, ValueError) as error:
            raise Fatal(f"slurmctld is not found by its SlurmctldPidFile, {path}: {error}") from error
        if name != "slurmctld":
            raise Fatal(f"process {pid}, which {path} names, is no slurmctld but {name}")
        try:
            os.kill(pid, 0)
        except OSError as error:
            raise Fatal(f"slurmctld, pid {pid}, cannot be stopped by this user: {error.strerror}") from error
        dead_s = int(config.get("SlurmdTimeout", "0").split()[0])
        least_s = DEAD_MARGIN * (PING_S + AWAY_S)
        if 0 < dead_s < least_s:
            raise Fatal(
                f"SlurmdTimeout is {dead_s} s: a slurmctld that was away for up to {PING_S + AWAY_S:g} s could take all nodes for "
                f"dead; at least {least_s:g} s are needed"
            )
        return pid


def filling(spec: SlurmSpec, hosts: Sequence[str], name: str) -> list[str]:
    """Returns sbatch's options for a job on these hosts alone, in the partition and account of the run's own jobs."""
    own = [option for key in ("partition", "account", "qos", "flags") for option in of_setting(spec, key)]
    return [
        f"--job-name={name}", f"--nodes={len(hosts)}", f"--nodelist={','.join(hosts)}", "--exclusive", "--no-requeue",
        f"--time={FILLS_MIN}", "--output=/dev/null", *own,
    ]  # fmt: skip


def drained(node: Node) -> bool:
    return "DRAIN" in node.states


def takes_jobs(node: Node) -> bool:
    """Returns true if the node takes jobs. One that is resumed must answer slurmctld first."""
    return not {"DRAIN", "DOWN", "NOT_RESPONDING"}.intersection(node.states)


def number_of(grant: Grant) -> int:
    """Returns the number of its job."""
    return int(grant.engine_id.rpartition(":")[2])


def filler_name(run: str) -> str:
    return f"chaos-{run}-{time.time_ns()}"


def reasons(spec: SlurmSpec, grants: Iterable[Grant]) -> Mapping[str, str]:
    """Returns why Slurm's faults cannot be made from here in a run with these allocations, by field of `Site`; empty if
    they can. Changes nothing to find out."""
    known = [grant for grant in grants if grant.engine_id]
    slurm = SlurmHere()
    try:
        cluster = slurm.cluster()
        foreign = [grant for grant in known if not grant.engine_id.startswith(f"slurm:{cluster}:")]
        if foreign:
            raise Fatal(
                f"Slurm's commands here ask cluster {cluster}; allocation {foreign[0].key} is {foreign[0].engine_id}"
            )
        numbers = {number_of(grant) for grant in known}
        own = [job for job in slurm.jobs() if job.id in numbers]
        words = slurm.no_administrator()
        no_filling = slurm.no_filling(spec, sorted({job.node for job in own if job.node}))
    except PortError as error:
        return dict.fromkeys(("no_jobs", "no_drain", "no_filling", "no_controller"), str(error))
    others = [job for job in own if not job.ours]
    no_jobs = f"job {others[0].id} of the run is another user's: {words}" if others and words else ""
    return {
        "no_jobs": no_jobs,
        "no_drain": f"Slurm does not let this user drain a node: {words}" if words else "",
        "no_filling": no_jobs or no_filling,
        "no_controller": _no_controller(slurm),
    }


def _no_controller(slurm: SlurmHere) -> str:
    try:
        slurm.controller()
    except PortError as error:
        return str(error)
    return ""
