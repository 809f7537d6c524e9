"""Turns reasons into sentences: the one place that does, with the other `words_` modules. No decision depends on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import FirstRungSpec
from supervisor.core.report import words_done, words_seen, words_waits

WHY_FIRST: Mapping[str, str] = {
    Kind.SILENT: "the quorum goes on without it, and its node still lives",
    Kind.DEBUGGER: "a person had it in the debugger",
    Kind.REQUESTED: "a person asked for it",
    Kind.LEAVING: "its node is about to be taken away: it is left before",
    Kind.SAME_ERROR: "the same error comes back wherever it is started: starting it again would end the same way",
    **{Kind(f.name): f.metadata["reason"] for f in fields(FirstRungSpec)},
}
"""Reasons for the first rung of each kind, by default."""

_ONE_CAUSE = "one cause, not its node's: started again where it was, at no budget"


def _first_rung(kind: str, **_: Any) -> str:
    return WHY_FIRST[kind]


def _succeeded(kind: str, allocation: str) -> str:
    return f"{WHY_FIRST[kind]}; allocation {allocation} was asked for before it went"


def _where(hosts: tuple[str, ...]) -> str:
    return f"on {' and '.join(hosts)}" if hosts else "in every group"


def _same_step_again(step: int, hosts: tuple[str, ...]) -> str:
    return f"it resumed, and ended with the same error at the same step {step} again ({_where(hosts)})"


def _same_end_again(step: int, times: int, hosts: tuple[str, ...]) -> str:
    when = f"at step {step}" if step >= 0 else "before its first commit"
    fault = "the program's or its configuration's fault"
    return f"it ended in the same way {when} {times} times in a row ({_where(hosts)}): {fault}"


def _numbers_follow(host: str, step: int, host_now: str, step_now: int, before: bool) -> str:
    again = ", not for the first time," if before else ""
    return (
        f"its own numbers were not finite on host {host} at step {step}{again} and on {host_now} at "
        f"step {step_now}, those of the others were: it follows the group, so it is its data's or the model's fault"
    )


def _shared_too_long(every: bool, seconds: float, limit_s: float) -> str:
    who = "every group has ended" if every else "it has ended"
    return (
        f"{who} by what all nodes share for {seconds:.0f} s, longer than the "
        f"{limit_s:g} s (torchft.quorum_timeout_ms) that the run must survive without it"
    )


def _no_node_cures(times: int, hosts: tuple[str, ...]) -> str:
    return (
        f"it ended in the same way before its first commit {times} times in a row, {_where(hosts)}, while others "
        "train: no other node cures that"
    )


def _costs(what: str, cost: float, seconds: float, idle: int, measured: str, mended: int, tries: int) -> str:
    groups = "1 group" if idle == 1 else f"{idle} groups"
    some = f"; {mended} of {tries} mended it" if tries else ""
    return f"{what}: about {cost:.0f} ({seconds:.1f} s x {groups}, {measured}{some})"


def _as_granted(granted_s: float, start_s: float) -> str:
    return f"{granted_s:.1f} s until an allocation came" + (f", {start_s:.1f} s to start" if start_s else "")


def _starts_from(checkpoint: str, record: str | None, passed: tuple[str, ...]) -> str:
    more = f"; passed over: {', '.join(passed)}" if passed else ""
    return f"{checkpoint}{f'; {record}' if record else ''}{more}"


def _by_record(checkpoint: str, why: str) -> str:
    return f"{checkpoint}, as the record in etcd has it: {why or 'no complete one is there'}"


_WORDS: Mapping[str, str | Callable[..., str]] = {
    Code.TEXT: "{text}",
    Code.FIRST_RUNG: _first_rung,
    Code.POLICY_RUNG: "policy.first_rung.{kind} is {rung}",
    Code.CLIMBED: "{first}; {passed}",
    Code.NOTHING_LEFT: "nothing cheaper is left: {passed}",
    Code.ANOTHERS_FAULT: "another group is the cause: {evidence}",
    Code.BREAKER_HOLDS: f"{_ONE_CAUSE} (the breaker holds)",
    Code.SHARED_AWAY: (
        f"{_ONE_CAUSE} (it ended by what nodes share, a network or a store, on two hosts: which no other node cures)"
    ),
    Code.EVERYTHING_GONE: (
        "every allocation of the run is gone: it starts again from its newest checkpoint, charged to no budget"
    ),
    Code.GONE_AGAIN: "every allocation of the run is gone, and nothing was saved since it had started; {then}",
    Code.SUCCEEDED: _succeeded,
    Code.LEFT_BEFORE: f"{WHY_FIRST[Kind.LEAVING]}: {{why}}",
    Code.MOVES_BEFORE: f"{WHY_FIRST[Kind.LEAVING]} ({{why}})",
    Code.AND: "{reason}; {note}",
    Code.MISCONFIGURED: "no machine can train group {group} with this run file and the run's folder as they are",
    Code.SAME_EVERYWHERE: "every group ended with the same error: starting them again would end the same way",
    Code.MODELS_NUMBERS: "{evidence}: the model or its data is at fault, and no machine",
    Code.SAME_STEP_AGAIN: _same_step_again,
    Code.SAME_END_AGAIN: _same_end_again,
    Code.NUMBERS_FOLLOW: _numbers_follow,
    Code.SHARED_TOO_LONG: _shared_too_long,
    Code.OOM_TWICE: "killed for memory twice within {window_s:g} s on {host}",
    Code.OFTEN_HERE: "it was started again {times} times within a day on {host}, and no other group so often",
    Code.SAME_END_HERE: "it ended in the same way {times} times in a row on {host}",
    Code.GATE_UNREACHED: "the gate, which hears others, is not reached from there by any process",
    Code.UNINTERRUPTIBLE: (
        "the process of rank {rank} sleeps where no signal ends it, and nothing is started there before it has ended"
    ),
    Code.NOT_ENDED: "rank {rank} of generation {generation} has not ended there, and nothing is started beside it",
    Code.SPARE_CHEAPER: (
        "{failed} of the last {tries} did not mend it, so it costs about {restart_cost:.0f} group-seconds, a spare {spare_cost:.0f}"
    ),
    Code.CHECKS_FAILED: "{evidence}",
    Code.BUDGET_BACK: "it was left out, as all budgets were spent",
    Code.PASSED: "{rung}: {why}",
    Code.PAST_IT: "{rung}: this incident is past it",
    Code.KIND_BUDGET_SPENT: "{rung}: budget of {kind} spent ({allowed} within {window_s:g} s)",
    Code.NO_SPARE: "replace: no healthy spare node",
    Code.BUDGET_SPENT: "{rung}: budget spent ({allowed} within {window_s:g} s)",
    Code.NO_NODE_LEFT: "{rung}: no group leaves its node for that",
    Code.SAME_END: "{rung}: it would end the same way",
    Code.ASKED_BEFORE: "{rung}: allocation {allocation} was asked for before it went",
    Code.MOVED: "restart in place: {why}",
    Code.SPARE_ILL: "replace: of the spare, {why}",
    Code.SPARE_GONE: "replace: the spare is gone",
    Code.RESTORED: "the state was restored from a backup meanwhile",
    Code.COSTS: _costs,
    Code.COST_UNKNOWN: "{what}: not measured yet in this run",
    Code.COST_GOES_ON: "going on with {others} of {count} groups: 1 a second",
    Code.COST_WAITS: "waiting, with {others} of {count} groups, which is too few to step: {idle} a second",
    Code.REMEDY: "{rung}",
    Code.BY_SPARE: "replace, by spare {node}",
    Code.WITHOUT_SPARE: "replace: there is no spare",
    Code.SO_FAR: "so far",
    Code.AS_IN_PLACE: "as a restart in place took",
    Code.AS_GRANTED: _as_granted,
    Code.STARTS_FROM: _starts_from,
    Code.CHECKPOINT: "step {step} of group {group}, generation {generation}",
    Code.NEWEST_COMPLETE: "{checkpoint}, the newest complete one",
    Code.NO_RECORD: "etcd had no record of one",
    Code.RECORD_OLDER: "the record in etcd had step {step}",
    Code.RECORD_GONE: "the record in etcd had step {step}, which is not there or not complete any more",
    Code.BY_RECORD: _by_record,
    Code.STEP_0: "step 0: no complete checkpoint is there",
    Code.GIVEN_UP: "{checkpoint} (the run had gone on from an older step by then, without that generation)",
    Code.NO_NODE_CURES: _no_node_cures,
    Code.LEFT_OUT: "{reason}; the others go on without it",
    Code.HALT: "{reason} (incident {incident}: {evidence})",
    Code.TOO_FEW_NODES: "{free} nodes for {groups} groups (at least {least}): {why}",
    Code.NO_NODE: "group {group} has no node, and {why}",
    **words_seen.WORDS,
    **words_waits.WORDS,
    **words_done.WORDS,
}


def say(reason: Reason | None) -> str:
    """Returns a reason as a sentence, without its full stop; empty for None."""
    if reason is None:
        return ""
    if "text" in reason.about:  # of an older version
        return str(reason.about["text"])
    about = {name: _plain(value) for name, value in reason.about.items()}
    words = _WORDS.get(reason.code)
    try:
        if isinstance(words, str):
            return words.format_map({name: _joined(value) for name, value in about.items()})
        if words is not None:
            return words(**about)
    except (KeyError, TypeError):
        pass  # another version gives other values with this code
    return f"{reason.code} ({', '.join(f'{name} {_joined(value)}' for name, value in about.items())})"


def said(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """Returns a sentence for each reason."""
    return tuple(map(say, reasons))


def _plain(value: Any) -> Any:
    if isinstance(value, Reason):
        return say(value)
    if isinstance(value, Rung):
        return value.name.lower()
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _joined(value: Any) -> Any:
    return "; ".join(map(str, value)) if isinstance(value, tuple) else value
