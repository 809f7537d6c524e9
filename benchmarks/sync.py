"""Measures how long 2,000 files of 200 MB take to two nodes: the first time, after an edit of one file, and to a node that
comes later. Compares in turn, on one machine:

- `sync`: `supervisor sync`, from the start of the command until both agents report that the code lies there;
- `rsync`: `rsync -a --delete` into two folders of the same disk, one after the other.

`python -m benchmarks.sync [--rounds 3]` writes benchmarks/results/sync.json. Needs rsync, and two minutes.

Every round has new files, so that nothing is known from the round before. rsync copies between local folders, without
a network or ssh and without a check of what it wrote; ours goes over TCP, is hashed at both ends, and kept by the leader
as well. `command_s` is the time of the command itself, `load_before` what else ran on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.decide import machine
from fault_injection.sim.lane import commit
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec, world
from supervisor.shell.control import observe
from supervisor.shell.inspect import client, pools
from supervisor.wire import keys
from supervisor.wire.records import NodeObserved, decode

RESULTS = Path(__file__).parent / "results" / "sync.json"
FILES, BYTES = 2000, 200_000_000
LARGE, LARGE_BYTES = 100, 1_500_000
"""Files that hold most of it; the others share the rest."""
NODES = 2


def fill(folder: Path, seed: int) -> None:
    """Writes the files, in a hundred folders."""
    chance = random.Random(seed)
    small = (BYTES - LARGE * LARGE_BYTES) // (FILES - LARGE)
    for number in range(FILES):
        path = folder / f"package_{number % 100}" / f"module_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(LARGE_BYTES if number < LARGE else small))


def edit(folder: Path, seed: int) -> None:
    """Changes one small file."""
    (folder / "package_99" / "module_1999.py").write_text(f"VERSION = {seed}\n")


def rsync(source: Path, targets: list[Path]) -> dict[str, float]:
    """Copies to each folder."""
    began = time.monotonic()
    for target in targets:
        subprocess.run(["rsync", "-a", "--delete", f"{source}/", f"{target}/"], check=True)
    return {"seconds": time.monotonic() - began}


def sync(w: World, source: Path) -> dict[str, float]:
    """Syncs, and waits for the nodes of the pool."""
    command = [sys.executable, "-m", "supervisor.cli", "sync", str(source), "--on", "lab", "--etcd", w.etcd.endpoint]
    began = time.monotonic()
    subprocess.run(command, check=True, env=w.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ended = time.monotonic()
    _everywhere(w)
    return {"seconds": time.monotonic() - began, "command_s": ended - began}


def _everywhere(w: World) -> None:
    code = observe.code(w.mirror(), "lab")
    assert code is not None
    nodes = eventually(partial(_nodes, w), 60, "the pool has its nodes")
    eventually(lambda: all(code.version in _codes(w, node) for node in nodes), 120, "it lies on each node")


def _nodes(w: World) -> list[str]:
    record = pools.named(w.mirror(), "lab")
    assert record is not None
    nodes = [node.node for node in pools.pool_status(w.mirror(), record).nodes if node.state == "granted"]
    return nodes if len(nodes) == record.spec.allocation.nodes else []


def _codes(w: World, node: str) -> tuple[str, ...]:
    item = w.store.get(keys.observed(node))
    if item is None:
        return ()
    return decode(item.value, NodeObserved).codes or ()


def later(w: World) -> dict[str, float]:
    """Measures a node that comes later, from its registration on."""
    before = set(_nodes(w))
    lost = min(before)
    w.kill_node(lost)
    subprocess.run(
        [sys.executable, "-m", "supervisor.cli", "cordon", lost, "--because", "the benchmark", "--etcd", w.etcd.endpoint],
        check=True, env=w.environment, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    code = observe.code(w.mirror(), "lab")
    assert code is not None
    new = eventually(lambda: {*_nodes(w)} - before, 60, "another node comes")
    began = time.monotonic()
    eventually(lambda: code.version in _codes(w, min(new)), 60, "it has the code")
    return {"seconds": time.monotonic() - began}


def measure(rounds: int, folder: Path) -> dict[str, list[dict[str, float]]]:
    """Runs all trials, in turn."""
    found: dict[str, list[dict[str, float]]] = {}

    def trial(kind: str, measured: Callable[[], dict[str, float]]) -> None:
        seen = {key: round(value, 3) for key, value in measured().items()}
        found.setdefault(kind, []).append(seen)
        print(f"{kind}: {seen}", flush=True)

    with world(folder / "world", nodes=NODES + 1) as w:
        w.supervisor()
        eventually(w.led, 30, "a supervisor leads")
        client.launch(w.store, pools.spec_of(toy_spec("lab", spares=0), NODES, None), w.runs)
        eventually(partial(_nodes, w), 60, "the pool has its nodes")
        for number in range(rounds):
            source, targets = folder / f"code-{number}", [folder / f"copy-{number}-{n}" for n in range(NODES)]
            fill(source, number)
            os.sync()
            trial("rsync_first", partial(rsync, source, targets))
            os.sync()
            trial("sync_first", partial(sync, w, source))
            for seed in range(2):
                edit(source, seed)
                trial("rsync_edit", partial(rsync, source, targets))
                trial("sync_edit", partial(sync, w, source))
            for each in (source, *targets) if number + 1 < rounds else targets:
                shutil.rmtree(each)
        trial("later_node", partial(later, w))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if shutil.which("rsync") is None:
        print("benchmarks.sync: there is no rsync (Debian: apt-get install rsync)", file=sys.stderr)
        return 2
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="ev", dir="/tmp") as folder:
        found = measure(options.rounds, Path(folder))
    median = {kind: statistics.median(each["seconds"] for each in trials) for kind, trials in found.items()}
    result = {
        "what": f"{FILES} files, {BYTES / 1e6:g} MB, to {NODES} nodes, in seconds",
        "command": f"python -m benchmarks.sync --rounds {options.rounds}",
        **{f"{kind}_s": round(value, 3) for kind, value in median.items()},
        "first_ratio_to_rsync": round(median["sync_first"] / median["rsync_first"], 2),
        "edit_ratio_to_rsync": round(median["sync_edit"] / median["rsync_edit"], 2),
        "load_before": round(load, 1),
        "trials": found,
        "commit": commit(),
        "machine": machine(),
    }
    options.results.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({kind: round(value, 2) for kind, value in median.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
