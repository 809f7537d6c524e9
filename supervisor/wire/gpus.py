"""Which of a machine's GPUs a local node has, when several nodes are processes of one machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"

SHARED = "SUPERVISOR_GPUS_SHARED"
"""Environment variable, set where several nodes have the same GPU. NCCL takes no two ranks on one device ("Duplicate GPU
detected"), so the trainers of different groups then sum up with Gloo."""

DEVICES = Path("/dev")


def hidden() -> bool:
    """Whether all GPUs are kept from this process, on purpose."""
    return os.environ.get(VISIBLE, "all").strip() in ("", "-1")


def there() -> tuple[str, ...]:
    """The GPUs that processes started from here may use, as CUDA_VISIBLE_DEVICES names them.

    Counted as the driver's files that a job's cgroup leaves us. Not opened, nor asked of NVML: both hang on a sick GPU."""
    if hidden():
        return ()
    named = os.environ.get(VISIBLE)
    if named is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip())
    files = [path for path in DEVICES.glob("nvidia[0-9]*") if os.access(path, os.R_OK | os.W_OK)]
    return tuple(str(number) for number, _ in enumerate(files))


def of_node(gpus: Sequence[str], place: int, nodes: int, slots: int) -> tuple[Sequence[str], bool]:
    """Those of the node at this place (from 0) among `nodes`, one for each of its slots, and whether another node may have them too.

    Each node has its part of the machine, whatever the runs are that it trains in. Where a part is too small for the slots nodes
    share, and where the machine is, a node has all: the pre-flight check says that they are too few.
    """
    part = len(gpus) // nodes
    shared = part < slots or any(gpu.startswith("MIG") for gpu in gpus)  # slices of one GPU are one device to NCCL
    if part < slots:
        rooms = max(1, len(gpus) // slots)
        first = place % rooms * slots
    else:
        first = place * part
    return gpus[first : first + slots], shared and nodes > 1
