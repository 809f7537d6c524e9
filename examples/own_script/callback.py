"""A trainer with callbacks, as Hugging Face's, supervised by one callback and an optimizer that asks for the quorum.

`Trainer` stands for transformers.Trainer, so that this runs without it: the callback's methods have the names and the
arguments that transformers.TrainerCallback has.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torchft import DistributedDataParallel
from torchft.optim import OptimizerWrapper

import everstep_trainer


@dataclass
class State:
    global_step: int = 0
    loss: float = 0.0


@dataclass
class Flow:
    should_training_stop: bool = False


class Trainer:
    """Steps until a callback stops it, and knows nothing of groups."""

    def __init__(self, model: nn.Module, optimizer: Any, callbacks: list[Any], step_s: float) -> None:
        self.model, self.optimizer, self.callbacks, self.step_s = model, optimizer, callbacks, step_s
        self.state, self.control = State(), Flow()

    def train(self) -> None:
        self._call("on_train_begin")
        while not self.control.should_training_stop:
            self._call("on_step_begin")
            values = torch.randn(8, 16)
            loss = nn.functional.mse_loss(self.model(values), values.sum(dim=1, keepdim=True))
            loss.backward()
            time.sleep(self.step_s)
            self.optimizer.step()
            self.model.zero_grad()
            self.state.global_step += 1
            self.state.loss = float(loss)
            self._call("on_step_end")

    def _call(self, name: str) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(None, self.state, self.control)


class Supervised:
    """The callback: admits the rank, asks for a quorum before each step, and reports each step after it."""

    def __init__(self, rank: everstep_trainer.Rank, manager: Any, save: Any) -> None:
        self.rank, self.manager, self.save = rank, manager, save
        self.before = 0

    def digest(self) -> str:
        """Equal on all groups after a committed step."""
        weights = b"".join(value.numpy().tobytes() for value in self.save()["model"].values())
        return hashlib.blake2b(weights, digest_size=8).hexdigest()

    def on_train_begin(self, args: Any, state: State, control: Flow, **more: Any) -> None:
        self.rank.admit()
        state.global_step = self.manager.current_step()
        control.should_training_stop = not self.rank.goes_on(state.global_step)

    def on_step_begin(self, args: Any, state: State, control: Flow, **more: Any) -> None:
        self.manager.start_quorum()
        self.before = self.manager.current_step()

    def on_step_end(self, args: Any, state: State, control: Flow, **more: Any) -> None:
        # the trainer counts attempts; the manager counts committed steps, also those healed from the others
        step = state.global_step = self.manager.current_step()
        committed = step > self.before
        self.rank.step(step, committed=committed, own_loss=state.loss)
        if committed and step % 5 == 0:
            self.rank.digest(step, self.digest())
        if committed and self.rank.checkpoint_due(step):
            with self.rank.checkpoint(step) as folder:
                torch.save({"state": self.save(), "manager": self.manager.state_dict()}, folder / "state.pt")
        control.should_training_stop = not self.rank.goes_on(step)


def train(rank: everstep_trainer.Rank, step_s: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank.launch.titan.seed)
    model, data_seed = nn.Linear(16, 1), 1000 * rank.launch.generation + rank.launch.group
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(saved: dict[str, Any]) -> None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    manager = rank.manager(state, load)
    if rank.resumes_from is not None:
        saved = torch.load(rank.resumes_from / "state.pt", weights_only=True)
        load(saved["state"])
        manager.load_state_dict(saved["manager"])
    torch.manual_seed(data_seed)
    # the wrapped optimizer steps only if the step is committed
    wrapped = OptimizerWrapper(manager, optimizer)
    Trainer(DistributedDataParallel(manager, model), wrapped, [Supervised(rank, manager, state)], step_s).train()


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument(
        "--step-s", type=float, default=0.1, help="seconds that a step takes longer than this small model"
    )
    with everstep_trainer.start() as started:
        train(started, options.parse_args().step_s)
