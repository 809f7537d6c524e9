"""The allocator port: what the program needs of a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from supervisor.core.model import Grant
from supervisor.core.spec import AllocationSpec
from supervisor.ports.errors import Fatal


class RequestRefused(Fatal):
    """The scheduler itself does not take this one request. Any other Fatal says nothing of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One allocation of one node. `key` is ours: asking twice with the same key gives one allocation."""

    key: str
    run: str
    slots: int
    """Ranks that the node must hold."""
    lease_s: int
    exclude: tuple[str, ...] = ()
    """Hosts that are not to be given."""
    spec: AllocationSpec = field(default_factory=AllocationSpec)
    """What the run file says of the engine."""


class Engine(Protocol):
    """Raises Retryable when it is away or does not answer in time, RequestRefused when it does not take a request, and Fatal
    when it will never do what is asked, with its own words."""

    name: str
    poll_s: float
    """How often it may be asked for its list, in seconds."""

    def acquire(self, request: Request) -> None:
        """Ask for an allocation; returns at once. Its state appears in `list`. Again with the same key: nothing."""
        ...

    def replace(self, key: str, request: Request, because: str) -> None:
        """Ask for `request` in the place of allocation `key`, whose host is suspect for this reason: that one is given
        back, and the engine keeps others off its host where it can. Again: nothing."""
        ...

    def release(self, key: str) -> None:
        """Give it back; unknown or released keys are no error."""
        ...

    def list(self) -> Sequence[Grant]:
        """All allocations of ours that the engine still knows, and those gone that were not released. `Grant.ended` only on a
        proof: where the engine cannot tell, it is false."""
        ...

    def events(self, changed: Callable[[], None]) -> None:
        """Call `changed`, from any thread, whenever `list` may say something new. An engine that can only be asked never
        calls it: then `poll_s` is all there is."""
        ...

    def knows(self, grant: Grant) -> bool:
        """Whether this engine would know of this allocation if it still were there. Where it would not, that `list`
        lacks it says nothing."""
        ...
