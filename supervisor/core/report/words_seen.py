"""Sentences of evidence: what was seen of a failure. `words` has the others, and makes all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from supervisor.core.model.reason import Code
from supervisor.core.model.stacks import Frame

_Call = tuple[str, str, int]
"""Function, file and line."""

_STATES = {
    "stopped": "the process is stopped by a signal",
    "uninterruptible": "the process is in uninterruptible sleep: a disk, a file system or a device does not answer",
    "busy": "the process burns a processor",
    "sleeping": "the process sleeps",
}


def _killed_for_memory(rank: int, kernel: str) -> str:
    counted = f": {kernel}" if kernel else ", as its memory cgroup has counted"
    return f"rank {rank} was killed by the kernel for memory (SIGKILL){counted}"


def _exited(rank: int, exit_code: int | None, error: str) -> str:
    said = f": {error}" if error else " before it was finished" if exit_code == 0 else ""
    return f"rank {rank} exited with code {exit_code}{said}"


def _on_its_gpu(host: str, rank: int | None, fact: str) -> str:
    return f"on host {host}{f', rank {rank}' if rank is not None else ''}: {fact}"


def _allocation_gone(allocation: str, engine_id: str, why: str) -> str:
    return f"the engine says that allocation {allocation} ({engine_id}) is gone{f': {why}' if why else ''}"


def _departed(nodes: tuple[str, ...], seconds: float) -> str:
    return f"all connections of {', '.join(nodes)} to the gate are closed, and none was made for {seconds:g} s"


def _no_step(
    rank: int, bound_s: float, usual_s: float, activity: str, activity_s: float, process: str, stack: str
) -> str:
    usual = f" (usually {usual_s:g} s)" if usual_s else ""
    doing = f", for {activity_s:g} s in {activity}" if activity else ""
    state = f"; {_STATES[process]}" if process in _STATES else ""
    where = f", {stack}" if stack else ""
    return f"rank {rank} has not committed a step for {bound_s:g} s{usual}{doing}{state}{where}"


def _stack(frames: tuple[_Call, ...], holds_lock: bool, held_at: tuple[_Call, ...]) -> str:
    main = _calls(frames) if frames else "its main thread runs no Python"
    own = ", holding the interpreter's lock" if holds_lock else ""
    anothers = f"; another thread holds the interpreter's lock, {_calls(held_at)}" if held_at else ""
    return f"{main}{own}{anothers}"


def _calls(frames: tuple[_Call, ...]) -> str:
    return f"in {' < '.join(str(Frame(*each)) for each in frames)}"


def does(times: float, for_data: bool) -> str:
    """Describes how much slower than the others a rank is."""
    as_the_others = f"about {times:g} times as long as the others"
    return f"takes {as_the_others}, for its data" if for_data else f"computes {as_the_others}"


def _slow(
    rank: int,
    times: float,
    for_data: bool,
    seconds: float,
    compute_s: float,
    data_s: float,
    usual_s: float,
    past_s: float,
) -> str:
    parts = f"{compute_s:.3g} s to compute, {data_s:.3g} s for its data"
    once = f"; when this generation began it took {past_s:.3g} s" if past_s else ""
    return f"rank {rank} {does(times, for_data)}: {seconds:.3g} s of a step itself ({parts}), {usual_s:.3g} s is usual{once}"


def _listed(groups: tuple[int, ...], more: int) -> str:
    return f"group {', '.join(map(str, groups))}{f' and {more} more' if more else ''}"


def _own_numbers(groups: tuple[int, ...], more: int) -> str:
    return f"its own numbers were not finite, those of {_listed(groups, more)} were: its hardware is suspect"


def _numbers_of_many(groups: tuple[int, ...], more: int) -> str:
    many = "nor those of as many groups as had finite ones, or more"
    return f"its own numbers were not finite, {many}: of {_listed(groups, more)}"


def _others_numbers(groups: tuple[int, ...], more: int) -> str:
    return f"its own numbers were finite, those of {_listed(groups, more)} were not"


def _seen_again(step: int, times: int, hosts: tuple[str, ...]) -> str:
    when = f"at step {step}" if step >= 0 else "before its first commit"
    return f"the same {when} {times} times in a row, on {' and '.join(hosts)}"


def _handed_over(step: int, node: str, why: str) -> str:
    return f"it was handed over after step {step}: node {node} is leaving{f': {why}' if why else ''}"


WORDS: Mapping[str, str | Callable[..., str]] = {
    Code.NO_PEERS: "rank {rank} should have healed from its peers and found none",
    Code.ENDED_BY_ITS_NODE: "rank {rank} was ended by its own node ({signal}): {why}",
    Code.TERMINATED: "rank {rank} was ended by a SIGTERM that is not ours",
    Code.KILLED_FOR_MEMORY: _killed_for_memory,
    Code.KILLED_BY_UNKNOWN: "rank {rank} was killed by a SIGKILL; whose is not known",
    Code.KILLED_NOT_BY_US: (
        "rank {rank} was killed by a SIGKILL that is not ours; whether it was the kernel's for memory cannot be seen"
    ),
    Code.KILLED_BY_NEITHER: (
        "rank {rank} was killed by a SIGKILL that is neither ours nor the kernel's for memory, as far as its cgroup says"
    ),
    Code.ENDED_BY_SIGNAL: "rank {rank} was ended by {name} (signal {signal})",
    Code.EXITED: _exited,
    Code.RAISED_IN: "raised in {place}",
    Code.KILLED_BEFORE: "shortly before, the kernel had killed a process of its memory cgroup for memory",
    Code.LOG_ENDS: "its log ends with: {words}",
    Code.ON_ITS_NODE: "on its node: {fact}",
    Code.ON_ITS_GPU: _on_its_gpu,
    Code.AND_SO: "and so ({kind}): {evidence}",
    Code.ALLOCATION_GONE: _allocation_gone,
    Code.UNDER_ANOTHER: "node {node} is registered under allocation {allocation}, not under {placed}",
    Code.LEASE_RENEWED: "node {node} renews its lease",
    Code.STORE_AWAY: "the store was away {seconds:.1f} s ago: hold for one lease ({lease_s} s)",
    Code.LEASE_LAPSED: "the lease of node {node} ({lease_s} s) lapsed",
    Code.LAPSED_NO_GATE: "the lease of node {node} lapsed, and no gate says whether group {group} still steps",
    Code.LAPSED_BUT_HEARD: "the lease of node {node} lapsed, but the gate still hears group {group}: hold",
    Code.LAPSED_UNHEARD: "the lease of node {node} ({lease_s} s) lapsed and the gate hears group {group} as {hearing}",
    Code.PROVED_DEAD: "node {node} is dead: {why}, {seconds:.1f} s after it was last heard",
    Code.REQUESTED: "a person asked for a restart of the group",
    Code.DEBUGGED: "debugger: a person had stopped rank {rank}, and its step cannot be committed any more",
    Code.START_LATE: "no commit {limit_s:g} s after its start",
    Code.HEAL_FAILED: "rank {rank}: {why}",
    Code.NO_WAY: "its node does not reach the gate of the lighthouse on {host}",
    Code.NEVER_HEARD: "the gate has not heard it for {seconds:g} s, since it is where it is, and hears others",
    Code.DEPARTED: _departed,
    Code.UNHEARD: "the gate has not heard it for {timeout_ms} ms",
    Code.SILENT_FOR: "silent for {seconds:g} s on a node that lives",
    Code.NO_STEP: _no_step,
    Code.STACK: _stack,
    Code.STACK_UNKNOWN: "its stack is not known ({why})",
    Code.STEPS_UNSEEN: "the others wait for it, or make steps without it, and its node cannot see what its ranks do",
    Code.STOPPED: "rank {rank} {how}, for longer than policy.hang.stopped_s = {limit_s:g}",
    Code.SLOW: _slow,
    Code.SLOW_FOR: "so for {seconds:.0f} s and {steps} steps",
    Code.OWN_NUMBERS: _own_numbers,
    Code.NUMBERS_OF_MANY: _numbers_of_many,
    Code.OTHERS_NUMBERS: _others_numbers,
    Code.SEEN_AGAIN: _seen_again,
    Code.FOLLOWS: "the same on host {host} (incident {incident}): it follows the group, so no host is to blame",
    Code.NODE_LEAVING: "node {node} is leaving: {why}",
    Code.DISK_UNUSABLE: "nothing can be written on node {node} now: {why}",
    Code.HANDED_OVER: _handed_over,
    Code.ALL_HANDED_OVER: "all groups are handed over after step {step}",
    Code.NOT_ENDED_IN_TIME: "it did not end at step {step} in time",
}
