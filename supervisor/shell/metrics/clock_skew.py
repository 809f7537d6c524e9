"""Detects wrong clocks of nodes and of the leader. They are shown for people; no decision reads a wall clock."""

from __future__ import annotations

from statistics import median

from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import Health, Registration

OFF_S = 60.0
"""Least error that a report's age cannot explain. A node reports its health every 5 s under a lease of some seconds, so
no living node's report is a minute old."""


def off(health: Health, now_unix_s: float) -> str:
    """Returns by how much a living node's clock differs from this machine's, as a sentence. Empty if the report's age
    explains the difference, or if the agent is too old to report it."""
    by = health.unix_s - now_unix_s
    return "" if health.unix_s == 0.0 or abs(by) < OFF_S else f"its clock is {_by(by)} the one here"


def leader_off_s(mirror: Mirror, now_unix_s: float) -> float:
    """Returns the seconds by which this clock, the leader's, is ahead of most living training nodes; negative: behind.
    Returns 0 unless a majority differs in one direction by more than a report's age explains."""
    ahead = []
    for name in mirror.nodes():
        registration, health = (
            mirror.record(keys.registration(name), Registration),
            mirror.record(keys.health(name), Health),
        )
        if registration is not None and registration.role == "trainer" and health is not None and health.unix_s:
            ahead.append(now_unix_s - health.unix_s)
    for side in ([by for by in ahead if by >= OFF_S], [by for by in ahead if by <= -OFF_S]):
        if 2 * len(side) > len(ahead):
            return median(side)
    return 0.0


def leader_off(off_s: float) -> str:
    """Returns the warning about a leader whose clock is off by `off_s`, as in Account.off_s; empty if it is right."""
    if not off_s:
        return ""
    return f"clock_off: the leader's clock is {_by(off_s)} those of most nodes: times of day are wrong by that, durations are not; synchronise it"


def _by(seconds: float) -> str:
    sizes = (("days", 86400), ("h", 3600), ("min", 60))
    unit, size = next((u, s) for u, s in sizes if abs(seconds) >= 2 * s or s == 60)
    return f"{abs(seconds) / size:.0f} {unit} {'ahead of' if seconds > 0 else 'behind'}"
