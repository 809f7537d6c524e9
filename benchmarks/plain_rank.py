"""One rank of the job that Everstep is measured against: the same trainer, started by `srun` with a plain TorchFT
lighthouse and no supervisor. `srun python -m benchmarks.plain_rank SPEC RUN_DIR LIGHTHOUSE`.

Task N of the job is group N. It resumes from the newest complete checkpoint below RUN_DIR.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from supervisor.wire.address import free_port, towards
from supervisor.wire.checkpoints import listed
from supervisor.wire.records import RunRecord, TrainerLaunch, decode, encode


def main(spec_file: str, run_dir: str, lighthouse: str) -> None:
    record = decode(Path(spec_file).read_bytes(), RunRecord)
    spec, group = record.spec, int(os.environ["SLURM_PROCID"])
    # counts the starts of the job, because a requeued one has the same number
    generation = len(list(Path(run_dir).glob(f"ranks/{group}.*"))) + 1
    folder = Path(run_dir) / "ranks" / f"{group}.{generation}"
    folder.mkdir(parents=True)
    marks = [mark for _, _, mark in listed(run_dir) if mark is not None]
    address = towards(lighthouse)
    launch = TrainerLaunch(
        run=spec.name,
        group=group,
        generation=generation,
        rank=0,
        world_size=1,
        groups=spec.groups.count,
        min_groups=spec.groups.min_groups,
        node=os.environ["SLURMD_NODENAME"],
        node_address=address,
        master_port=free_port(address),
        lighthouse=lighthouse,
        run_dir=run_dir,
        rank_dir=str(folder),
        titan=spec.titan,
        torchft=spec.torchft,
        checkpoint=marks[0] if marks else None,
        writer=group == 0,
    )
    file = folder / "launch.json"
    file.write_bytes(encode(launch))
    (folder / "begun").write_text(f"{time.time()}\n")
    os.environ["SUPERVISOR_NO_GATE"] = "1"
    os.execv(sys.executable, [sys.executable, "-m", "titan_actor.trainer", str(file)])


if __name__ == "__main__":
    main(*sys.argv[1:])
