"""The code that must lie on nodes, and the versions that are in use (ADR 24)."""

from __future__ import annotations

from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import Observed
from supervisor.core.model.spec import RunSpec
from supervisor.shell.control import observe
from supervisor.shell.control.projection import Spread
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord, SyncedCode


def spread(mirror: Mirror, spec: RunSpec, observed: Observed) -> Spread | None:
    """Returns the code that must lie on the nodes of a run, or on those that a pool has not lent; None if none was
    synced."""
    leader = mirror.record(keys.LEADER, LeaderRecord)
    if observed.code is None or leader is None:
        return None
    granted = (g for g in observed.grants.values() if g.state == "granted" and g.key not in observed.lent)
    return Spread(observed.code, leader.page, frozenset(node for grant in granted for node in grant.nodes))


def in_use(mirror: Mirror) -> frozenset[str]:
    """Returns the versions that a run or pool names, or that a group was started with."""
    runs = observe.runs(mirror)
    records = (mirror.record(keys.code(run), SyncedCode) for run in runs)
    newest = {record.newest.version for record in records if record is not None}
    tables = (mirror.table(keys.memory(run, "group-"), GroupMemory).values() for run in runs)
    return frozenset(newest | {group.code.version for table in tables for group in table if group.code is not None})
