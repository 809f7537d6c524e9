"""A standby of whichever group comes to its node: a spare has no group until another node is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from titan_actor import between_groups, kept_state, memory, torchft_names
from titan_actor.process import RankProcess


def why_none(config: Any, rank: RankProcess) -> str:
    """Explains why no standby is built by a config: the construction of its trainer acts outside of its process, or is of
    one group alone; empty: it may be."""
    if config.metrics.enable_wandb:
        return "Weights & Biases would show it beside the rank that trains"
    if not rank.of_any_group:
        return ""
    owner, launch = type(config)._owner, rank.launch
    if not owner.__module__.startswith("torchtitan."):
        return f"{owner.__name__} is a Trainer of your own, which may take more from its group"
    of_one = {
        "TensorBoard's files": config.metrics.enable_tensorboard,
        "the validator's data": config.validator.enable,
        "TorchTitan's checkpoints": config.checkpoint.enable,
    }
    if found := [what for what, there in of_one.items() if there]:
        return f"{found[0]} are of one group, and it may become any"
    try:
        needs = kept_state.LEAST_FREE * launch.local_world_size * memory.least_bytes(config, launch.world_size)
    except memory.UNKNOWN:
        needs = 0.0
    return f"it needs {needs / 1e9:.1f} GB of free memory" if needs > kept_state.free_bytes() else ""


def become(trainer: Any, group: int) -> None:
    """Has a trainer that was built for one group be of another, before its manager is made."""
    torchft_names.take_place(trainer.ft_manager, group)
    config = trainer.config
    config.dump_folder = str(Path(config.dump_folder).with_name(f"group-{group}"))
    trainer.dataloader = between_groups.data_of_now(config)
