"""One group of the heal benchmark: `python -m benchmarks.heal_rank ours|torchft LAUNCH BYTES RATE`. Prints a JSON line for
each heal and each step. `RATE`: bytes a second at which it gives its state once the file `slow` is in the run's folder, as
over a slow link; 0: as fast as it can.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from supervisor.wire.records import TrainerLaunch, decode

TENSORS = 64
GRADIENT = 1 << 18
"""Elements of the gradient that the groups average: 1 MiB."""
COMPUTE_S = 0.1
PIECE = 1 << 16


def limit(rate: float, slow: Path) -> None:
    """Gives the state at this rate once the file is there."""
    from torchft.checkpointing import http_transport

    save = http_transport._streaming_save

    class Paced:
        def __init__(self, to: Any) -> None:
            self._to = to

        def write(self, data: Any) -> int:
            whole = memoryview(data).cast("B")
            for at in range(0, len(whole), PIECE):
                piece = whole[at : at + PIECE]
                self._to.write(piece)
                if slow.exists():
                    time.sleep(len(piece) / rate)
            return len(whole)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._to, name)

    http_transport._streaming_save = lambda state, to: save(state, Paced(to))


def tell(**about: Any) -> None:
    print(json.dumps({"t": time.time(), **about}), flush=True)


def steps(manager: Any, state: list[torch.Tensor]) -> None:
    """Steps until it is killed."""
    from titan_actor import torchft_names

    def timed(receive: Callable[..., Any]) -> Callable[..., Any]:
        def received(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            found = receive(*args, **kwargs)
            tell(heal_s=time.perf_counter() - began)
            return found

        return received

    torchft_names.wrap_transfers(manager, timed, lambda send: send)
    while True:
        manager.start_quorum()
        time.sleep(COMPUTE_S)
        manager.allreduce(torch.ones(GRADIENT)).wait()
        committed = manager.should_commit()
        if committed:
            state[0].add_(1.0)
        tell(step=manager.current_step(), committed=committed, groups=manager.num_participants())


def plain(launch: TrainerLaunch, save: Callable[[], Any], load: Callable[[Any], None]) -> Any:
    """Returns TorchFT's manager with its own defaults, and the process group timeout of TorchTitan."""
    from torch.distributed import TCPStore
    from torchft import Manager, ProcessGroupGloo

    store = TCPStore("127.0.0.1", launch.master_port, is_master=True, wait_for_workers=False)
    made = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(milliseconds=launch.torchft.process_group_timeout_ms)),
        min_replica_size=launch.min_groups,
        use_async_quorum=False,
        load_state_dict=load,
        state_dict=save,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=launch.master_port,
        lighthouse_addr=f"http://{launch.lighthouse}",
        replica_id=f"heal_{launch.group}",
    )
    made.store_of_the_benchmark = store
    return made


def main(mode: str, path: str, count: str, rate: str) -> None:
    torch.set_num_threads(1)
    state = [torch.zeros(int(count) // TENSORS // 4) for _ in range(TENSORS)]

    def load(saved: list[torch.Tensor]) -> None:
        for mine, theirs in zip(state, saved, strict=True):
            mine.copy_(theirs)

    launch = decode(Path(path).read_bytes(), TrainerLaunch)
    if float(rate):
        limit(float(rate), Path(launch.run_dir) / "slow")
    if mode == "torchft":
        steps(plain(launch, lambda: state, load), state)
    else:
        import everstep_trainer

        with everstep_trainer.start(path) as rank:
            manager = rank.manager(lambda: state, load)
            rank.admit()
            steps(manager, state)


if __name__ == "__main__":
    main(*sys.argv[1:])
