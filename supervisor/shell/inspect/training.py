"""How a run trains now, in a few numbers: for the page, `top` and the Python API."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.shell.inspect.status import GroupStatus, RunStatus


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """How a run trains, by the newest reports of its groups."""

    run: str
    step: int
    """Newest committed step of any group."""
    stepped_unix_s: float
    """When that was committed, by its node's clock; 0 if unknown."""
    loss: float | None
    """Mean over the groups of the newest step; None if no rank reports it."""
    step_s: float
    """Seconds of the newest step; 0 if there is none."""
    tokens_per_s: float
    """Sum of what the first ranks of the groups of the newest quorum report; 0 if none does."""
    groups: tuple[GroupStatus, ...]
    """Each group's own step, loss, tokens_per_s and step_s."""


def newest(found: RunStatus) -> GroupStatus | None:
    """Returns the group with the newest step, of several that with the largest quorum. None: there is no step yet."""
    return max((g for g in found.groups if g.step), key=lambda g: (g.step, g.participants), default=None)


def tokens_per_s(found: RunStatus) -> float:
    """Returns the tokens per second that the first ranks of the groups that step together report."""
    first = newest(found)
    return sum(g.tokens_per_s for g in found.groups if first is not None and g.quorum_id == first.quorum_id)


def metrics(found: RunStatus) -> Metrics:
    """Returns the numbers of a run's status."""
    first = newest(found)
    return Metrics(
        run=found.run,
        step=found.step,
        stepped_unix_s=found.stepped_unix_s,
        loss=first.loss if first is not None else None,
        step_s=first.step_s if first is not None else 0.0,
        tokens_per_s=tokens_per_s(found),
        groups=found.groups,
    )
