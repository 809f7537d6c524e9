"""The timeouts of a run as one chain, each with the value in force, the least safe one, the best one, and why.

Each must outlast what goes on beneath it: beats of a heartbeat, a heartbeat timeout, a join, a collective, the freeing
of survivors, a hang. The quorum timeout stands apart: it is the longest outage of the control plane that trainers
survive, since waiting for a lighthouse is no hang. Until something is measured, the run file's values show what to
expect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from supervisor.core.evidence.group_failure import ENGINE_AWAY_S
from supervisor.core.model import engines
from supervisor.core.model.measured import NOTHING, Measured, together
from supervisor.core.model.observed import GATE_ETCD_SILENCE_S, Observed
from supervisor.core.model.spec import RunSpec
from supervisor.core.remediation.handover import EARLY_S
from supervisor.core.timeouts.bound import Bound, Row, above_ms, highest, in_ms, made, said, top, up

BEAT_MS = 100
"""Milliseconds between the heartbeats of TorchFT's managers."""

MISSED = 3
"""Beats that may be late: a lost packet is sent again after 200 ms, the least TCP retransmission timeout on Linux."""

NOISE = 5
"""Factor by which a neighbour's noise slows a step; policy.hang.factor is above it (supervisor/shell/runfile/parse.py)."""

RENEWED_AT = 3
"""Part of a lease, a third, after which it is renewed: one round trip that takes longer loses it."""

LEASE_S = 5.0
"""Seconds of a gate's lease: a lighthouse whose host is lost is missed after this at the earliest."""

SUCCESSOR_S = 5.0
"""Seconds for the next lighthouse to start and the forwarders to reach it."""

RETRY_MS = 100
"""Shortest pause in milliseconds before the retries of all managers are load for a lighthouse that is just back."""

SENSIBLE_QUORUM_MS = 600_000
"""Ten minutes: in less, no person can mend a control-plane host before the trainers end. TorchFT's own 60 s ended both
groups of a test, though the lighthouse was away for 4 s only (it did not retry at all)."""

WARN_AT_MOST_S = 65535
"""Longest warning in seconds that `sbatch --signal` takes."""


def measured(observed: Observed) -> Measured:
    """Measures a run now: the longest times of its ranks that run, of their nodes, and of its engine."""
    nodes = [node for node in observed.nodes.values() if node.registered]
    of_ranks = together(
        [
            rank.measured
            for node in nodes
            for rank in node.ranks
            if rank.measured is not NOTHING and rank.state == "running"
        ]
    )
    store_ms = max([node.store_ms for node in nodes if node.ranks], default=0.0)
    return replace(of_ranks, store_ms=store_ms, engine_word_s=observed.engine_word_s)


def rows(spec: RunSpec, seen: Measured = NOTHING) -> tuple[Row, ...]:
    """Returns the whole table, from the lowest to the highest."""
    heartbeat = _heartbeat(spec, seen)
    join = _join(spec, seen, heartbeat)
    group = _process_group(spec, seen, heartbeat)
    lease = _lease(spec, seen, heartbeat)
    at_least, at_most = _hang(spec, seen, join, group)
    return (
        *(heartbeat, join, group, _heal(spec, seen, group), at_least, at_most),
        *_outage(spec, heartbeat, join, group, at_most, lease),
        lease,
        *_judging(spec, seen, join, lease),
        *_engine(spec, seen, lease),
    )


def unsafe(spec: RunSpec, seen: Measured = NOTHING) -> list[Row]:
    """Returns the rows with which the run must not be started, or be changed to."""
    return [row for row in rows(spec, seen) if row.settable and row.state == "unsafe"]


# --- torchft: heartbeat < join, process group; and the quorum timeout apart ---


def _heartbeat(spec: RunSpec, seen: Measured) -> Row:
    trip = f"the gate answers within {seen.gate_ms:.10g} ms" if seen.gate_ms else "no way to the gate measured yet"
    return made(
        key="torchft.heartbeat_timeout_ms",
        unit="ms",
        value=spec.torchft.heartbeat_timeout_ms,
        least=Bound(
            math.ceil(MISSED * BEAT_MS + seen.gate_ms),
            f"a manager beats every {BEAT_MS} ms, {MISSED} beats may be late, and each has its way to go",
        ),
        best=highest(
            Bound(1000, "ten beats; survivors of a lost network step again 1.1 s later"),
            Bound(math.ceil(20 * seen.gate_ms), "twenty times the way to the gate and back"),
        ),
        measured=trip,
    )


def _join(spec: RunSpec, seen: Measured, heartbeat: Row) -> Row:
    wanted = [
        Bound(5000, "a group may come later to the quorum than the others, and is not left behind for it"),
        Bound(2 * top(heartbeat), "twice the heartbeat timeout"),
    ]
    if spec.groups.count > 2:  # of two, one alone is no majority: the quorum waits for the other anyhow
        wanted.append(
            Bound(in_ms(2 * seen.apart_s), "the group that writes a checkpoint comes so much later; twice that")
        )
    return made(
        key="torchft.join_timeout_ms",
        unit="ms",
        value=spec.torchft.join_timeout_ms,
        least=Bound(
            heartbeat.value + 1,
            f"it must be above {heartbeat.key} = {heartbeat.value:.10g}: a group that is silent for less lives, and the quorum "
            "waits for it",
        ),
        best=highest(*wanted),
        measured=said("longest checkpoint or heal", seen.apart_s),
    )


def _process_group(spec: RunSpec, seen: Measured, heartbeat: Row) -> Row:
    value = spec.torchft.process_group_timeout_ms
    least = highest(
        Bound(
            heartbeat.value + 1,
            f"it must be above {heartbeat.key} = {heartbeat.value:.10g}: who is lost has to be known before a collective is given up",
        ),
        Bound(
            above_ms(seen.collective_s),
            f"a healthy collective has taken {seen.collective_s:.10g} s: it would have been given up",
        ),
    )
    if seen.step_s or seen.collective_s:
        best = highest(
            Bound(10_000, "long enough for any collective so far; survivors of a silent loss are freed after it"),
            Bound(
                in_ms(NOISE * seen.step_s),
                f"the group that is done first waits for the slowest: {NOISE} times the usual step",
            ),
            Bound(in_ms(2 * seen.collective_s), "twice the longest healthy collective"),
            Bound(2 * top(heartbeat), "twice the heartbeat timeout"),
        )
        measured = f"{said('longest collective', seen.collective_s)}, {said('usual step', seen.step_s)}"
    else:
        word = "taken as your word for the longest healthy collective; survivors of a silent loss are freed after it"
        best = highest(Bound(value, word), Bound(2 * top(heartbeat), "twice the heartbeat timeout"))
        measured = "no step measured yet"
    return made(
        key="torchft.process_group_timeout_ms", unit="ms", value=value, least=least, best=best, measured=measured
    )


def _heal(spec: RunSpec, seen: Measured, group: Row) -> Row:
    value = spec.torchft.heal_timeout_s
    return made(
        key="torchft.heal_timeout_s",
        unit="s",
        value=value,
        least=Bound(
            group.value / 1000,
            f"it must not be below {group.key} = {group.value:.10g}: in a step with a heal it takes the place of that",
        ),
        best=highest(
            Bound(value, "a choice: who waits for a heal that hangs is freed after it"),
            Bound(up(3 * seen.apart_s), "three times the longest checkpoint or heal"),
            Bound(up(top(group) / 1000), f"{group.key} must not be above it"),
        ),
        measured=said("longest checkpoint or heal", seen.apart_s),
    )


def _outage(spec: RunSpec, heartbeat: Row, join: Row, group: Row, hang: Row, lease: Row) -> Iterator[Row]:
    torchft = spec.torchft
    taken_ms = 1000 * (LEASE_S + GATE_ETCD_SILENCE_S + SUCCESSOR_S) + heartbeat.value
    timeout = made(
        key="torchft.quorum_timeout_ms",
        unit="ms",
        value=torchft.quorum_timeout_ms,
        least=highest(
            Bound(
                join.value + 1,
                f"{join.key} = {join.value:.10g} must be below it: a quorum may wait so long for a group",
            ),
            Bound(
                group.value + 1,
                f"{group.key} = {group.value:.10g} must be below it: a group that is in a collective still comes so much later",
            ),
            Bound(taken_ms, "no lighthouse takes the place of a lost one sooner, and every trainer would end"),
        ),
        best=highest(
            Bound(
                torchft.quorum_timeout_ms,
                "a choice: the longest outage of the control plane to survive; to wait for a lighthouse is no hang",
            ),
            Bound(
                SENSIBLE_QUORUM_MS, "no one mends a control plane in less; TorchFT's 60 s ended both groups of a test"
            ),
            Bound(2 * max(top(join), top(group)), "twice what the quorum may wait while no group is lost"),
            # of more than two, the others are a majority and go on without it
            Bound(in_ms(top(hang)), f"the other group waits in the quorum for one that hangs, up to {hang.key}")
            if spec.groups.count == 2
            else Bound(0, ""),
        ),
    )
    yield timeout
    pause_ms = torchft.quorum_timeout_ms / (torchft.quorum_retries + 1)
    yield made(
        key="torchft.quorum_retries",
        unit="",
        value=torchft.quorum_retries,
        least=Bound(0, "fewer are none"),
        best=Bound(
            max(1, min(torchft.quorum_retries, top(timeout) // RETRY_MS - 1)),
            "with none, one lost connection ends a trainer; more are load for a lighthouse that has just come back",
        ),
        most=Bound(
            torchft.quorum_timeout_ms // RETRY_MS - 1,
            f"the pause between two, {pause_ms:.0f} ms (quorum_timeout_ms / (retries + 1)), must not be below {RETRY_MS} ms",
        ),
        measured=f"the pause between two is {pause_ms:.0f} ms",
    )
    limit_s = spec.policy.cut_off_stop_s
    yield made(
        key="policy.cut_off_stop_s",
        unit="s",
        value=limit_s,
        least=Bound(
            2 * lease.value if limit_s else 0,
            f"a hiccup of two leases ({lease.key} = {lease.value:g}) would stop trainers, and 0 is never",
        ),
        best=Bound(
            max(top(timeout) / 1000, 2 * top(lease)) if limit_s else 0,
            "an outage of etcd and lighthouse at once is survived no longer than this, whatever the quorum timeout",
        ),
    )


# --- policy: when a step hangs, a group is given up, a node is lost ---


def _hang(spec: RunSpec, seen: Measured, join: Row, group: Row) -> tuple[Row, Row]:
    hang = spec.policy.hang
    freed_s = (join.value + group.value) / 1000
    at_least = made(
        key="policy.hang.at_least_s",
        unit="s",
        value=hang.at_least_s,
        least=Bound(
            freed_s,
            f"survivors of a lost group may wait so long for it ({join.key} and {group.key}), and would be taken for hanging",
        ),
        best=Bound(2 * (top(join) + top(group)) / 1000, "twice what survivors of a lost group wait"),
        measured=f"{said('usual step', seen.step_s)}: {_learned(spec, seen)}",
    )
    at_most = made(
        key="policy.hang.at_most_s",
        unit="s",
        value=hang.at_most_s,
        least=highest(
            Bound(at_least.value, f"it must not be below {at_least.key} = {at_least.value:.10g}"),
            Bound(
                up(seen.apart_s),
                f"a checkpoint or heal has taken {seen.apart_s:.10g} s: the next generation's first would be a hang",
            ),
            Bound(
                up(seen.pause_s),
                f"an evaluation or compile has taken {seen.pause_s:.10g} s: the next generation's first would be a hang",
            ),
            Bound(
                up(NOISE * seen.step_s),
                f"a step {NOISE} times as slow as usual ({seen.step_s:.10g} s) is a neighbour's noise",
            ),
        ),
        best=highest(
            Bound(hang.at_most_s, "a choice: for what is not learned yet, as steps that compile"),
            Bound(top(at_least), f"{at_least.key} must not be above it"),
            Bound(up(3 * seen.apart_s), "three times the longest checkpoint or heal"),
            Bound(up(3 * seen.pause_s), "three times the longest evaluation or compile"),
            Bound(up(hang.factor * seen.step_s), f"policy.hang.factor = {hang.factor:.10g} usual steps"),
        ),
        measured=f"{said('longest checkpoint or heal', seen.apart_s)}, {said('longest evaluation or compile', seen.pause_s)}",
    )
    return at_least, at_most


def _learned(spec: RunSpec, seen: Measured) -> str:
    hang = spec.policy.hang
    if not seen.step_s:
        return f"{hang.at_most_s:.10g} s counts until it is learned"
    bound_s = min(hang.at_most_s, max(hang.at_least_s, hang.factor * seen.step_s))
    return f"a step hangs after {bound_s:.3g} s"


def _lease(spec: RunSpec, seen: Measured, heartbeat: Row) -> Row:
    policy = spec.policy
    return made(
        key="policy.node_lease_s",
        unit="s",
        value=policy.node_lease_s,
        least=highest(
            Bound(2, "etcd makes a lease of 1 s into 2"),
            Bound(
                math.ceil(RENEWED_AT * seen.store_ms / 1000),
                f"it is renewed at a third of its time, and etcd takes {seen.store_ms / 1000:.10g} s for a report",
            ),
        ),
        best=highest(
            Bound(policy.node_lease_s, "a choice: an agent that is silent for longer has lost its node"),
            Bound(math.ceil(top(heartbeat) / 1000), "the gate must say first whether the group is heard"),
            Bound(math.ceil(10 * seen.store_ms / 1000), "ten times what etcd takes for a report"),
        ),
        measured=said("etcd's usual answer", seen.store_ms / 1000),
    )


def _judging(spec: RunSpec, seen: Measured, join: Row, lease: Row) -> Iterator[Row]:
    policy = spec.policy
    yield made(
        key="policy.silent_timeout_s",
        unit="s",
        value=policy.silent_timeout_s,
        least=Bound(
            lease.value,
            f"a lost node is silent too: its lease ({lease.key} = {lease.value:.10g}) must lapse first, else its group is "
            "started again on it",
        ),
        best=highest(
            Bound(policy.silent_timeout_s, "a choice: after it, waiting costs more than a restart"),
            Bound(2 * top(lease), "two leases"),
        ),
    )
    yield made(
        key="policy.start_timeout_s",
        unit="s",
        value=policy.start_timeout_s,
        least=highest(
            Bound(
                join.value / 1000,
                "a new gate waits torchft.join_timeout_ms for the other groups before anybody commits",
            ),
            Bound(
                up(seen.start_s),
                f"a start has taken {seen.start_s:.10g} s to its first commit: the next would be ended",
            ),
        ),
        best=highest(
            Bound(policy.start_timeout_s, "a choice: large models load and compile for minutes"),
            Bound(2 * max(5.0, top(join) / 1000), "twice what a new gate may wait"),
            Bound(up(3 * seen.start_s), "three times the longest start"),
        ),
        measured=said("longest start to first commit", seen.start_s),
    )
    yield made(
        key="policy.term_grace_s",
        unit="s",
        value=policy.term_grace_s,
        least=Bound(0, "less is none"),
        best=highest(
            Bound(policy.term_grace_s, "a choice: a trainer ends its step and closes its sockets in this"),
            Bound(up(seen.longest_step_s), "a trainer that is asked to end finishes its step first"),
        ),
        measured=said("longest step", seen.longest_step_s),
    )


# --- the engine ---


def _engine(spec: RunSpec, seen: Measured, lease: Row) -> Iterator[Row]:
    usual_s = engines.word_s(spec.allocation)
    word_s = max(usual_s, seen.engine_word_s)
    yield made(
        key="the engine's word",
        unit="s",
        value=word_s,
        least=Bound(0, ""),
        best=Bound(0, "a sign of a lost node is held so long: the engine may say that it took it"),
        most=Bound(ENGINE_AWAY_S, "it is not waited for any longer, and what it took passes for a lost node"),
        measured=f"usually {usual_s:.10g} s" if word_s == usual_s else f"longest {word_s:.3g} s",
    )
    yield made(
        key="policy.allocation_timeout_s",
        unit="s",
        value=spec.policy.allocation_timeout_s,
        least=Bound(up(word_s + lease.value), "the engine's word and a node's first lease take so long"),
        best=highest(
            Bound(
                spec.policy.allocation_timeout_s, "a choice: how long to wait for the engine before going on without"
            ),
            Bound(up(3 * (word_s + top(lease))), "three times the engine's word and a node's first lease"),
        ),
        measured=f"the engine's word takes {word_s:.10g} s",
    )
    if not engines.TRAITS[spec.allocation.engine].warns:
        return
    warn_s = engines.warning_s(spec.allocation)
    yield made(
        key="allocation.slurm.warn_s",
        unit="s",
        value=warn_s,
        least=Bound(EARLY_S, "Slurm looks for time limits once a minute"),
        best=highest(
            Bound(warn_s, "a choice: time for a successor to start and heal, or for a checkpoint"),
            Bound(
                math.ceil(EARLY_S + 2 * seen.start_s + seen.longest_step_s) if seen.start_s else EARLY_S,
                "a successor starts, heals and commits in it, twice as slowly as seen",
            ),
        ),
        most=Bound(WARN_AT_MOST_S, "sbatch takes no more"),
        measured=said("longest start to first commit", seen.start_s),
    )
