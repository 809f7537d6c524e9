"""Says which code a run or pool has, and which groups go on with other code."""

from __future__ import annotations

from datetime import UTC, datetime

from supervisor.core.model.code import SHOWN
from supervisor.core.model.memory import GroupMemory
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys


def others(mirror: Mirror, run: str, version: str) -> dict[int, str]:
    """Returns the groups that run, or start, with other code than this version, and with which; empty: what their nodes
    have."""
    groups = mirror.table(keys.memory(run, "group-"), GroupMemory).values()
    live = {g.group: g.code.version if g.code is not None else "" for g in groups if g.phase in ("starting", "running")}
    return {group: known for group, known in sorted(live.items()) if known != version}


def line(mirror: Mirror, run: str) -> str:
    """Returns a line on the code of a run or pool: its version, folder, time and person; empty if none was synced."""
    found = observe.synced(mirror, run)
    if found is None:
        return ""
    newest = found.newest
    when = datetime.fromtimestamp(newest.at_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    by: dict[str, list[str]] = {}
    for group, version in others(mirror, run, newest.version).items():
        by.setdefault(version[:SHOWN] or "what its node has", []).append(str(group))
    rest = "".join(f"; group{'s' if len(of) > 1 else ''} {', '.join(of)}: {what}" for what, of in by.items())
    return f"code {newest.version[:SHOWN]} of {newest.folder}, synced {when} by {newest.by}{rest}"
