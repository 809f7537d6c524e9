"""Names that TorchTitan's settings had before, and keys of the run file that take the place of some."""

from __future__ import annotations

import re
from collections.abc import Mapping

ASSETS = "./tests/assets/"
"""TorchTitan's configs name its repository's test tokenizer and data, which its wheel does not hold."""

OUR_KEYS: Mapping[str, str] = {
    "training.steps": "titan.steps",
    "debug.seed": "titan.seed",
    "training.seed": "titan.seed",
    "checkpoint.interval": "titan.checkpoint_interval_steps",
    "checkpoint.keep_latest_k": "titan.checkpoints_kept",
    "fault_tolerance.group_size": "groups.count",
    "fault_tolerance.min_replica_size": "groups.min_groups",
    "fault_tolerance.process_group_timeout_ms": "torchft.process_group_timeout_ms",
}
"""TorchTitan's name -> the run file's key."""

MOVED: Mapping[str, str] = {
    "activation_checkpoint.mode": "activation_checkpoint",
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns": "activation_checkpoint.force_recompute_mm_shapes_by_fqns",
    "experimental.enable_async_tensor_parallel": "compile.enable_async_tensor_parallel",
    "parallelism.enable_async_tensor_parallel": "compile.enable_async_tensor_parallel",
    "job.dump_folder": "dump_folder",
    "model.hf_assets_path": "hf_assets_path",
    "model.tokenizer_path": "hf_assets_path",
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.dataset": "dataloader.dataset",
    "training.deterministic": "debug.deterministic",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "lr_scheduler.lr_min": "lr_scheduler.min_lr_factor",
    "optimizer.name": "optimizer.param_groups.0.optimizer_name",
    "validation.enable": "validator.enable",
    "validation.enabled": "validator.enable",
    "validation.freq": "validator.freq",
    "validation.steps": "validator.steps",
    "validation.dataset": "validator.dataloader.dataset",
    "validation.dataset_path": "validator.dataloader.dataset_path",
}
"""A name of 2025 -> TorchTitan 0.3's."""

MOVED_SECTIONS: Mapping[str, str] = {"profiling": "profiler"}

TO_PARALLELISM = re.compile(r"(?:training|experimental)\.((?:data|tensor|pipeline|context|expert)_parallel_.*)")


def renamed(key: str) -> str:
    """Returns the name that a setting of 2025 has in TorchTitan 0.3; any other as it is."""
    if parallel := TO_PARALLELISM.fullmatch(key):
        return f"parallelism.{parallel[1]}"
    section, _, leaf = key.partition(".")
    return MOVED.get(key, f"{MOVED_SECTIONS.get(section, section)}.{leaf}" if leaf else key)
