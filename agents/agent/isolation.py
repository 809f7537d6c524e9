"""Decides when a node that reaches neither etcd nor the gate stops its trainers. Its only I/O is one file."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from supervisor.wire.records import TrainerDesired

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cut:
    """The stop of a generation that was cut off."""

    why: str
    limit_s: float
    """`policy.cut_off_stop_s` by which it is stopped."""


class CutOff:
    """Holds each generation's policy, and for how long both its ways out have been closed.

    A file keeps the policies, because an agent that starts while etcd is away must know them.
    """

    def __init__(self, path: Path, write: Callable[[Callable[[], None]], object] = lambda work: work()) -> None:
        """`write` runs the writes of the file in order, because its disk may stall."""
        self._path, self._write = path, write
        self._limits: dict[str, float] = _read(path)
        self._lease_lost_at: float | None = None
        self._gate_lost_at: dict[str, float | None] = {}
        self._stopped: dict[str, Cut] = {}

    def wanted(self, trainers: Iterable[TrainerDesired]) -> None:
        """Takes the policies from what is desired. A generation no longer desired keeps its own while it runs."""
        limits = {way: limit for way, limit in self._limits.items() if way in self._gate_lost_at}
        limits |= {f"{each.run}.{each.group}.{each.generation}": each.cut_off_stop_s for each in trainers}
        if limits != self._limits:
            self._limits = limits
            self._write(partial(_leave, self._path, limits))

    def look(
        self, running: Collection[str], lease_held: bool, reaches: Mapping[str, bool], now: float
    ) -> Mapping[str, Cut]:
        """Returns the stop of each generation that must stop. `running` and `reaches` are by generation; `now` is by
        a clock that runs only while its owner looks. A gate of unknown state counts as reached."""
        self._lease_lost_at = None if lease_held else _earlier(self._lease_lost_at, now)
        self._gate_lost_at = {
            way: _earlier(self._gate_lost_at.get(way), now) if reaches.get(way) is False else None for way in running
        }
        for way, gate_lost_at in self._gate_lost_at.items():
            if way in self._stopped or self._lease_lost_at is None or gate_lost_at is None:
                continue
            limit, out_s = self._limits.get(way, 0.0), now - max(self._lease_lost_at, gate_lost_at)
            if out_s > limit > 0:
                why = f"neither etcd nor the gate was reached for {out_s:.1f} s: policy.cut_off_stop_s is {limit:g}"
                self._stopped[way] = Cut(why, limit)
        # once begun, the stop is completed: a rank that was asked to end is of no use to its group
        self._stopped = {way: cut for way, cut in self._stopped.items() if way in self._gate_lost_at}
        return self._stopped


def _leave(path: Path, limits: Mapping[str, float]) -> None:
    try:
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(limits))
        temporary.replace(path)
    except OSError as error:
        log.warning("cannot write %s: %s", path, error)


def _earlier(since: float | None, now: float) -> float:
    return now if since is None else since


def _read(path: Path) -> dict[str, float]:
    try:
        return {str(way): float(limit) for way, limit in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
