"""Estimates the memory that a rank needs at least, so that a model which cannot fit is refused before it is tried."""

from __future__ import annotations

import copy
import re
from typing import Any

from supervisor.core.model.spec import GroupsSpec, SlurmSpec

GPU_GIB = {
    "a100": 80, "b200": 192, "b300": 288, "gb200": 192, "h100": 94, "h200": 141, "l4": 24, "l40": 48, "l40s": 48, "t4": 16,
    "v100": 32,
}  # fmt: skip
"""Memory of the largest GPU of a name, in GiB: NVIDIA's data sheets."""

UNKNOWN = (ImportError, NotImplementedError, ValueError)
"""Raised by a model that needs a package or a device that is not here, or another part of its config."""

UNITS = {"k": 10, "": 20, "m": 20, "g": 30, "t": 40}
"""Suffix of sbatch's --mem -> the power of two of its bytes."""

ADAMS = ("Adam", "AdamW")
"""Optimizers with two states of a parameter's size."""


def least_bytes(config: Any, ranks: int) -> int:
    """Returns the least bytes of one rank: its even share of parameters, gradients and optimizer states. Activations,
    buffers and what frameworks take come on top. Raises UNKNOWN if the model cannot be built here."""
    import torch
    from torchtitan.config import TORCH_DTYPE_MAP

    described = copy.deepcopy(config.model_spec.model)
    described.update_from_config(config=config)  # as TorchTitan's trainer does before it builds the model
    with torch.device("meta"):
        model = described.build()
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
    try:
        needs = least_bytes(config, ranks) * (1 if device else together)
    except UNKNOWN as error:
        return f"its model cannot be built on this machine: {error}"
    if needs <= has:
        return ""
    whom = f"{together} ranks need" if together > 1 and not device else "a rank needs"
    return (
        f"{whom} at least {needs / 1e9:.1f} GB for parameters, gradients and optimizer, and {device or 'this machine'} has "
        f"{has / 1e9:.1f} GB: take more ranks in a group, or a smaller model"
    )


def in_slurm(config: Any, groups: GroupsSpec, slurm: SlurmSpec) -> tuple[str, str]:
    """Explains why a rank does not fit on the GPU, or a node's ranks in the memory, that the run file asks Slurm for. Where
    it names neither: the least memory of a rank, for the user to compare. Returns both texts, one of them empty."""
    if config.training.enable_cpu_offload:
        return "", ""
    try:
        needs, here = least_bytes(config, groups.ranks_per_group), groups.slots
    except UNKNOWN as error:  # of a package that nodes with GPUs may have
        return "", f"the least memory of a rank is unknown, since its model cannot be built on this machine: {error}"
    size = f"{needs / 2**30:.1f} GiB" if needs >= 1 << 30 else f"{needs / 2**20:.0f} MiB"
    told = f"each rank needs at least {size} for parameters, gradients and optimizer"
    gpus = " ".join((slurm.gres, *(flag for flag in slurm.flags if flag.startswith("--gpu")))).lower()
    memory = [found for flag in slurm.flags if (found := re.fullmatch(r"--mem=(\d+)([kmgt]?)b?", flag.lower()))]
    if (gib := _of_gpu(gpus)) is not None:
        where, has = f"{gpus.strip()!r} is a GPU of at most {gib} GiB", gib << 30
    elif gpus.strip() or not memory or not int(memory[-1][1]):
        # of all memory of a host (--mem=0) no one knows how much it is
        return "", told
    else:
        where = f"{memory[-1][0]!r} is for all {here} ranks of a node"
        has = (int(memory[-1][1]) << UNITS[memory[-1][2]]) // here
    return (f"{told}, and {where}: take more ranks in a group, or a smaller model", "") if needs > has else ("", "")


def _of_gpu(names: str) -> int | None:
    """Returns the most GiB of a GPU that a gres asks for, as gpu:h100:8 or gpu:nvidia_a100_40gb:4; None: not known."""
    told = [int(size) for size in re.findall(r"(\d+)gb(?!\d)", names)]
    return max(told or [GPU_GIB[word] for word in re.split(r"[^a-z0-9]+", names) if word in GPU_GIB], default=None)


def _here() -> tuple[str, int]:
    """Returns the device on which ranks train here (empty: its processors), and the bytes of memory there."""
    import torch
    from torchtitan.tools.utils import device_module

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0), int(torch.cuda.get_device_properties(0).total_memory)
    return "", int(device_module.get_device_properties(0).total_memory)
