"""A recipe whose trainer hangs, or goes wrong, when a file orders it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.real_trainers.titan.recipes import REST_S
from titan_actor import recipes

FOR_EVER_S = 3600
PACE_S = 1.2
"""Seconds from a paced step's forward pass to the next, including the machine's own time for a step of 0.1 s."""
SLOW_TIMES = 5


def small() -> Any:
    """The small debug model."""
    from titan_actor.replica import ReplicaTrainer

    batches, forward = ReplicaTrainer.batch_generator, ReplicaTrainer.forward_backward_step

    def batch_generator(self: Any, iterable: Any) -> Iterator[Any]:
        for batch in batches(self, iterable):
            if _wanted(self) == "data":
                time.sleep(FOR_EVER_S)
            yield batch

    def forward_backward_step(self: Any, **batch: Any) -> Any:
        wanted = _wanted(self)
        time.sleep(REST_S)
        match wanted:
            case "gil":
                ctypes.PyDLL(None).sleep(FOR_EVER_S)  # C code that does not give the interpreter's lock away
            case "compute":
                while True:
                    pass
            case "breakpoint":
                secret = 6 * 7
                breakpoint()
                del secret
            case "paced":
                _take(self, PACE_S)
            case "slow":
                _take(self, SLOW_TIMES * PACE_S)
            case "nan":
                _spoil(self)
            case "nan-gradient":
                # the loss stays finite, and so do the weights until a step is committed
                last = self.model_parts[0].norm
                last.register_full_backward_pre_hook(lambda _, of: tuple(g * float("nan") for g in of))
        loss = forward(self, **batch)
        due = (self.manager.current_step() + 1) % self.launch.titan.checkpoint_interval_steps == 0
        if wanted == "nan-unseen" or (wanted == "nan-saved" and due):
            _spoil(self)  # the loss of this step was finite
        if wanted == "spike":
            self._loss = self._loss + 100.0  # as if this group alone had read something odd
        return loss

    ReplicaTrainer.batch_generator = batch_generator
    ReplicaTrainer.forward_backward_step = forward_backward_step
    return recipes.llama3_debug_small()


def want(
    run_dir: str | Path, group: int, generation: int, how: str, from_step: int = 0, rank: int | None = None
) -> None:
    """Orders this from the next forward pass on, of all ranks of the group or of one. Two orders reach two groups in
    different steps, unless `from_step` is one that neither has begun."""
    folder = Path(run_dir) / "faults"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "new").write_text(f"{from_step} {'' if rank is None else rank} {how}")
    (folder / "new").rename(folder / f"{group}.{generation}")


def _wanted(trainer: Any) -> str:
    launch = trainer.launch
    path = Path(launch.run_dir) / "faults" / f"{launch.group}.{launch.generation}"
    if not path.exists():
        return ""
    from_step, rank, how = path.read_text().split(" ", 2)
    due = trainer.manager.current_step() + 1 >= int(from_step) and rank in ("", str(launch.rank))
    return how if due else ""


def _take(trainer: Any, seconds: float) -> None:
    now = time.monotonic()
    time.sleep(max(0.0, getattr(trainer, "paced_at", now) + seconds - now))
    trainer.paced_at = time.monotonic()


def _spoil(trainer: Any) -> None:
    from titan_actor.heal import local

    for parameter in trainer.model_parts[0].parameters():
        local(parameter.data).view(-1)[0] = float("nan")  # a rank's own part, which no other rank has to write too
