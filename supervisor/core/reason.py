"""Why something was decided: a code, on which later decisions may depend, and the values that its sentence names.

Sentences are made in `words` alone. No decision depends on one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """What a reason says. Beside each: the names of its values."""

    TEXT = "text"
    """text: a sentence of an agent, an engine or a person."""

    # why this rung
    FIRST_RUNG = "first_rung"
    """kind"""
    POLICY_RUNG = "policy_rung"
    """kind, rung"""
    CLIMBED = "climbed"
    """first: why the ladder begins where it does; passed: why each cheaper rung was passed over"""
    NOTHING_LEFT = "nothing_left"
    """passed: a halt, or a suspended group, to which budgets have led"""
    ANOTHERS_FAULT = "anothers_fault"
    """evidence"""
    BREAKER_HOLDS = "breaker_holds"
    SHARED_AWAY = "shared_away"
    EVERYTHING_GONE = "everything_gone"
    GONE_AGAIN = "gone_again"
    """then: the reason of what is done"""
    SUCCEEDED = "succeeded"
    """kind, allocation"""
    LEFT_BEFORE = "left_before"
    """why"""
    AND = "and"
    """reason, note"""

    # the program's fault
    MISCONFIGURED = "misconfigured"
    """group"""
    SAME_EVERYWHERE = "same_everywhere"
    MODELS_NUMBERS = "models_numbers"
    """evidence"""
    SAME_STEP_AGAIN = "same_step_again"
    """step, hosts (empty: in every group)"""
    SAME_END_AGAIN = "same_end_again"
    """step (-1: before the first commit), times, hosts (empty: in every group)"""
    NUMBERS_FOLLOW = "numbers_follow"
    """host, step, host_now, step_now, before: whether it had followed before"""
    SHARED_TOO_LONG = "shared_too_long"
    """every: whether every group; seconds, limit_s"""

    # why another node
    OOM_TWICE = "oom_twice"
    """window_s, host"""
    OFTEN_HERE = "often_here"
    """times, host"""
    SAME_END_HERE = "same_end_here"
    """times, host"""
    GATE_UNREACHED = "gate_unreached"
    UNINTERRUPTIBLE = "uninterruptible"
    """rank"""
    NOT_ENDED = "not_ended"
    """rank, generation"""
    SPARE_CHEAPER = "spare_cheaper"
    """failed, tries, restart_cost, spare_cost"""
    CHECKS_FAILED = "checks_failed"
    """evidence"""
    BUDGET_BACK = "budget_back"

    # why a rung was passed over
    PASSED = "passed"
    """rung, why"""
    PAST_IT = "past_it"
    """rung"""
    KIND_BUDGET_SPENT = "kind_budget_spent"
    """rung, kind, allowed, window_s"""
    NO_SPARE = "no_spare"
    BUDGET_SPENT = "budget_spent"
    """rung, allowed, window_s"""
    NO_NODE_LEFT = "no_node_left"
    """rung: no node is left for that"""
    SAME_END = "same_end"
    """rung: it would end the same way"""
    ASKED_BEFORE = "asked_before"
    """rung, allocation"""
    MOVED = "moved"
    """why: a restart in place that became a move"""
    SPARE_ILL = "spare_ill"
    """why"""
    SPARE_GONE = "spare_gone"
    RESTORED = "restored"

    # why a group is suspended, or the run halted
    NO_NODE_CURES = "no_node_cures"
    """times, hosts"""
    LEFT_OUT = "left_out"
    """reason"""
    HALT = "halt"
    """reason, incident, evidence"""
    TOO_FEW_NODES = "too_few_nodes"
    """free, groups, least, why"""
    NO_NODE = "no_node"
    """group, why"""


ONE_CAUSE = frozenset({Code.BREAKER_HOLDS, Code.SHARED_AWAY})
"""What is away comes back, and no other node would cure it: started again in place, charged to no budget."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and its values: strings, numbers, other reasons, or tuples of these."""

    code: str
    """A Code; one of a newer version may be none."""
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, code: Code, **about: Any) -> Reason:
        return cls(code, about)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """As JSON: an object of code and about. A string is read too: versions before this one kept sentences."""
        return {"type": "function-plain", "function": {"type": "no-info", "function": of_json}}


def of_json(value: Any) -> Reason | None:
    """None: an empty string, by which older versions said that there is none. Raises ValueError for what is no reason."""
    if isinstance(value, Reason):
        return value
    if isinstance(value, str):
        return Reason(_code_of(value), {"text": value}) if value else None
    if not isinstance(value, Mapping) or not isinstance(value.get("code"), str):
        raise ValueError("a reason has a code")
    about = value.get("about", {})
    if not isinstance(about, Mapping):
        raise ValueError("what a reason is about has names")
    return Reason(value["code"], {str(name): _value(each) for name, each in about.items()})


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return of_json(value)
    return tuple(map(_value, value)) if isinstance(value, list | tuple) else value


OLDER = {
    "nothing cheaper is left": Code.NOTHING_LEFT,
    "another group is the cause": Code.ANOTHERS_FAULT,
    "one cause, not its node's: started again where it was, at no budget (the breaker holds)": Code.BREAKER_HOLDS,
    "one cause, not its node's: started again where it was, at no budget (it ended by what nodes share": Code.SHARED_AWAY,
    "restart in place: ": Code.MOVED,
}
"""How the sentences begin that versions before codes kept, and on which a decision depends."""


def _code_of(text: str) -> Code:
    return next((code for begins, code in OLDER.items() if text.startswith(begins)), Code.TEXT)
