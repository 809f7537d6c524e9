"""Measures the time from the last step under one learning rate to the first step under another, on a real Slurm whose
nodes are network namespaces. Compares in turn, with the same trainers and model, two groups on two hosts:

- `relaunch`: `supervisor relaunch`, on the nodes that the run has;
- `stop_launch`: `supervisor stop`, and `launch --resume-from` its checkpoint when that has ended;
- `scancel_sbatch`: the same ranks without a supervisor: the job is cancelled and submitted again.

`python -m benchmarks.relaunch [--rounds 5]` writes benchmarks/results/relaunch.json. Needs root, and about half an hour.

Each time ends when both groups have committed. The last step is the newest that either has committed before. The third
is ended without a drain: it repeats steps since its newest checkpoint, which is not counted. `jobs_submitted` has the
jobs that each trial of the first has submitted between its two steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.decide import machine
from benchmarks.slurm_node_loss import (
    BACK_S,
    BEGIN_S,
    NETWORK,
    STEPS_BEFORE,
    Cell,
    cluster,
    commits,
    in_network,
    plain_job,
    spec_of,
)
from fault_injection.sim.lane import commit
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import RunSpec
from supervisor.shell.inspect import client, relaunch
from supervisor.wire.checkpoints import listed
from supervisor.wire.records import RunRecord

RESULTS = Path(__file__).parent / "results" / "relaunch.json"
NODES = 3
GOAL_S = 5.0
GROUPS = (0, 1)


def small(name: str, folder: Path, lr: float) -> RunSpec:
    """Returns a run of the small model with this learning rate, which holds no spare."""
    spec = spec_of(name, folder)
    titan = replace(spec.titan, recipe="llama3-debug-small", overrides={"optimizer.lr": lr})
    return replace(spec, titan=titan, allocation=replace(spec.allocation, spares=0))


def _trains(cell: Cell, record: RunRecord) -> None:
    w = cell.world
    eventually(lambda: w.all_run(record) and w.warm(record), BEGIN_S, "both groups train")
    eventually(lambda: w.status(record).step >= STEPS_BEFORE, BEGIN_S, "they step")


def _last(cell: Cell, record: RunRecord) -> float:
    """Returns the time of the newest step."""
    return max(t for group in GROUPS for t in commits(cell.world, record, group, 0.0))


def _first(cell: Cell, record: RunRecord, above: int) -> float:
    """Returns the time at which the last of the groups has committed in a generation above that one."""
    times = [eventually(partial(commits, cell.world, record, g, 0.0, above=above), BACK_S) for g in GROUPS]
    return max(of_group[0] for of_group in times)


def _end(cell: Cell, record: RunRecord) -> None:
    cell.world.control(record, stop=True)
    eventually(lambda: cell.world.status(record).phase == "stopped", BEGIN_S, "the run ends")


def by_relaunch(cell: Cell) -> dict[str, float]:
    """Measures a relaunch."""
    w = cell.world
    record = w.launch(small(cell.name("relaunch"), w.system, 1e-3))
    _trains(cell, record)
    before = {job["job_id"] for job in cell.lab.jobs()}
    after = small(record.spec.name, w.system, 3e-4)
    relaunch.refuse(w.mirror(), record, after)
    asked = time.time()
    relaunch.relaunch(w.store, w.mirror(), record, after, "the benchmark")
    first = _first(cell, record, above=1)
    old = [t for g in GROUPS for s in w.history(record).steps if (s.group, s.generation) == (g, 1) for t in _times(s)]
    jobs = {job["job_id"] for job in cell.lab.jobs()} - before
    _end(cell, record)
    return {"seconds": first - max(old), "drain_s": max(old) - asked, "jobs_submitted": len(jobs)}


def _times(steps: Any) -> list[float]:
    return [line["t"] for line in steps.committed()]


def by_stop_launch(cell: Cell) -> dict[str, float]:
    """Measures a stop, and a launch of another run from its checkpoint."""
    w = cell.world
    record = w.launch(small(cell.name("stop"), w.system, 1e-3))
    _trains(cell, record)
    asked = time.time()
    _end(cell, record)
    stopped, last = time.time(), _last(cell, record)
    newest = next(mark for _, _, mark in listed(record.run_dir) if mark is not None)
    spec = small(cell.name("launch"), w.system, 3e-4)
    again = client.launch(w.store, spec, w.runs, begins_with=client.resumed_from(Path(newest.path), spec))
    first = _first(cell, again, above=0)
    _end(cell, again)
    return {"seconds": first - last, "drain_s": last - asked, "stopped_s": stopped - last}


def by_scancel_sbatch(cell: Cell) -> dict[str, float]:
    """Measures a job without a supervisor that is cancelled and submitted again."""
    name = cell.name("sbatch")
    with plain_job(cell, name, requeue=False, spec=small(name, cell.folder / name, 1e-3)) as plain:
        asked = time.time()
        cell.lab.command("scancel", str(plain.job))
        eventually(lambda: plain.about()["job_state"] not in ("RUNNING", "COMPLETING"), BACK_S, "the job has ended")
        last = max(t for group in GROUPS for t in plain.commits(group))
        plain.submit()
        first = max(eventually(partial(plain.commits, g, last), BACK_S)[0] for g in GROUPS)
        return {"seconds": first - last, "drain_s": last - asked}


TRIALS: dict[str, Callable[[Cell], dict[str, float]]] = {
    "relaunch": by_relaunch,
    "stop_launch": by_stop_launch,
    "scancel_sbatch": by_scancel_sbatch,
}


def inside(rounds: int, so_far: Path) -> dict[str, list[dict[str, float]]]:
    """Runs all trials, in the hub's network. Finished ones are in `so_far`."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in TRIALS}
    with cluster(NODES) as cell:
        for number in range(rounds):
            for kind, measure in TRIALS.items():
                trial = {key: round(value, 3) for key, value in measure(cell).items()}
                found[kind].append(trial)
                print(f"round {number + 1} {kind}: {trial}", flush=True)
                so_far.write_text(json.dumps(found, indent=1) + "\n")
                cell.bring_back()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if NETWORK not in os.environ:
        given = ["--rounds", str(options.rounds), "--results", str(options.results.resolve())]
        return in_network("benchmarks.relaunch", NODES, given)
    so_far = options.results.with_suffix(".partial.json")
    found = inside(options.rounds, so_far)
    seconds = {kind: [trial["seconds"] for trial in trials] for kind, trials in found.items()}
    median = {kind: statistics.median(values) for kind, values in seconds.items()}
    submitted = [int(trial["jobs_submitted"]) for trial in found["relaunch"]]
    met = median["relaunch"] <= GOAL_S and not any(submitted)
    result = {
        "what": "from the last step under one learning rate to the first of both groups under another, in seconds",
        "command": f"python -m benchmarks.relaunch --rounds {options.rounds}",
        **{f"{kind}_s": values for kind, values in seconds.items()},
        "jobs_submitted": submitted,
        "ratio_to_stop_launch": round(median["relaunch"] / median["stop_launch"], 3),
        "ratio_to_scancel_sbatch": round(median["relaunch"] / median["scancel_sbatch"], 3),
        "goal_s": GOAL_S,
        "goal_met": met,
        "trials": found,
        "commit": commit(),
        "machine": machine(),
    }
    options.results.write_text(json.dumps(result, indent=1) + "\n")
    so_far.unlink(missing_ok=True)
    print(json.dumps({kind: round(value, 2) for kind, value in median.items()}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
