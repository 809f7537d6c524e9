"""The state that a healing replica takes from a peer, and the hash by which replicas are compared.

TorchTitan's own pair is not used. It caches its optimizer state at start, so the learning rate is stale. Reading the
model's state runs FSDP hooks that reshard in the middle of the peer's forward pass (or deadlock with two ranks). Here
the state is references to this rank's local shards: reading it runs no hook and no collective, and writing it copies in
place. The data loader's place comes from a peer only where it is the same for all (titan_actor/tokens/place.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch


def local(value: Any) -> Any:
    """Returns this rank's shard of a DTensor, by reference; anything else as it is."""
    return value._local_tensor if hasattr(value, "_local_tensor") else value


class HealState:
    """The state pair that TorchFT calls: `save` on a peer (in the quorum's thread), `load` on the healing replica."""

    def __init__(self, trainer: Any, place: Any = None) -> None:
        """`place`: that in the data, if peers share it."""
        self._trainer, self._place = trainer, place
        self._optimizers = list(trainer.optimizers.optimizers)
        self._parameters = [
            [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for optimizer in self._optimizers
        ]
        self._extra: dict[str, Any] = {}
        self.snapshot()

    def snapshot(self) -> None:
        """Takes the small state that a step changes before its commit. Call it before asking for a quorum."""
        self._extra = {
            "lr_schedulers": dict(self._trainer.lr_schedulers.state_dict()),
            "ntokens_seen": int(self._trainer.ntokens_seen),
            "data": self._place.state() if self._place is not None else {},
        }

    def save(self) -> dict[str, Any]:
        """Returns references to all that a peer needs; valid until the next optimizer step."""
        if torch.accelerator.is_available():
            # the copy runs on another stream than the optimizer's last step
            torch.accelerator.synchronize()
        return {
            "parameters": [[local(p.detach()) for p in parameters] for parameters in self._parameters],
            "states": [
                [{name: local(value) for name, value in optimizer.state[p].items()} for p in parameters]
                for optimizer, parameters in zip(self._optimizers, self._parameters, strict=True)
            ],
            "groups": [
                [{name: value for name, value in group.items() if name != "params"} for group in o.param_groups]
                for o in self._optimizers
            ],
            "buffers": [[local(buffer) for buffer in part.buffers()] for part in self._trainer.model_parts],
            **self._extra,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Copies a peer's state into this rank's own tensors."""
        with torch.no_grad():
            self._load(state)

    def _load(self, state: dict[str, Any]) -> None:
        for index, optimizer in enumerate(self._optimizers):
            mine = self._parameters[index]
            for p, peer in zip(mine, state["parameters"][index], strict=True):
                local(p).copy_(peer)
            for p, peer in zip(mine, state["states"][index], strict=True):
                _load_state(optimizer.state[p], peer)
        for part, buffers in zip(self._trainer.model_parts, state["buffers"], strict=True):
            for buffer, peer in zip(part.buffers(), buffers, strict=True):
                local(buffer).copy_(peer)
        self._trainer.lr_schedulers.load_state_dict(state["lr_schedulers"])
        # after the schedule, which sets the learning rate too
        for optimizer, groups in zip(self._optimizers, state["groups"], strict=True):
            for group, peer in zip(optimizer.param_groups, groups, strict=True):
                group.update(peer)
        self._trainer.ntokens_seen = state["ntokens_seen"]
        # a peer of an older program gives none
        if self._place is not None and (place := state.get("data")):
            self._place.take(place)

    def fits(self, state: dict[str, Any]) -> bool:
        """Returns true if a state is of a model and optimizer like this rank's."""
        mine = self.save()
        return all(_shapes(mine[part]) == _shapes(state.get(part)) for part in ("parameters", "states", "buffers"))

    def finite(self) -> bool:
        """Returns true if all of this rank's parameters are finite."""
        return all(bool(torch.isfinite(local(p).detach()).all()) for own in self._parameters for p in own)

    def digest(self) -> str:
        """Returns blake2b of this rank's parameters, optimizer state, learning rates and those buffers that a checkpoint
        holds, as hexadecimal."""
        hashed = hashlib.blake2b(digest_size=16)
        for optimizer, parameters in zip(self._optimizers, self._parameters, strict=True):
            for group in optimizer.param_groups:
                hashed.update(repr(float(group["lr"])).encode())
            for p in parameters:
                hashed.update(_bytes(p.detach()))
                for name, value in sorted(optimizer.state[p].items()):
                    hashed.update(name.encode())
                    hashed.update(_bytes(value) if torch.is_tensor(value) else repr(value).encode())
        for part in self._trainer.model_parts:
            for buffer in _trained(part):
                hashed.update(_bytes(buffer))
        return hashed.hexdigest()


def _shapes(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shapes(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_shapes(inner) for inner in value]
    return tuple(value.shape) if torch.is_tensor(value) else None


def _trained(part: Any) -> Iterator[Any]:
    """Yields the buffers that training changes (the biases of experts): others can be computed, or are of one step."""
    for module in part.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield buffer


def _load_state(mine: dict[str, Any], peer: dict[str, Any]) -> None:
    for name, value in peer.items():
        if torch.is_tensor(value):
            local(mine[name]).copy_(value)
        else:
            mine[name] = value


def _bytes(value: Any) -> Any:
    # as bytes, because numpy has no bfloat16
    return local(value).detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
