"""Measures the time from the last step under one learning rate to the first step under another, with the same small model
in two groups on two nodes. On pools of two nodes that are held all the time (`supervisor hold`):

- `relaunch`: `launch --on` the pool, and `relaunch`, on a real Slurm whose nodes are network namespaces;
- `stop_launch`: `stop`, and `launch --on --resume-from` its checkpoint when that has ended, on the same pool;
- `local_relaunch`: as `relaunch`, on a pool of local nodes.

Beside it `scancel_sbatch`, the same ranks without a supervisor on two other nodes of that Slurm: the job is cancelled and
submitted again. The trials are made in turn.

`python -m benchmarks.relaunch [--rounds 5]` writes benchmarks/results/relaunch.json. Needs root; three rounds take three minutes.

Requests are made from Python. The commands check the config before, which takes seconds and is not counted: `relaunch`
does so while the run trains, `launch` while none does.

Each time ends when both groups have committed. The last step is the newest that either has committed before. The job is
ended without a drain: it repeats steps since its newest checkpoint, which is not counted. `jobs_submitted` has the jobs
that were submitted in each trial of `relaunch`, from the launch of its run to the end; the trials of `stop_launch` have
theirs.
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
from fault_injection.testbed.world import World, world
from supervisor.core.model.spec import AllocationSpec, RunSpec
from supervisor.shell.inspect import client, pools, relaunch, status
from supervisor.shell.inspect.pools import PoolStatus
from supervisor.wire.checkpoints import listed
from supervisor.wire.records import RunRecord

RESULTS = Path(__file__).parent / "results" / "relaunch.json"
HELD = 2
NODES = 2 * HELD
"""Nodes of Slurm: those of the pool, and those of the job without a supervisor."""
GOAL_S = 5.0
GROUPS = (0, 1)
BEFORE, AFTER = 1e-3, 3e-4
"""Learning rates."""


def small(name: str, folder: Path, lr: float) -> RunSpec:
    """Returns a run of the small model with this learning rate, which holds no spare."""
    spec = spec_of(name, folder)
    titan = replace(spec.titan, recipe="llama3-debug-small", overrides={"optimizer.lr": lr})
    return replace(spec, titan=titan, allocation=replace(spec.allocation, spares=0))


def on_pool(name: str, w: World, lr: float) -> RunSpec:
    """Returns the same run on the pool of that world."""
    spec = small(name, w.system, lr)
    return replace(spec, allocation=AllocationSpec(engine="pool", pool="lab", nodes=HELD, spares=0))


def pool(w: World) -> PoolStatus:
    record = pools.named(w.mirror(), "lab")
    assert record is not None
    return pools.pool_status(w.mirror(), record)


def hold(w: World, allocation: AllocationSpec) -> None:
    """Holds the pool, and waits until its nodes are warm."""
    spec = replace(small("lab", w.system, BEFORE), allocation=allocation)
    w.launch(pools.spec_of(spec, HELD, None))

    def warm() -> bool:
        held = {node.node for node in pool(w).nodes if node.state == "granted"}
        nodes = [node for node in status.node_status(w.mirror()) if node.node in held]
        return len(nodes) == HELD and all(node.warm == "ready" for node in nodes)

    eventually(warm, BEGIN_S, "the pool's nodes are there, and warm")


def release(w: World) -> None:
    """Gives the pool's nodes back."""
    pools.release(w.store, w.mirror(), "lab")
    eventually(lambda: pool(w).phase == "stopped", BEGIN_S, "the pool ends")


def _launched(w: World, spec: RunSpec) -> RunRecord:
    record = w.launch(spec)
    eventually(w.running(record), BEGIN_S, "both groups train")
    eventually(lambda: w.status(record).step >= STEPS_BEFORE, BEGIN_S, "they step")
    return record


def _first(w: World, record: RunRecord, above: int) -> float:
    """Returns the time at which the last of the groups has committed in a generation above that one."""
    times = [eventually(partial(commits, w, record, g, 0.0, above=above), BACK_S) for g in GROUPS]
    return max(of_group[0] for of_group in times)


def _end(w: World, record: RunRecord) -> None:
    w.control(record, stop=True)
    eventually(lambda: w.status(record).phase == "stopped", BEGIN_S, "the run ends")


def by_relaunch(w: World, name: str) -> dict[str, float]:
    """Measures a relaunch."""
    record = _launched(w, on_pool(f"{name}-relaunch", w, BEFORE))
    after = on_pool(record.spec.name, w, AFTER)
    relaunch.refuse(w.mirror(), record, after)
    asked = time.time()
    relaunch.relaunch(w.store, w.mirror(), record, after, "the benchmark")
    first = _first(w, record, above=1)
    old = [s for s in w.history(record).steps if s.generation == 1]
    last = max(line["t"] for s in old for line in s.committed())
    _end(w, record)
    return {"seconds": first - last, "drain_s": last - asked}


def by_stop_launch(w: World, name: str) -> dict[str, float]:
    """Measures a stop, and a launch of another run from its checkpoint."""
    record = _launched(w, on_pool(f"{name}-stop", w, BEFORE))
    asked = time.time()
    _end(w, record)
    stopped, last = time.time(), max(t for group in GROUPS for t in commits(w, record, group, 0.0))
    newest = next(mark for _, _, mark in listed(record.run_dir) if mark is not None)
    spec = on_pool(f"{name}-launch", w, AFTER)
    again = client.launch(w.store, spec, w.runs, begins_with=client.resumed_from(Path(newest.path), spec))
    first = _first(w, again, above=0)
    _end(w, again)
    return {"seconds": first - last, "drain_s": last - asked, "stopped_s": stopped - last}


def by_scancel_sbatch(cell: Cell) -> dict[str, float]:
    """Measures a job without a supervisor that is cancelled and submitted again."""
    name = cell.name("sbatch")
    with plain_job(cell, name, requeue=False, spec=small(name, cell.folder / name, BEFORE)) as plain:
        asked = time.time()
        cell.lab.command("scancel", str(plain.job))
        eventually(lambda: plain.about()["job_state"] not in ("RUNNING", "COMPLETING"), BACK_S, "the job has ended")
        last = max(t for group in GROUPS for t in plain.commits(group))
        plain.submit()
        first = max(eventually(partial(plain.commits, g, last), BACK_S)[0] for g in GROUPS)
        return {"seconds": first - last, "drain_s": last - asked}


def without_jobs(measure: Callable[[World, str], dict[str, float]], cell: Cell) -> dict[str, float]:
    """Makes a trial on the pool of Slurm's nodes, and counts the jobs that were submitted meanwhile."""
    before = {job["job_id"] for job in cell.lab.jobs()}
    found = measure(cell.world, cell.name("run"))
    return {**found, "jobs_submitted": len({job["job_id"] for job in cell.lab.jobs()} - before)}


def inside(rounds: int, so_far: Path) -> dict[str, list[dict[str, float]]]:
    """Runs all trials, in the hub's network. Finished ones are in `so_far`."""
    with cluster(NODES) as cell, world(cell.folder / "local", nodes=HELD, toys=False, warm_torch=True) as local:
        local.supervisor()
        hold(local, AllocationSpec())
        hold(cell.world, small("lab", cell.world.system, BEFORE).allocation)
        trials: dict[str, Callable[[], dict[str, float]]] = {
            "relaunch": lambda: without_jobs(by_relaunch, cell),
            "stop_launch": lambda: without_jobs(by_stop_launch, cell),
            "scancel_sbatch": lambda: by_scancel_sbatch(cell),
            "local_relaunch": lambda: by_relaunch(local, cell.name("run")),
        }
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in trials}
        for number in range(rounds):
            for kind, measure in trials.items():
                trial = {key: round(value, 3) for key, value in measure().items()}
                found[kind].append(trial)
                print(f"round {number + 1} {kind}: {trial}", flush=True)
                so_far.write_text(json.dumps(found, indent=1) + "\n")
        for w in (cell.world, local):
            release(w)
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
    met = max(seconds["relaunch"] + seconds["local_relaunch"]) <= GOAL_S and not any(submitted)
    result = {
        "what": "from the last step under one learning rate to the first of both groups under another, in seconds",
        "command": f"python -m benchmarks.relaunch --rounds {options.rounds}",
        **{f"{kind}_s": values for kind, values in seconds.items()},
        "jobs_submitted": submitted,
        "interleaved": True,
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
