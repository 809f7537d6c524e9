"""Runs a first forward and backward pass that no other group waits for.

Compiled models, and on a GPU all of TorchTitan's (flex attention), compile in their first pass, for seconds to minutes.
In a step of the quorum all other groups would wait for that, so it runs before the group reports that it is built. A
pipeline's first pass differs from the later ones too. The pass discards its gradients and leaves the parameters alone.
Afterwards its counts and the random generators are restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torchtitan.trainer import Trainer

from titan_actor import mends, torchft_names

PASSES = 4
"""Most passes, until one compiles nothing. A first pass may leave something behind (a new attribute) that makes Dynamo
compile a part of the model again in the second."""


def needed(config: Any) -> bool:
    """Returns true if the first pass does more than the others: it compiles, or a pipeline's stages ask each other for
    their shapes. For that the last stage computes a loss of nothing, and a loss in chunks runs backward in it: its
    gradient would be summed with groups that train, and wait for no such sum."""
    return bool(config.compile.enable) or config.parallelism.pipeline_parallel_degree > 1 or mends.on_gpu()


def rehearse(trainer: Any) -> None:
    """Rehearses on all ranks of a group at once, because they sum among themselves. Raises what the first step would:
    after a pass that broke off there can be no other."""
    seen, compiled_s = trainer.ntokens_seen, 0.0
    # a mixture of experts counts each expert's tokens in them, and balances by that
    buffers = [(buffer, buffer.detach().clone()) for part in trainer.model_parts for buffer in part.buffers()]
    with _alone(trainer.manager), _generators_kept():
        for _ in range(PASSES):
            # TorchTitan's own method, without what is wrapped around it for a step
            Trainer.forward_backward_step(trainer, **_batch(trainer))
            _forget_gradients(trainer)
            before_s, compiled_s = compiled_s, trainer.seconds.total()["compile"]
            # all ranks must decide alike, and stages of a pipeline compile different things
            if not trainer.agreement.any(compiled_s > before_s):
                break
    trainer.ntokens_seen = seen
    for buffer, value in buffers:
        buffer.copy_(value)


def _forget_gradients(trainer: Any) -> None:
    """Clears the gradients, but not by the optimizer, which would ask for a quorum."""
    for part in trainer.model_parts:
        part.zero_grad(set_to_none=True)


def _batch(trainer: Any) -> dict[str, Any]:
    """Returns a batch of the training's shape, in the form of TorchTitan's text data sets: one repeated token."""
    training, parallelism = trainer.config.training, trainer.config.parallelism
    parts = trainer.num_pipeline_parallel_microbatches
    rows = (
        parallelism.pipeline_parallel_microbatch_size if trainer.parallel_dims.pp_enabled else training.local_batch_size
    )
    tokens = torch.zeros(rows, training.seq_len, dtype=torch.int64, device=trainer.device)
    positions = torch.arange(training.seq_len, device=trainer.device).expand(rows, -1).contiguous()
    inputs = [{"input": tokens.clone(), "positions": positions.clone()} for _ in range(parts)]
    labels = [tokens.clone() for _ in range(parts)]
    alone = not trainer.parallel_dims.pp_enabled
    return {
        "input_dict": inputs[0] if alone else inputs,
        "labels": labels[0] if alone else labels,
        "global_valid_tokens": torch.tensor(tokens.numel() * parts, device=trainer.device),
    }


@contextmanager
def _alone(manager: Any) -> Iterator[None]:
    """Leaves sums over the groups unchanged inside the block: there is no quorum yet."""
    allreduce = manager.allreduce
    manager.allreduce = lambda tensor, *args, **kwargs: torchft_names.done(tensor)
    try:
        yield
    finally:
        manager.allreduce = allreduce


@contextmanager
def _generators_kept() -> Iterator[None]:
    devices = [torch.cuda.current_device()] if mends.on_gpu() else []
    with torch.random.fork_rng(devices=devices):
        yield
