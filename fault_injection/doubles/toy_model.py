"""A model of a few numbers, trained as a real one is. The ranks of a group share each gradient by a collective of their
own, the groups theirs by TorchFT's. Loss and weights are checked before a commit, and checkpoints are written. The toy
reports each activity, and suffers the causes that it is ordered to (fault_injection.in_rank.causes).

`toy.mode = "model"`; toy.step_s: the least time of a step; `titan.checkpoint_interval_steps` as in a real run;
toy.quiet: no log (TorchFT's manager writes one at every step); toy.store: a folder that all groups write their
checkpoints to, and wait for while another process has its file `lock` locked. It needs torch: warm processes
(TOY_TORCHFT=1) make its starts short.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fault_injection.in_rank import causes
from titan_actor import torchft_names
from titan_actor.activity import ActivityFile
from titan_actor.ledger import write_error_file

if TYPE_CHECKING:
    from fault_injection.doubles.toy_trainer import Toy

SIZE = 64
CHECKPOINT_BYTES = 1 << 16
CHECKPOINT_S = 0.5
"""The time of a larger model's checkpoint: an agent that looks five times a second sees it."""
GROUP_TIMEOUT = timedelta(seconds=60)
"""The timeout of the group's own collectives, as the shipped recipes' `comm.train_timeout_seconds`."""


ANYWHERE = (
    causes.SEGFAULT, causes.ABORT, causes.EXIT, causes.RAISE, causes.HOG, causes.WRITE, causes.HOLD_GIL,
    causes.HOLD_GIL_ASIDE, causes.LOOP,
)  # fmt: skip
"""Causes that may hit it while it computes."""


class NotFinite(FloatingPointError):
    """Stands for titan_actor.replica's exception of this name."""

    def __init__(self, text: str, whose: str) -> None:
        super().__init__(text)
        self.whose = whose


class Model:
    """One rank's part of the model."""

    def __init__(self, toy: Toy) -> None:
        import torch
        import torch.distributed as dist
        from torchft import Manager, ProcessGroupGloo

        torch.set_num_threads(1)
        launch = self.launch = toy.launch
        self.toy = toy
        self.orders = causes.Orders(launch.run_dir, launch.group, launch.generation, launch.rank)
        self.activity = ActivityFile(launch.rank_dir)
        self.weight = torch.ones(SIZE)
        self.healed = False
        self.leaving = False
        """The ranks have agreed that this step is the last: one that left alone would leave the others in a
        collective."""
        if launch.node_address != "127.0.0.1":
            # a namespace that stands for a machine, but has this one's name
            from titan_actor import address

            address.use(launch.node_address)
            torchft_names.heal_at_node()
        store = dist.TCPStore(
            launch.master_address, launch.master_port, is_master=launch.rank == 0, wait_for_workers=False,
            timeout=GROUP_TIMEOUT,
        )  # fmt: skip
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("group", store), rank=launch.rank, world_size=launch.world_size,
            timeout=GROUP_TIMEOUT,
        )  # fmt: skip
        limit = timedelta(milliseconds=launch.torchft.process_group_timeout_ms)
        self.patience = timedelta(milliseconds=launch.torchft.quorum_timeout_ms)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=limit),
            load_state_dict=self._load,
            state_dict=lambda: {"weight": self.weight.clone()},
            min_replica_size=launch.min_groups,
            use_async_quorum=False,
            timeout=limit,
            quorum_timeout=self.patience,
            rank=launch.rank,
            world_size=launch.world_size,
            store_addr=launch.master_address,
            store_port=store.port,
            lighthouse_addr=f"http://{launch.lighthouse}",
            replica_id=f"toy_{launch.group}",
            hostname=launch.node_address,
            quorum_retries=launch.torchft.quorum_retries,
        )
        self.replica_id = torchft_names.replica_id(self.manager)

    def _load(self, state: dict[str, Any]) -> None:
        self.weight.copy_(state["weight"])
        self.healed = True

    def step(self) -> tuple[bool, float]:
        """Makes one attempt at a step. Returns if it was committed, and how long its computing took."""
        import torch
        import torch.distributed as dist
        from torch.distributed import ReduceOp

        manager, number = self.manager, self.manager.current_step() + 1
        with self.activity.during("data"):
            self._suffer(number, causes.BLOCK_DATA, causes.RAISE_DATA)
            batch = torch.rand(SIZE)
        first = self.toy.progress.commits == 0
        if first:
            _as_on_a_full_disk(partial(self.toy.say, phase="quorum"))
        with self.activity.during("quorum"):
            manager.start_quorum()
        if first:
            _as_on_a_full_disk(partial(self.toy.say, phase="step"))
        number = manager.current_step() + 1
        began = time.perf_counter()
        with self.activity.during("compute"):
            self._suffer(number, *ANYWHERE)
            if self.orders.due(causes.PLANT_NAN, step=number):
                self.weight[0] = math.nan
            if slow := self.orders.due(causes.SLOW, step=number):
                time.sleep(slow.seconds)
            time.sleep(self.toy.options.get("step_s", 0.05))
            loss = ((self.weight * batch) ** 2).mean()
            gradient = 2 * self.weight * batch**2 / SIZE
            computed = time.perf_counter() - began
            shared = torch.cat((gradient, torch.tensor([float(self.toy.stop.is_set()), loss])))
            dist.all_reduce(shared)
            gradient, self.leaving = shared[:-2], bool(shared[-2])
            self.groups_finite = bool(torch.isfinite(shared[-1]))
        with self.activity.during("collective"):
            manager.allreduce(gradient).wait()
            both = torch.stack((loss, torch.ones(())))
            manager.allreduce(both, reduce_op=ReduceOp.SUM).wait()
        mean = both[0] / both[1].clamp(min=1.0)
        with self.activity.during("compute"):
            # the step's last one: where another follows, a collective library takes that for the one that was left out
            if not self.orders.due(causes.SKIP_COLLECTIVE, step=number):
                dist.all_reduce(mean)
        if not math.isfinite(float(mean)) and manager.errored() is None:
            text = f"loss is {float(mean)} at step {number}"
            raise NotFinite(
                text, "own" if not math.isfinite(float(loss)) else "peers" if self.groups_finite else "group"
            )
        with self.activity.during("commit"):
            committed = bool(manager.should_commit(timeout=self.patience))
        if committed:
            self.weight -= 0.01 * gradient
        return committed, computed

    def checkpoint(self) -> None:
        """Writes a checkpoint if this is rank 0."""
        with self.activity.during("checkpoint"):
            self._suffer(self.manager.current_step(), causes.BLOCK_CHECKPOINT)
            with self._storage() as folder, (folder / f"checkpoint-{self.launch.group}").open("wb") as file:
                file.write(b"\0" * CHECKPOINT_BYTES)
                file.flush()
                os.fsync(file.fileno())
            time.sleep(CHECKPOINT_S)

    @contextlib.contextmanager
    def _storage(self) -> Iterator[Path]:
        """Yields the folder of this node's own disk, or of the store that all groups share."""
        if "store" not in self.toy.options:
            yield Path(self.launch.rank_dir)
            return
        shared = Path(self.toy.options["store"])
        with (shared / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield shared

    def _suffer(self, step: int, *names: str) -> None:
        if wanted := self.orders.due(*names, step=step):
            causes.suffer(wanted, Path(self.launch.rank_dir))


def train(toy: Toy) -> int:
    """Trains until it is drained, or fails."""
    faulthandler.enable()
    if toy.options.get("quiet"):
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    model = Model(toy)
    toy.say(phase="built", replica_id=model.replica_id)
    if toy.launch.rank == 0:
        toy.announce(model.replica_id)
    try:
        _steps(toy, model)
    except Exception as error:  # noqa: BLE001 - the top of the process: whatever it is, it is reported
        return _fail(toy, error)
    toy.say(phase="finished")
    return 0


def _steps(toy: Toy, model: Model) -> None:
    manager, interval = model.manager, toy.launch.titan.checkpoint_interval_steps
    while not model.leaving:
        start = time.time()
        committed, computed = model.step()
        number = manager.current_step()
        about = {"participants": manager.num_participants(), "participating_rank": manager.participating_rank()}
        about |= {"quorum_id": torchft_names.quorum_id(manager), "healed": model.healed}
        took = {"step_s": time.time() - start, "compute_s": computed}
        model.healed = False
        _as_on_a_full_disk(partial(toy.stepped, start, number, committed, took=took, **about))
        if committed and number % interval == 0 and toy.launch.rank == 0:
            model.checkpoint()


def _as_on_a_full_disk(write: Callable[[], None]) -> None:
    """Loses a line or a report that finds no room."""
    try:
        write()
    except OSError as error:
        with contextlib.suppress(OSError):  # its log may be on that disk
            print(f"not written: {error}", flush=True)


def _fail(toy: Toy, error: Exception) -> int:
    text = f"{type(error).__name__}: {error}"
    _as_on_a_full_disk(lambda: traceback.print_exception(error, file=sys.stderr))
    _as_on_a_full_disk(lambda: write_error_file(toy.folder, error, "".join(traceback.format_exception(error))))
    _as_on_a_full_disk(lambda: toy.say(phase="failed", error=text, numerics=getattr(error, "whose", "")))
    return 1
