"""The checker `within_budgets`: counts what was done about failures, independently of the supervisor's own count."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from supervisor.core.attribution import circuit_breaker
from supervisor.core.model.kinds import PLANNED, Kind, Rung
from supervisor.core.model.reason import Code, of_json
from supervisor.shell.history.files import History, Process, Setting, Unknown
from supervisor.shell.history.goodput import SLACK_S

PAYS = frozenset({Kind.CRASH, Kind.OOM, Kind.HANG, Kind.STALLED, Kind.START_TIMEOUT})
"""Failures of a process that no other group or node caused: each remedy for them draws on its rung's budget."""

SPOILS = frozenset({Kind.NUMERICS, Kind.GPU, Kind.ERROR})
"""Kinds under which non-finite numbers of a group may be reported; they make other groups end."""

MOST_TRIES = 10
"""Most generations of a group for one incident that draw on a budget: more than all default budgets allow. A run that
is broken every minute has wide budgets. Its histories show at most four, but for groups restarted again and again for
something that no start could mend."""


def within_budgets(history: History) -> list[str]:
    """Checks that a window holds no more remedies than the budgets allow, and an incident no more than MOST_TRIES.

    A remedy is a new generation of a group for a failure that surely pays, or a node requested at a budget's cost.

    A decision that claims to be free must be borne out by other records than its own reason:

    - what a person gives up is free for the breaker's window from that decision on;
    - a failure put down to another group needs that group's incident since this process began, of a kind by which
      others end;
    - a failure put down to a shared cause needs the next process on the same node in the shims' records. It also needs
      the breaker's hold in the journal, or processes that ended by themselves on two nodes."""
    if history.setting is None:
        raise Unknown("the history does not say what was to be broken")
    setting = history.setting
    if unsaid := {Rung(r).name.lower() for r in (Rung.RESTART, Rung.REPLACE, Rung.REALLOCATE)} - setting.budgets.keys():
        raise Unknown(f"the history does not say what the budget of {' and '.join(sorted(unsaid))} is")
    drawn: dict[tuple[int, int | None], list[float]] = defaultdict(list)
    asked: dict[tuple[int, int | None], list[float]] = defaultdict(list)
    counted: set[tuple[str, int]] = set()
    tries: Counter[str] = Counter()
    free = _Free(history, setting)
    several = any(len(action.get("nodes") or ()) > 1 for d in history.committed() for action in d.actions)
    for decision in history.committed():
        for incident in decision.incidents:
            key = (incident["id"], incident["generation_after"])
            raised = incident["generation_after"] > incident["generation_before"]
            if key in counted or not raised or incident.get("shadow") or not _pays(incident):
                continue
            counted.add(key)
            if free.given_up(decision.t) or free.of_others(decision.t, incident):
                continue
            tries[incident["id"]] += 1
            rung = int(incident["rung"])
            drawn[rung, incident["group"] if rung == Rung.RESTART else None].append(decision.t)
        paid: set[str] = set()
        for action in decision.actions:
            if action["verb"] == "acquire" and action.get("rung") in (Rung.REPLACE, Rung.REALLOCATE):
                once = f"{action['rung']} {action.get('reason')}"
                if not several or once not in paid:  # all nodes that a group lacks are paid at once
                    asked[int(action["rung"]), None].append(decision.t)
                paid.add(once)
    found = [
        f"incident {id}: {n} generations of its group, at most {MOST_TRIES}"
        for id, n in tries.items()
        if n > MOST_TRIES
    ]
    # one draw may be in both lists: each is compared with the budget by itself
    for (rung, group), instants in sorted([*drawn.items(), *asked.items()], key=str):
        name = Rung(rung).name.lower()
        allowed = setting.budgets.get(name)
        most = max(sum(t <= other < t + setting.window_s for other in instants) for t in instants)
        if allowed is not None and most > allowed:
            whose = f" of group {group}" if group is not None else ""
            found.append(f"{most} times {name}{whose} within {setting.window_s:g} s: its budget is {allowed}")
    return found


def _pays(incident: Mapping[str, Any]) -> bool:
    """Returns true unless a person requested it, or a node is left before it is taken away. A reallocation pays by the
    node that it requests: it is free when all were taken, or when another was already wanted in its place."""
    if incident["kind"] in PLANNED:
        return False
    return incident["rung"] < Rung.REALLOCATE or incident["kind"] in PAYS


class _Free:
    """Finds when, and for what, no budget is drawn on."""

    def __init__(self, history: History, setting: Setting) -> None:
        self._history, self._window_s = history, setting.breaker_window_s
        self._said: list[float] = []
        """Times at which a person gave up what was lost."""
        self._held: list[tuple[float, float]] = []
        """Beginning and end of each hold of the breaker."""
        self._opened: dict[str, float] = {}
        self._spoils: dict[str, int] = {}
        """Maps an incident to its group, whose numbers may have ended others."""
        anothers: set[str] = set()
        since: float | None = None
        for decision in history.committed():
            for incident in decision.incidents:
                self._opened.setdefault(incident["id"], decision.t)
                if incident["kind"] in SPOILS:
                    self._spoils[incident["id"]] = incident["group"]
                if _is_anothers_fault(incident):
                    anothers.add(incident["id"])
            verbs = {a["verb"] for a in decision.actions}
            if any(a["verb"] == "resume" and "evict:" in a.get("key", "") for a in decision.actions):
                self._said.append(decision.t)
            if "hold" in verbs and since is None:
                since = decision.t
            if "let_go" in verbs and since is not None:
                self._held.append((since, decision.t))
                since = None
        if since is not None:
            self._held.append((since, float("inf")))
        for id in anothers:
            self._spoils.pop(id, None)

    def given_up(self, t: float) -> bool:
        return any(said <= t < said + self._window() + SLACK_S for said in self._said)

    def of_others(self, t: float, incident: Mapping[str, Any]) -> bool:
        """Returns true if this was a restart for a failure that the group did not cause, as other records bear out."""
        return self._of_another(t, incident) if _is_anothers_fault(incident) else self._of_one_cause(t, incident)

    def _of_another(self, t: float, incident: Mapping[str, Any]) -> bool:
        whom = incident["group"], incident["generation_before"]
        begun = min((p.spawned for p in self._history.processes if (p.group, p.generation) == whom), default=t)
        known = (id for id, group in self._spoils.items() if group != incident["group"])
        spoilt = any(begun <= self._opened[id] <= t for id in known)
        return spoilt and incident["rung"] == Rung.RESTART and incident["kind"] == Kind.ERROR

    def _of_one_cause(self, t: float, incident: Mapping[str, Any]) -> bool:
        """Returns true if this was a restart in place for a failure that no node caused, as other records bear out."""
        code = _code(incident)
        if (
            incident["rung"] != Rung.RESTART
            or incident["kind"] not in circuit_breaker.HELD
            or not self._in_place(incident)
        ):
            return False
        if code == Code.BREAKER_HOLDS:
            return any(begun <= t < ended + self._window() + SLACK_S for begun, ended in self._held)
        return bool(code == Code.SHARED_AWAY and len({p.node for p in self._ended_by_themselves(t)}) > 1)

    def _window(self) -> float:
        if self._window_s is None:
            raise Unknown("the history does not say what the breaker's window is")
        return self._window_s

    def _in_place(self, incident: Mapping[str, Any]) -> bool:
        own = [p for p in self._history.processes if p.group == incident["group"]]
        after = {p.node for p in own if p.generation == incident["generation_after"]}
        before = max((p for p in own if p.generation < incident["generation_after"]), key=_generation, default=None)
        return before is None or after <= {p.node for p in own if p.generation == before.generation}

    def _ended_by_themselves(self, t: float) -> list[Process]:
        told = {(s.node, s.group, s.generation, s.rank) for s in self._history.signals}
        ended = (p for p in self._history.processes if p.exited is not None and p.exited <= t and p.exit_code != 0)
        return [p for p in ended if (p.node, p.group, p.generation, p.rank) not in told]


def _is_anothers_fault(incident: Mapping[str, Any]) -> bool:
    return _code(incident) == Code.ANOTHERS_FAULT


def _code(incident: Mapping[str, Any]) -> str:
    reason = of_json(incident.get("reason", ""))
    return reason.code if reason is not None else ""


def _generation(process: Process) -> int:
    return process.generation
