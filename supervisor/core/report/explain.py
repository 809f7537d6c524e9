"""Explains an incident in plain words."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code
from supervisor.core.report.durations import incident_s, lasted_s
from supervisor.core.report.words import say

DONE = {
    Rung.RIDE_THROUGH: "The others went on without it; nothing was started.",
    Rung.RESTART: "The group's processes were started again where they were.",
    Rung.REPLACE: "The node's host was cordoned, a spare took its place, and another spare was asked for.",
    Rung.REALLOCATE: "A new allocation was asked of the engine and the old one given back.",
    Rung.STOP: "The run was halted: a person has to look.",
}

FOLLOWED = (
    "A spare took the node's place, and another spare was asked for; no host was cordoned, for it follows the group."
)

OUTSIDE = "A spare took the node's place, and another spare was asked for; no host was cordoned, for its ranks were stopped or killed from outside."

LEFT = "The group left the node before it was taken away; no host was cordoned and no budget drawn."

MOVED = "The group's processes were started again, with another node in place of theirs; no host was cordoned."

FRAMES = 6
"""Newest frames of a traceback that are shown; of a number that is not finite only the frame that found it."""

AT_LEAST_S = 0.01
"""Seconds missing on the run clock that are shown, at least."""


def explain(
    incident: Incident,
    detected: str = "",
    became: Sequence[tuple[float, Kind]] = (),
    waits: Sequence[str] = (),
    stood: Sequence[tuple[float, float]] = (),
) -> list[str]:
    """Returns lines: what happened, when, what was done and why, and what else was considered.

    `detected`: when that was, for people. `became`: since when it was of which kind, on the run clock. `waits`: why
    nothing was decided at first. `stood`: as Account.stood.
    """
    lines = [
        f"Incident {incident.id}: group {incident.group}{_rank(incident)} on {_nodes(incident)}: {incident.kind.value}"
        f" ({incident.confidence.value})",
        "",
        *_when(incident, detected, became, stood),
        "",
        "What was seen:",
        *(f"  - {say(seen)}" for seen in incident.evidence),
        "",
        *done(incident),
        *([f"Why: {say(incident.reason)}."] if incident.reason else []),
        *([f"Started from: {say(incident.resumed)}."] if incident.resumed else []),
        *([f"It ran code {incident.code}."] if incident.code else []),
    ]
    if waits:
        lines += ["Why not at once:", *(f"  - {sentence}" for sentence in waits)]
    if incident.trace:
        lines += _trace(incident)
    if incident.considered:
        lines += ["What else was considered:", *(f"  - {say(why)}" for why in incident.considered)]
    if incident.costs:
        lines += [
            "What each would cost, in lost group-seconds until it steps again:",
            *(f"  - {say(cost)}" for cost in incident.costs),
        ]
    lines += ["", f"State: {incident.state}."]
    if incident.generation_after != incident.generation_before:
        lines.append(f"Generation {incident.generation_before} -> {incident.generation_after}.")
    return lines


def _when(
    incident: Incident, detected: str, became: Sequence[tuple[float, Kind]], stood: Sequence[tuple[float, float]]
) -> list[str]:
    """Lists each instant, with the seconds since the one before and since the first."""
    rows = [
        (at, name, what)
        for at, name, what in (
            *((at, kind.value, ": only now it counted as that") for at, kind in became[1:]),
            (incident.decided, "decided", ""),
            (incident.acted, "acted", ": its new processes were seen" if started(incident) else ""),
            (incident.recovered, "back", ""),
        )
        if at is not None
    ]
    lines = [
        "When:",
        f"  detected  {detected or f'at {incident.opened:.2f} s of the run clock'}{_first(incident, became)}",
    ]
    before = incident.opened
    for at, name, what in sorted(rows, key=lambda row: row[0]):
        since = lasted_s(incident.opened, at, stood)
        total = f", {since:.2f} s after it was detected" if before != incident.opened else ""
        lines.append(f"  {name:8}  {lasted_s(before, at, stood):.2f} s later{total}{what}")
        before = at
    whole_s = incident_s(incident, stood)
    if whole_s is not None and incident.took_s:  # else the line above shows it
        lines.append(f"  lasted    {whole_s:.2f} s, from its first sign")
    # it is unknown if anyone led then: a leader that changes nothing leaves no memory
    more_s = lasted_s(incident.opened, before, stood) - (before - incident.opened)
    told = f"  ({more_s:.2f} s of it are not on the run clock: another supervisor took the lead)"
    return [*lines, told] if more_s >= AT_LEAST_S else lines


def _first(incident: Incident, became: Sequence[tuple[float, Kind]]) -> str:
    took = f"{round(incident.took_s, 2):g} s"
    if len(became) > 1:  # took_s is not about the newest kind
        return f", as {became[0][1].value}" + (f" (its first sign was {took} before that)" if incident.took_s else "")
    return f" (it had lasted {took} before it counted as a failure)" if incident.took_s else ""


def started(incident: Incident) -> bool:
    """Returns true if the group's processes were started again for the incident."""
    return incident.generation_after > incident.generation_before


def _trace(incident: Incident) -> list[str]:
    lines = incident.trace.splitlines()
    frames = [n for n, line in enumerate(lines) if line.lstrip().startswith('File "')]
    left_out = max(0, len(frames) - (1 if incident.kind == Kind.NUMERICS else FRAMES))
    told = lines[frames[left_out] :] if left_out else lines
    without = f", without its {left_out} oldest of {len(frames)} frames (--json has all)" if left_out else ""
    return [f"The traceback{without}:", *(f"  {line}" for line in told)]


def _rank(incident: Incident) -> str:
    return f", rank {incident.rank}," if incident.rank is not None else ""


def _nodes(incident: Incident) -> str:
    return f"nodes {', '.join(incident.nodes)}" if len(incident.nodes) > 1 else f"node {incident.node or '-'}"


def is_open(incident: Incident) -> bool:
    """Returns true if the incident goes on."""
    return incident.state in ("open", "acting")


def named(rung: Rung) -> str:
    """Number and name of a rung."""
    return f"rung {rung.value} ({rung.name.lower().replace('_', ' ')})"


def not_done(incident: Incident) -> str:
    """Sentence that nothing was done, or not yet; empty if something was, or would have been."""
    if incident.shadow or incident.acted is not None:
        return ""
    if incident.decided is None:
        return "Nothing was done yet: nothing was decided." if is_open(incident) else "Nothing was done."
    if incident.rung in (Rung.RIDE_THROUGH, Rung.STOP):  # these start nothing, so nothing has to be seen
        return ""
    how = "it is under way" if is_open(incident) else "it was not carried out any more"
    return f"Decided: {named(incident.rung)}; {how}."


def done(incident: Incident) -> list[str]:
    """Lines on what was, or would have been, done: the rung and a sentence; or a sentence that nothing was."""
    if sentence := not_done(incident):
        return [sentence]
    rung = named(incident.rung)
    if incident.shadow:
        ends = {"recovered": "It recovered by itself.", "halted": "It did not recover by itself."}
        said = [f"  {ends[incident.state]}"] if incident.state in ends else []
        return [f"What would have been done: {rung}. The policy was only to observe.", *said]
    done = DONE[incident.rung]
    if incident.rung == Rung.REPLACE and (incident.followed or incident.outside or incident.kind == Kind.LEAVING):
        done = FOLLOWED if incident.followed else LEFT if incident.kind == Kind.LEAVING else OUTSIDE
    elif incident.rung == Rung.RESTART and any(why.code == Code.MOVED for why in incident.considered):
        done = MOVED
    if len(incident.nodes) > 1 and incident.rung in (Rung.REPLACE, Rung.REALLOCATE):
        done = f"For each of the nodes {', '.join(incident.nodes)}: {done[0].lower()}{done[1:]}"
    return [f"What was done: {rung}.", f"  {done}"]
