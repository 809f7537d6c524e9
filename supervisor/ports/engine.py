"""The allocator port: what the program needs of a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from supervisor.core.model import Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One allocation of one node. `key` is ours: asking twice with the same key gives one allocation."""

    key: str
    run: str
    slots: int
    """Ranks that the node must hold."""
    lease_s: int
    exclude: tuple[str, ...] = ()


class Engine(Protocol):
    """Raises Retryable when it is away and Fatal when it will never do what is asked."""

    name: str

    def acquire(self, request: Request) -> None:
        """Ask for an allocation; returns at once. Its state appears in `list`."""
        ...

    def release(self, key: str) -> None:
        """Give it back; unknown or released keys are no error."""
        ...

    def list(self) -> Sequence[Grant]:
        """All allocations of ours that the engine still knows, and those gone that were not released."""
        ...

    def knows(self, grant: Grant) -> bool:
        """Whether this engine would know of this allocation if it still were there. Where it would not, that `list`
        lacks it says nothing."""
        ...
