"""Collects the Xids seen on this node, each with the generations that surely ran when it came. Two sources report the
same Xids: NVML and the kernel's log."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agents.health.facts.gpu_devices import Gpu
from supervisor.core.evidence import xid_catalog
from supervisor.core.model.observed import XID
from supervisor.wire.records import Fact

SAME_S = 10.0
"""Seconds within which both sources have reported an Xid: the kernel's log is read every 5 s."""
TOLD_S = 3600.0
"""Seconds for which an Xid is reported. What runs for longer did not fail by it."""

_LINE = re.compile(r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): (?P<xid>\d+)")


def in_line(line: str) -> tuple[str, int] | None:
    """Returns PCI address and Xid from a line of the kernel's log."""
    found = _LINE.search(line)
    return (found["bus"].lower(), int(found["xid"])) if found else None


@dataclass(slots=True)
class _Seen:
    gpu: Gpu
    xid: int
    during: frozenset[str]
    at: float


class Xids:
    """The Xids that were seen. For any thread."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._seen: list[_Seen] = []

    def saw(self, gpu: Gpu, xid: int, during: frozenset[str]) -> bool:
        """Records an Xid and returns true if it is news. `during`: generations that had started before it came."""
        now = self._monotonic()
        with self._lock:
            for seen in self._seen:
                if (seen.gpu, seen.xid) == (gpu, xid) and (now - seen.at <= SAME_S or during <= seen.during):
                    known = during <= seen.during
                    seen.during |= during
                    seen.at = now
                    return not known
            self._seen.append(_Seen(gpu, xid, during, now))
            return True

    def facts(self) -> Sequence[Fact]:
        now = self._monotonic()
        with self._lock:
            self._seen = [seen for seen in self._seen if now - seen.at <= TOLD_S]
            return [_fact(seen) for seen in sorted(self._seen, key=lambda s: (s.gpu.index, s.xid, s.at))]


def _fact(seen: _Seen) -> Fact:
    return Fact(
        kind=XID,
        subject=str(seen.gpu),
        evidence=f"{seen.gpu}: Xid {seen.xid}{xid_catalog.meaning(seen.xid)}",
        xid=seen.xid,
        rank=seen.gpu.rank,
        during=tuple(sorted(seen.during)),
    )
