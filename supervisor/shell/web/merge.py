"""JSON Merge Patch (RFC 7396): computes what a browser lacks of a newer snapshot. `null` removes, so no snapshot may
hold one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what turns `old` into `new`; empty if they are equal. Lists are sent whole."""
    found: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            inner = patch(before, value)
            if inner:
                found[key] = inner
        elif key not in old or before != value:
            found[key] = value
    return found
