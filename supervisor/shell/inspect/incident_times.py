"""A run's incidents with their times by the wall clock: for `incidents` and the Python API."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from supervisor.core.model.incident import Incident
from supervisor.core.report.durations import incident_s, wall_clock
from supervisor.core.report.words import said, say
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import client, decision_replay, status
from supervisor.wire.records import Account, RunRecord


@dataclass(frozen=True, kw_only=True)
class Times:
    """When an incident happened, by its leaders' wall clock."""

    seen_unix_s: float | None
    """When it was detected; None if no journal or account shows it."""
    recovered_unix_s: float | None
    """When its group had committed a step with the others; None if it has not, or no account shows it."""
    lasted_s: float | None
    """Seconds from its first sign until then; None if it has not recovered."""


@dataclass(frozen=True, kw_only=True)
class IncidentStatus(Times):
    """One failure of a run: what was seen, what is done about it, and why."""

    id: str
    kind: str
    state: str
    """open, acting, recovered or halted."""
    group: int
    rank: int | None
    """Rank at fault; None: the whole group, or unknown."""
    node: str
    rung: int
    """0: ride through. 1: restart. 2: replace. 3: reallocate. 4: stop."""
    generation_before: int
    generation_after: int
    step_before: int
    """Newest committed step of the group when it failed."""
    shadow: bool
    """True if it was only observed (policy.mode)."""
    reason: str
    """Sentence on why this rung; empty if none was decided on."""
    evidence: tuple[str, ...]
    """Sentences on what was seen."""
    error: str
    """Error text that the rank left, if any."""


def times(found: Iterable[Incident], account: Account, journal: Path) -> dict[str, Times]:
    """Returns the times of incidents, by id. `journal`: says when they were seen, where no account does."""
    seen = {} if account.clocks else decision_replay.seen(journal)
    return {
        i.id: Times(
            seen_unix_s=wall_clock(i.opened, account.clocks) if account.clocks else seen.get(i.id),
            recovered_unix_s=wall_clock(i.recovered, account.clocks) if i.recovered is not None else None,
            lasted_s=incident_s(i, account.stood),
        )
        for i in found
    }


def statuses(found: Iterable[Incident], account: Account, journal: Path) -> tuple[IncidentStatus, ...]:
    """Returns incidents as values for a reader. Arguments as for `times`."""
    found = tuple(found)
    when = times(found, account, journal)
    return tuple(_status(i, when[i.id]) for i in found)


def of_run(mirror: Mirror, record: RunRecord) -> tuple[IncidentStatus, ...]:
    """Returns the incidents of a run in etcd, oldest first."""
    run = record.spec.name
    found = client.incidents(mirror, run)
    return statuses(found, status.account(mirror, run), Path(record.run_dir) / "journal.jsonl")


def _status(i: Incident, when: Times) -> IncidentStatus:
    return IncidentStatus(
        id=i.id,
        kind=i.kind.value,
        state=i.state,
        group=i.group,
        rank=i.rank,
        node=i.node,
        rung=i.rung.value,
        generation_before=i.generation_before,
        generation_after=i.generation_after,
        step_before=i.step_before,
        shadow=i.shadow,
        reason=say(i.reason),
        evidence=said(i.evidence),
        error=i.error,
        seen_unix_s=when.seen_unix_s,
        recovered_unix_s=when.recovered_unix_s,
        lasted_s=when.lasted_s,
    )
