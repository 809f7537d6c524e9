"""Checks that every signal that ended a trainer had a reason, which was recorded before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from supervisor.shell.history.files import Decided, History, Signalled, Unknown


def no_kill_without_reason(history: History) -> list[str]:
    """Checks that every signal from a shim to a trainer had a reason recorded before.

    A reason is a committed decision about that group, or the failure of another rank of the same generation. It may
    also be a policy of the agent's own, unless that trainer's steps contradict it.

    A trainer that ends without a signal of ours has failed or finished, which is no kill."""
    reasons = _reasons(history)
    found, missing = [], []
    told: set[tuple[str, int, int, int]] = set()
    for sent in history.signals:  # by their time
        whom = (sent.node, sent.group, sent.generation, sent.rank)
        if whom in told:
            continue  # KILL follows TERM
        if _not_ours(history, sent) or _of_its_own(history, sent) or any(r.covers(sent) for r in reasons):
            told.add(whom)
        elif sent.allocation is None:
            missing.append(
                f"the shim of {sent.node} does not say whether its node was ended, nor of which allocation it is"
            )
        else:
            found.append(
                f"group {sent.group} generation {sent.generation} on {sent.node} was sent signal {sent.number} at "
                f"{sent.t:.3f}, and no reason was recorded before"
            )
    if missing and not found:
        raise Unknown("; ".join(sorted(set(missing))))
    return found


@dataclass(frozen=True)
class _Reason:
    """Why generations of a group below `below` may be ended from `t` until `until`."""

    t: float
    group: int | None
    """None: every group."""
    below: float
    until: float = float("inf")

    def covers(self, sent: Signalled) -> bool:
        return self.t <= sent.t < self.until and self.group in (None, sent.group) and sent.generation < self.below


def _reasons(history: History) -> list[_Reason]:
    """Returns all recorded reasons. They count from the intent on, as agents may be faster than its outcome."""
    committed = history.committed()
    resumed = [d.t for d in committed if any(a["verb"] == "resume" for a in d.actions)]
    reasons = []
    for decision in committed:
        reasons += list(_raises(decision))
        if any(a["verb"] in ("stop", "halt") and a.get("reason") for a in decision.actions):
            until = min((t for t in resumed if t > decision.t), default=float("inf"))
            reasons.append(_Reason(decision.t, None, float("inf"), until))
    return reasons


def _raises(decision: Decided) -> Iterator[_Reason]:
    for incident in decision.incidents:
        if incident.get("reason") and incident["generation_after"] > incident["generation_before"]:
            yield _Reason(decision.t, incident["group"], incident["generation_after"])
    for action in decision.actions:
        about = action.get("group"), action.get("generation")
        if action.get("reason") and about[0] is not None and about[1] is not None:
            yield _Reason(decision.t, about[0], about[1])
        if action["verb"] == "resume" and action.get("reason"):
            for group, state in decision.groups.items():
                yield _Reason(decision.t, group, int(state["generation"]))


def _not_ours(history: History, sent: Signalled) -> bool:
    """Returns true if the node was ended from outside: no decision of ours had released its allocation."""
    return sent.node_ending and sent.allocation is not None and not _released(history, sent)


def _released(history: History, sent: Signalled) -> bool:
    return any(
        action["verb"] == "release" and action["key"] == f"release:{sent.allocation}"
        for decision in history.committed()
        if decision.t <= sent.t
        for action in decision.actions
    )


def _of_its_own(history: History, sent: Signalled) -> bool:
    if sent.cut_off_s is not None:
        return not _stepped(history, sent, sent.t - sent.cut_off_s)
    return any(
        (p.node, p.group, p.generation) == (sent.node, sent.group, sent.generation)
        and p.rank != sent.rank
        and p.exited is not None
        and p.exited <= sent.t
        and p.exit_code != 0
        for p in history.processes
    )


def _stepped(history: History, sent: Signalled, since: float) -> bool:
    """Returns true if it committed a step begun after `since`: a trainer that is cut off gets no quorum for one."""
    whom = (sent.node, sent.group, sent.generation)
    own = (line for s in history.steps if (s.node, s.group, s.generation) == whom for line in s.committed())
    own = (line for line in own if isinstance(line.get("quorum_id"), int))  # toys step without one
    return any(since < line["start"] and line["t"] <= sent.t for line in own)
