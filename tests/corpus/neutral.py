"""An answer of `decide` in a form that outlives names and wording: verbs, keys, rungs, codes, and what changed in
memory.

Where a field or a type is renamed, this module maps it to the name in the corpus.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from supervisor.core.attribution.cross_host_recurrence import BY_END, BY_KIND
from supervisor.core.model.decision import Decision
from supervisor.core.model.memory import Memory
from supervisor.core.model.reason import Reason
from supervisor.core.model.signs import SignKind, kind_of
from supervisor.core.report.words import say

WORDS = {"reason", "evidence", "considered", "costs", "error", "trace", "said", "held_hang"}
"""Fields that only tell people why."""
SET_OR_NOT = {"halt_reason", "left_out", "resumed"}
"""Text fields of which only the presence counts."""

DROPPED = {"oom_at", "oom_host", "restarts_host"}
"""Fields that memory had when the corpus was made, and has no more: the decisions that rested on them are compared."""

Answer = dict[str, Any]


def answer(decision: Decision, before: Memory) -> Answer:
    """The effects of a decision. Empty, false and 0 values are left out, so that a new field does not change it."""
    was, now = (dict(_flat("", _memory(m))) for m in (before, decision.memory))
    found = {
        "actions": [_lean(a) for a in decision.actions],
        "incidents": [_lean(i) for i in decision.incidents],
        "suspicions": [_lean(s) for s in decision.suspicions],
        "acquitted": to_jsonable_python(decision.acquitted),
        "again": _rounded(decision.look_again_at),
        "set": {path: value for path, value in now.items() if was.get(path) != value},
        "gone": sorted(was.keys() - now.keys()),
        "words": words(decision),
    }
    return {name: value for name, value in found.items() if value}


def of_today(recorded: Answer) -> Answer:
    """A recorded answer without the fields that memory has no more."""
    changed = {path: value for path, value in recorded.get("set", {}).items() if path.rpartition(".")[2] not in DROPPED}
    gone = [path for path in recorded.get("gone", []) if path.rpartition(".")[2] not in DROPPED]
    return {name: value for name, value in {**recorded, "set": changed, "gone": gone}.items() if value}


def words(decision: Decision) -> str:
    """A digest of all sentences that the decision has for people."""
    said = [
        *decision.waits,
        *(a.reason for a in decision.actions),
        *(text for i in decision.incidents for text in (i.reason, *i.evidence, *i.considered, *i.costs, i.resumed)),
        decision.memory.halt_reason,
        *(a.reason for a in decision.memory.allocations.values()),
        *(g.left_out for g in decision.memory.groups.values()),
        *decision.memory.cordons.values(),
    ]
    texts = (say(each) if isinstance(each, Reason) else each or "" for each in said)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def _memory(memory: Memory) -> dict[str, Any]:
    body: dict[str, Any] = to_jsonable_python(memory)
    body["groups"] = {g: _of_one_node(group) for g, group in body["groups"].items()}
    for allocation in body["allocations"].values():
        if allocation["nodes"] == 1:
            del allocation["nodes"]  # what every allocation of the corpus is of
    body["cordons"] = dict.fromkeys(body["cordons"], True)
    body["suspects"] = {
        "held: " if kind_of(key) == SignKind.HELD else key: since for key, since in body["suspects"].items()
    }
    return body


def _of_one_node(group: dict[str, Any]) -> dict[str, Any]:
    """A group's first seat under the names that the corpus has for it."""
    seats, left, _ = group.pop("seats"), group.pop("left"), group.pop("size")
    (was, *_), (now, *_) = left or [{}], seats or [{}]
    failures = group.pop("failures")
    restarts = [f for f in failures if f.pop("restarted")]
    group["restarts_here"] = [f["at"] for f in restarts]
    newest = {f["kind"]: f for f in failures if f["kind"] in BY_KIND | BY_END}
    group["shown"] = [_shown(f) for f in failures if f is newest.get(f["kind"])]
    here = {"node": now.get("node"), "host": now.get("host"), "allocation": (now or was).get("allocation")}
    return {**group, **here, "old_node": was.get("node")}


def _shown(failure: dict[str, Any]) -> dict[str, Any]:
    """The newest failure of a kind as the corpus has it: with its text where alikeness depends on that."""
    same = failure["same"] if failure["kind"] in BY_END else ""
    return {name: value for name, value in {**failure, "same": same}.items() if (name, value) != ("rank", None)}


def _lean(value: Any) -> dict[str, Any]:
    return dict(_flat("", to_jsonable_python(value)))


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Each leaf that is not empty, with the names that lead to it."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name in SET_OR_NOT:
                each = bool(each)
            if name not in WORDS:
                yield from _flat(f"{path}.{name}" if path else str(name), each)
    elif value:
        yield path, [_rounded(v) for v in value] if isinstance(value, list) else _rounded(value)


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
