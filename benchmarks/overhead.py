"""Measures what supervision costs while nothing fails: the time of a step under a supervisor against that of the same
trainers by hand, and the processors' time of each part.

Two groups of TorchTitan's Llama 3 debug model on this machine, as in `benchmarks.recovery`: `everstep` with a node and a
spare more, warm processes and hot standbys; `by_hand` with TorchFT's own lighthouse. Turns of 200 steps alternate.

- `saturated`: each trainer has a processor, so all else takes time from them;
- `spare`: both trainers share one processor, and all else has the other.

`step_ratio` is that of the medians of two neighbouring turns. `cpu` has percent of one processor, by program, over the
turns of `everstep`; agents and shims are by node.

`python -m benchmarks.overhead [--turns 5] [--steps 200]` writes benchmarks/results/overhead.json. Needs two processors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.decide import machine
from benchmarks.recovery import BEGIN_S, OTHER, VICTIM, Everstep, System, TorchFT, adopt
from fault_injection.sim.lane import commit
from fault_injection.testbed.waiting import eventually

RESULTS = Path(__file__).parent / "results" / "overhead.json"
SYSTEMS: dict[str, type[System]] = {"everstep": Everstep, "by_hand": TorchFT}
MODEL = "small"
WARM_UP = 40
"""Steps before a turn: the standby is built by then."""
GOALS = {"spare": 1.01, "saturated": 1.03}
GOAL_CPU = {"agent and shim, each node": 0.5, "gate and lighthouse": 2.0, "supervisor and etcd": 2.0}
TRAINERS, REST = {0}, {1}
"""Processors of the trainers and of all else, with a spare one."""
PARTS = {
    "agents.shim": "agent and shim, each node",
    "agents.cli": "agent and shim, each node",
    "agents.agent": "agent and shim, each node",
    "agents.gate": "gate and lighthouse",
    "titan_actor.lighthouse": "gate and lighthouse",
    "supervisor.cli": "supervisor and etcd",
    "etcd": "supervisor and etcd",
    "titan_actor.warm": "warm processes",
}
NODES = 4
"""Nodes of `everstep`: two that train, a spare, and the service host."""


def below(pid: int) -> list[int]:
    """Returns the pids of a process and of all below it."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            children[int((folder / "stat").read_text().rpartition(")")[2].split()[1])].append(int(folder.name))
        except OSError:
            continue
    found = [pid]
    for each in found:
        found += children[each]
    return found


def seconds(pid: int) -> tuple[str, float]:
    """Returns the part that a process is of, and the processors' seconds that it has taken."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return "", 0.0
    name, _, rest = stat.partition("(")[2].rpartition(") ")
    utime, stime = map(int, rest.split()[11:13])
    if name in ("trainer", "standby ready", "standby"):
        part = name.partition(" ")[0]
    else:
        part = next((part for word, part in PARTS.items() if word in command.partition(" --")[0]), "other")
    return part, (utime + stime) / os.sysconf("SC_CLK_TCK")


def pin(pids: list[int], trainers: set[int]) -> None:
    """Gives the trainers a processor, and all else the other."""
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                os.sched_setaffinity(int(task.name), TRAINERS if pid in trainers else REST)
            except ProcessLookupError:
                continue


def turn(name: str, mode: str, steps: int) -> dict[str, Any]:
    """Trains that many steps, and returns their median and what the processors did."""
    with tempfile.TemporaryDirectory(prefix="ev", dir="/tmp") as folder, ExitStack() as after:
        system = SYSTEMS[name](MODEL, Path(folder), after)

        def made(count: int) -> bool:
            system.look()
            return all(sum(step.whole for step in system.of(who)) >= count for who in (VICTIM, OTHER))

        eventually(lambda: made(WARM_UP // 2), BEGIN_S, "both train")
        pids = [pid for pid in below(os.getpid()) if pid != os.getpid()]
        if mode == "spare":
            pin(pids, {system.of(who)[-1].pid for who in (VICTIM, OTHER)})
        eventually(lambda: made(WARM_UP), BEGIN_S, "both train")
        began, at = {pid: seconds(pid) for pid in below(os.getpid())[1:]}, time.monotonic()
        since = time.time()
        while len([step for step in system.of(OTHER, since) if step.whole]) < steps:
            time.sleep(1.0)  # this program must take little
            system.look()
        took_s = time.monotonic() - at
        cpu: dict[str, float] = defaultdict(float)
        for pid, (part, before) in began.items():
            cpu[part] += seconds(pid)[1] - before if seconds(pid)[0] else 0.0
        times = [step.t for step in system.of(OTHER, since)]
        gaps = [b - a for a, b in itertools.pairwise(times)]
        return {
            "step_s": statistics.median(gaps),
            "mean_s": statistics.fmean(gaps),
            "cpu": {part: 100 * spent / took_s for part, spent in sorted(cpu.items()) if part},
        }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--turns", type=int, default=5)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    adopt()
    load_before, modes = os.getloadavg()[0], dict[str, Any]()
    for mode in GOALS:
        turns: dict[str, list[dict[str, Any]]] = {name: [] for name in SYSTEMS}
        for number in range(given.turns):
            for name in list(SYSTEMS)[:: 1 if number % 2 else -1]:
                turns[name].append(one := turn(name, mode, given.steps))
                print(mode, number + 1, name, one, flush=True)
        pairs = list(zip(turns["everstep"], turns["by_hand"], strict=True))
        cpu = {
            part: statistics.median(one["cpu"].get(part, 0.0) for one in turns["everstep"])
            for part in set(PARTS.values())
        }
        cpu["agent and shim, each node"] /= NODES
        modes[mode] = {
            "step_ratio": [round(ours["step_s"] / hand["step_s"], 4) for ours, hand in pairs],
            "mean_ratio": [round(ours["mean_s"] / hand["mean_s"], 4) for ours, hand in pairs],
            "step_ms": {name: [round(1000 * one["step_s"], 2) for one in of] for name, of in turns.items()},
            "cpu": {part: round(percent, 2) for part, percent in sorted(cpu.items())},
        }  # fmt: skip
    made = {
        "about": "python -m benchmarks.overhead", "at": time.strftime("%Y-%m-%d"), "commit": commit(),
        "machine": machine(), "load_before": round(load_before, 1), "steps": given.steps,
        "goals": {"step_ratio": GOALS, "cpu": GOAL_CPU}, **modes,
    }  # fmt: skip
    given.out.write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps({mode: (statistics.median(of["step_ratio"]), of["cpu"]) for mode, of in modes.items()}, indent=1))


if __name__ == "__main__":
    main()
