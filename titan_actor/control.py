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
    writer: bool = False
    keep: int = 0
    """Number of the relaunch for which its state is kept in memory then; 0: it is not."""
    wait: bool = False
    """True if the group waits before its next step, unless it ends."""


class Control:
    """Collects wishes from the command thread and the signal handler."""

    def __init__(self, writer: bool) -> None:
        # re-entrant: the SIGTERM handler runs in the main thread, wherever that is
        self._lock = threading.RLock()
        self._stop_at = NEVER
        self._writer = writer
        self._keep = 0
        self._wait = False
        self.in_haste = False
        """True after a signal that ends the process: KILL follows soon, so there is no last checkpoint."""

    def drain(self, at_step: int | None, keep: int = 0) -> None:
        """Ends after `at_step` committed steps, or after the current step. The earliest wish counts. `keep`: as
        Wishes."""
        with self._lock:
            self._stop_at, self._keep = min(self._stop_at, at_step or 0), keep

    def write(self, writer: bool) -> None:
        """Makes this rank the writer, or ends that."""
        with self._lock:
            self._writer = writer

    def wait(self, wait: bool) -> None:
        """Has the group wait after each step, or ends that."""
        with self._lock:
            self._wait = wait

    def take(self) -> Wishes:
        """Returns the wishes so far."""
        with self._lock:
            return Wishes(self._stop_at, self._writer, self._keep, self._wait)


class Agreement:
    """Makes all ranks obey a wish that reached one rank, by a small all-reduce at the end of each step.

    Rank 0 decides who writes. A group of one rank needs no all-reduce.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._group: Any = None
        if world_size > 1:
            import torch.distributed as dist

            self._group = dist.new_group(backend="gloo")

    def on(self, wishes: Wishes) -> Wishes:
        """Returns what the group does. Raises RuntimeError when a rank of the group is lost."""
        if self._group is None:
            return wishes
        writes = int(wishes.writer and self._rank == 0)
        stop, writes, keep, wait = self._most(-wishes.stop_at, writes, wishes.keep, int(wishes.wait))
        return Wishes(-stop, bool(writes), keep, bool(wait))

    def any(self, flag: bool) -> bool:
        """Returns true on all ranks if the flag is true on one of them."""
        return flag if self._group is None else bool(self._most(int(flag))[0])

    def _most(self, *values: int) -> list[int]:
        """Returns the largest of each value over the ranks."""
        import torch
        import torch.distributed as dist

        found = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._group)
        most: list[int] = found.tolist()
        return most

    def choose(self, value: Any) -> Any:
        """Returns rank 0's value on all ranks."""
        if self._group is None:
            return value
        import torch.distributed as dist

        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group, device=None)
        return box[0]
