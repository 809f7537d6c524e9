"""Measures the time from a node's loss to its group's next committed step. Compares in turn Everstep, a full restart of
the whole job by Slurm, and Slurm's own `--requeue`. The Slurm is a real one, with network namespaces as nodes.

`python -m benchmarks.slurm_node_loss [--rounds 5]` writes benchmarks/results/slurm_node_loss.json. After each trial it
writes what there is so far beside it (.partial.json). Needs root, and about an hour.

A node is lost in two ways. `killed` ends its slurmd, the step's daemon and all processes at once. `silent` takes its
network link down: nothing is reset. All three run the same trainers on the same model with the same checkpoints, two
groups on two hosts. Ours holds a third host all the time, with a warm spare; the restarts have idle hosts to go to, and
hold none.

The restarts get the best knowledge that an operator's script could have. It asks squeue every 20 ms. As soon as the job
is no longer RUNNING, it cancels and submits all of it, without the lost host. Their lighthouse is TorchFT's own, with
its default heartbeat timeout of 5 s; ours has 1 s. The first commit of a restart repeats a step committed before, after
the newest checkpoint; ours goes on at the next.

`other_group_never_stopped` compares the other group's longest pause between two commits, from the fault on, with the
time in which the lost group was back. In each trial of ours the pause must be below half of that. The restarts stop
both groups for all of theirs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.shim import process
from benchmarks.decide import machine
from fault_injection.sim.lane import commit
from fault_injection.testbed import netns
from fault_injection.testbed.own_slurm import Slurm, slurm
from fault_injection.testbed.slurm_world import SlurmWorld
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World
from supervisor.core.model.spec import (
    AllocationSpec,
    GroupsSpec,
    PolicySpec,
    RunSpec,
    SlurmSpec,
    TitanSpec,
    TorchFTSpec,
)
from supervisor.shell.control import cordons
from supervisor.shell.dev.etcd_server import start_etcd
from supervisor.shell.inspect import hosts
from supervisor.wire.address import free_ports
from supervisor.wire.records import RunRecord, encode
from supervisor.wire.security import load

RESULTS = Path(__file__).parent / "results" / "slurm_node_loss.json"
NODES = 4
NETWORK = "SLURM_NODE_LOSS_NETWORK"
GOAL = 0.2
"""Largest ratio of ours to the full restart: at least 80% less."""

SLURMD_TIMEOUT_S = 10
"""Seconds. Slurm's default is 300: this favours what waits for Slurm to see the loss."""

STEPS_BEFORE = 15
"""Steps committed before the fault; a checkpoint is made every 10."""
BEGIN_S, BACK_S = 300.0, 600.0
IDLE_S = 180.0
"""Seconds. A lost host is idle only once Slurm has learned that its processes ended, for which it asks now and then."""
HOSTS_HELD = {"ours": 3, "full_restart": 2, "requeue": 2}
TORCHFT = TorchFTSpec(heartbeat_timeout_ms=1000, join_timeout_ms=5000, process_group_timeout_ms=10_000)


def spec_of(name: str, folder: Path) -> RunSpec:
    """Returns the same model for all three."""
    return RunSpec(
        name=name,
        titan=TitanSpec(recipe="llama3-debug", steps=100_000, checkpoint_interval_steps=10),
        groups=GroupsSpec(count=2),
        allocation=AllocationSpec(
            engine="slurm", nodes=2, spares=1, slurm=SlurmSpec(node_folder=str(folder), drain_suspects=False)
        ),
        torchft=TORCHFT,
        policy=PolicySpec(),
    )


@dataclass
class Cell:
    """The cluster that the three share."""

    net: netns.Network
    lab: Slurm
    world: SlurmWorld
    folder: Path
    count: int = 0
    lost: list[str] = field(default_factory=list)

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}-{self.count}"

    def lose(self, node: str, how: str) -> float:
        """Loses a node; returns when."""
        self.lost.append(node)
        if how == "silent":
            self.net.cut(self.lab.nodes.index(node))
            return time.time()
        self.lab.kill_slurmd(node)
        at = time.time()
        for pid in self._jobs_processes(node):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return at

    def _jobs_processes(self, node: str) -> list[int]:
        """Returns the processes of Slurm's jobs on this node, the step's daemon first."""
        found = []
        for stat in process.all_processes():
            try:
                where = os.readlink(f"/proc/{stat.pid}/ns/net")
                command = Path(f"/proc/{stat.pid}/cmdline").read_bytes()
            except OSError:
                continue
            if where == self._namespace(node):
                found.append((not command.startswith(b"slurmstepd"), stat.pid))
        return [pid for _, pid in sorted(found)]

    def _namespace(self, node: str) -> str:
        inode = os.stat(f"/run/netns/{self.net.nodes[self.lab.nodes.index(node)][0]}").st_ino
        return f"net:[{inode}]"

    def bring_back(self) -> None:
        """Makes every host idle again, with no trial's losses held against it."""
        for host in cordons.by_host(self.world.mirror()):
            hosts.uncordon(self.world.store, self.world.mirror(), host)
        for node in self.lost:
            self.net.mend(self.lab.nodes.index(node))
        self.lost.clear()
        self.lab.clear(IDLE_S)


def ours(cell: Cell, how: str) -> dict[str, float]:
    """Measures a run of two groups and a spare that loses group 1's node."""
    w = cell.world
    spec = spec_of(cell.name("ours"), w.system)
    record = w.launch(spec)
    eventually(lambda: w.all_run(record) and w.warm(record), BEGIN_S, "both groups train, and the spare is warm")
    eventually(lambda: w.status(record).step >= STEPS_BEFORE, BEGIN_S, "they step")
    lost = w.status(record).groups[1].node
    fault = cell.lose(lost, how)
    first = eventually(lambda: commits(w, record, 1, fault, above=1), BACK_S, "its group commits again")[0]
    eventually(lambda: len(commits(w, record, 0, fault)) > 5, BEGIN_S)
    history = w.history(record)
    opened = [d.committed_at for d in history.decisions if d.incidents and (d.committed_at or 0.0) > fault]
    spawned = [p.spawned for p in history.processes if (p.group, p.generation) == (1, 2)]
    other = [fault, *commits(w, record, 0, fault)]
    generations = {s.generation for s in history.steps if s.group == 0} | {w.status(record).groups[0].generation}
    assert generations == {1}, f"the other group was started again: its generations are {sorted(generations)}"
    w.control(record, stop=True)
    eventually(lambda: w.status(record).phase == "stopped", BEGIN_S, "the run ends")
    return {
        "seconds": first - fault,
        "seen_s": min(opened) - fault if opened else -1.0,  # type: ignore[type-var, operator]
        "started_s": min(spawned) - fault,
        "others_longest_gap_s": max(b - a for a, b in itertools.pairwise(other)),
    }


def commits(w: World, record: RunRecord, group: int, since: float, above: int = 0) -> list[float]:
    """Returns the times of a group's commits since then, in generations above that one."""
    steps = [s for s in w.history(record).steps if s.group == group and s.generation > above]
    return sorted(line["t"] for s in steps for line in s.committed() if line["t"] > since)


@dataclass
class Plain:
    """The whole job under Slurm alone."""

    cell: Cell
    folder: Path
    requeue: bool
    lighthouse: str
    job: int = 0
    starts: int = 0
    """Starts before the fault."""

    def submit(self, exclude: str = "") -> None:
        command = f"exec srun {sys.executable} -m benchmarks.plain_rank {self.folder}/spec.json {self.folder} {self.lighthouse}"
        flags = ["-N2", "--ntasks-per-node=1", "--exclusive", f"--chdir={Path(__file__).parent.parent}"]
        flags += ["--requeue" if self.requeue else "--no-requeue", *([f"--exclude={exclude}"] if exclude else [])]
        self.job = self.cell.lab.submit(command, *flags)

    def about(self) -> dict[str, Any]:
        return next(job for job in self.cell.lab.jobs() if job["job_id"] == self.job)

    def ranks(self, group: int) -> list[Path]:
        """Returns the folders of a group's starts, oldest first."""
        return sorted((self.folder / "ranks").glob(f"{group}.*"), key=lambda p: int(p.suffix[1:]))

    def commits(self, group: int, since: float = 0.0) -> list[float]:
        times = []
        for rank in self.ranks(group):
            with_lines = rank / "steps.jsonl"
            for line in with_lines.read_text().splitlines() if with_lines.exists() else []:
                body = json.loads(line) if line.endswith("}") else {}
                if body.get("event") == "step" and body.get("committed") and body["t"] > since:
                    times.append(body["t"])
        return sorted(times)


def full_restart(cell: Cell, how: str) -> dict[str, float]:
    """Measures scancel and sbatch of everything, from the newest checkpoint."""
    with plain_job(cell, cell.name("full"), requeue=False) as plain:
        fault, lost = _break(plain, how)
        eventually(lambda: plain.about()["job_state"] != "RUNNING", BACK_S, "Slurm says that the job is not running")
        seen = time.time()
        cell.lab.command("scancel", str(plain.job))
        plain.submit(exclude=lost)
        return _back(plain, fault, seen)


def requeue(cell: Cell, how: str) -> dict[str, float]:
    """Measures Slurm's own restart of the whole job."""
    with plain_job(cell, cell.name("requeue"), requeue=True) as plain:
        fault, _ = _break(plain, how)
        eventually(lambda: plain.about()["job_state"] != "RUNNING", BACK_S, "Slurm says that the job is not running")
        seen = time.time()
        eventually(lambda: _settled(plain.about()), BACK_S, "Slurm has ended the job, or queued it again")
        if plain.about()["job_state"] == "FAILED":
            # its processes failed before Slurm knew of the node: a job script does this at its end
            cell.lab.command("scontrol", "requeue", str(plain.job))
        return _back(plain, fault, seen)


def _settled(about: dict[str, Any]) -> bool:
    """Returns true once Slurm shows what becomes of the job, which it does not while that is completing. A job that
    runs a second time is settled."""
    return bool(about["restart_cnt"]) or about["job_state"] not in ("RUNNING", "COMPLETING")


@contextmanager
def plain_job(cell: Cell, name: str, requeue: bool, spec: RunSpec | None = None) -> Iterator[Plain]:
    """Yields a job without a supervisor that has committed some steps; it is cancelled at the end."""
    folder = cell.folder / name
    folder.mkdir()
    spec = spec or spec_of(name, folder)
    (folder / "spec.json").write_bytes(encode(RunRecord(spec=spec, run_dir=str(folder), launched_unix_s=time.time())))
    bind = f"{cell.net.hub_address}:{free_ports(1)[0]}"
    command = [str(Path(sys.executable).with_name("torchft_lighthouse")), "--bind", bind, "--min_replicas", "2"]
    command += ["--join_timeout_ms", str(TORCHFT.join_timeout_ms), "--heartbeat_timeout_ms", "5000"]
    with (folder / "lighthouse.log").open("wb") as log:
        lighthouse = subprocess.Popen(command, stdout=log, stderr=log)
    plain = Plain(cell, folder, requeue, bind)
    try:
        plain.submit()
        eventually(lambda: len(plain.commits(1)) >= STEPS_BEFORE, BEGIN_S, "the job steps")
        yield plain
    finally:
        cell.lab.command("scancel", str(plain.job))
        lighthouse.terminate()
        lighthouse.wait(10)


def _break(plain: Plain, how: str) -> tuple[float, str]:
    """Loses the host of task 1; returns when, and which."""
    lost = json.loads((plain.ranks(1)[-1] / "launch.json").read_text())["node"]
    plain.starts = len(plain.ranks(1))
    return plain.cell.lose(lost, how), lost


def _back(plain: Plain, fault: float, seen: float) -> dict[str, float]:
    eventually(lambda: len(plain.ranks(1)) > plain.starts, BACK_S, "the job is started again")
    first = eventually(lambda: plain.commits(1, seen), BACK_S, "its group commits again")[0]
    begun = float((plain.ranks(1)[-1] / "begun").read_text())
    return {"seconds": first - fault, "seen_s": seen - fault, "started_s": begun - fault}


@contextmanager
def cluster(nodes: int) -> Iterator[Cell]:
    """Yields a system on a Slurm of its own, in the hub's network (`in_network`)."""
    body = json.loads(os.environ[NETWORK])
    net = netns.Network(body["hub"], body["hub_address"], tuple((a, b) for a, b in body["nodes"]))
    folder = Path(tempfile.mkdtemp(prefix="slurm-benchmark-"))
    (folder / "security.toml").write_text("insecure = true\n")
    security = load(str(folder / "security.toml"))
    places = {f"n{i + 1}": place for i, place in enumerate(net.nodes)}
    server = start_etcd(folder / "etcd", host=net.hub_address)
    try:
        with slurm(folder, nodes, places=places, hub=("", net.hub_address), slurmd_timeout=SLURMD_TIMEOUT_S) as lab:
            hosts = {"host": ("", net.hub_address)}
            world = SlurmWorld(folder, lab, server, {}, security=security, places=hosts)
            try:
                world.supervisor()
                eventually(world.led, 30, "a supervisor leads")
                yield Cell(net, lab, world, folder)
            finally:
                world.close()
    finally:
        server.stop()


def in_network(module: str, nodes: int, options: list[str]) -> int:
    """Runs a benchmark's module again in the hub of a network of its own. Returns its exit code."""
    with netns.network(nodes) as net:
        body = {"hub": net.hub, "hub_address": net.hub_address, "nodes": net.nodes}
        # not `ip netns exec`: it mounts its own /sys, without the cgroups that slurmd looks for
        command = ["nsenter", f"--net=/run/netns/{net.hub}", sys.executable, "-m", module, *options]
        return subprocess.run(command, env={**os.environ, NETWORK: json.dumps(body)}, check=False).returncode


def inside(rounds: int, partial: Path) -> dict[str, Any]:
    """Runs all trials, in the hub's network. Finished ones are in `partial`."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        how: {kind.__name__: [] for kind in (ours, full_restart, requeue)} for how in ("silent", "killed")
    }
    with cluster(NODES) as cell:
        for number in range(rounds):
            for how, kinds in found.items():
                for kind in (ours, full_restart, requeue):
                    trial = {key: round(value, 3) for key, value in kind(cell, how).items()}
                    kinds[kind.__name__].append(trial)
                    print(f"round {number + 1} {how} {kind.__name__}: {trial}", flush=True)
                    partial.write_text(json.dumps(found, indent=1) + "\n")
                    cell.bring_back()
    return found


def summary(found: dict[str, dict[str, list[dict[str, float]]]], how: str) -> dict[str, Any]:
    """Returns seconds, medians of the parts, and the ratios."""
    kinds = found[how]
    seconds = {kind: [trial["seconds"] for trial in trials] for kind, trials in kinds.items()}
    median = {kind: statistics.median(values) for kind, values in seconds.items()}
    without = statistics.median([t["seconds"] - t["seen_s"] for t in kinds["full_restart"]])
    gaps = [trial["others_longest_gap_s"] for trial in kinds["ours"]]
    return {
        "lost_by": {"silent": "its network link goes down", "killed": "all its processes are killed"}[how],
        **{f"{kind}_s": values for kind, values in seconds.items()},
        "ratio_to_full_restart": round(median["ours"] / median["full_restart"], 3),
        "ratio_to_requeue": round(median["ours"] / median["requeue"], 3),
        "ratio_to_full_restart_that_knew_at_once": round(median["ours"] / without, 3),
        "goal": GOAL,
        "goal_met": median["ours"] <= GOAL * median["full_restart"],
        "others_longest_gaps_s": gaps,
        "other_group_never_stopped": all(gap < own / 2 for gap, own in zip(gaps, seconds["ours"], strict=True)),
        "breakdown": {
            kind: {key: round(statistics.median([t[key] for t in trials]), 3) for key in trials[0]}
            for kind, trials in kinds.items()
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if NETWORK in os.environ:
        partial = options.results.with_suffix(".partial.json")
        found = inside(options.rounds, partial)
        result = {
            "what": "from the moment a node is lost to its group's next committed step, in seconds",
            "slurmd_timeout_s": SLURMD_TIMEOUT_S,
            "command": f"python -m benchmarks.slurm_node_loss --rounds {options.rounds}",
            **summary(found, "silent"),
            "killed": summary(found, "killed"),
            "hosts_held": HOSTS_HELD,
            "trials": found,
            "commit": commit(),
            "machine": machine(),
        }
        options.results.write_text(json.dumps(result, indent=1) + "\n")
        partial.unlink(missing_ok=True)
        print(json.dumps({how: summary(found, how)["breakdown"] for how in found}, indent=1))
        return 0 if all(summary(found, how)["goal_met"] for how in found) else 1
    given = ["--rounds", str(options.rounds), "--results", str(options.results.resolve())]
    return in_network("benchmarks.slurm_node_loss", NODES, given)


if __name__ == "__main__":
    sys.exit(main())
