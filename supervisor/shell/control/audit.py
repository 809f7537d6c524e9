"""Checks that each key under our prefix is known and holds a readable record of its kind."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from supervisor.core.model.incident import Incident, Suspicion
from supervisor.core.model.memory import AllocationMemory, GroupMemory, Memory
from supervisor.core.model.observed import Grant
from supervisor.core.report.notifications import Notice
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys, records

_KINDS: tuple[tuple[re.Pattern[str], Any], ...] = tuple(
    (re.compile(re.escape(keys.PREFIX) + pattern), kind)
    for pattern, kind in (
        (r"leader", records.LeaderRecord),
        (r"epochs-before", records.EpochsBefore),
        (r"restoring", records.Restoring),
        (r"system", records.System),
        (r"removed-nodes/[^/]+", records.RemovedNode),
        (r"nodes/[^/]+/registration", records.Registration),
        (r"nodes/[^/]+/second", records.SecondAgent),
        (r"nodes/[^/]+/health", records.Health),
        (r"nodes/[^/]+/observed", records.NodeObserved),
        (r"nodes/[^/]+/check", records.NodeCheck),
        (r"nodes/[^/]+/gate/[^/]+", records.GateObserved),
        (r"nodes/[^/]+/gate-presence/[^/]+", records.GatePresence),
        (r"cordons/[^/]+/person", records.Cordon),
        (r"cordons/[^/]+/incident/[^/]+/[^/]+", Suspicion),
        (r"desired/[^/]+/[^/]+", records.NodeDesired),
        (r"runs/[^/]+/spec", records.RunRecord),
        (r"runs/[^/]+/next-spec", records.Relaunch),
        (r"runs/[^/]+/specs/\d+", records.RunRecord),
        (r"runs/[^/]+/control", records.Control),
        (r"runs/[^/]+/policy", records.PolicySet),
        (r"runs/[^/]+/code", records.SyncedCode),
        (r"runs/[^/]+/memory/run", Memory),
        (r"runs/[^/]+/memory/group-\d+", GroupMemory),
        (r"runs/[^/]+/incidents/[^/]+", Incident),
        (r"runs/[^/]+/allocations/[^/]+", AllocationMemory),
        (r"runs/[^/]+/grants/[^/]+", Grant),
        (r"runs/[^/]+/decisions/\d+", records.Digest),
        (r"runs/[^/]+/notices/[^/]+", Notice),
        (r"runs/[^/]+/faults", records.FaultsMade),
        (r"runs/[^/]+/account", records.Account),
        (r"runs/[^/]+/checkpoint", records.CheckpointMark),
        (r"runs/[^/]+/removed", records.Removed),
    )
)


@lru_cache(maxsize=1 << 17)
def kind_at(key: str) -> Any:
    """Returns the kind of the record at a key; None if this program has no such key."""
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(key)), None)


def audit(mirror: Mirror, changed: Iterable[str]) -> dict[str, str]:
    """Returns why a key cannot be read, for each changed key that cannot."""
    found = {}
    for key in changed:
        kind = kind_at(key)
        if kind is None:
            found[key] = "no key of this program's"
        elif mirror.record(key, kind) is None and key in mirror.unreadable:
            found[key] = mirror.unreadable[key]
    return found
