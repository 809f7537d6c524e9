"""Words for actions that no incident explains. `words` has the others, and makes all sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from supervisor.core.model.reason import Code
from supervisor.core.report.words_waits import says


def _without_node(group: int, incident: str) -> str:
    return f"group {group} has no node{f' (incident {incident})' if incident else ''}"


def _all_ended(step: int | None) -> str:
    newest = f"the checkpoint of step {step}" if step is not None else "the beginning: there is no checkpoint"
    return f"every group has ended; they start again from {newest}"


WORDS: Mapping[str, str | Callable[..., str]] = {
    Code.RUN_STARTS: "the run starts",
    Code.TOGETHER: "its nodes are all at switch {switch}",
    Code.RUN_ENDS: "the run is {end}",
    Code.ASKED_FOR: "a person asked for it",
    Code.POOL_OVER: "its time of {for_s:g} s is over (hold.for_s), and no run uses it",
    Code.PERSON_SAYS: "a person says: {because}",
    Code.PERSON_RESUMES: "a person resumes it: {because}",
    Code.RELAUNCH_ASKED: lambda number, because: (
        f"a person relaunches it with spec {number}" + (f": {because}" if because else "")
    ),
    Code.SCALED: lambda number, groups, because: (
        f"a person scales it to {groups} groups with spec {number}" + (f": {because}" if because else "")
    ),
    Code.SCALED_DOWN: "the run wants fewer nodes than it has",
    Code.RELAUNCHED: lambda number, step: (
        f"spec {number} is in force, on the nodes that the run has; its groups start "
        + ("from step 0" if step is None else f"from the checkpoint of step {step}")
    ),
    Code.STATE_IN_MEMORY: "ranks that kept their state in memory for spec {number} go on from that",
    Code.BACKUP_RESTORED: "the state was restored from a backup of {made}; checkpoint: {checkpoint}",
    Code.SAVED: "step {step} is complete on disk",
    Code.ENDED_LATE: "group {group} did not end after step {step} in time: it is ended as it is",
    Code.WOULD: lambda rung, reason: f"would {rung.replace('_', ' ')}: {reason}",
    Code.LET_GO: (
        "{lost} of {of} nodes are lost now, {others} other groups do not train, the checks of {unchecked} have not passed"
    ),
    Code.GATE_ADMITS: "the gate admits generation {generation} alone",
    Code.NODE_HAS_NONE: "node {node} says that its processes are gone",
    Code.HOLDS_AGAINST: "incident {incident}: {kind}",
    Code.FREED_BY: "host {host} was freed by {by} ({was})",
    Code.NOT_TO_BLAME: "host {host} is not to blame for it ({was}): {why}",
    Code.BEFELL_ELSEWHERE: "the same befell group {group} on {host}",
    Code.FOR_INCIDENT: "incident {incident}: {reason}",
    Code.WITHOUT_NODE: _without_node,
    Code.ASKED_ONCE_MORE: "group {group} has no node, and a person asked once more",
    Code.IN_PLACE_OF: "in the place of spare {allocation}: {why}",
    Code.IN_PLACE_OF_LEAVING: "allocation {allocation} is leaving: {why}",
    Code.LEFT_EMPTY: "it is leaving and holds no group: {why}",
    Code.NODE_CORDONED: "its node {node} is cordoned ({why})",
    Code.ENGINE_REFUSED_IT: lambda word: f"the engine refused it{says(word)}",
    Code.HANDS_OVER: "{why}: all groups end after step {step}",
    Code.LEAVES_ALONE: "node {node} is leaving ({why}), and the group has nobody to heal from",
    Code.ALL_LEAVE: "every group's node is leaving ({why}), and no other came in time",
    Code.TRAINING_LEAVE: (
        "every group that trains is on a node that is leaving ({why}), and no other could heal in time"
    ),
    Code.STEP_TOO_LONG: (
        "a step takes {step_s:.0f} s, too long for the warning of {warning_s:.0f} s: it may be lost"
    ),
    Code.ALL_ENDED: _all_ended,
    Code.SEAT_LOST: "the lease of the lighthouse on {node} is gone, and no forwarder reaches its gate",
    Code.SEAT_ENDED: "the shim of {node} says that lighthouse {generation} has ended",
    Code.SEAT_CLOSED: "the gate on {node} reaches no etcd and has lost group {lost}: it has closed by itself",
}  # fmt: skip
