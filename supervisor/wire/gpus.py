"""Which of a machine's GPUs a local node has, when several nodes are processes of one machine."""

from __future__ import annotations

from collections.abc import Sequence

SHARED = "SUPERVISOR_GPUS_SHARED"
"""Environment variable, set where several nodes have the same GPU. NCCL takes no two ranks on one device ("Duplicate GPU
detected"), so the trainers of different groups then sum up with Gloo."""


def of_node(gpus: Sequence[str], place: int, nodes: int, slots: int) -> tuple[Sequence[str], bool]:
    """Those of the node at this place (from 0) among `nodes`, a GPU for each of its slots, and whether another node has them too.

    Where the machine has fewer than one node needs, all of them: the pre-flight check says that they are too few.
    """
    rooms = len(gpus) // slots
    if not rooms:
        return gpus, nodes > 1
    first = place % rooms * slots
    return gpus[first : first + slots], nodes > rooms
