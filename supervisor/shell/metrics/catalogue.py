"""The metric catalogue: every metric of every process, listed once. Dashboards, rules and docs/METRICS.md are generated from it.

Names follow Prometheus: a unit as suffix, `_total` for counters. `supervisor_` is the control plane, `agent_` a node,
`trainer_` a group or rank (exported by its node's agent). Who exports what, and when, is ADR 14.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

from supervisor.core.goodput.causes import Cause
from supervisor.core.model.kinds import GroupPhase, Kind, Rung, RunPhase, Verb
from supervisor.core.model.observed import Verdict
from supervisor.wire.records import GateGroup

SECONDS_BUCKETS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds from a survivor's stall (0.2 s) to a new allocation (minutes)."""

RECOVERY_BUCKETS = (
    0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0,
)  # fmt: skip
"""Finer bounds, since a quantile is interpolated between two of them. For recoveries of 3 s and 13 s, the 90% quantile
would be 18 s. Only for supervisors: agents also export one series per bucket, and there are thousands of them."""

QUICK_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)
"""Upper bounds from a round of decide of a small run to an etcd call near its deadline of 3 s."""

IDENTITIES = ("run", "group", "rank", "node", "version", "fault")
"""Labels with one value for each thing in the cluster. All other labels take the values of an enum."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One exported metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    """seconds, bytes, tokens, steps, ratio, or the things counted."""
    labels: tuple[str, ...]
    help: str
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """All values of each label that is not in IDENTITIES."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram; otherwise empty."""


Label = str | tuple[str, tuple[str, ...]]
"""One of IDENTITIES, or a label with its values."""


def _metric(
    name: str, kind: Any, unit: str, labels: Sequence[Label], help: str, buckets: tuple[float, ...] = ()
) -> Metric:
    names = tuple(label if isinstance(label, str) else label[0] for label in labels)
    values = dict(label for label in labels if not isinstance(label, str))
    return Metric(name=name, kind=kind, unit=unit, labels=names, help=help, values=values, buckets=buckets)


def _counter(name: str, unit: str, labels: Sequence[Label], help: str) -> Metric:
    return _metric(name, "counter", unit, labels, help)


def _gauge(name: str, unit: str, labels: Sequence[Label], help: str) -> Metric:
    return _metric(name, "gauge", unit, labels, help)


def _histogram(name: str, labels: Sequence[Label], help: str, buckets: tuple[float, ...]) -> Metric:
    return _metric(name, "histogram", "seconds", labels, help, buckets)


def _one_of(of: type, name: str) -> tuple[str, ...]:
    """Returns the values of a field that is a Literal."""
    return get_args(get_type_hints(of)[name])


RUN_PHASES: tuple[str, ...] = get_args(RunPhase)
GROUP_PHASES: tuple[str, ...] = get_args(GroupPhase)
RUNGS = tuple(rung.name.lower() for rung in Rung)
BUDGETED = ("restart", "replace", "reallocate")
KINDS = tuple(kind.value for kind in Kind)
CAUSES = tuple(cause.value for cause in Cause)
RECOVERY = ("detect", "decide", "act", "rejoin", "total")
"""Parts of a recovery. detect: time until the failure was recognized. decide: from the incident to the decision. act:
until the new processes were seen. rejoin: until the group committed again. total: all together."""
STEP_PHASES = ("data", "compute", "wait")
"""Parts of the newest step: waiting for data, computing, and the rest (quorum, heal, commit, other ranks)."""

_RUNG = ("rung", RUNGS)
_KIND = ("kind", KINDS)
_BUDGET = ("rung", BUDGETED)
_GROUP = ("run", "group")
_RANK = ("run", "group", "rank")
_PROCESS = ("kind", ("trainer", "lighthouse"))

CATALOGUE: tuple[Metric, ...] = (
    # --- every supervisor, standbys included ---
    _gauge("supervisor_info", "bool", ("version",), "1 for the version of this supervisor."),
    _gauge("supervisor_leader", "bool", (), "1 while this process leads."),
    _gauge("supervisor_epoch", "revision", (), "Leadership term: create revision of the leader key; 0 if this process never led."),
    _gauge("supervisor_store_up", "bool", (), "1 while etcd answers this process."),
    _histogram("supervisor_store_seconds", (), "Time that etcd takes to answer this process.", QUICK_BUCKETS),
    _gauge("supervisor_store_size_bytes", "bytes", (), "Size of etcd's database."),
    _gauge("supervisor_store_alarms", "alarms", (), "Alarms that etcd has raised: out of space, or corrupt data."),
    _gauge("supervisor_watch_silent_seconds", "seconds", (), "Time since the page of this process last heard from etcd's watch, which it asks every second."),
    _gauge("supervisor_loop_silent_seconds", "seconds", (), "Time since the leading loop last heard from etcd, or last took a turn; 0 if this process does not lead."),
    _gauge("supervisor_certificate_expiry_timestamp_seconds", "seconds", (), "Unix time at which the first of this process's certificate, its authorities and its deny list expires; +Inf without certificates, 0 if they cannot be used."),
    # --- a run: the leader alone ---
    _gauge("supervisor_run_phase", "bool", ("run", ("phase", RUN_PHASES)), "1 for the current phase of the run."),
    _gauge("supervisor_run_launched_timestamp_seconds", "seconds", ("run",), "Unix time of the launch, by the launcher's clock."),
    _gauge("supervisor_paused", "bool", ("run",), "1 while a person has paused the run: nothing is done about failures."),
    _gauge("supervisor_observe", "bool", ("run",), "1 while the run's policy is in observe mode."),
    _gauge("supervisor_reports_steps", "bool", ("run",), "1 if the ranks of the run report steps; 0 for a command that reports only output."),
    _gauge("supervisor_undecided", "bool", ("run",), "1 while nothing is decided about the run: its memory cannot be read, or its decision was refused (docs/INVARIANTS.md)."),
    _counter("supervisor_decisions_total", "decisions", ("run",), "Rounds of decide in this term."),
    _histogram("supervisor_decide_seconds", ("run",), "Time of one round of decide.", QUICK_BUCKETS),
    _histogram("supervisor_commit_seconds", ("run",), "Time of the transaction that writes a decision.", QUICK_BUCKETS),
    _counter("supervisor_actions_total", "actions", ("run", ("action", get_args(Verb))), "Actions decided in this term."),
    _gauge("supervisor_incidents_open", "incidents", ("run",), "Open incidents, except those that are only observed."),
    _counter("supervisor_incidents_total", "incidents", ("run", _KIND, _RUNG), "Incidents closed since the launch, by kind and rung."),
    _counter("supervisor_node_incidents_total", "incidents", ("run", "node"), "Incidents closed since the launch that accuse a node; without those of the program, of its engine, or made from outside."),
    _counter("supervisor_shadow_incidents_total", "incidents", ("run", _RUNG), "Failures only observed since the launch, by the rung that would have been used."),
    _histogram("supervisor_recovery_seconds", ("run", ("phase", RECOVERY)), "Durations of incidents closed since the launch, by phase and in total; includes time without a leader, which the run clock leaves out.", RECOVERY_BUCKETS),
    _gauge("supervisor_budget_left", "uses", ("run", _BUDGET), "Uses left of a rung's budget in its window; for restart, of the group with the fewest left."),
    _gauge("supervisor_budget_allowed", "uses", ("run", _BUDGET), "Size of a rung's budget."),
    _gauge("supervisor_spare_nodes", "nodes", ("run",), "Nodes that could take a group now: healthy, registered, checked, not about to leave, and without a rank."),
    _gauge("supervisor_spare_nodes_wanted", "nodes", ("run",), "Spares that the run file requests."),
    _gauge("supervisor_nodes", "nodes", ("run", ("verdict", tuple(v.value for v in Verdict))), "Nodes of the run by verdict."),
    _gauge("supervisor_cordoned_hosts", "hosts", ("run",), "Hosts on which no group of the run is placed."),
    _gauge("supervisor_breaker_held", "bool", ("run",), "1 while the breaker holds: many failing groups, lost nodes or failed checks are treated as one cause."),
    _gauge("supervisor_groups", "groups", ("run", ("phase", GROUP_PHASES)), "Replica groups by phase."),
    _gauge("supervisor_debugged_groups", "groups", ("run",), "Groups of which a person has a rank in the debugger."),
    _gauge("supervisor_generation", "generation", _GROUP, "Current generation of a group."),
    _gauge("supervisor_committed_steps", "steps", ("run",), "Newest committed step that running ranks report; it decreases after a resume from a checkpoint."),
    _gauge("supervisor_checkpoint_step", "steps", ("run",), "Step of the newest complete checkpoint."),
    _gauge("supervisor_checkpoint_interval_steps", "steps", ("run",), "Steps between checkpoints, from the run file."),
    _gauge("supervisor_unsaved_steps", "steps", ("run",), "Committed steps since the newest complete checkpoint, or since the start without one: the cost of losing all groups at once."),
    _counter("supervisor_group_seconds_total", "seconds", ("run", ("cause", CAUSES)), "Seconds of all groups in this term, by cause in the ledger; all causes but `productive` are badput."),
    _gauge("supervisor_ettr_ratio", "ratio", ("run",), "Effective training time ratio since the launch, as the page shows it: productive seconds over all group-seconds, in all terms."),
    _counter("supervisor_injected_faults_total", "faults", ("run", "fault"), "Faults that `supervisor chaos` has injected into the run."),
    # --- a node ---
    _gauge("agent_info", "bool", ("node", "version"), "1 for the version of this agent."),
    _gauge("agent_store_up", "bool", ("node",), "1 while etcd answers this agent."),
    _gauge("agent_lease_held", "bool", ("node",), "1 while the node is registered under a living lease."),
    _histogram("agent_report_seconds", ("node",), "Time that etcd takes to accept a report.", QUICK_BUCKETS),
    _counter("agent_reports_total", "reports", ("node",), "Records written to etcd."),
    _counter("agent_report_failures_total", "reports", ("node",), "Writes to etcd that failed."),
    _gauge("agent_processes", "processes", ("node", ("state", ("running", "exited"))), "Processes of the node by state."),
    _counter("agent_process_starts_total", "starts", ("node", _PROCESS, ("how", ("warm", "cold"))), "Processes started."),
    _counter("agent_process_exits_total", "exits", ("node", _PROCESS, ("how", ("clean", "peers_gone", "error", "signal"))), "Processes ended."),
    _gauge("agent_warm_ready", "bool", ("node",), "1 while a warm process is ready to fork trainers."),
    _gauge("agent_standbys", "processes", ("node",), "Hot standbys: ranks whose next start is built already."),
    _gauge("agent_standby_bytes", "bytes", ("node",), "Memory of the hot standbys, with their share of what they have in common with others."),
    _gauge("agent_disk_free_bytes", "bytes", ("node",), "Free space below the home folder."),
    _gauge("agent_memory_available_bytes", "bytes", ("node",), "Memory available without swapping."),
    _gauge("agent_problems", "problems", ("node",), "Problems that the agent reports about itself and its machine."),
    _gauge("agent_certificate_expiry_timestamp_seconds", "seconds", ("node",), "As supervisor_certificate_expiry_timestamp_seconds, for this agent."),
    _gauge("agent_gate_groups", "groups", ("node", "run", ("hearing", _one_of(GateGroup, "hearing"))), "Groups at the gate of this node, by what the gate hears from them."),
    # --- a group, as its rank 0 reports; all its ranks report the same ---
    _gauge("trainer_committed_steps", "steps", _GROUP, "Committed steps, from the TorchFT manager."),
    _counter("trainer_commits_total", "steps", _GROUP, "Steps that this agent saw its processes commit."),
    _counter("trainer_failed_commits_total", "steps", _GROUP, "Steps that this agent saw fail to commit."),
    _gauge("trainer_loss", "nats", _GROUP, "Mean loss over the participating replicas."),
    _gauge("trainer_gradient_norm", "none", _GROUP, "Norm of the averaged gradient, before it is clipped."),
    _gauge("trainer_quorum_participants", "groups", _GROUP, "Groups that took part in the newest quorum."),
    _gauge("trainer_quorum_id", "id", _GROUP, "Id of the newest quorum: it grows until all groups start again from disk."),
    _counter("trainer_seconds_total", "seconds", ("run", "group", ("cause", CAUSES)), "Seconds of the group's processes that this agent saw, by cause in the ledger."),
    _histogram("trainer_heal_seconds", ("run",), "Time that a group took to load its peers' state at a start; counted once for each start, even if the agent restarts.", SECONDS_BUCKETS),
    # --- a rank ---
    _gauge("trainer_up", "bool", _RANK, "1 while the process runs."),
    _gauge("trainer_step_seconds", "seconds", (*_RANK, ("phase", STEP_PHASES)), "Duration of the newest step by phase: data, compute, and the wait for others."),
    _gauge("trainer_heal_bytes", "bytes", _RANK, "What has come of its peer's state, in a heal that takes a second and more; 0: there is none."),
    _gauge("trainer_tokens_per_second", "tokens", _RANK, "Throughput of the rank."),
    _gauge("trainer_mfu_ratio", "ratio", _RANK, "Model FLOPS utilisation, on GPUs whose peak TorchTitan knows."),
)  # fmt: skip
