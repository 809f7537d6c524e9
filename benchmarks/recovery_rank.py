"""One rank of TorchTitan's own trainer with two data-parallel ranks and checkpoints, and nothing of Everstep around it:
`python -m benchmarks.recovery_rank SPEC FOLDER`, under torchrun.

With `--nvrx PORT` NVIDIA's in-process restart is around the training, whose store is at that port: two ranks train, the
others wait as warm spares. Each step is a line of FOLDER/steps.SLOT.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from supervisor.wire.records import RunRecord, decode
from titan_actor import mends

RANKS = 2


def trainer(spec: Path, folder: Path, life: str, after_step: Any = None) -> Any:
    """Returns TorchTitan's trainer, which writes a line after each step. `life` names this start of the rank."""
    from titan_actor import config as configs

    rank = int(os.environ["RANK"])
    titan = decode(spec.read_bytes(), RunRecord).spec.titan
    config = configs.from_spec(titan, RANKS)
    config.dump_folder = str(folder)
    config.parallelism.data_parallel_replicate_degree, config.parallelism.data_parallel_shard_degree = RANKS, 1
    config.checkpoint.enable, config.checkpoint.interval = True, titan.checkpoint_interval_steps
    config.checkpoint.keep_latest_k = titan.checkpoints_kept
    made = type(config)._owner(config)
    step = made.train_step
    lines = (folder / f"steps.{os.environ.get('SLOT', rank)}.jsonl").open("a", buffering=1)

    def timed(*given: Any) -> None:
        step(*given)
        line = {"t": time.time(), "rank": rank, "step": made.step, "life": life, "pid": os.getpid()}
        lines.write(json.dumps(line) + "\n")
        if after_step is not None:
            after_step()

    made.train_step = timed
    return made


def by_nvrx(spec: Path, folder: Path, port: int) -> None:
    """Trains under NVIDIA's in-process restart, with its intervals at a tenth of a second: as quick as it goes."""
    import nvidia_resiliency_ext.inprocess as inprocess
    import torch.distributed as dist

    tenth, minute = timedelta(seconds=0.1), timedelta(seconds=60)

    def train(call: Any = None) -> None:
        rank = int(os.environ["RANK"])
        store = dist.TCPStore(
            "127.0.0.1", port + 1, RANKS, rank == 0, timeout=minute, multi_tenant=True, wait_for_workers=True
        )
        dist.init_process_group("gloo", store=dist.PrefixStore(str(call.iteration), store), rank=rank, world_size=RANKS)
        trainer(spec, folder, f"{os.getpid()}.{call.iteration}", call.ping).train()

    train.__annotations__["call"] = inprocess.CallWrapper  # the class: NVRx reads no text
    inprocess.Wrapper(
        store_kwargs={"host_name": "127.0.0.1", "port": port, "timeout": 2 * minute},
        rank_assignment=inprocess.Compose(
            inprocess.rank_assignment.MaxActiveWorldSize(RANKS), inprocess.rank_assignment.ShiftRanks()
        ),
        monitor_thread_interval=tenth,
        monitor_process_interval=tenth,
        heartbeat_interval=tenth,
        progress_watchdog_interval=tenth,
        last_call_wait=tenth,
        soft_timeout=minute,
        hard_timeout=1.5 * minute,
    )(train)()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("spec", type=Path)
    options.add_argument("folder", type=Path)
    options.add_argument("--nvrx", type=int, default=0, metavar="PORT")
    given = options.parse_args()
    mends.apply()
    import torch
    from torchtitan.tools.logging import init_logger

    torch.set_num_threads(1)
    init_logger()
    if given.nvrx:
        by_nvrx(given.spec, given.folder, given.nvrx)
    else:
        trainer(given.spec, given.folder, str(os.getpid())).train()


if __name__ == "__main__":
    main()
