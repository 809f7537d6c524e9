"""Which alert calls a person, and when: one table for what the page says, the severity of each rule, and each runbook's "When to get up"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Level = Literal["no", "soon", "now"]
"""now: nothing will mend it until a person does something. soon: in working hours. no: nothing is asked of anybody."""

STILL_S = 900.0
"""Without a step: within it restarts, spares and a new allocation have been tried. RunNotProgressing waits as long."""

AWAY_S = 60.0
"""An etcd, a leader or a lighthouse that is away for longer does not come back by itself: an election, a restart or another place
takes seconds."""

CALLS: Mapping[str, Level] = {
    "RunNotProgressing": "now",
    "EttrLow": "soon",
    "BudgetNearlySpent": "soon",
    "NoSpares": "soon",
    "CheckpointsBehind": "soon",
    "FlappingNode": "soon",
    "NoLeader": "now",
    "StoreAway": "now",
    "StoreSlow": "soon",
    "StoreOutOfSpace": "now",
    "StoreLarge": "soon",
    "LighthouseAway": "now",
    "AgentVersionSkew": "soon",
    "SupervisorBlind": "now",
    "BreakerOpen": "now",
    "ShadowWouldHaveKilled": "soon",
    "Watchdog": "no",
}
"""By the alert's name."""

UNALERTED: Mapping[str, Level] = {
    "a group is left out": "soon",
    "a record cannot be read": "now",
    "paused, and something has failed": "now",
    "the engine refused a node that a group needs": "now",
    "paused": "soon",
    "a host is given no group": "soon",
    "allowed, but dangerous": "soon",
}
"""What is told by the page alone, and rings nowhere."""
