"""Finds the incidents of a history that were acted on, as the checkers and the certificate see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.core.model.kinds import Rung
from supervisor.core.report.durations import from_first_sign_s, wall_clock
from supervisor.shell.history.files import History


@dataclass(frozen=True)
class Acted:
    """An incident that was acted on."""

    id: str
    kind: str
    """Its kind when it was first acted on."""
    group: int
    rung: int
    node: str
    opened: float
    """When it was first in a decision. `acted`, `recovered`: when it was first acted on, and recovered."""
    acted: float
    recovered: float | None
    rank: int | None
    """Rank at fault; None: the whole group, or unknown."""
    before: int
    """The generation that failed."""


def incidents(history: History) -> list[Acted]:
    """Returns all incidents that were acted on. Rung 0 rides a failure through, which is no action."""
    opened: dict[str, float] = {}
    first: dict[str, tuple[float, dict[str, Any]]] = {}
    recovered: dict[str, float] = {}
    halted: set[str] = set()
    for decision in history.committed():
        at = decision.committed_at or decision.t
        for incident in decision.incidents:
            opened.setdefault(incident["id"], decision.t)
            acting = incident.get("state") in ("acting", "halted") and not incident.get("shadow")
            if acting and incident["rung"] > Rung.RIDE_THROUGH:
                first.setdefault(incident["id"], (at, incident))
            if incident.get("state") == "recovered":
                recovered[incident["id"]] = at
            elif incident.get("state") == "halted" and not incident.get("shadow"):
                halted.add(incident["id"])
        if any(action.get("verb") == "resume" for action in decision.actions):
            recovered |= dict.fromkeys(halted - recovered.keys(), at)  # a person has mended it
    return [
        Acted(
            name,
            body["kind"],
            body["group"],
            body["rung"],
            body.get("node", ""),
            opened[name],
            at,
            recovered.get(name),
            body.get("rank"),
            body.get("generation_before", 0),
        )
        for name, (at, body) in first.items()
    ]


def recovered_at(history: History, incident: Mapping[str, Any]) -> float | None:
    """Returns when an incident's group had committed a step with the others, by the leader's wall clock, as the page
    and `incidents` show it. None: it has not."""
    if incident.get("state") != "recovered":
        return None
    if history.account is not None and incident.get("recovered") is not None:
        return wall_clock(float(incident["recovered"]), history.account.clocks)
    seen = (
        d.t for d in history.committed() for i in d.incidents if i["id"] == incident["id"] and i["state"] == "recovered"
    )
    return next(seen, None)


def lasted(history: History, incident: Mapping[str, Any]) -> float | None:
    """Returns the seconds from an incident's first sign until it recovered. None: it has not, or they are not
    recorded."""
    opened, recovered = incident.get("opened"), incident.get("recovered")
    if opened is None or recovered is None:
        return None
    stood = history.account.stood if history.account is not None else ()
    return round(from_first_sign_s(float(opened), float(incident.get("took_s") or 0.0), float(recovered), stood), 2)


def ridden_through(history: History) -> list[dict[str, Any]]:
    """Returns the newest record of each incident, since the run was broken on purpose, that was decided to need no
    action. Its group goes on as it is. An incident of a suspended group is not among them, for its new generation ends
    its processes."""
    began = history.setting.began if history.setting is not None else 0.0
    older: set[str] = set()
    last: dict[str, dict[str, Any]] = {}
    for decision in history.committed():
        last |= {incident["id"]: incident for incident in decision.incidents}
        if decision.t < began:
            older |= last.keys()
    acted = {incident.id for incident in incidents(history)}
    return [i for i in last.values() if i["id"] not in acted | older and _is_ridden_through(i)]


def _is_ridden_through(incident: dict[str, Any]) -> bool:
    as_it_is = incident["generation_after"] == incident["generation_before"] and not incident.get("shadow")
    return as_it_is and incident["rung"] == Rung.RIDE_THROUGH and incident.get("decided") is not None


def mended(history: History) -> Iterator[tuple[str, int, int, float]]:
    """Yields (id, group, generation, when) of incidents that a new generation has mended, by the decisions that
    recorded it. Leaves out groups that finished with it."""
    for decision in history.committed():
        for incident in decision.incidents:
            group, generation = incident["group"], incident.get("generation_after", 0)
            anew = generation > incident.get("generation_before", 0) and not incident.get("shadow")
            finished = decision.groups.get(group, {}).get("phase") == "finished"
            if incident.get("state") == "recovered" and anew and not finished:
                yield incident["id"], group, generation, decision.t
