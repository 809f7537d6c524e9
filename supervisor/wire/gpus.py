"""Divides a machine's GPUs among local nodes, when several nodes are processes of one machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"

SHARED = "SUPERVISOR_GPUS_SHARED"
"""Environment variable, set if several nodes have the same GPU. NCCL rejects two ranks on one device ("Duplicate GPU
detected"), so the trainers of different groups then reduce with Gloo."""

DEVICES = Path("/dev")


def hidden() -> bool:
    """Returns true if all GPUs are hidden from this process, on purpose."""
    return os.environ.get(VISIBLE, "all").strip() in ("", "-1")


def there() -> tuple[str, ...]:
    """Returns the GPUs that child processes may use, as CUDA_VISIBLE_DEVICES names them.

    Counts the driver's files that a job's cgroup allows. It neither opens them nor asks NVML: both hang on a sick GPU.
    """
    if hidden():
        return ()
    named = os.environ.get(VISIBLE)
    if named is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip())
    files = [path for path in DEVICES.glob("nvidia[0-9]*") if os.access(path, os.R_OK | os.W_OK)]
    return tuple(str(number) for number, _ in enumerate(files))


def of_node(gpus: Sequence[str], place: int, nodes: int, slots: int) -> tuple[Sequence[str], bool]:
    """Returns the GPUs of the node at this place (from 0) among `nodes`, one for each slot, and true if another node
    may share them.

    Each node has its part of the machine, for all its runs. If a part is too small for the slots, nodes share. If the
    machine is too small, a node gets all, and the pre-flight check reports that they are too few.
    """
    part = len(gpus) // nodes
    shared = part < slots or any(gpu.startswith("MIG") for gpu in gpus)  # slices of one GPU are one device to NCCL
    if part < slots:
        rooms = max(1, len(gpus) // slots)
        first = place % rooms * slots
    else:
        first = place * part
    return gpus[first : first + slots], shared and nodes > 1
