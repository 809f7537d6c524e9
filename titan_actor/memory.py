"""Estimates the memory that a rank needs at least, so that a model which cannot fit is refused before it is tried."""

from __future__ import annotations

from typing import Any

ADAMS = ("Adam", "AdamW")
"""Optimizers with two states of a parameter's size."""


def least_bytes(config: Any, ranks: int) -> int:
    """Returns the least bytes of one rank: its even share of parameters, gradients and optimizer states. Activations,
    buffers and what frameworks take come on top."""
    import torch
    from torchtitan.config import TORCH_DTYPE_MAP

    with torch.device("meta"):
        model = config.model_spec.model.build()
    count = sum(parameter.numel() for parameter in model.parameters())
    names = {group.optimizer_name for group in getattr(config.optimizer, "param_groups", [])}
    # parameters and gradients; other optimizers may have no state
    copies = 2 + (2 if names and names <= set(ADAMS) else 0)
    shards = max(1, ranks // config.parallelism.data_parallel_replicate_degree)
    size: int = TORCH_DTYPE_MAP[config.training.dtype].itemsize
    return count * size * copies // shards


def problem(config: Any, ranks: int, together: int = 1) -> str:
    """Explains why a rank does not fit on this machine's device, or `together` ranks in its memory; empty: they may."""
    if config.training.enable_cpu_offload:
        return ""
    device, has = _here()
    needs = least_bytes(config, ranks) * (together if device == "this machine" else 1)
    if needs <= has:
        return ""
    whom = f"{together} ranks need" if device == "this machine" and together > 1 else "a rank needs"
    return (
        f"{whom} at least {needs / 1e9:.1f} GB for parameters, gradients and optimizer, and {device} has "
        f"{has / 1e9:.1f} GB: take more ranks in a group, or a smaller model"
    )


def _here() -> tuple[str, int]:
    """Returns the device on which ranks train here, and its memory in bytes."""
    import torch
    from torchtitan.tools.utils import device_module

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0), int(torch.cuda.get_device_properties(0).total_memory)
    return "this machine", int(device_module.get_device_properties(0).total_memory)
