"""The plan of a round of kills, drawn from its seed alone, so that the seed repeats it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from supervisor.shell.failpoints import NAMES

Scenario = Literal["start", "trainer", "restart", "node", "allocation", "lighthouse", "drain"]
"""A run starts; a trainer is killed; a person asks for a restart; a node is killed; an allocation is taken away; the
gate or its lighthouse is killed; the run is drained."""

Who = Literal["supervisor", "nodes", "host"]


@dataclass(frozen=True)
class Way:
    """One way to reach a failpoint."""

    scenario: Scenario
    who: Who
    """The armed processes: the leader (a supervisor's failpoint), the run's nodes, or the gate's service host."""
    least: int = 1
    most: int = 1
    """The highest pass at which it may die; `least` is the lowest."""
    late: bool = False
    """No process dies before the scenario's fault; processes that begin after it count their passes from there."""


@dataclass(frozen=True)
class Plan:
    seed: int
    failpoint: str
    nth: int
    way: Way
    victim: int
    """The group that the fault hits."""
    whole_gate: bool
    """The part of a killed lighthouse: its gate if true, else the lighthouse itself."""
    nodes: int = 1
    """Nodes of a group."""
    seat: int = 0
    """Which of the group's nodes the fault hits."""

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.way.scenario}, {self.way.who} killed at {self.failpoint}:{self.nth}"


_EVERY: tuple[Scenario, ...] = ("start", "trainer", "restart", "node", "allocation", "lighthouse", "drain")
_NEW_NODE: tuple[Scenario, ...] = ("node", "allocation")
_AGAIN: tuple[Scenario, ...] = ("trainer", "restart")

_SPAWNING = (
    Way("start", "nodes"),
    Way("start", "host"),
    *(Way(scenario, "nodes", 2, 2) for scenario in _AGAIN),
    *(Way(scenario, "nodes", late=True) for scenario in _NEW_NODE),
    Way("lighthouse", "host", 2, 2),
)
_FORWARDING = (
    Way("start", "nodes"),
    *(Way(scenario, "nodes", 2, 2) for scenario in _AGAIN),
    *(Way(scenario, "nodes", late=True) for scenario in _NEW_NODE),
    Way("lighthouse", "nodes", 2, 3),
)
_AT_THE_GATE = (Way("start", "host"), Way("lighthouse", "host", late=True))

WAYS: dict[str, tuple[Way, ...]] = {
    **{name: tuple(Way(s, "supervisor", 1, 8) for s in _EVERY) for name in ("observed", "decided")},
    **{name: tuple(Way(s, "supervisor", 1, 3) for s in _EVERY) for name in ("journaled", "committed", "recorded")},
    "fencing": tuple(Way(s, "supervisor") for s in _NEW_NODE),
    **{
        f"engine.{when}_{what}": (Way("start", "supervisor", 1, 2), *(Way(s, "supervisor") for s in _NEW_NODE))
        for when in ("before", "after")
        for what in ("acquire", "grant")
    },
    **{
        f"engine.{when}_release": (*(Way(s, "supervisor") for s in _NEW_NODE), Way("drain", "supervisor", 1, 2))
        for when in ("before", "after")
    },
    "agent.before_spawn": _SPAWNING,
    "agent.after_spawn": _SPAWNING,
    "agent.before_signal": (Way("restart", "nodes"), Way("drain", "host")),
    "agent.before_forward": _FORWARDING,
    "agent.after_forward": _FORWARDING,
    "agent.reported": (
        Way("start", "nodes", 1, 5),
        Way("start", "host", 1, 5),
        *(Way(scenario, "nodes", 6, 10) for scenario in _AGAIN),
        *(Way(scenario, "nodes", 1, 4, late=True) for scenario in _NEW_NODE),
        Way("lighthouse", "host", 6, 10),
    ),
    "gate.listening": _AT_THE_GATE,
    "gate.opening": _AT_THE_GATE,
    "gate.open": _AT_THE_GATE,
}


def plan(seed: int, failpoint: str = "", scenario: str = "", nodes: int = 1) -> Plan:
    """The seed's plan; a failpoint or a scenario may be fixed. Raises ValueError when the two do not go together."""
    draw = random.Random(seed)
    names = [n for n in NAMES if n in ((failpoint,) if failpoint else WAYS)]
    names = [n for n in names if any(w.scenario == scenario or not scenario for w in WAYS[n])]
    if not names:
        raise ValueError(f"there is no way to reach failpoint {failpoint or 'any'!r} in scenario {scenario!r}")
    name = draw.choice(names)
    way = draw.choice([w for w in WAYS[name] if w.scenario == scenario or not scenario])
    nth, victim, whole_gate = draw.randint(way.least, way.most), draw.randint(0, 1), draw.random() < 0.5
    return Plan(seed, name, nth, way, victim, whole_gate, nodes, draw.randrange(nodes))
