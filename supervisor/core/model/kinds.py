"""Kinds of failure, one row each with what the rules need to know of it: every set of kinds derives from them. With the
phases of a run and a group, and the verbs of actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum, auto
from typing import Literal

RunPhase = Literal["new", "running", "stopping", "stopped", "finished", "halted", "resuming"]
GroupPhase = Literal["unplaced", "fencing", "placing", "starting", "running", "finished"]

Verb = Literal[
    "start",
    "fence",
    "place",
    "cordon",
    "uncordon",
    "acquire",
    "release",
    "lighthouse",
    "close_lighthouse",
    "ride_through",
    "stop",
    "halt",
    "resume",
    "relaunch",
    "scale",
    "checkpoint",
    "load",
    "move",
    "hand_over",
    "observe",
    "hold",
    "let_go",
]
"""Things that an action may do."""


class Rung(IntEnum):
    """The ladder, from the cheapest remedy to the dearest."""

    RIDE_THROUGH = 0
    RESTART = 1
    REPLACE = 2
    REALLOCATE = 3
    STOP = 4


class Kind(StrEnum):
    """The kind of a failure."""

    CRASH = "crash"
    """A signal ended a rank."""
    OOM = "oom"
    """The kernel killed a rank for memory."""
    ERROR = "error"
    """A rank exited with a code of its own."""
    SAME_ERROR = "same_error"
    """The same error in every group, or again and again in one: the program's fault, not a machine's."""
    PEERS_GONE = "peers_gone"
    """A rank that was to heal from its peers found none."""
    START_TIMEOUT = "start_timeout"
    """The group never committed a step."""
    STALLED = "stalled"
    """The group is silent for longer than a hiccup lasts, on a node that lives."""
    SILENT = "silent"
    """The gate no longer hears the group, while its node still renews its lease."""
    NODE_LOST = "node_lost"
    ALLOCATION_LOST = "allocation_lost"
    LEAVING = "leaving"
    """No failure: the node is about to be taken away, and its group leaves it before."""
    STRAGGLER = "straggler"
    """No failure: the group takes longer for a step than the others, which wait for it."""
    NUMERICS = "numerics"
    """A number that is not finite, in this group alone: its hardware is suspect."""
    GPU = "gpu"
    """Its GPU cannot be used any more, as the driver reports."""
    HANG = "hang"
    """A rank's step takes far longer than it did, and the rank does not wait for others."""
    DEBUGGER = "debugger"
    """It ended in a step in which a person had a rank in the debugger."""
    REQUESTED = "requested"
    """A person asked for a restart."""


class Is(Enum):
    """An answer to one question about a kind."""

    PLANNED = auto()
    """Nothing failed: a person's wish, or a node that is left before it is taken. It draws on no budget."""
    OF_A_PERSON = auto()
    """A person's wish, or work: what failed before does not count against the group any more."""
    TRAINS_ON = auto()
    """Its group trains until something is done about it."""

    ENDED = auto()
    """Its process has ended, and another may be started in its place."""
    LIVES = auto()
    """Its process lives, and may go on by itself when a switch or a store is back."""
    LOST = auto()
    """Its node, or its GPU, cannot be used any more, as far as anyone knows."""
    MAY_COME_BACK = auto()
    """Nothing is heard of the group, and it may be heard again."""
    TAKEN = auto()
    """A node that the engine takes away shows it."""

    TELLS_ITS_END = auto()
    """The end of its process has a text of its own."""
    SAYS_NOTHING_OF_PROGRAM = auto()
    """Failures that the program showed before it still count."""
    OF_THE_PROGRAM = auto()
    """A program reports it of itself: it bars a host for its own run alone."""
    OF_A_MACHINE = auto()
    """Another node may cure it, and what is done about it draws on a budget."""
    OF_A_NETWORK = auto()
    """A switch or a power line may cause it on healthy hosts."""
    OF_AN_OUTAGE = auto()
    """A store or a network that is away may end a process so."""
    HOLDS_UP_OTHERS = auto()
    """The other groups wait for its group meanwhile."""
    ON_THE_NODE = auto()
    """The state of the machine may explain it."""
    MAY_BE_A_GPU = auto()
    """A failing GPU may appear as it in its process."""

    ALIKE = auto()
    """Two of the kind are the same failure, whatever was reported of them."""
    ALIKE_BY_END = auto()
    """Two of the kind are the same failure where the exception, or the signal, is the same."""
    BY_WORD = auto()
    """Its sign may pass before the failure is over."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Answers to the questions that the rules ask about a kind."""

    answers: frozenset[Is]
    fixed_rung: Rung | None = None
    """Rung where the ladder begins; None: the policy sets it (`policy.first_rung`)."""


def _row(*answers: Is, rung: Rung | None = None) -> Traits:
    return Traits(frozenset(answers), rung)


TRAITS: Mapping[Kind, Traits] = {
    Kind.CRASH: _row(
        Is.ENDED, Is.TELLS_ITS_END, Is.OF_A_MACHINE, Is.OF_AN_OUTAGE, Is.ON_THE_NODE, Is.MAY_BE_A_GPU, Is.ALIKE_BY_END
    ),
    Kind.OOM: _row(Is.ENDED, Is.TELLS_ITS_END, Is.OF_A_MACHINE, Is.ALIKE_BY_END),
    Kind.ERROR: _row(
        Is.ENDED, Is.TELLS_ITS_END, Is.OF_THE_PROGRAM, Is.OF_AN_OUTAGE, Is.ON_THE_NODE, Is.MAY_BE_A_GPU, Is.ALIKE_BY_END
    ),
    Kind.SAME_ERROR: _row(Is.TELLS_ITS_END, Is.OF_THE_PROGRAM, rung=Rung.STOP),
    Kind.PEERS_GONE: _row(Is.ENDED, Is.SAYS_NOTHING_OF_PROGRAM, Is.OF_THE_PROGRAM, Is.OF_AN_OUTAGE, Is.ON_THE_NODE),
    Kind.START_TIMEOUT: _row(Is.LIVES, Is.OF_A_MACHINE, Is.ON_THE_NODE, Is.MAY_BE_A_GPU, Is.ALIKE),
    Kind.STALLED: _row(Is.LIVES, Is.MAY_COME_BACK, Is.OF_A_MACHINE, Is.OF_A_NETWORK, Is.ON_THE_NODE, Is.MAY_BE_A_GPU),
    Kind.SILENT: _row(Is.MAY_COME_BACK, Is.SAYS_NOTHING_OF_PROGRAM, rung=Rung.RIDE_THROUGH),
    Kind.NODE_LOST: _row(
        Is.LOST, Is.MAY_COME_BACK, Is.TAKEN, Is.SAYS_NOTHING_OF_PROGRAM, Is.OF_A_NETWORK, Is.ON_THE_NODE
    ),
    Kind.ALLOCATION_LOST: _row(Is.TAKEN, Is.SAYS_NOTHING_OF_PROGRAM),
    Kind.LEAVING: _row(Is.PLANNED, Is.TRAINS_ON, Is.SAYS_NOTHING_OF_PROGRAM, rung=Rung.REPLACE),
    Kind.STRAGGLER: _row(Is.TRAINS_ON, Is.HOLDS_UP_OTHERS, Is.SAYS_NOTHING_OF_PROGRAM, Is.ON_THE_NODE, Is.ALIKE),
    Kind.NUMERICS: _row(Is.TELLS_ITS_END, Is.MAY_BE_A_GPU, Is.ALIKE, Is.BY_WORD),
    Kind.GPU: _row(Is.LOST, Is.TELLS_ITS_END, Is.SAYS_NOTHING_OF_PROGRAM, Is.ON_THE_NODE, Is.BY_WORD),
    Kind.HANG: _row(Is.LIVES, Is.HOLDS_UP_OTHERS, Is.OF_A_MACHINE, Is.ON_THE_NODE, Is.MAY_BE_A_GPU, Is.ALIKE),
    Kind.DEBUGGER: _row(Is.PLANNED, Is.OF_A_PERSON, Is.SAYS_NOTHING_OF_PROGRAM, rung=Rung.RESTART),
    Kind.REQUESTED: _row(Is.PLANNED, Is.OF_A_PERSON, Is.SAYS_NOTHING_OF_PROGRAM, rung=Rung.RESTART),
}


def that_are(answer: Is) -> frozenset[Kind]:
    """Returns all kinds to which this answer applies."""
    return frozenset(kind for kind, traits in TRAITS.items() if answer in traits.answers)


PLANNED = that_are(Is.PLANNED)
OF_A_PERSON = that_are(Is.OF_A_PERSON)
TRAINS_ON = that_are(Is.TRAINS_ON)
