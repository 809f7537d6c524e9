"""The debug model for `benchmarks.data_cost`: its groups train a number of steps when it is their run's turn, and wait
otherwise."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from titan_actor import recipes

TURN = "turn"
"""File beside the runs' folders: `NAME STEP`, the run that trains now, and the step at which it waits again."""

WAITS = "waits.{group}"
"""File in a run's folder, with the step at which a group waits for its next turn."""

WARM_UP, LOOK_S = 10, 0.01
"""Steps before the first turn; seconds between two looks for it."""


def ahead() -> Any:
    """Returns the shipped llama3-debug."""
    from titan_actor.replica import ReplicaTrainer

    between = ReplicaTrainer._between

    def then(self: Any, wishes: Any) -> None:
        between(self, wishes)
        step = self.manager.current_step()
        if step >= WARM_UP and step >= _until(self):
            cpu_s = time.process_time()
            with self.evaluating(step):
                _await_turn(self, step)
            self.ledger.note("turn", step=step, ended_cpu_s=cpu_s, begins_cpu_s=time.process_time())

    ReplicaTrainer._between = then  # type: ignore[method-assign]
    return recipes.llama3_debug()


def after_quorum() -> Any:
    """Returns the same; a token store is read once the quorum is there, never ahead."""
    from titan_actor.tokens.place import SharedPlace

    draw = SharedPlace._draw
    SharedPlace._draw = lambda self: replace(draw(self), next=[])  # type: ignore[method-assign]
    return ahead()


def _until(trainer: Any) -> int:
    run_dir = Path(trainer.launch.run_dir)
    try:
        name, step = (run_dir.parent / TURN).read_text().split()
    except FileNotFoundError:
        return 0
    return int(step) if name == trainer.launch.run else 0


def _await_turn(trainer: Any, step: int) -> None:
    waits = Path(trainer.launch.run_dir) / WAITS.format(group=trainer.launch.group)
    scratch = waits.with_suffix(f"{waits.suffix}.new")
    scratch.write_text(f"{step}\n")
    os.replace(scratch, waits)
    while _until(trainer) <= step and not trainer.control.in_haste:
        time.sleep(LOOK_S)
