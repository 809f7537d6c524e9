"""A node's clock that is off. People compare logs, so they are told; no decision reads a wall clock."""

from __future__ import annotations

from supervisor.wire.records import Health

OFF_S = 60.0
"""A node tells its health every 5 s, and under a lease of some seconds: a report that is a minute old is of no living node."""


def off(health: Health, now_unix_s: float) -> str:
    """By how much the clock of a node that is alive is off from the one that is read here, as a sentence. Empty: by less than can
    be told from a report's age, or its agent is too old to say."""
    by = health.unix_s - now_unix_s
    if health.unix_s == 0.0 or abs(by) < OFF_S:
        return ""
    unit, seconds = next((u, s) for u, s in (("days", 86400), ("h", 3600), ("min", 60)) if abs(by) >= 2 * s or s == 60)
    return f"its clock is {abs(by) / seconds:.0f} {unit} {'ahead of' if by > 0 else 'behind'} the one here"
