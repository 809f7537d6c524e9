"""Alerts and when they call a person: one table for the page, the rules' severity and the runbooks' "When to get
up"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Level = Literal["no", "soon", "now"]
"""now: nothing repairs it until a person acts. soon: in working hours. no: no one needs to act."""

STILL_S = 900.0
"""Seconds without a step, enough to try restarts, spares and a new allocation. RunNotProgressing waits as long."""

AWAY_S = 60.0
"""Seconds after which a missing etcd, leader or lighthouse will not come back by itself: an election, a restart or a
new place takes seconds."""

CALLS: Mapping[str, Level] = {
    "RunNotProgressing": "now",
    "RunUndecided": "now",
    "EttrLow": "soon",
    "BudgetNearlySpent": "soon",
    "NoSpares": "soon",
    "CheckpointsBehind": "soon",
    "FlappingNode": "soon",
    "NoLeader": "now",
    "LeaderFlapping": "soon",
    "StoreAway": "now",
    "StoreSlow": "soon",
    "StoreOutOfSpace": "now",
    "StoreLarge": "soon",
    "LighthouseAway": "now",
    "CertificateExpires": "soon",
    "AgentVersionSkew": "soon",
    "SupervisorBlind": "now",
    "BreakerOpen": "now",
    "ShadowWouldHaveKilled": "soon",
    "Watchdog": "no",
}
"""Level of each alert."""

UNALERTED: Mapping[str, Level] = {
    "a group is left out": "soon",
    "a record cannot be read": "now",
    "paused, and something has failed": "now",
    "the engine refused a node that a group needs": "now",
    "paused": "soon",
    "a host is given no group": "soon",
    "allowed, but dangerous": "soon",
}
"""Level of each condition that only the page shows, without an alert."""
