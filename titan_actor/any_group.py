"""A standby of whichever group comes to its node: a spare has no group until another node is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from titan_actor import between_groups, torchft_names


def why_none(config: Any, of_any_group: bool) -> str:
    """Explains why no standby is built by a config: the construction of its trainer acts outside of its process, or is of
    one group alone; empty: it may be."""
    if config.metrics.enable_wandb:
        return "Weights & Biases would show it beside the rank that trains"
    of_one = {
        "TensorBoard's files": config.metrics.enable_tensorboard,
        "the validator's data": config.validator.enable,
        "TorchTitan's checkpoints": config.checkpoint.enable,
    }
    found = [what for what, there in of_one.items() if there and of_any_group]
    return f"{found[0]} are of one group, and it may become any" if found else ""


def become(trainer: Any, group: int) -> None:
    """Has a trainer that was built for one group be of another, before its manager is made."""
    torchft_names.take_place(trainer.ft_manager, group)
    config = trainer.config
    config.dump_folder = str(Path(config.dump_folder).with_name(f"group-{group}"))
    trainer.dataloader = between_groups.data_of_now(config)
