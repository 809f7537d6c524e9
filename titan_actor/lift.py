"""Makes the config of any TorchTitan trainer one that trains in replica groups, and tells each change with its reason."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.wire.titan_names import ASSETS

IN_THE_RUN = "RUN/titan/group-N"
"""Stands for the folder of TorchTitan's own files until the run and the group are known."""

OUTPUTS = "./outputs"
"""TorchTitan's default, which stands for no choice of the recipe's author."""

TOKENIZER = Path(__file__).parent / "assets" / "tokenizer"


@dataclass(frozen=True)
class Change:
    """One field that differs from what the recipe gave. `key`: its path from the top of the config."""

    key: str
    before: Any
    after: Any
    reason: str


def trainer_config(made: Any) -> Any:
    """Returns the config of TorchTitan's ordinary trainer for that of its trainer for TorchFT; any other as it is."""
    from torchtitan.experiments.torchft.trainer import FaultTolerantTrainer
    from torchtitan.trainer import Trainer

    if type(made) is FaultTolerantTrainer.Config:
        made = Trainer.Config(**{f.name: getattr(made, f.name) for f in dataclasses.fields(Trainer.Config)})
    return made


def lift(made: Any, changes: list[Change]) -> None:
    """Changes a config, the run file's settings in it, into one that trains in replica groups."""

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
    made.dump_folder = str(made.dump_folder)  # a recipe may have a Path
    if not Path(made.dump_folder).is_absolute():
        if made.dump_folder != OUTPUTS:
            changes.append(
                Change("dump_folder", made.dump_folder, IN_THE_RUN, "only an absolute path is one on each node")
            )
        made.dump_folder = IN_THE_RUN
    wanted = starts_from_weights(made) or made.checkpoint.last_save_in_hf
    why = "the supervisor writes checkpoints: titan.checkpoint_interval_steps"
    change("checkpoint.enable", wanted, "for the weights at the start or the end" if wanted else why)
    if wanted:
        for name, value in (("last_save_model_only", True), ("async_mode", "disabled"), ("load_only", False)):
            change(f"checkpoint.{name}", value, "TorchTitan's checkpointer writes the weights at the end alone")


def starts_from_weights(config: Any) -> bool:
    """Returns true if a new run begins with the weights of a checkpoint."""
    return bool(config.checkpoint.initial_load_path or config.checkpoint.initial_load_in_hf)
