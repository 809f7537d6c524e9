"""Measures what a fault cost beyond its group's own times: lost steps, and a halt of the run that a person ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fault_injection.demo import report as costs
from supervisor.shell.history.files import History


def steps_lost(history: History, group: int, begin: float, until: float) -> int:
    """Counts the steps that a group's fault lost between two moments: those that a resume from disk threw away, and
    those that another group tried in vain (the most of any)."""
    others = {steps.group for steps in history.steps} - {group}
    failed = max((costs.others(history, g, begin, until)["failed"] for g in others), default=0)
    return failed + _thrown_away(history, begin, until)


def _thrown_away(history: History, begin: float, until: float) -> int:
    """Counts the steps from the newest back to the one from which training went on. Groups commit a step once in a
    quorum, so an older step in a newer quorum has gone back."""
    first: dict[tuple[int | None, int], float] = {}
    for steps in history.steps:
        for line in steps.committed():
            key = (line.get("quorum_id"), int(line["step"]))  # where it is missing, the checkers report it
            first[key] = min(line["t"], first.get(key, line["t"]))
    lost = newest = 0
    for (_, step), t in sorted(first.items(), key=lambda each: (each[1], each[0][1])):
        if step <= newest and begin <= t <= until:
            lost += newest - step + 1
        newest = step
    return lost


def halt(history: History, group: int, begin: float, until: float) -> dict[str, float | None]:
    """Returns the seconds from `begin` until the run was halted, a person resumed it, and the group committed its first
    step since. None for what did not happen."""
    halted = resumed = None
    for decision in history.committed():
        at = decision.committed_at or decision.t
        if not begin <= at <= until:
            continue
        own = (i for i in decision.incidents if i.get("state") == "halted" and not i.get("shadow"))
        halted = halted if halted is not None else next((at for _ in own), None)
        if halted is not None and resumed is None and any(a.get("verb") == "resume" for a in decision.actions):
            resumed = at
    commits = (line["t"] for steps in history.of_group(group) for line in steps.committed())
    back = min((t for t in commits if resumed is not None and t >= resumed), default=None)
    moments = {"halted_s": halted, "resumed_s": resumed, "rejoined_s": back}
    return {name: None if at is None else round(at - begin, 3) for name, at in moments.items()}


def heal_s(history: History, begin: float, until: float) -> float | None:
    """Returns the longest time in which a group got its state from a peer, as its rank 0 noted it; None: none did."""
    lines = (x for s in history.steps if s.rank == 0 for x in s.lines if x.get("event") == "heal")
    return max((float(x["transfer_s"]) for x in lines if begin <= x["t"] <= until and "transfer_s" in x), default=None)


def trains_again(history: History, group: int, begin: float, until: float) -> float | None:
    """Returns the seconds from `begin` until a group committed a step that it began since; None if it did not."""
    lines = (line for steps in history.of_group(group) for line in steps.committed())
    back = min((x["t"] for x in lines if begin <= x.get("start", x["t"]) and x["t"] <= until), default=None)
    return None if back is None else round(back - begin, 3)


def control_plane(history: History, begin: float, until: float) -> list[dict[str, Any]]:
    """Lists what the control plane did about itself meanwhile: `what`, and `after_s` seconds since `begin`."""
    found = sorted((t, what) for t, what in _control_plane(history) if begin <= t <= until)
    return [{"what": what, "after_s": round(t - begin, 3)} for t, what in found]


def _control_plane(history: History) -> Iterator[tuple[float, str]]:
    yield from ((seen.t, "another supervisor leads") for seen in history.seen if seen.what == "leader")
    for decision in history.committed():
        for action in decision.actions:
            if action["verb"] == "lighthouse":
                yield decision.committed_at or decision.t, f"lighthouse {action['generation']} is decided"
    for outage in history.outages:
        yield outage.end, f"the leader reaches etcd again, {outage.end - outage.start:.1f} s later"
