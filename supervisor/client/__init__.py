"""The Python API of Everstep: `import supervisor.client as everstep` (docs/PYTHON_API.md).

What is listed in `__all__` is public, and nothing else. Importing it costs next to nothing: what is slow to import is
imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from supervisor.client.errors import EverstepError
from supervisor.client.live import Client, Run, connect
from supervisor.client.past import CauseSeconds, Ledger, PastRun, Step, open
from supervisor.client.pool import Pool

if TYPE_CHECKING:
    from supervisor.client.aio import AsyncBreakpoint, AsyncClient, AsyncPastRun, AsyncPool, AsyncRun, aconnect, aopen
    from supervisor.client.breakpoints import Breakpoint
    from supervisor.client.mesh import Mesh
    from supervisor.core.model.spec import RunSpec
    from supervisor.shell.inspect.decision_replay import Why
    from supervisor.shell.inspect.execution import Executed
    from supervisor.shell.inspect.incident_times import IncidentStatus
    from supervisor.shell.inspect.merged_log import Entry as LogEntry
    from supervisor.shell.inspect.pools import PoolStatus
    from supervisor.shell.inspect.stacks import RankStacks
    from supervisor.shell.inspect.status import GroupStatus, LighthouseStatus, RunStatus
    from supervisor.shell.inspect.training import Metrics

__all__ = [
    "AsyncBreakpoint",
    "AsyncClient",
    "AsyncPastRun",
    "AsyncPool",
    "AsyncRun",
    "Breakpoint",
    "CauseSeconds",
    "Client",
    "EverstepError",
    "Executed",
    "GroupStatus",
    "IncidentStatus",
    "Ledger",
    "LighthouseStatus",
    "LogEntry",
    "Mesh",
    "Metrics",
    "PastRun",
    "Pool",
    "PoolStatus",
    "RankStacks",
    "Run",
    "RunSpec",
    "RunStatus",
    "Step",
    "Why",
    "aconnect",
    "aopen",
    "connect",
    "open",
]

_LATER = {
    "AsyncBreakpoint": "supervisor.client.aio.AsyncBreakpoint",
    "Breakpoint": "supervisor.client.breakpoints.Breakpoint",
    "AsyncClient": "supervisor.client.aio.AsyncClient",
    "AsyncPool": "supervisor.client.aio.AsyncPool",
    "AsyncRun": "supervisor.client.aio.AsyncRun",
    "AsyncPastRun": "supervisor.client.aio.AsyncPastRun",
    "aconnect": "supervisor.client.aio.aconnect",
    "aopen": "supervisor.client.aio.aopen",
    "Mesh": "supervisor.client.mesh.Mesh",
    "RunSpec": "supervisor.core.model.spec.RunSpec",
    "Why": "supervisor.shell.inspect.decision_replay.Why",
    "IncidentStatus": "supervisor.shell.inspect.incident_times.IncidentStatus",
    "Executed": "supervisor.shell.inspect.execution.Executed",
    "PoolStatus": "supervisor.shell.inspect.pools.PoolStatus",
    "RankStacks": "supervisor.shell.inspect.stacks.RankStacks",
    "LogEntry": "supervisor.shell.inspect.merged_log.Entry",
    "GroupStatus": "supervisor.shell.inspect.status.GroupStatus",
    "LighthouseStatus": "supervisor.shell.inspect.status.LighthouseStatus",
    "RunStatus": "supervisor.shell.inspect.status.RunStatus",
    "Metrics": "supervisor.shell.inspect.training.Metrics",
}
"""Public names whose modules are slow to import -> where they are."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _LATER[name].rpartition(".")
    return getattr(import_module(module), attribute)
