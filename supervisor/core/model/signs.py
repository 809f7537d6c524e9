"""Signs: what is seen of a node or a group before it counts as a failure. Memory keeps since when each is there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SignKind(StrEnum):
    """Kinds of signs. The values begin the keys in memory."""

    LEASE = "lease"
    """The node's lease is gone."""
    TERM = "term"
    """A SIGTERM that we did not send ended the group's generation."""
    NAN = "nan"
    """A number that is not finite ended the group's generation."""
    PEER = "peer"
    """Ranks of the group ended because they lost a peer: the cause may be on another of its nodes."""
    OTHER = "other"
    """The node is registered under another allocation."""
    BACK = "back"
    """The node is there again while its group's incident is open."""
    UNSURE = "hang?"
    """A group hangs, and it is not known yet whether the others do too."""
    TOGETHER = "stopped together"
    """Every group hangs by itself, or a rank of each is stopped."""
    HELD = "held"
    """A hang about which nothing is done."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign."""

    kind: SignKind
    subject: str = ""
    """A node, or a group's number; empty: the run's."""
    about: str = ""
    """A generation, or an allocation."""

    @property
    def key(self) -> str:
        return ":".join(part for part in (self.kind.value, self.subject, self.about) if part)


HELD = Sign(SignKind.HELD).key


def kind_of(key: str) -> str:
    """Returns the kind of the sign with this key."""
    return key.partition(":")[0]
