"""Makes a trainer follow orders (causes.py), each at the right place of its step.

Mixed into a ReplicaTrainer, whose methods these are. It needs no torch, for it only passes tensors on."""

from __future__ import annotations

import math
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fault_injection.in_rank import causes
from fault_injection.in_rank.causes import Orders

COMPUTING = (causes.SEGFAULT, causes.ABORT, causes.EXIT, causes.RAISE, causes.HOG, causes.HOLD_GIL, causes.LOOP)
LOADING = (causes.BLOCK_DATA, causes.RAISE_DATA)

BIT = 12
"""A bit in the middle of a 32-bit float's mantissa: it changes the value by under a thousandth, shown by no loss."""


class Obeying:
    """Precedes ReplicaTrainer in the bases."""

    launch: Any
    manager: Any
    model_parts: Any
    activity: Any
    ledger: Any
    in_last_round: bool
    _orders: Orders | None = None
    _flipped = False
    _forward_of = 0

    def before_heal(self) -> None:
        """Called in the quorum's thread when a peer asks for the state."""
        if held := self.orders.due(causes.HOLD_HEAL, step=self._step()):
            time.sleep(held.seconds)

    def forward_backward_step(self, **batch: Any) -> Any:
        step = self._step()
        self._suffer(step, *COMPUTING)
        if self.orders.due(causes.PLANT_NAN, step=step):
            self._parameter().view(-1)[0] = math.nan
        if step != self._forward_of:  # before all of its batches, as its twin does
            self._forward_of = step
            self._flip(step)
        if slow := self.orders.due(causes.SLOW, step=step):
            time.sleep(slow.seconds)
        loss = super().forward_backward_step(**batch)  # type: ignore[misc]
        if self.in_last_round and self.orders.due(causes.SKIP_COLLECTIVE, step=step):
            _leave_out_the_norm(sys.modules["torch.distributed._functional_collectives"])  # only a trainer has torch
        return loss

    def _flip(self, step: int) -> None:
        """Flips one bit, once, and records it for the twin."""
        if self.orders.due(causes.FLIP_BIT, step=step) and not self._flipped:
            self._flipped = True
            parameter = self._parameter().view(-1)
            (bits,) = struct.unpack("=I", struct.pack("=f", float(parameter[0])))
            (parameter[0],) = struct.unpack("=f", struct.pack("=I", bits ^ 1 << BIT))
            last = len(list(self.model_parts[0].parameters())) - 1
            self.ledger.note("flipped", step=step, parameter=last, element=0, bit=BIT)

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        counted: Iterator[Any] = super()._counted(self._loaded(batches))  # type: ignore[misc]
        return counted

    def _loaded(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            self._suffer(self._step(), *LOADING)
            yield next(batches)

    def _checkpoint(self, step: int, last: bool = False) -> None:
        with self.activity.during("checkpoint"):
            self._suffer(step, causes.BLOCK_CHECKPOINT)
        super()._checkpoint(step, last)  # type: ignore[misc]

    @property
    def orders(self) -> Orders:
        if self._orders is None:
            launch = self.launch
            self._orders = Orders(launch.run_dir, launch.group, launch.generation, launch.rank)
        return self._orders

    def _step(self) -> int:
        return int(self.manager.current_step()) + 1

    def _parameter(self) -> Any:
        """Returns this rank's part of the last parameter, on which every loss depends. The first is an embedding, of
        which only some rows are used."""
        data = list(self.model_parts[0].parameters())[-1].data
        return data.to_local() if hasattr(data, "to_local") else data

    def _suffer(self, step: int, *names: str) -> None:
        if wanted := self.orders.due(*names, step=step):
            causes.suffer(wanted, Path(self.launch.rank_dir))


def _leave_out_the_norm(collectives: Any) -> None:
    """Makes this rank miss the next sum over the ranks of this group that Python requests: after a step's computing,
    that of its gradient's norm. The others wait in it, or take this rank's next one for it. `collectives`:
    torch.distributed._functional_collectives."""
    together = collectives.all_reduce

    def alone(tensor: Any, *_: Any, **__: Any) -> Any:
        collectives.all_reduce = together
        return tensor

    collectives.all_reduce = alone
