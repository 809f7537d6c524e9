"""Measures how long training stands still for a checkpoint, by the size of the state: `stall_s` is the time between two
steps in which the state is copied, `written_s` that until it is on disk. In turn, on one machine:

- `ours`: the state is copied in memory, and a thread writes it while the next steps train;
- `synchronous`: the same trainer, with PyTorch's `dcp.save` in the place of its `async_save`.

One group of TorchTitan's Llama 3 debug model, with its two layers repeated until parameters and AdamW's two moments have
that size, without a supervisor. The first checkpoint of a process takes the memory for its copy, too: it is apart
(`first_stall_s`).

`python -m benchmarks.checkpoint [--rounds 2] [--sizes 100 500 2000]` writes benchmarks/results/checkpoint.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.decide import machine
from benchmarks.heal import lighthouse
from fault_injection.sim.lane import commit
from supervisor.core.model.spec import TitanSpec
from supervisor.wire.address import free_port
from supervisor.wire.records import TrainerLaunch, encode

RESULTS = Path(__file__).parent / "results" / "checkpoint.json"
SIZES = (100, 500, 2000)
EVERY, CHECKPOINTS = 3, 4
"""Steps between two checkpoints, and how many there are."""
MODE = "BENCHMARK_CHECKPOINT"
VALUES = 3
"""Numbers of four bytes that the state has for each parameter."""
WITHIN_S = 900.0


def config(mb: int) -> Any:
    """Returns the config of a model whose state has that many MB, in the mode of this process."""
    from titan_actor import recipes

    made = recipes.llama3_debug_small()
    layers = made.model_spec.model.layers
    parameters = 2_753_792  # of two layers, as TorchTitan logs them
    each = 704_512  # of which a layer has, by TorchTitan's log of three
    made.model_spec.model.layers = [*layers] * max(1, round((mb * 1e6 / 4 / VALUES - parameters + 2 * each) / each / 2))
    if os.environ.get(MODE) == "synchronous":
        _save_at_once()
    return made


for _mb in SIZES:
    globals()[f"of_{_mb}_mb"] = partial(config, _mb)


def _save_at_once() -> None:
    import torch.distributed.checkpoint as dcp

    def save(*args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(dcp.save(*args, **kwargs))
        return done

    dcp.async_save = save


def trial(mode: str, mb: int) -> dict[str, Any]:
    """Trains once, and returns what its checkpoints took."""
    with tempfile.TemporaryDirectory(prefix="ev", dir="/tmp") as top, lighthouse() as at:
        folder = Path(top) / "ranks" / "checkpoint.0.1.0"
        folder.mkdir(parents=True)
        titan = TitanSpec(
            recipe=f"benchmarks.checkpoint:of_{mb}_mb", steps=EVERY * CHECKPOINTS + 1, checkpoint_interval_steps=EVERY, checkpoints_kept=1
        )  # fmt: skip
        launch = TrainerLaunch(
            run="checkpoint", group=0, generation=1, rank=0, world_size=1, groups=1, min_groups=1, node="n1",
            node_address="127.0.0.1", master_port=free_port(), lighthouse=at, run_dir=f"{top}/run", rank_dir=str(folder),
            titan=titan, writer=True,
        )  # fmt: skip
        (folder / "launch.json").write_bytes(encode(launch))
        with (folder / "output.log").open("wb") as log:
            ran = subprocess.run(
                [sys.executable, "-m", "titan_actor.trainer", str(folder / "launch.json")],
                stdout=log, stderr=log, timeout=WITHIN_S, check=False, env={**os.environ, "SUPERVISOR_NO_GATE": "1", MODE: mode},
            )  # fmt: skip
        if ran.returncode:
            raise RuntimeError((folder / "output.log").read_text()[-3000:])
        lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
        ends = [line for line in lines if line["event"] == "checkpoint_end"]
        size = sum(file.stat().st_size for file in Path(ends[-1]["path"]).iterdir())
    stalls = [line["t"] - line["start"] for line in lines if line["event"] == "checkpoint_start"][:CHECKPOINTS]
    steps = [line["t"] - line["start"] for line in lines if line["event"] == "step"]
    return {
        "bytes": size,
        "first_stall_s": round(stalls[0], 4),
        "stall_s": [round(stall, 4) for stall in stalls[1:]],
        "written_s": [round(line["t"] - line["start"], 3) for line in ends[1:CHECKPOINTS]],
        "usual_step_s": round(statistics.median(steps), 4),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--sizes", type=int, nargs="+", choices=SIZES, default=list(SIZES), metavar="MB")
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    load_before, found = os.getloadavg()[0], dict[str, dict[str, list[dict[str, Any]]]]()
    for number in range(given.rounds):
        for mb in given.sizes:
            for mode in ("ours", "synchronous"):
                one = trial(mode, mb)
                found.setdefault(f"{mb}_mb", {}).setdefault(mode, []).append(one)
                print(number + 1, mb, "MB", mode, one, flush=True)
    median = {
        size: {mode: round(statistics.median(s for one in of for s in one["stall_s"]), 4) for mode, of in modes.items()}
        for size, modes in found.items()
    }
    made = {
        "about": "python -m benchmarks.checkpoint", "at": time.strftime("%Y-%m-%d"), "commit": commit(),
        "machine": machine(), "load_before": round(load_before, 1), "trials": found, "median_stall_s": median,
    }  # fmt: skip
    given.out.write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps(median, indent=1))


if __name__ == "__main__":
    main()
