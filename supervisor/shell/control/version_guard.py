"""Decides if this program may lead on the state in etcd: not if a newer program wrote it, nor if a restore is
incomplete."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import newer

RESTORE_BEGAN = "a restore into this etcd was interrupted: run `supervisor restore` again"


def newer_records(mirror: Mirror, changed: Iterable[str]) -> dict[str, str]:
    """Returns, for the changed keys, those whose records are newer than this program's version, with why.

    A node's records do not count once its agent is gone.
    """
    found = {}
    for key in changed:
        item = mirror.items.get(key)
        if item is None:
            continue
        why = newer(item.value)
        if why and (not key.startswith(keys.NODES) or _agent_lives(mirror, key)):
            found[key] = why
    return found


def _agent_lives(mirror: Mirror, key: str) -> bool:
    return keys.registration(key[len(keys.NODES) :].split("/", 1)[0]) in mirror.items


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
