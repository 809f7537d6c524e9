"""Balances a mixture of experts by the tokens of all groups, and only in steps that are committed.

TorchTitan moves each expert's bias before a step of the optimizer, by the tokens that its own ranks have routed to it.
Groups would then move it apart, and in failed steps too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ReduceOp

from titan_actor.heal import local


class Experts:
    """The layers with experts that this rank holds. Without any, nothing is done."""

    def __init__(self, model_parts: list[Any]) -> None:
        self._layers = [
            module
            for part in model_parts
            for module in part.modules()
            if hasattr(module, "tokens_per_expert_E") and getattr(module, "load_balance_coeff", None) is not None
        ]
        self._shared: list[Any] = []
        """Tokens of each layer's experts in this step, of the ranks of this number in all groups."""

    def share(self, manager: Any) -> None:
        """Sums this step's counts over the groups, and begins the next step's: a failed step must not count there."""
        if not self._layers:
            return
        counts = torch.stack([local(layer.tokens_per_expert_E) for layer in self._layers])
        manager.allreduce(counts, reduce_op=ReduceOp.SUM).wait()
        self._shared = list(counts)
        self.forget()

    def forget(self) -> None:
        """Clears the counts: those that a peer sends along are of its own step."""
        for layer in self._layers:
            local(layer.tokens_per_expert_E).zero_()

    def put_back(self) -> None:
        """Gives TorchTitan the shared counts, once for each step."""
        for layer, counts in zip(self._layers, self._shared, strict=False):
            local(layer.tokens_per_expert_E).copy_(counts)
        self._shared = []
