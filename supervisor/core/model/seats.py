"""Seats: the places of a group, one for each of its nodes (ADR 18)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Seat:
    """A node that a group holds."""

    node: str
    host: str = ""
    """Machine of the node, kept beyond the node's registration. Empty: the node's name."""
    allocation: str = ""
    """Key of the allocation that gave it: the node may be another's by now. Empty: unknown."""
    through: str = ""
    """Key of the pool's allocation under which the node registers, as in Grant."""

    @property
    def machine(self) -> str:
        return self.host or self.node


def seated(value: Any) -> Any:
    """Reads a group of version 2, which kept the names of one node: its own, and the one that it was leaving."""
    if not isinstance(value, Mapping) or "seats" in value:
        return value
    node, old = value.get("node", ""), value.get("old_node", "")
    host, allocation = value.get("host", ""), value.get("allocation", "")
    kept = allocation if node in ("", old) else ""
    seats = ({"node": node, "host": host, "allocation": allocation},) if node else ()
    return {**value, "seats": seats, "left": ({"node": old, "allocation": kept},) if old else ()}
