"""Measures the time from the silent loss of a node to the next committed step of its group, where a group has two nodes
of two ranks each. Compares in turn, on one machine whose network namespaces are the nodes:

- `ours`: the lost node alone is replaced; the other one's agent and warm process stay, and all nodes had built their
  next start;
- `group_restart`: both nodes of the group are lost, and it starts cold on two others: all of the group is restarted;
- `job_restart`: the same ranks without a supervisor, all of which are killed and started cold from the newest
  checkpoint. Their launcher knows of the loss at once, which favours them;
- `one_node_case`: ours with groups of one node of two ranks.

`python -m benchmarks.groups_over_nodes [--times 5]` writes benchmarks/results/groups_over_nodes.json. Needs root.
`others_stall_s` is the longest pause between two commits of the other group, in each trial of ours.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.decide import machine
from fault_injection.doubles.toys import WARM_TORCH
from fault_injection.sim.lane import commit
from fault_injection.testbed import netns
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec
from supervisor.core.model.spec import AllocationSpec, GroupsSpec, RunSpec, TitanSpec, TorchFTSpec
from supervisor.shell.dev.etcd_server import start_etcd
from supervisor.shell.inspect import status
from supervisor.wire.address import free_ports
from supervisor.wire.checkpoints import listed
from supervisor.wire.records import RunRecord, TrainerLaunch, encode
from supervisor.wire.security import load

RESULTS = Path(__file__).parent / "results" / "groups_over_nodes.json"
GROUPS, SIZE, RANKS, SPARES = 2, 2, 2, 2
NODES = ("host", *(f"n{i + 1}" for i in range(GROUPS * SIZE + SPARES)))
TORCHFT = TorchFTSpec(heartbeat_timeout_ms=1000, join_timeout_ms=5000, process_group_timeout_ms=10_000)
STEPS_BEFORE = 15
"""Steps committed before the loss; a checkpoint is made every 10."""
WITHIN_S = 600.0
RATIO_TO_ONE_NODE, RATIO_TO_JOB = 1.3, 5.0


def spec_of(name: str, size: int) -> RunSpec:
    """Returns the run of all trials, with `size` nodes a group."""
    titan = TitanSpec(recipe="llama3-debug-small", steps=100_000, checkpoint_interval_steps=10)
    return replace(
        toy_spec(name, GROUPS, start_timeout_s=WITHIN_S),
        titan=titan,
        torchft=TORCHFT,
        groups=GroupsSpec(count=GROUPS, ranks_per_group=size * RANKS, nodes_per_group=size),
        allocation=AllocationSpec(nodes=GROUPS * size, spares=SPARES),
    )


@contextmanager
def system(net: netns.Network, folder: Path, warm: bool) -> Iterator[World]:
    """Yields a system on namespaces, whose trainers are forked from warm processes or started cold."""
    folder.mkdir()
    (folder / "security.toml").write_text("insecure = true\n")
    security = load(str(folder / "security.toml"))
    server = start_etcd(folder / "etcd", host=net.hub_address)
    try:
        places = dict(zip(NODES, net.nodes, strict=True))
        environment = {WARM_TORCH: "1"} if warm else {}
        world = World(folder, server, len(NODES) - 1, environment, security=security, places=places)
        try:
            world.supervisor()
            yield world
        finally:
            for index in range(len(NODES)):
                net.mend(index)
            world.close()
    finally:
        server.stop()


def supervised(
    net: netns.Network, folder: Path, size: int, lost: int, warm: bool
) -> tuple[float, float, dict[str, float]]:
    """Loses `lost` nodes of group 1; returns the seconds until it commits again, the other group's longest pause, and the
    parts of the former."""
    with system(net, folder, warm) as w:
        record = w.launch(spec_of("run", size))
        eventually(w.running(record), WITHIN_S, "both groups train")
        eventually(lambda: not warm or _warm(w), WITHIN_S, "all nodes have a warm process")
        goal = max(g.step for g in w.status(record).groups) + STEPS_BEFORE
        eventually(lambda: w.status(record).step >= goal, WITHIN_S, "they step")
        eventually(lambda: listed(record.run_dir), WITHIN_S, "there is a checkpoint")
        eventually(lambda: not warm or _built(w), WITHIN_S, "all nodes have built their next start")
        fault = time.time()
        for node in w.status(record).groups[1].nodes[-lost:]:
            net.cut(NODES.index(node))
        first = eventually(lambda: _commits(w, record, 1, fault, above=1), WITHIN_S, "its group commits again")[0]
        eventually(lambda: [t for t in _commits(w, record, 0, fault) if t > first], WITHIN_S, "the other one too")
        other = [fault, *_commits(w, record, 0, fault)]
        return first - fault, max(b - a for a, b in itertools.pairwise(other)), _parts(w, record, fault, first)


def _parts(w: World, record: RunRecord, fault: float, first: float) -> dict[str, float]:
    """Returns the seconds of each part of a recovery, from what the ranks of the newest generation of group 1 wrote."""
    steps = [s for s in w.history(record).steps if s.group == 1]
    newest = [s for s in steps if s.generation == max(s.generation for s in steps)]

    def when(event: str) -> list[float]:
        return [next(float(line["t"]) for line in s.lines if line["event"] == event) for s in newest]

    moments = [fault, min(when("start")), max(when("start")), max(when("built")), max(when("heal")), first]
    names = (
        "until_the_first_rank_starts",
        "until_the_last_one_starts",
        "building",
        "joining_and_healing",
        "first_step",
    )
    return {name: round(b - a, 2) for name, (a, b) in zip(names, itertools.pairwise(moments), strict=True)}


def _warm(w: World) -> bool:
    nodes = [n for n in status.node_status(w.mirror()) if n.role != "service"]
    return all(n.warm == "ready" for n in nodes if n.alive)


def _built(w: World) -> bool:
    nodes = [n for n in status.node_status(w.mirror()) if n.role != "service"]
    return all(n.standbys == RANKS for n in nodes if n.alive)


def _commits(w: World, record: RunRecord, group: int, since: float, above: int = 0) -> list[float]:
    """Returns the times of a group's commits since then, in generations above that one."""
    steps = [s for s in w.history(record).steps if s.group == group and s.generation > above and s.rank == 0]
    return sorted(line["t"] for s in steps for line in s.committed() if line["t"] > since)


class Job:
    """The same ranks with a plain lighthouse and no supervisor."""

    def __init__(self, net: netns.Network, folder: Path) -> None:
        folder.mkdir()
        self.net, self.folder, self.starts = net, folder, 0
        self.ranks: list[subprocess.Popen[bytes]] = []
        self.lighthouse = f"{net.hub_address}:{free_ports(1)[0]}"
        command = [str(Path(sys.executable).with_name("torchft_lighthouse")), "--bind", self.lighthouse]
        command += ["--min_replicas", str(GROUPS), "--join_timeout_ms", str(TORCHFT.join_timeout_ms)]
        with (folder / "lighthouse.log").open("wb") as log:
            self._server = subprocess.Popen(command, stdout=log, stderr=log)

    def start(self, nodes: list[int]) -> None:
        """Starts all ranks cold on these namespaces, from the newest complete checkpoint."""
        self.starts += 1
        spec = spec_of("run", SIZE)
        marks = [mark for _, _, mark in listed(str(self.folder)) if mark is not None]
        ports = free_ports(GROUPS)
        for group, rank in itertools.product(range(GROUPS), range(SIZE * RANKS)):
            first, seat = nodes[group * SIZE], nodes[group * SIZE + rank // RANKS]
            rank_dir = self.folder / f"{group}.{self.starts}.{rank}"
            rank_dir.mkdir()
            launch = TrainerLaunch(
                run="run", group=group, generation=self.starts, rank=rank, world_size=SIZE * RANKS, groups=GROUPS,
                min_groups=1, node=NODES[seat], node_address=self.net.nodes[seat][1], master_port=ports[group],
                store=self.net.nodes[first][1], first_rank=rank - rank % RANKS, ranks_here=RANKS,
                lighthouse=self.lighthouse, run_dir=str(self.folder), rank_dir=str(rank_dir), titan=spec.titan,
                torchft=TORCHFT, checkpoint=marks[0] if marks else None, writer=group == 0,
            )  # fmt: skip
            (rank_dir / "launch.json").write_bytes(encode(launch))
            inside = ["ip", "netns", "exec", self.net.nodes[seat][0]]
            command = [*inside, sys.executable, "-m", "titan_actor.trainer", str(rank_dir / "launch.json")]
            environment = {**os.environ, "SUPERVISOR_NO_GATE": "1"}
            with (rank_dir / "output.log").open("wb") as log:
                self.ranks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def end(self) -> None:
        """Kills all ranks."""
        for rank in self.ranks:
            rank.send_signal(signal.SIGKILL)
            rank.wait()
        self.ranks.clear()

    def commits(self, since: float = 0.0) -> list[float]:
        """Returns the times of the commits of group 1's newest start."""
        file = self.folder / f"1.{self.starts}.0" / "steps.jsonl"
        text = file.read_text() if file.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [x["t"] for x in lines if x["event"] == "step" and x["committed"] and x["t"] > since]

    def close(self) -> None:
        self.end()
        self._server.terminate()
        self._server.wait(10)


def unsupervised(net: netns.Network, folder: Path) -> float:
    """Returns the seconds from the loss of a node of the job to the first commit after its restart as a whole."""
    job = Job(net, folder)
    try:
        places = list(range(1, len(NODES)))
        job.start(places[: GROUPS * SIZE])
        eventually(lambda: len(job.commits()) >= STEPS_BEFORE, WITHIN_S, "the job steps")
        eventually(lambda: any(mark for _, _, mark in listed(str(folder))), WITHIN_S, "there is a checkpoint")
        lost, fault = places[GROUPS * SIZE - 1], time.time()
        net.cut(lost)
        job.end()
        job.start([*places[: GROUPS * SIZE - 1], places[GROUPS * SIZE]])
        return eventually(lambda: job.commits(fault), WITHIN_S, "the job steps again")[0] - fault
    finally:
        for index in range(len(NODES)):
            net.mend(index)
        job.close()


def inside(net: netns.Network, times: int, keep: Callable[[dict[str, list[Any]]], None]) -> None:
    """Runs all trials in turn; `keep` gets what there is after each round."""
    lists = ("ours_s", "group_restart_s", "job_restart_s", "one_node_case_s", "others_stall_s")
    found: dict[str, list[Any]] = {name: [] for name in (*lists, "ours_parts_s", "one_node_parts_s")}
    with tempfile.TemporaryDirectory(prefix="groups-over-nodes-") as scratch:
        top = Path(scratch)
        for number in range(times):
            took, stall, parts = supervised(net, top / f"ours{number}", SIZE, 1, warm=True)
            found["ours_s"].append(round(took, 3))
            found["others_stall_s"].append(round(stall, 3))
            found["ours_parts_s"].append(parts)
            took, _, parts = supervised(net, top / f"one{number}", 1, 1, warm=True)
            found["one_node_case_s"].append(round(took, 3))
            found["one_node_parts_s"].append(parts)
            took, _, _ = supervised(net, top / f"group{number}", SIZE, SIZE, warm=False)
            found["group_restart_s"].append(round(took, 3))
            found["job_restart_s"].append(round(unsupervised(net, top / f"job{number}"), 3))
            print(f"round {number + 1}: { ({name: values[-1] for name, values in found.items()}) }", flush=True)
            keep(found)


def result(found: dict[str, list[Any]]) -> dict[str, Any]:
    """Returns the lists, the medians' ratios, and whether the goals are met."""
    median = {name: statistics.median(values) for name, values in found.items() if not name.endswith("_parts_s")}
    to_one = median["ours_s"] / median["one_node_case_s"]
    to_job = median["job_restart_s"] / median["ours_s"]
    stall_s = TORCHFT.heartbeat_timeout_ms / 1000 + 1.0
    return {
        "what": "from the silent loss of a node to the next committed step of its group of two nodes, in seconds",
        "command": f"python -m benchmarks.groups_over_nodes --times {len(found['ours_s'])}",
        **found,
        "ours_times_the_one_node_case": round(to_one, 2),
        "group_restart_times_ours": round(median["group_restart_s"] / median["ours_s"], 2),
        "job_restart_times_ours": round(to_job, 2),
        "goals": {
            f"at most {RATIO_TO_ONE_NODE} times the one-node case": to_one <= RATIO_TO_ONE_NODE,
            f"at least {RATIO_TO_JOB:g} times faster than the whole job": to_job >= RATIO_TO_JOB,
            f"others stall at most {stall_s:g} s": max(found["others_stall_s"]) <= stall_s,
        },
        "load": os.getloadavg(),
        "scratch": tempfile.gettempdir(),
        "commit": commit(),
        "machine": machine(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    net = netns.entered()
    if net is None:
        with netns.network(len(NODES)) as made:
            command = [sys.executable, "-m", "benchmarks.groups_over_nodes", "--times", str(options.times)]
            command += ["--results", str(options.results.resolve())]
            return netns.run_inside(made, command, netns.environment(made))
    found: dict[str, list[Any]] = {}

    def keep(sofar: dict[str, list[Any]]) -> None:
        found.update(sofar)
        options.results.write_text(json.dumps(result(sofar), indent=1) + "\n")

    inside(net, options.times, keep)
    print(json.dumps(result(found)["goals"], indent=1))
    return 0 if all(result(found)["goals"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
