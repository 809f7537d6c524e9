"""Makes the config of any TorchTitan trainer one that trains in replica groups, and tells each change with its reason."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOKENIZER = Path(__file__).parent / "assets" / "tokenizer"

ASSETS = "./tests/assets/"
"""TorchTitan's configs name its repository's test tokenizer and data, which its wheel does not hold."""


@dataclass(frozen=True)
class Change:
    """One field that differs from what the recipe gave. `key`: its path from the top of the config."""

    key: str
    before: Any
    after: Any
    reason: str


def lifted(made: Any) -> tuple[Any, list[Change]]:
    """Returns the config to train, and what was changed for it. Changes `made` in place where its type stays."""
    from torchtitan.experiments.torchft.trainer import FaultTolerantTrainer
    from torchtitan.trainer import Trainer

    changes: list[Change] = []
    if type(made) is FaultTolerantTrainer.Config:
        torchft = made.fault_tolerance
        made = Trainer.Config(**{f.name: getattr(made, f.name) for f in dataclasses.fields(Trainer.Config)})
        if torchft.semi_sync_method is not None:
            reason = "groups average their gradients at every step"
            changes.append(Change("fault_tolerance.semi_sync_method", torchft.semi_sync_method, None, reason))

    def change(key: str, after: Any, reason: str) -> None:
        *path, leaf = key.split(".")
        owner = made
        for name in path:
            owner = getattr(owner, name)
        before = getattr(owner, leaf)
        if before != after:
            setattr(owner, leaf, after)
            changes.append(Change(key, before, after, reason))

    if made.hf_assets_path.startswith(ASSETS) and not Path(made.hf_assets_path).is_dir():
        change("hf_assets_path", str(TOKENIZER), "TorchTitan's test tokenizer is not in its wheel: this is Everstep's")
    if made.checkpoint.enable:
        change("checkpoint.enable", False, "the supervisor writes checkpoints: titan.checkpoint_interval_steps")
    return made, changes
