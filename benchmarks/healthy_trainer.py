"""The debug model, with events of a healthy run that a detector may take for a hang. Evaluation pauses the training, in
every group or in one alone, and some steps take five times as long."""

from __future__ import annotations

import time
from collections import deque
from statistics import median
from typing import Any

from titan_actor import recipes

EVALUATE_EVERY, EVALUATE_S = 40, 6.0
"""Steps between evaluations; seconds that each group then computes without stepping."""
ALONE_EVERY, ALONE_S = 100, 20.0
"""The same in one group after the other, while the others wait for it: longer than an ordinary step may take."""
SLOW_EVERY, SLOW_TIMES = 20, 5
"""Steps between slow steps; the factor by which one takes longer, in one group after the other."""


def debug() -> Any:
    """Returns the shipped llama3-debug. The additional time is spent in forward passes of the model on its last batch.

    A slow step is SLOW_TIMES the median of the last ones: the newest alone may include a wait for another group.
    """
    from titan_actor.replica import ReplicaTrainer

    forward, between = ReplicaTrainer.forward_backward_step, ReplicaTrainer._between

    def forward_backward_step(self: Any, **batch: Any) -> Any:
        if not hasattr(self, "usual"):
            self.usual = deque(maxlen=20)
            self.model_parts[0].register_forward_pre_hook(_keep(self), with_kwargs=True)
        if self.report.progress.step_s > 0:
            self.usual.append(self.report.progress.step_s)
        loss = forward(self, **batch)
        step = self.manager.current_step() + 1
        if step % SLOW_EVERY == 0 and step // SLOW_EVERY % self.launch.groups == self.launch.group:
            _compute(self, (SLOW_TIMES - 1) * median(self.usual))
            self.ledger.note("slow_step", start=time.time(), step=step)
        return loss

    def then(self: Any, wishes: Any) -> None:
        between(self, wishes)
        step = self.manager.current_step()
        if self._committed and step % EVALUATE_EVERY == 0:
            with self.evaluating(step):
                _compute(self, EVALUATE_S)
        if (
            self._committed
            and step % ALONE_EVERY == 0
            and step // ALONE_EVERY % self.launch.groups == self.launch.group
        ):
            began = time.time()
            with self.evaluating(step):
                _compute(self, ALONE_S)
            self.ledger.note("evaluated_alone", start=began, step=step)

    ReplicaTrainer.forward_backward_step = forward_backward_step  # type: ignore[method-assign]
    ReplicaTrainer._between = then  # type: ignore[method-assign]
    return recipes.llama3_debug()


def _keep(trainer: Any) -> Any:
    def keep(_: Any, args: Any, kwargs: Any) -> None:
        trainer.last_batch = (args, kwargs)

    return keep


def _compute(trainer: Any, seconds: float) -> None:
    import torch

    until = time.monotonic() + seconds
    args, kwargs = trainer.last_batch
    with torch.no_grad():
        while time.monotonic() < until:
            trainer.model_parts[0](*args, **kwargs)
