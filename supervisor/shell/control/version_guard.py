"""Decides if this program may lead on the state in etcd: not if a newer program wrote it, nor if a restore is
incomplete."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.shell.control.audit import kind_at
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import newer

RESTORE_BEGAN = "a restore into this etcd was interrupted: run `supervisor restore` again"


def newer_records(mirror: Mirror, changed: Iterable[str]) -> dict[str, str]:
    """Returns, for the changed keys, those whose records are newer than this program's version, with why.

    Records of nodes count once more than half of the registered nodes have a newer one: each may write its own with any
    content, so one alone is merely unreadable.
    """
    found: dict[str, str] = {}
    of_nodes: dict[str, str] = {}
    for key in changed:
        if why := _why_newer(mirror, key):
            (of_nodes if key.startswith(keys.NODES) else found)[key] = why
    return found | of_nodes if of_nodes and _most_nodes_are_newer(mirror) else found


def _why_newer(mirror: Mirror, key: str) -> str:
    item = mirror.items.get(key)
    if item is None or (key.startswith(keys.NODES) and kind_at(key) is None):
        return ""
    return newer(item.value)


def _most_nodes_are_newer(mirror: Mirror) -> bool:
    nodes = [node for node in mirror.nodes() if keys.registration(node) in mirror.items]
    ahead = sum(any(_why_newer(mirror, key) for key in mirror.keys(f"{keys.NODES}{node}/")) for node in nodes)
    return 2 * ahead > len(nodes)


def why_not(mirror: Mirror, changed: Iterable[str]) -> str:
    """Returns why this version may not lead, or an empty string. At the first look, pass every key as changed."""
    found = newer_records(mirror, changed)
    if found:
        key, why = min(found.items())
        return (
            f"etcd holds {len(found)} records of a newer program, and this one does not lead with records that it cannot read ({key}: "
            f"{why}): start the supervisor of the version that wrote them, or downgrade them as docs/UPGRADES.md describes"
        )
    return RESTORE_BEGAN if keys.RESTORING in mirror.items else ""
