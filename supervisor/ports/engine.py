"""The engine port: what the program needs of a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import AllocationSpec
from supervisor.ports.errors import Fatal, Retryable


class RequestRefused(Fatal):
    """The scheduler refused this one request. Any other Fatal does not judge the request."""


class RequestDeferred(Retryable):
    """The scheduler takes no further request for now, this one or another. It has not judged the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for one allocation. `key` is ours: two requests with the same key give one allocation."""

    key: str
    run: str
    slots: int
    """Ranks that each node must hold."""
    lease_s: int
    nodes: int = 1
    """Number of nodes, given all at once. An engine that cannot give them together refuses the request."""
    exclude: tuple[str, ...] = ()
    """Hosts that the engine must not give."""
    together: tuple[str, ...] = ()
    """Keys of one group that are asked for at the same time, in order, this one among them: an engine may give them by
    one job. Empty: it is asked for alone."""
    spec: AllocationSpec = field(default_factory=AllocationSpec)
    """Engine settings from the run file."""


class Engine(Protocol):
    """A scheduler, as far as the supervisor needs it. Methods raise Retryable if it is away or late, RequestRefused if it
    refuses a request, and RequestDeferred if it takes no more of them for now. They raise Fatal, with its words, for what it will never do."""

    name: str
    poll_s: float
    """Least seconds between two calls of `list`."""

    def acquire(self, request: Request) -> None:
        """Asks for an allocation and returns at once; its state appears in `list`. Does nothing for a known key."""
        ...

    def replace(self, key: str, request: Request, because: str) -> None:
        """Asks for `request` in place of allocation `key`, whose host is suspect for the reason `because`. The engine
        takes `key` back and keeps others off its host where it can. A second call does nothing."""
        ...

    def release(self, key: str) -> None:
        """Gives the allocation back, at the latest by the next `list`. Unknown or released keys are no error."""
        ...

    def list(self) -> Sequence[Grant]:
        """Returns all our allocations that the engine still knows, and those that are gone but were not released.
        `Grant.ended` needs a proof: it is false where the engine cannot tell."""
        ...

    def events(self, changed: Callable[[], None]) -> None:
        """Calls `changed`, from any thread, whenever `list` may have changed. An engine without notifications never
        calls it: then only `poll_s` applies."""
        ...

    def knows(self, grant: Grant) -> bool:
        """Returns true if this engine would list this allocation while it exists. If false, its absence from `list`
        proves nothing."""
        ...
