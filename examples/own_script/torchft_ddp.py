"""TorchFT's data-parallel loop, supervised: a small model on CPU, whose groups share their gradients by gloo."""

from __future__ import annotations

import argparse
import hashlib
import time
from typing import Any

import torch
from torch import nn
from torchft import DistributedDataParallel

import everstep_trainer


def batch(group: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each group has data of its own, named by the step: a repeated step reads the same."""
    generator = torch.Generator().manual_seed(1000 * step + group)
    values = torch.randn(8, 16, generator=generator)
    return values, values.sum(dim=1, keepdim=True)


def digest(model: nn.Module) -> str:
    """Equal on all groups after a committed step, or one of them has trained alone."""
    return hashlib.blake2b(
        b"".join(p.detach().numpy().tobytes() for p in model.parameters()), digest_size=8
    ).hexdigest()


def train(rank: everstep_trainer.Rank, step_s: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank.launch.titan.seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

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
    replicated = DistributedDataParallel(manager, model)
    rank.admit()  # from here on the other groups wait for this one
    while rank.goes_on(manager.current_step()):
        manager.start_quorum()  # heals first, if the others are ahead
        with rank.during("data"):
            values, wanted = batch(rank.launch.group, manager.current_step())
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(replicated(values), wanted)
        loss.backward()
        mean = loss.detach().clone()
        manager.allreduce(mean).wait()
        time.sleep(step_s)
        committed = manager.should_commit()  # false if a group was lost in this step
        if committed:
            optimizer.step()
        step = manager.current_step()
        rank.step(step, committed=committed, loss=float(mean))
        if committed and step % 5 == 0:
            rank.digest(step, digest(model))
        if committed and rank.checkpoint_due(step):
            with rank.checkpoint(step) as folder:
                torch.save({"state": state(), "manager": manager.state_dict()}, folder / "state.pt")


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument(
        "--step-s", type=float, default=0.1, help="seconds that a step takes longer than this small model"
    )
    with everstep_trainer.start() as started:
        train(started, options.parse_args().step_s)
