"""Reasons of decisions: a code, on which later decisions may depend, and the values that its sentence names.

Sentences are made in `words` alone. No decision depends on one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """Codes of reasons. Beside each: the names of its values."""

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
    """evidence: a reason"""
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
    """evidence: a reason"""
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

    # what a remedy costs, in lost group-seconds
    COSTS = "costs"
    """what: the remedy; cost; seconds; idle: groups that stand still; measured; mended, tries (0: all mended it)"""
    COST_UNKNOWN = "cost_unknown"
    """what"""
    COST_GOES_ON = "cost_goes_on"
    """others, count: groups that step without it"""
    COST_WAITS = "cost_waits"
    """others, count: too few to step; idle"""
    REMEDY = "remedy"
    """rung"""
    BY_SPARE = "by_spare"
    """node"""
    WITHOUT_SPARE = "without_spare"
    SO_FAR = "so_far"
    AS_IN_PLACE = "as_in_place"
    AS_GRANTED = "as_granted"
    """granted_s: until an allocation came; start_s: until a group started, 0 if not measured"""

    # the checkpoint of a start from disk
    STARTS_FROM = "starts_from"
    """checkpoint: a reason; record: how it compares with etcd's (None: the same); passed: reasons or texts"""
    CHECKPOINT = "checkpoint"
    """step, group, generation"""
    NEWEST_COMPLETE = "newest_complete"
    """checkpoint"""
    NO_RECORD = "no_record"
    RECORD_OLDER = "record_older"
    """step: of etcd's record"""
    RECORD_GONE = "record_gone"
    """step: of etcd's record, whose checkpoint is not in the folder"""
    BY_RECORD = "by_record"
    """checkpoint, why: a text, or empty: no complete one is in the folder"""
    STEP_0 = "step_0"
    GIVEN_UP = "given_up"
    """checkpoint: of a writer that had no part in the run any more"""

    # why a group is suspended, or the run halted
    NO_NODE_CURES = "no_node_cures"
    """times, hosts"""
    LEFT_OUT = "left_out"
    """reason"""
    HALT = "halt"
    """reason, incident, evidence: all reasons"""
    TOO_FEW_NODES = "too_few_nodes"
    """free, groups, least, why"""
    NO_NODE = "no_node"
    """group, why"""

    # how a rank ended
    NO_PEERS = "no_peers"
    """rank"""
    ENDED_BY_ITS_NODE = "ended_by_its_node"
    """rank, signal: its name; why"""
    TERMINATED = "terminated"
    """rank: by a SIGTERM that is not ours"""
    KILLED_FOR_MEMORY = "killed_for_memory"
    """rank, kernel: its own line; empty: it only counted it"""
    KILLED_BY_UNKNOWN = "killed_by_unknown"
    """rank"""
    KILLED_NOT_BY_US = "killed_not_by_us"
    """rank: maybe for memory"""
    KILLED_BY_NEITHER = "killed_by_neither"
    """rank: not by us, and not for memory"""
    ENDED_BY_SIGNAL = "ended_by_signal"
    """rank, name, signal: its number"""
    EXITED = "exited"
    """rank, exit_code, error"""
    RAISED_IN = "raised_in"
    """place"""
    KILLED_BEFORE = "killed_before"
    LOG_ENDS = "log_ends"
    """words"""

    # what else is known of its machine
    ON_ITS_NODE = "on_its_node"
    """fact: a sentence of its agent"""
    ON_ITS_GPU = "on_its_gpu"
    """host, rank (None: not known), fact: a sentence of its agent"""
    AND_SO = "and_so"
    """kind, evidence: of what a GPU led to"""

    # whether its node lives
    ALLOCATION_GONE = "allocation_gone"
    """allocation, engine_id, why"""
    UNDER_ANOTHER = "under_another"
    """node, allocation: its own; placed: the one by which the group was placed"""
    LEASE_RENEWED = "lease_renewed"
    """node"""
    STORE_AWAY = "store_away"
    """seconds, lease_s"""
    LEASE_LAPSED = "lease_lapsed"
    """node, lease_s"""
    LAPSED_NO_GATE = "lapsed_no_gate"
    """node, group"""
    LAPSED_BUT_HEARD = "lapsed_but_heard"
    """node, group"""
    LAPSED_UNHEARD = "lapsed_unheard"
    """node, lease_s, group, hearing"""
    PROVED_DEAD = "proved_dead"
    """node, why, seconds: since it was last heard"""

    # what a group that lives does not do
    REQUESTED = "requested"
    DEBUGGED = "debugged"
    """rank"""
    START_LATE = "start_late"
    """limit_s"""
    HEAL_FAILED = "heal_failed"
    """rank, why: a sentence of its agent"""
    NO_WAY = "no_way"
    """host: that of the gate"""
    NEVER_HEARD = "never_heard"
    """seconds"""
    DEPARTED = "departed"
    """nodes, seconds"""
    UNHEARD = "unheard"
    """timeout_ms"""
    SILENT_FOR = "silent_for"
    """seconds"""
    NO_STEP = "no_step"
    """rank, bound_s, usual_s, activity, activity_s, process, stack: a reason of the next two (empty: not read)"""
    STACK = "stack"
    """frames: of function, file and line; holds_lock, held_at; as in `StackView`"""
    STACK_UNKNOWN = "stack_unknown"
    """why: words of its agent"""
    STEPS_UNSEEN = "steps_unseen"
    STOPPED = "stopped"
    """rank, how: words of its agent; limit_s"""
    SLOW = "slow"
    """rank, times, for_data, seconds, compute_s, data_s, usual_s, past_s (0: not known)"""
    SLOW_FOR = "slow_for"
    """seconds, steps"""

    # numbers that are not finite. Each: groups (a few of them), more: how many others
    OWN_NUMBERS = "own_numbers"
    NUMBERS_OF_MANY = "numbers_of_many"
    OTHERS_NUMBERS = "others_numbers"

    # whether it was seen before
    SEEN_AGAIN = "seen_again"
    """step (-1: before the first commit), times, hosts. Of these an incident keeps the newest."""
    FOLLOWS = "follows"
    """host, incident"""

    # why a group leaves its node
    NODE_LEAVING = "node_leaving"
    """node, why"""
    DISK_UNUSABLE = "disk_unusable"
    """node, why"""
    HANDED_OVER = "handed_over"
    """step, node, why"""
    ALL_HANDED_OVER = "all_handed_over"
    """step"""
    NOT_ENDED_IN_TIME = "not_ended_in_time"
    """step"""

    # what is not done yet of a group
    ABOUT_GROUP = "about_group"  # group, why: a reason
    PAUSED = "paused"  # evidence: a reason
    WOULD_BE = "would_be"  # evidence: a reason; rung: what would be done
    LET_GO_JUST_NOW = "let_go_just_now"  # kind
    NOT_FENCED = "not_fenced"  # node
    BACKOFF = "backoff"  # attempt
    NO_PEER_HEARD = "no_peer_heard"
    BEING_LISTED = "being_listed"
    BEING_CHECKED = "being_checked"  # node, more: how many others
    IN_ITS_CHECKS = "in_its_checks"  # node: that of a group that is to start there
    LACKS_CODE = "lacks_code"  # node, more, why: a sentence of its agent; knows: whether it fetches code
    NOT_STARTED_THERE = "not_started_there"  # why
    NO_STORE_YET = "no_store_yet"  # node: it has not reported a free port for the store of the next generation
    NOT_BEFORE_IT_PASSES = "not_before_it_passes"  # fact: its agent's; then: why else what would be done
    NODE_SAYS = "node_says"  # node, fact: a sentence of its agent
    AND_MORE_GROUPS = "and_more_groups"  # more
    STAYS_OUT = "stays_out"  # group, reason, incident, spent: whether budgets alone keep it out
    LATE_FOR_OTHERS = "late_for_others"  # groups (a few of them), more: how many others; there, needed: how many groups

    # a group that is to leave its node. Each: node, why
    NO_OTHER_YET = "no_other_yet"  # allocation (empty: none is asked for), state, word: the engine's
    FIRST_ITS_INCIDENT = "first_its_incident"  # incident
    ENGINE_IS_ASKED = "engine_is_asked"
    ONE_AT_A_TIME = "one_at_a_time"  # other: a group
    NO_ONE_TO_HEAL_FROM = "no_one_to_heal_from"

    # nodes and allocations. word: the engine's, or empty
    PAUSED_STARTS = "paused_starts"
    PAUSED_LEAVES = "paused_leaves"
    AWAY_LEAVES = "away_leaves"
    AWAY_NODES = "away_nodes"
    NODES_THERE = "nodes_there"  # free, of
    NODES_QUEUED = "nodes_queued"  # free, of, least, queued, word
    NODES_REPLACED = "nodes_replaced"  # free, of
    NODE_UNFIT = "node_unfit"  # node, why
    NODE_DISFAVOURED = "node_disfavoured"  # node, why
    MORE_UNFIT = "more_unfit"  # more
    UNFIT_THERE = "unfit_there"  # count, first: a reason
    PENDING = "pending"  # allocation, word, usual_s (None: not known)
    LATE = "late"  # allocation, word
    UNHEARD_OF = "unheard_of"  # allocation, word
    NOT_ASKED_YET = "not_asked_yet"  # allocation: which is leaving
    FEWER_GO_ON = "fewer_go_on"  # group, why
    ALLOCATIONS_SPENT = "allocations_spent"
    REFUSED = "refused"  # allocation, word
    ALL_REFUSED = "all_refused"  # word
    TOO_FEW_IN_TIME = "too_few_in_time"
    LEAVES_ALREADY = "leaves_already"  # allocation, why, graced: whether the engine names its end
    SPARE_OBSERVED = "spare_observed"  # allocation, why
    SPARE_UNPAID = "spare_unpaid"  # allocation, why
    HOST_FREE_AGAIN = "host_free_again"  # host
    ENGINE_TOOK_IT = "engine_took_it"  # word
    HOST_CORDONED = "host_cordoned"  # host, why
    UNREGISTERED = "unregistered"  # timeout_s

    # a pool
    POOL_IDLE = "pool_idle"  # run: the pool; seconds
    POOL_STILL_USED = "pool_still_used"  # runs
    POOL_OVER = "pool_over"  # for_s

    # the end
    HANDING_OVER = "handing_over"  # step, still: groups
    DRAINING = "draining"  # step
    TAKEN_BACK = "taken_back"  # count, allocation: the first

    # the seat of the lighthouse
    SEAT_NOT_UP = "seat_not_up"
    SEAT_NO_HOST = "seat_no_host"
    SEAT_AWAY = "seat_away"
    SEAT_REACHED = "seat_reached"  # by: a group
    SEAT_MUTE = "seat_mute"
    SEAT_UNCUT = "seat_uncut"  # node, uncut: groups
    SEAT_CLOSING = "seat_closing"  # node
    SEAT_HAS_TIME = "seat_has_time"  # node, lost: a group

    # hangs, of nobody or not yet
    ALL_STOPPED = "all_stopped"
    ALL_HANG = "all_hang"  # activities
    HUNG_TOGETHER = "hung_together"  # groups
    HANG_OF_SHARED = "hang_of_shared"  # groups, fact: a sentence of their agents
    HANG_OF_OTHERS = "hang_of_others"  # groups, others: those that may hang too
    HANG_OF_RANKS = "hang_of_ranks"  # groups, others: those of which a rank is waited for
    TOO_FEW_LEFT = "too_few_left"  # count
    ALL_WAIT = "all_wait"  # groups, activities

    # what is slow, or wrong, and left as it is
    GROUP_SLOW = "group_slow"  # group, rank (None: those of all its nodes), node, times, for_data
    ALONE_SLOWER = "alone_slower"  # group, times, past_s, for_data
    ALL_SLOWER = "all_slower"  # slow, of: how many groups; times, past_s, for_data
    NOT_TOUCHED = "not_touched"  # group, why: a reason, or several
    SLOW_ELSEWHERE = "slow_elsewhere"  # host, incident
    ANOTHER_IS_BUSY = "another_is_busy"  # other: a group; incident (empty: none), phase
    NONE_TRAINS_BESIDE = "none_trains_beside"
    SPIKE_OF_OWN = "spike_of_own"  # step, groups, loss, usual, spreads
    SPIKE_OF_ALL = "spike_of_all"  # step, loss, usual, spreads, own, of: how many groups
    GATE_UNREACHABLE = "gate_unreachable"  # groups, host
    UNSAVED = "unsaved"  # newest: a step (None: there is none), every, more_than: steps
    SAVE_FAILED = "save_failed"  # rank, group, why: its own words
    NO_SAVE_FAILED = "no_save_failed"

    # one cause, for which the breaker holds. Each: run, given_up: how many nodes
    CHECKS_OF_MANY = "checks_of_many"  # failed, of, window_s, fact: a sentence of an agent
    NODES_OF_MANY = "nodes_of_many"  # lost, of, window_s
    GROUPS_OF_MANY = "groups_of_many"  # failing, of, kinds, times (of each), evidence (None: there is none)

    # why something is done that no incident asks for
    RUN_STARTS = "run_starts"
    TOGETHER = "together"  # switch: that of all nodes of a group
    RUN_ENDS = "run_ends"  # end: its phase then
    ASKED_FOR = "asked_for"
    PERSON_SAYS = "person_says"  # because
    PERSON_RESUMES = "person_resumes"  # because
    RELAUNCH_ASKED = "relaunch_asked"  # number: of the spec; because (empty: no reason was given)
    STATE_IN_MEMORY = "state_in_memory"  # number: of the spec
    RELAUNCHED = "relaunched"  # number; step: of the checkpoint (None: there is none)
    SCALED = "scaled"  # number: of the spec; groups: how many it has; because (empty: no reason was given)
    SCALED_DOWN = "scaled_down"
    BACKUP_RESTORED = "backup_restored"  # made: when; checkpoint: which one it resumes from
    SAVED = "saved"  # step
    ENDED_LATE = "ended_late"  # group, step
    WOULD = "would"  # rung, reason
    LET_GO = "let_go"  # lost, of, unchecked: how many nodes; others: how many groups
    GATE_ADMITS = "gate_admits"  # generation
    NODE_HAS_NONE = "node_has_none"  # node
    SEAT_LOST = "seat_lost"  # node
    SEAT_ENDED = "seat_ended"  # node, generation
    SEAT_CLOSED = "seat_closed"  # node, lost: a group

    # why a host is given no group, and why it is again
    HOLDS_AGAINST = "holds_against"  # incident, kind
    FREED_BY = "freed_by"  # host, by, was: a reason
    NOT_TO_BLAME = "not_to_blame"  # host, was, why: reasons
    BEFELL_ELSEWHERE = "befell_elsewhere"  # group, host

    # why an allocation is asked for, or given back
    FOR_INCIDENT = "for_incident"  # incident, reason
    WITHOUT_NODE = "without_node"  # group, incident (empty: none)
    ASKED_ONCE_MORE = "asked_once_more"  # group
    IN_PLACE_OF = "in_place_of"  # allocation: of a spare; why: a reason
    IN_PLACE_OF_LEAVING = "in_place_of_leaving"  # allocation, why
    LEFT_EMPTY = "left_empty"  # why
    NODE_CORDONED = "node_cordoned"  # node, why: a reason
    ENGINE_REFUSED_IT = "engine_refused_it"  # word

    # why all groups are handed over, or one is moved
    HANDS_OVER = "hands_over"  # why: a reason; step
    LEAVES_ALONE = "leaves_alone"  # node, why
    ALL_LEAVE = "all_leave"  # why
    TRAINING_LEAVE = "training_leave"  # why
    STEP_TOO_LONG = "step_too_long"  # step_s, warning_s
    ALL_ENDED = "all_ended"  # step: of the checkpoint (None: there is none)
    MOVES_BEFORE = "moves_before"  # why


BREAKER = frozenset({Code.CHECKS_OF_MANY, Code.NODES_OF_MANY, Code.GROUPS_OF_MANY})
"""Reasons of the breaker, one of which is a wait while it holds."""


ONE_CAUSE = frozenset({Code.BREAKER_HOLDS, Code.SHARED_AWAY})
"""Causes that pass, and that no other node would cure: a group is started again in place, charged to no budget."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and its values: strings, numbers, other reasons, or tuples of these."""

    code: str
    """A Code; one of a newer version may be unknown here."""
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, code: Code, **about: Any) -> Reason:
        return cls(code, about)

    @property
    def groups(self) -> tuple[int, ...]:
        """Groups that it names."""
        groups = self.about.get("groups", (self.about["group"],) if "group" in self.about else ())
        return groups if isinstance(groups, tuple) else ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """Describes its JSON: an object of code and about. A string is read too: older versions kept sentences."""
        return {"type": "function-plain", "function": {"type": "no-info", "function": of_json}}


def of_json(value: Any) -> Reason | None:
    """Reads a reason; an empty string, which older versions kept for none, gives None. ValueError: anything else."""
    if isinstance(value, Reason):
        return value
    if isinstance(value, str) and (held := _HELD.fullmatch(value)):
        return Reason.of(Code.HOLDS_AGAINST, **held.groupdict())
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
    "the same at step ": Code.SEEN_AGAIN,
    "the same before its first commit ": Code.SEEN_AGAIN,
}
"""Beginnings of the sentences that versions before codes kept, and on which a decision depends."""

_HELD = re.compile(r"incident (?P<incident>\w+): (?P<kind>\w+)")
"""Sentence by which those versions kept why a host is cordoned."""


def strings(reasons: Iterable[Reason]) -> Iterator[str]:
    """Yields all texts among the values of these reasons, and of the reasons in them."""
    for reason in reasons:
        for value in reason.about.values():
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, Reason):
                    yield from strings((each,))
                elif isinstance(each, str):
                    yield each


def _code_of(text: str) -> Code:
    return next((code for begins, code in OLDER.items() if text.startswith(begins)), Code.TEXT)
