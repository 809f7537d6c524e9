"""When a node that reaches neither etcd nor the gate stops its trainers. No I/O but its one file."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from supervisor.wire.records import TrainerDesired

log = logging.getLogger(__name__)


class CutOff:
    """The policy of each generation here, and for how long both ways out have been closed to it.

    The policies are kept in a file: an agent that is started while etcd is away must know them.
    """

    def __init__(self, path: Path, write: Callable[[Callable[[], None]], object] = lambda work: work()) -> None:
        """`write` has what writes the file done, in order: its disk may stall."""
        self._path, self._write = path, write
        self._limits: dict[str, float] = _read(path)
        self._lease_lost_at: float | None = None
        self._gate_lost_at: dict[str, float | None] = {}
        self._stopped: dict[str, str] = {}

    def wanted(self, trainers: Iterable[TrainerDesired]) -> None:
        """Take the policies out of what is desired; one that is no longer desired keeps its own while it runs."""
        limits = {way: limit for way, limit in self._limits.items() if way in self._gate_lost_at}
        limits |= {f"{each.run}.{each.group}.{each.generation}": each.cut_off_stop_s for each in trainers}
        if limits != self._limits:
            self._limits = limits
            self._write(partial(_leave, self._path, limits))

    def look(
        self, running: Collection[str], lease_held: bool, reaches: Mapping[str, bool], now: float
    ) -> Mapping[str, str]:
        """By generation that is to be stopped: why. `running` and `reaches` are by generation, `now` is a clock that
        runs only while somebody looks. What is not known of the gate counts as reached."""
        self._lease_lost_at = None if lease_held else _earlier(self._lease_lost_at, now)
        self._gate_lost_at = {
            way: _earlier(self._gate_lost_at.get(way), now) if reaches.get(way) is False else None for way in running
        }
        for way, gate_lost_at in self._gate_lost_at.items():
            if way in self._stopped or self._lease_lost_at is None or gate_lost_at is None:
                continue
            limit, out_s = self._limits.get(way, 0.0), now - max(self._lease_lost_at, gate_lost_at)
            if out_s > limit > 0:
                self._stopped[way] = (
                    f"neither etcd nor the gate was reached for {out_s:.1f} s: policy.cut_off_stop_s is {limit:g}"
                )
        # once begun it is carried through: a rank that was told to end is of no use to its group
        self._stopped = {way: why for way, why in self._stopped.items() if way in self._gate_lost_at}
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
