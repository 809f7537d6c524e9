"""An incident in plain words."""

from __future__ import annotations

from supervisor.core.model import Incident, Kind, Rung

DONE = {
    Rung.RIDE_THROUGH: "The others went on without it; nothing was started.",
    Rung.RESTART: "The group's processes were started again on the same node.",
    Rung.REPLACE: "The node's host was cordoned, the group moved to a spare, and another spare was asked for.",
    Rung.REALLOCATE: "A new allocation was asked of the engine and the old one given back.",
    Rung.STOP: "The run was halted: a person has to look.",
}

FOLLOWED = (
    "The group moved to a spare, and another spare was asked for; no host was cordoned, for it follows the group."
)

LEFT = "The group left its node before it was taken away; no host was cordoned and no budget drawn."

MOVED = "The group's processes were started again, on another node; no host was cordoned."
IN_PLACE = "restart in place: "
"""Begins the reason, among what was considered, for which a group was started again elsewhere after all."""


def explain(incident: Incident, detected: str = "") -> list[str]:
    """Lines: what happened, when, what was done and why, and what else was considered. `detected` is when that was, for people."""
    lines = [
        f"Incident {incident.id}: group {incident.group}{_rank(incident)} on node {incident.node or '-'}: {incident.kind.value}"
        f" ({incident.confidence.value})",
        "",
        *_when(incident, detected),
        "",
        "What was seen:",
        *(f"  - {sentence}" for sentence in incident.evidence),
        "",
        *done(incident),
        f"Why: {incident.reason or 'nothing was decided yet'}.",
    ]
    if incident.trace:
        lines += ["The traceback:", *(f"  {line}" for line in incident.trace.splitlines())]
    if incident.considered:
        lines += ["What else was considered:", *(f"  - {sentence}" for sentence in incident.considered)]
    if incident.costs:
        lines += ["What each would cost, in lost group-seconds:", *(f"  - {sentence}" for sentence in incident.costs)]
    lines += ["", f"State: {incident.state}."]
    if incident.generation_after != incident.generation_before:
        lines.append(f"Generation {incident.generation_before} -> {incident.generation_after}.")
    return lines


def _when(incident: Incident, detected: str) -> list[str]:
    """Each instant, how long after the one before, and after the first."""
    lasted = (
        f" (it had lasted {round(incident.took_s, 2):g} s before it counted as a failure)" if incident.took_s else ""
    )
    lines = ["When:", f"  detected  {detected or f'at {incident.opened:.2f} s of the run clock'}{lasted}"]
    before = incident.opened
    for name, at, what in (
        ("decided", incident.decided, ""),
        ("acted", incident.acted, ": its new processes were seen" if started(incident) else ""),
        ("back", incident.recovered, ""),
    ):
        if at is not None:
            total = f", {at - incident.opened:.2f} s after it was detected" if before != incident.opened else ""
            lines.append(f"  {name:8}  {at - before:.2f} s later{total}{what}")
            before = at
    return lines


def started(incident: Incident) -> bool:
    """Whether its group's processes were started again for it."""
    return incident.generation_after > incident.generation_before


def _rank(incident: Incident) -> str:
    return f", rank {incident.rank}," if incident.rank is not None else ""


def done(incident: Incident) -> list[str]:
    """What was done, or would have been: the rung, and a sentence of it."""
    rung = f"rung {incident.rung.value} ({incident.rung.name.lower().replace('_', ' ')})"
    if incident.shadow:
        ends = {"recovered": "It recovered by itself.", "halted": "It did not recover by itself."}
        return [
            f"What would have been done: {rung}. The policy was only to observe.",
            f"  {ends.get(incident.state, '')}",
        ]
    done = DONE[incident.rung]
    if incident.rung == Rung.REPLACE and (incident.followed or incident.kind == Kind.LEAVING):
        done = FOLLOWED if incident.followed else LEFT
    elif incident.rung == Rung.RESTART and any(why.startswith(IN_PLACE) for why in incident.considered):
        done = MOVED
    return [f"What was done: {rung}.", f"  {done}"]
