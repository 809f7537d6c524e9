"""Collects requests to this trainer from outside, and makes the ranks of a group obey them at the same step."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

NEVER = 2**62


@dataclass(frozen=True)
class Wishes:
    """The actions of all ranks of the group at the end of this step."""

    stop_at: int = NEVER
    """Committed steps after which the group ends cleanly; 0: now."""
    checkpoint: bool = False
    writer: bool = False


class Control:
    """Collects wishes from the command thread and the signal handler."""

    def __init__(self, writer: bool) -> None:
        # re-entrant: the SIGTERM handler runs in the main thread, wherever that is
        self._lock = threading.RLock()
        self._stop_at = NEVER
        self._checkpoint = False
        self._writer = writer
        self.in_haste = False
        """True after a signal that ends the process: KILL follows soon, so there is no last checkpoint."""

    @property
    def writer(self) -> bool:
        """True if this rank must write checkpoints."""
        return self._writer

    def drain(self, at_step: int | None) -> None:
        """Ends after `at_step` committed steps, or after the current step. The earliest wish counts."""
        with self._lock:
            self._stop_at = min(self._stop_at, at_step or 0)

    def checkpoint(self) -> None:
        """Writes a checkpoint after the current step."""
        with self._lock:
            self._checkpoint = True

    def write(self, writer: bool) -> None:
        """Makes this rank the writer, or ends that."""
        with self._lock:
            self._writer = writer

    def take(self) -> Wishes:
        """Returns the wishes so far. A wish for a checkpoint is returned once."""
        with self._lock:
            wishes = Wishes(self._stop_at, self._checkpoint, self._writer)
            self._checkpoint = False
        return wishes


class Agreement:
    """Makes all ranks obey a wish that reached one rank, by a small all-reduce at the end of each step.

    Rank 0 decides who writes. A group of one rank needs no all-reduce.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        import torch.distributed as dist

        self._rank = rank
        self._group: Any = dist.new_group(backend="gloo") if world_size > 1 else None

    def on(self, wishes: Wishes) -> Wishes:
        """Returns what the group does. Raises RuntimeError when a rank of the group is lost."""
        if self._group is None:
            return wishes
        import torch
        import torch.distributed as dist

        writer = int(wishes.writer and self._rank == 0)
        asked = torch.tensor([-wishes.stop_at, int(wishes.checkpoint), writer], dtype=torch.int64)
        dist.all_reduce(asked, op=dist.ReduceOp.MAX, group=self._group)
        stop, checkpoint, writes = asked.tolist()
        return Wishes(-stop, bool(checkpoint), bool(writes))

    def choose(self, value: Any) -> Any:
        """Returns rank 0's value on all ranks."""
        if self._group is None:
            return value
        import torch.distributed as dist

        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group, device=None)
        return box[0]
