"""Brings up a real Slurm of its own: munged, slurmctld and a slurmd for each node, as root, all on this machine.

It shares nothing with the machine's own Slurm: it has its own configuration, ports and munge socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault_injection.testbed.stopping import stop
from fault_injection.testbed.waiting import eventually
from supervisor.wire.address import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scancel", "scontrol")
CLUSTER, CPUS = "lab", 2
UP_WITHIN_S = 30.0
GRACE_S = 5
ATTEMPTS = 3
"""A port that was free a moment ago may be taken now."""

CONF = """\
ClusterName={cluster}
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
ReturnToService={return_to_service}
SlurmdTimeout={slurmd_timeout}
SlurmctldTimeout=10
TCPTimeout=2
MessageTimeout=10
InactiveLimit=0
KillWait=2
CompleteWait=0
MinJobAge=3600
{communication}JobRequeue=1
MailProg=/bin/true
SlurmctldDebug=verbose
SlurmdDebug=verbose
SlurmdParameters=config_overrides
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} CPUs={cpus} Sockets=1"
    " CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=4000 Feature={name} State=UNKNOWN\n"
)


def available() -> str:
    """Returns why no Slurm can be brought up here; empty if one can."""
    if os.geteuid() != 0:
        return "no Slurm here: not root"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        packages = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
        return f"no Slurm here: no {' '.join(missing)} (Debian: apt-get install {packages})"
    return ""


@dataclass(frozen=True)
class Settings:
    """Differences from a Slurm whose daemons are all on loopback."""

    slurmd_timeout: int = 10
    return_to_service: int = 2
    preempt: bool = False
    places: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Maps a node to the (network namespace, address) where its slurmd runs."""
    hub: tuple[str, str] | None = None
    """(namespace, address) of slurmctld; the namespace is empty where this process is inside already."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further or other lines of slurm.conf."""
    topology: str = ""
    """topology.conf: the switches of the nodes."""
    partitions: Sequence[str] = ()
    """Further ones, as "name Nodes=ALL ..."."""
    slurmd_under: Sequence[str] = ()
    """A command that runs another, in which the slurmds and so all jobs run."""


class Slurm:
    """A running Slurm. Its partitions are `train` (the default: all nodes) and `tiny` (the last node, one minute). With
    `preempt` there are also `low`, `graced` and `high`: a job in `high` takes the nodes of one in `low` at once, and of
    one in `graced` after GRACE_S."""

    def __init__(self, folder: Path, nodes: int, settings: Settings) -> None:
        self.folder = folder
        self.nodes = tuple(f"n{i + 1}" for i in range(nodes))
        self.cluster = CLUSTER
        self.conf = folder / "slurm.conf"
        self.environment = {"SLURM_CONF": str(self.conf)}
        self._places, self._slurmd_under = settings.places, settings.slurmd_under
        hub = self._hub = settings.hub
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        port, *ports = free_ports(nodes + 1)
        text = CONF.format(
            cluster=CLUSTER,
            host=socket.gethostname(),
            address=hub[1] if hub else "127.0.0.1",
            port=port,
            folder=folder,
            return_to_service=settings.return_to_service,
            slurmd_timeout=settings.slurmd_timeout,
            # on loopback everything listens there alone; in a network of its own, at every address
            communication="" if hub else "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny\n",
        )
        every = {"PreemptType": "preempt/partition_prio", "PreemptMode": "CANCEL"} if settings.preempt else {}
        if settings.topology:
            (folder / "topology.conf").write_text(settings.topology)
            every["TopologyPlugin"] = "topology/tree"
        text = _with(text, {**every, **settings.options})
        for name, node_port in zip(self.nodes, ports, strict=True):
            address = self._places[name][1] if name in self._places else "127.0.0.1"
            text += NODE.format(name=name, host=socket.gethostname(), address=address, port=node_port, cpus=CPUS)
        text += "PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO\n"
        text += f"PartitionName=tiny Nodes={self.nodes[-1]} MaxTime=1 State=UP OverSubscribe=NO\n"
        if settings.preempt:
            text += "PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL\n"
            text += "PartitionName=graced Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL"
            text += f" GraceTime={GRACE_S}\n"
            text += "PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF\n"
        self.conf.write_text(text + "".join(f"PartitionName={line}\n" for line in settings.partitions))

    # its parts

    def start(self) -> None:
        """Brings everything up, and waits until every node is idle."""
        for name in ("log", "state", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        self._spawn(
            "munged",
            [
                "munged",
                "--force",
                "--foreground",
                f"--key-file={key}",
                f"--socket={self.folder}/munge.sock",
                f"--pid-file={self.folder}/munged.pid",
                f"--log-file={self.folder}/log/munged.log",
                f"--seed-file={self.folder}/munge.seed",
            ],
        )
        eventually(lambda: self._lives("munged") and (self.folder / "munge.sock").exists(), UP_WITHIN_S, "munged")
        self.start_controller()
        for node in self.nodes:
            self.start_slurmd(node)
        idle = {node: ["idle"] for node in self.nodes}
        eventually(lambda: self._all_live() and self.node_states() == idle, UP_WITHIN_S, "every node is idle")

    def start_controller(self) -> None:
        """Starts slurmctld with its saved state; returns when it answers."""
        command = ["slurmctld", "-D", "-f", str(self.conf)]
        self._spawn("slurmctld", self._inside(self._hub[0] if self._hub else "", command))
        eventually(
            lambda: self._lives("slurmctld") and self.command("scontrol", "ping").returncode == 0,
            UP_WITHIN_S,
            "slurmctld answers",
        )

    def stop_controller(self) -> None:
        """Ends slurmctld as an administrator does: it saves its state."""
        self._processes["slurmctld"].terminate()
        eventually(lambda: not self._lives("slurmctld"), UP_WITHIN_S, "slurmctld ends")

    def start_slurmd(self, node: str, *, booted: bool = False) -> None:
        """Starts a slurmd. `booted`: it reports that its machine was booted just now."""
        command = [*self._slurmd_under, "slurmd", "-D", "-N", node, "-f", str(self.conf), *(["-b"] if booted else [])]
        self._spawn(node, self._inside(self._places[node][0] if node in self._places else "", command))

    def kill_slurmd(self, node: str) -> None:
        """Kills the node's slurmd; its jobs' processes live on, as in Slurm."""
        self._kill(node)

    def freeze_slurmd(self, node: str) -> None:
        """Freezes the slurmd; all of its threads have stopped when this returns."""
        stop(self._processes[node].pid)

    def thaw(self, node: str) -> None:
        os.kill(self._processes[node].pid, signal.SIGCONT)

    # its users

    def command(self, *argv: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a Slurm command with this Slurm's configuration, in the hub where there is one."""
        return subprocess.run(
            self._inside(self._hub[0] if self._hub else "", argv),
            env={**os.environ, **self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=60,
        )

    def jobs(self) -> list[dict[str, Any]]:
        """Returns all jobs that Slurm knows, ended ones too, as in `squeue --json`."""
        result = self.command("squeue", "--json", "--states=all")
        assert result.returncode == 0, result.stderr
        found: list[dict[str, Any]] = json.loads(result.stdout)["jobs"]
        return found

    def node_states(self) -> dict[str, list[str]]:
        """Returns state and flags of every node in small letters, as ["idle", "drain"]; empty while Slurm does not answer."""
        result = self.command("scontrol", "show", "nodes", "--oneliner")
        found = {}
        for line in result.stdout.splitlines():
            about = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if "State" in about:
                found[about["NodeName"]] = about["State"].lower().split("+")
        return found

    def submit(self, script: str, *flags: str) -> int:
        """Submits a job that is not of the engine under test; returns its number."""
        result = self.command("sbatch", "--parsable", "--output=/dev/null", *flags, f"--wrap={script}")
        assert result.returncode == 0, result.stderr
        return int(result.stdout.strip().split(";")[0])

    def cancel(self, *jobs: int) -> None:
        self._must("scancel", *map(str, jobs))

    def drain(self, node: str, reason: str = "drained by the test") -> None:
        self._must("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def down(self, node: str, reason: str = "taken down by the test") -> None:
        self._must("scontrol", "update", f"nodename={node}", "state=down", f"reason={reason}")

    def resume(self, node: str) -> None:
        """Lets the node take jobs again."""
        self._must("scontrol", "update", f"nodename={node}", "state=resume")

    def clear(self, within_s: float = 2 * UP_WITHIN_S) -> None:
        """Ends all jobs and waits until every node is idle: for tests that follow each other on one Slurm."""
        jobs = [str(job["job_id"]) for job in self.jobs() if job["job_state"] in ("PENDING", "RUNNING", "SUSPENDED")]
        if jobs:
            self._must("scancel", *jobs)
        self.revive()

        def idle() -> bool:
            return self.usable() and self.node_states() == {node: ["idle"] for node in self.nodes}

        eventually(idle, within_s, "every node is idle again")

    def revive(self) -> None:
        """Starts the slurmds that were killed."""
        for node in self.nodes:
            if not self._lives(node):
                self.start_slurmd(node)

    def usable(self) -> bool:
        """Lets nodes that are down or drained take jobs again. Returns true once all nodes do and none is silent or still
        has to end a job."""
        now = self.node_states()
        for node, words in now.items():
            if "drain" in words or words[0].startswith("down"):
                self.command("scontrol", "update", f"nodename={node}", "state=resume")
        usable = [words for words in now.values() if words in (["idle"], ["allocated"], ["mixed"])]
        return len(usable) == len(self.nodes)

    def log(self, part: str = "slurmctld") -> str:
        """Returns the log of a part: `slurmctld`, or `slurmd-NODE`."""
        path = self.folder / "log" / f"{part}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # its end

    def stop(self) -> None:
        """Ends everything that was started, and all processes that jobs have left behind."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        eventually(self._sweep, 20, "nothing of this Slurm runs any more")

    def leftovers(self) -> list[int]:
        """Returns processes with our configuration in their environment, and all their descendants."""
        mark = f"SLURM_CONF={self.conf}".encode()
        children: dict[int, list[int]] = {}
        ours: list[int] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state == "Z":
                    continue
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    ours.append(int(entry.name))
            except (OSError, ValueError):
                continue  # it ended meanwhile
            children.setdefault(int(parent), []).append(int(entry.name))
        found: set[int] = set()
        while ours:
            pid = ours.pop()
            if pid not in found:
                found.add(pid)
                ours += children.get(pid, [])
        return sorted(found)

    def _sweep(self) -> bool:
        left = self.leftovers()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    # helpers

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        assert not self._lives(name), f"{name} runs already"
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def _lives(self, name: str) -> bool:
        return name in self._processes and self._processes[name].poll() is None

    def _all_live(self) -> bool:
        for name in self._processes:
            if not self._lives(name):
                raise RuntimeError(f"{name} ended: {(self.folder / 'log' / f'{name}.out').read_text()[-2000:]}")
        return True

    def _must(self, *argv: str) -> None:
        result = self.command(*argv)
        assert result.returncode == 0, f"{' '.join(argv)}: {result.stderr}"

    @staticmethod
    def _inside(namespace: str, command: Sequence[str]) -> list[str]:
        # not `ip netns exec`: it mounts a /sys of its own, without the cgroups that slurmd looks for
        return ["nsenter", f"--net=/run/netns/{namespace}", *command] if namespace else list(command)


@contextlib.contextmanager
def slurm(folder: Path, nodes: int = 4, **settings: Any) -> Iterator[Slurm]:
    """Yields a Slurm with nodes n1, n2, ..., ended with the block; its logs are kept in `folder`. `settings`: fields of
    `Settings`."""
    for attempt in range(ATTEMPTS):
        # a unix socket's path may have 107 characters, and pytest's folders are long
        short = Path(tempfile.mkdtemp(prefix="sl", dir="/tmp"))
        short.chmod(0o755)
        cell = Slurm(short, nodes, Settings(**settings))
        try:
            try:
                cell.start()
            except (RuntimeError, AssertionError):
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            yield cell
            return
        finally:
            cell.stop()
            shutil.copytree(short / "log", folder / f"{short.name}-log", dirs_exist_ok=True)
            shutil.rmtree(short, ignore_errors=True)


def _with(conf: str, options: Mapping[str, str]) -> str:
    """Returns the configuration with these lines instead of those of the same name."""
    lines = [line for line in conf.splitlines() if line.partition("=")[0] not in options]
    return "\n".join([*lines, *(f"{name}={value}" for name, value in options.items())]) + "\n"
