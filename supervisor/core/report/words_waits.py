"""Words for waits: things that are not done yet, and why. `words` has the others, and makes all sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from supervisor.core.model.reason import Code
from supervisor.core.report.words_seen import does

_NONE_ENDED = "it is a cause that they share, so none is ended"

_LEAVES = "its node {node} is leaving ({why})"

_PAUSED = "the run is paused: "

_STORE_AWAY = "the store was away: "

_NODES = "{free} of {of} nodes are there"

_MUTE = "the lighthouse's lease is gone, "

_CLOSING = "closing the lighthouse on {node}: "

_MAY_BE_THERE = (
    "but all groups that it admits may still be on its side: hold (if they and its host are surely down: "
    "supervisor resume --because WHY --they-are-down)"
)


def _numbers(groups: tuple[int, ...]) -> str:
    return ", ".join(map(str, groups))


def _listed(groups: tuple[int, ...]) -> str:
    return f"group{'s' if len(groups) > 1 else ''} {_numbers(groups)}"


def _hang(groups: tuple[int, ...]) -> str:
    return f"{_listed(groups)} hang{'' if len(groups) > 1 else 's'}"


def says(word: str) -> str:
    """Adds an engine's words to a sentence; empty if there are none."""
    return f": {word}" if word else ""


def _would_be(evidence: str, rung: str) -> str:
    return f"{evidence}; would {rung.replace('_', ' ')}, but the policy is only to observe"


def _being_checked(node: str, more: int) -> str:
    return f"node {node}{f' and {more} more' if more else ''} is being checked before its first rank"


def _lacks_code(node: str, more: int, why: str, knows: bool) -> str:
    why = why or "it is being fetched" if knows else "its agent fetches none: install this version there"
    return (
        f"node {node}{f' and {more} more' if more else ''} {'have' if more else 'has'} not all of the code yet: {why}"
    )


def _stays_out(group: int, reason: str, incident: str, spent: bool) -> str:
    again = f"supervisor restart {group} tries it once more"
    if spent:
        again = f"it is tried again once a budget has one left, or at once by supervisor restart {group}"
    return f"group {group} is left out: {reason}; {again} (incident {incident})"


def _late_for_others(groups: tuple[int, ...], more: int, there: int, needed: int) -> str:
    others = f" and {more} more" if more else ""
    wait = f"{_listed(groups)}{others} wait{'' if len(groups) > 1 else 's'} in a quorum for more"
    return f"{wait}: {there} of the {needed} groups that a step needs are there (groups.min_groups)"


def _no_other_yet(node: str, why: str, allocation: str, state: str, word: str) -> str:
    coming = f": allocation {allocation} is {state}{says(word)}" if allocation else ""
    return f"{_LEAVES.format(node=node, why=why)}, and no other is there yet{coming}"


def _nodes_queued(free: int, of: int, least: int, queued: int, word: str) -> str:
    there = f"{_NODES.format(free=free, of=of)} (at least {least} are needed)"
    return f"{there}; {queued} wait in the engine's queue{says(word)}"


def _pending(allocation: str, word: str, usual_s: float | None) -> str:
    before = f" (before, one took {usual_s:.0f} s)" if usual_s is not None else ""
    return f"allocation {allocation} is pending{says(word)}{before}"


def _late(allocation: str, word: str) -> str:
    return f"allocation {allocation} is late{says(word)}; the run goes on with fewer groups"


def _unheard_of(allocation: str, word: str) -> str:
    return f"allocation {allocation} is granted, and its node is not there{says(word)}"


def _refused(allocation: str, word: str) -> str:
    return f"the engine refused allocation {allocation}{says(word)}"


def _leaves_already(allocation: str, why: str, graced: bool) -> str:
    hint = "" if graced else "; is its time limit well above the warning (allocation.slurm.warn_s)?"
    return f"allocation {allocation} took another's place and is leaving already: {why}{hint}"


def _long(seconds: float) -> str:
    unit_s, unit = next(((s, u) for s, u in ((3600, "h"), (60, "min")) if seconds >= s), (1, "s"))
    return f"{seconds / unit_s:.3g} {unit}"


def _pool_idle(run: str, seconds: float) -> str:
    return f"no run has used pool {run} for {_long(seconds)}: give its nodes back with supervisor release {run}"


def _pool_still_used(runs: tuple[str, ...]) -> str:
    which = f"run {runs[0]} ends" if len(runs) == 1 else f"runs {', '.join(runs)} end"
    return f"its nodes are given back once {which}"


def _handing_over(step: int, still: tuple[int, ...]) -> str:
    return f"handing over: the groups end after step {step}, {_numbers(still)} not yet"


def _seat_uncut(node: str, uncut: tuple[int, ...]) -> str:
    return f"{_CLOSING.format(node=node)}the forwarders of groups {list(uncut)} have not cut yet: hold"


def _all_hang(activities: tuple[str, ...]) -> str:
    return f"every group hangs, in {' and '.join(activities)}: {_NONE_ENDED}"


def _hang_of_shared(groups: tuple[int, ...], fact: str) -> str:
    return f"{_hang(groups)}; the nodes of all groups say: {fact}: {_NONE_ENDED}"


def _hang_of_others(groups: tuple[int, ...], others: tuple[int, ...]) -> str:
    return f"{_hang(groups)}; not known yet whether {_listed(others)} does too"


def _hang_of_ranks(groups: tuple[int, ...], others: tuple[int, ...]) -> str:
    return f"{_hang(groups)}; not known yet for which rank of {_listed(others)} the others wait"


def _all_wait(groups: tuple[int, ...], activities: tuple[str, ...]) -> str:
    where = f" in {' and '.join(activities)}" if activities else ""
    return f"groups {_numbers(groups)} wait{where} for longer than a step may take: not known for whom"


def _group_slow(group: int, rank: int | None, node: str, times: float, for_data: bool) -> str:
    who = f"rank {rank} on node {node}" if rank is not None else f"each rank on {node}"
    return f"group {group} is slow: {who} {does(times, for_data)}"


def _alone_slower(group: int, times: float, past_s: float, for_data: bool) -> str:
    data = ", for its data" if for_data else ""
    when = f"as long as when it began ({past_s:.2g} s a step then){data}"
    takes = "takes" if for_data else "computes"
    return f"group {group} {takes} about {times:g} times {when}: there is no other to compare it with"


def _all_slower(slow: int, of: int, times: float, past_s: float, for_data: bool) -> str:
    data = ", for their data" if for_data else ""
    when = f"as long as when they began ({past_s:.2g} s a step then){data}"
    who, take = "all" if slow == of else f"{slow} of {of}", "take" if for_data else "compute"
    return f"{who} groups {take} about {times:g} times {when}: by what they share, or by their program"


def _another_is_busy(other: int, incident: str, phase: str) -> str:
    return f"group {other} is {f'in incident {incident}' if incident else phase}"


def _spike_of_own(step: int, groups: tuple[int, ...], loss: float, usual: float, spreads: float) -> str:
    about = f"in group {_numbers(groups)} alone, {loss:.4g} where {usual:.4g} is usual"
    return f"loss spike at step {step}: {about} ({spreads:.0f} times the spread): its data or its hardware is suspect"


def _spike_of_all(step: int, loss: float, usual: float, spreads: float, own: int, of: int) -> str:
    about = f"{loss:.4g} where {usual:.4g} is usual ({spreads:.0f} times the spread)"
    return f"loss spike at step {step}: {about}, in {own or 'none'} of {of} groups by itself: the model's or the data's"


def _gate_unreachable(groups: tuple[int, ...], host: str) -> str:
    do = "do" if len(groups) > 1 else "does"
    return (
        f"{_listed(groups)} {do} not reach the gate of the lighthouse on {host}, and it hears no other group: look at the "
        f"network between the nodes and {host}, which is waited for"
    )


def _unsaved(newest: int | None, every: int, more_than: int) -> str:
    since = f"since step {newest}" if newest is not None else "yet"
    lost = f"more than {more_than} steps are lost if all groups are lost at once"
    return f"no checkpoint {since}, and one is due every {every} steps: {lost}"


def _a_person(run: str) -> str:
    return f'a person says so: supervisor resume {run} --because "..."'


def _checks_of_many(run: str, failed: int, of: int, given_up: int, window_s: float, fact: str) -> str:
    before = f", and {given_up} were given up within {window_s:g} s" if given_up else ""
    return (
        f"breaker: the checks of {failed} of {of} nodes did not pass{before}: one cause, not many broken nodes; none is given up "
        f"until they do or {_a_person(run)} ({fact})"
    )


def _nodes_of_many(run: str, lost: int, of: int, window_s: float) -> str:
    return (
        f"breaker: {lost} of {of} nodes lost within {window_s:g} s: one cause, not many broken nodes; none is given up until they "
        f"come back or {_a_person(run)}"
    )


def _groups_of_many(
    run: str, failing: int, of: int, kinds: tuple[str, ...], times: tuple[int, ...], given_up: int, evidence: str | None
) -> str:
    which = ", ".join(f"{n} {kind}" for n, kind in zip(times, kinds, strict=True))
    nodes = f", and {given_up} nodes were given up" if given_up else ""
    seen = f" ({evidence})" if evidence is not None else ""
    return (
        f"breaker: {failing} of {of} groups do not train ({which}){nodes}: one cause, not many broken nodes; none is given up and "
        f"nothing that lives is ended until they do or {_a_person(run)}{seen}"
    )


WORDS: Mapping[str, str | Callable[..., str]] = {
    Code.ABOUT_GROUP: "group {group}: {why}",
    Code.PAUSED: "{evidence}; the run is paused, nothing is done",
    Code.WOULD_BE: _would_be,
    Code.LET_GO_JUST_NOW: "{kind}; the breaker has let go a moment ago, it may go on",
    Code.NOT_FENCED: "its generation on node {node} is neither gone nor fenced: hold",
    Code.BACKOFF: "backoff before attempt {attempt}",
    Code.NO_PEER_HEARD: (
        "it found no peer to heal from, and the gate hears none of those that train: nothing is started yet"
    ),
    Code.BEING_LISTED: "the folder of checkpoints is being listed",
    Code.BEING_CHECKED: _being_checked,
    Code.IN_ITS_CHECKS: "node {node} is being checked",
    Code.LACKS_CODE: _lacks_code,
    Code.NOT_STARTED_THERE: "{why}: nothing is started there",
    Code.NO_STORE_YET: "node {node} has not reported yet at which port its ranks can meet",
    Code.NOT_BEFORE_IT_PASSES: "{fact}: nothing is started there until it passes; {then}",
    Code.NODE_SAYS: (
        "its node {node} says: {fact}: the group may go on, but its steps, checkpoints and logs may not be reported"
    ),
    Code.AND_MORE_GROUPS: "and so {more} more groups",
    Code.STAYS_OUT: _stays_out,
    Code.LATE_FOR_OTHERS: _late_for_others,
    Code.NO_OTHER_YET: _no_other_yet,
    Code.FIRST_ITS_INCIDENT: f"{_LEAVES}; first its incident {{incident}}",
    Code.ENGINE_IS_ASKED: f"{_LEAVES}; the engine is asked why",
    Code.ONE_AT_A_TIME: f"{_LEAVES}: one at a time, group {{other}} is not running yet",
    Code.NO_ONE_TO_HEAL_FROM: f"{_LEAVES}, but no other group trains that it can heal from",
    Code.PAUSED_STARTS: f"{_PAUSED}nothing is started",
    Code.PAUSED_LEAVES: f"{_PAUSED}nodes that are leaving are not left",
    Code.AWAY_LEAVES: f"{_STORE_AWAY}nodes that are leaving are left after one lease",
    Code.AWAY_NODES: f"{_STORE_AWAY}the nodes may not have come back to it yet",
    Code.NODES_THERE: _NODES,
    Code.NODES_QUEUED: _nodes_queued,
    Code.NODES_REPLACED: f"{_NODES}, and others were asked for in the place of barred ones",
    Code.NODE_UNFIT: "node {node} is given no group: {why}",
    Code.NODE_DISFAVOURED: "node {node} is given no group while there is another: {why}",
    Code.MORE_UNFIT: "{more} more nodes are given no group",
    Code.UNFIT_THERE: "{count} more are there, {first}",
    Code.PENDING: _pending,
    Code.LATE: _late,
    Code.UNHEARD_OF: _unheard_of,
    Code.NOT_ASKED_YET: "allocation {allocation} is leaving, and its successor will be asked for",
    Code.FEWER_GO_ON: "no node, and {why}: fewer groups go on; supervisor restart {group} asks once more",
    Code.ALLOCATIONS_SPENT: "the budget for new allocations is spent",
    Code.REFUSED: _refused,
    Code.ALL_REFUSED: lambda word: f"the engine refused{says(word)}",
    Code.TOO_FEW_IN_TIME: "the engine gave too few in time",
    Code.LEAVES_ALREADY: _leaves_already,
    Code.SPARE_OBSERVED: "spare {allocation}: {why}; nothing is done about it: policy.mode is observe",
    Code.SPARE_UNPAID: (
        "spare {allocation}: {why}; not asked for again, what is left of the budget is for the groups"
    ),
    Code.HOST_FREE_AGAIN: "it was asked for without host {host}, which is free again",
    Code.ENGINE_TOOK_IT: lambda word: f"the engine took it{says(word)}",
    Code.HOST_CORDONED: "its host {host} was cordoned meanwhile ({why})",
    Code.UNREGISTERED: "its node did not register within {timeout_s:g} s",
    Code.POOL_IDLE: _pool_idle,
    Code.POOL_STILL_USED: _pool_still_used,
    Code.HANDING_OVER: _handing_over,
    Code.DRAINING: "draining: the groups end after step {step}",
    Code.TAKEN_BACK: "the engine takes back {count} allocations, {allocation} first",
    Code.SEAT_NOT_UP: "the lighthouse is not up yet: no trainer is started before it",
    Code.SEAT_NO_HOST: "no service host is there yet to carry the lighthouse",
    Code.SEAT_AWAY: f"{_MUTE}but the store was away just now: hold for one lease",
    Code.SEAT_REACHED: f"{_MUTE}but group {{by}}'s forwarder reaches its gate: unknown, hold",
    Code.SEAT_MUTE: f"{_MUTE}{_MAY_BE_THERE}",
    Code.SEAT_UNCUT: _seat_uncut,
    Code.SEAT_CLOSING: f"{_CLOSING}{_MAY_BE_THERE}",
    Code.SEAT_HAS_TIME: f"{_CLOSING}its gate, which has lost group {{lost}}, has its time",
    Code.ALL_STOPPED: f"a rank of every group is stopped: {_NONE_ENDED}",
    Code.ALL_HANG: _all_hang,
    Code.HUNG_TOGETHER: lambda groups: f"{_hang(groups)}, as all groups did a moment ago",
    Code.HANG_OF_SHARED: _hang_of_shared,
    Code.HANG_OF_OTHERS: _hang_of_others,
    Code.HANG_OF_RANKS: _hang_of_ranks,
    Code.TOO_FEW_LEFT: (
        "{count} groups are left, too few to step: they wait for one that has ended and is left so"
    ),
    Code.ALL_WAIT: _all_wait,
    Code.GROUP_SLOW: _group_slow,
    Code.ALONE_SLOWER: _alone_slower,
    Code.ALL_SLOWER: _all_slower,
    Code.NOT_TOUCHED: "group {group} is slow and not touched: {why}",
    Code.SLOW_ELSEWHERE: (
        "it was on host {host} too (incident {incident}): its own data or work, and no host's fault"
    ),
    Code.ANOTHER_IS_BUSY: _another_is_busy,
    Code.NONE_TRAINS_BESIDE: "no other group trains that it can heal from",
    Code.SPIKE_OF_OWN: _spike_of_own,
    Code.SPIKE_OF_ALL: _spike_of_all,
    Code.GATE_UNREACHABLE: _gate_unreachable,
    Code.UNSAVED: _unsaved,
    Code.SAVE_FAILED: "rank {rank} of group {group} says: {why}",
    Code.NO_SAVE_FAILED: "no rank says that one failed: they may be written slowly",
    Code.CHECKS_OF_MANY: _checks_of_many,
    Code.NODES_OF_MANY: _nodes_of_many,
    Code.GROUPS_OF_MANY: _groups_of_many,
}  # fmt: skip
