"""The metric catalogue: every metric of every process, listed once. Dashboards and rules are generated from it.

Names follow Prometheus: a unit as suffix, `_total` for counters. `supervisor_` is the control plane, `agent_` a node,
`trainer_` a rank (exported by its node's agent).
"""

from __future__ import annotations

import logging
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from supervisor.wire.security import Security, follow

log = logging.getLogger(__name__)

SECONDS_BUCKETS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0)
"""From a survivor's stall (0.2 s) to a new allocation (minutes)."""

DECIDE_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric, as it is exported."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    """seconds, bytes, tokens, steps, ratio, ... or what is counted."""
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()
    """Upper bounds, of a histogram only."""


def _counter(name: str, unit: str, labels: Sequence[str], help: str) -> Metric:
    return Metric(name=name, kind="counter", unit=unit, labels=tuple(labels), help=help)


def _gauge(name: str, unit: str, labels: Sequence[str], help: str) -> Metric:
    return Metric(name=name, kind="gauge", unit=unit, labels=tuple(labels), help=help)


def _histogram(name: str, unit: str, labels: Sequence[str], help: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name=name, kind="histogram", unit=unit, labels=tuple(labels), help=help, buckets=buckets)


_RANK = ("run", "group", "rank")

CATALOGUE: tuple[Metric, ...] = (
    # --- the control plane ---
    _counter("supervisor_incidents_total", "incidents", ("run", "kind", "rung"), "Incidents closed, by kind and rung."),
    _gauge("supervisor_incidents_open", "incidents", ("run",), "Incidents that are open now."),
    _counter("supervisor_decisions_total", "decisions", ("run",), "Rounds of decide."),
    _histogram("supervisor_decide_seconds", "seconds", ("run",), "Time of one round of decide.", DECIDE_BUCKETS),
    _counter("supervisor_actions_total", "actions", ("run", "action"), "Actions that were decided, by kind."),
    _gauge("supervisor_leader", "bool", (), "1 while this process leads."),
    _gauge("supervisor_epoch", "revision", (), "Leadership term: the create revision of the leader key."),
    _gauge("supervisor_store_up", "bool", (), "1 while the etcd answers."),
    _gauge("supervisor_groups", "groups", ("run", "phase"), "Replica groups by phase."),
    _gauge("supervisor_generation", "generation", ("run", "group"), "Current generation of a group."),
    _histogram(
        "supervisor_recovery_seconds",
        "seconds",
        ("run", "phase"),
        "Length of the phases of a recovery, since detection: decide, start, join, total.",
        SECONDS_BUCKETS,
    ),
    _gauge(
        "supervisor_ettr_ratio",
        "ratio",
        ("run",),
        "Share of group-seconds in which a group ran, as far as the supervisor sees; the exact ledger is in the report.",
    ),
    _counter(
        "supervisor_badput_seconds_total", "seconds", ("run", "cause"), "Group-seconds in which a group did not run."
    ),
    _gauge("supervisor_budget_left", "uses", ("run", "rung"), "What is left of a rung's budget in its window."),
    _gauge("supervisor_spare_nodes", "nodes", ("run",), "Healthy nodes that run no rank."),
    _gauge("supervisor_nodes", "nodes", ("run", "state"), "Nodes by state: registered, lost, cordoned."),
    _gauge(
        "supervisor_breaker_held",
        "bool",
        ("run",),
        "1 while many nodes lost, or whose checks fail, are held as one cause.",
    ),
    _gauge("supervisor_committed_steps", "steps", ("run",), "The newest committed step."),
    _gauge("supervisor_checkpoint_step", "steps", ("run",), "Step of the newest complete checkpoint."),
    # --- a node ---
    _gauge("agent_up", "bool", ("node",), "1: this agent runs."),
    _gauge("agent_store_up", "bool", ("node",), "1 while the etcd answers this agent."),
    _gauge("agent_lease_held", "bool", ("node",), "1 while the node is registered under a living lease."),
    _counter("agent_reports_total", "reports", ("node", "record"), "Records written to the etcd."),
    _counter("agent_report_failures_total", "reports", ("node",), "Writes to the etcd that failed."),
    _gauge("agent_processes", "processes", ("node", "state"), "Processes of the node by state."),
    _counter(
        "agent_process_starts_total", "starts", ("node", "kind", "how"), "Starts: trainer or lighthouse; warm or cold."
    ),
    _counter(
        "agent_process_exits_total", "exits", ("node", "kind", "how"), "Ends: clean, error, signal or peers_gone."
    ),
    _gauge("agent_warm_ready", "bool", ("node",), "1 while a warm process is ready to fork trainers."),
    _gauge("agent_disk_free_bytes", "bytes", ("node",), "Free space below the home folder."),
    _gauge("agent_memory_available_bytes", "bytes", ("node",), "Memory that can be had without swapping."),
    _gauge("agent_problems", "problems", ("node",), "Problems that the agent reports of itself."),
    _gauge(
        "agent_gate_groups",
        "groups",
        ("node", "run", "hearing"),
        "Groups at the gate of this node by what it hears: absent, holding, beating, silent, gone.",
    ),
    # --- a rank ---
    _gauge("trainer_committed_steps", "steps", _RANK, "Committed steps, from the TorchFT manager."),
    _counter("trainer_commits_total", "steps", _RANK, "Steps that this node's processes have committed."),
    _counter("trainer_failed_commits_total", "steps", _RANK, "Steps that were not committed."),
    _gauge("trainer_loss", "nats", _RANK, "Mean loss over the participating replicas."),
    _gauge("trainer_tokens_per_second", "tokens", _RANK, "Throughput of the rank."),
    _gauge("trainer_step_seconds", "seconds", _RANK, "Length of the last step."),
    _gauge("trainer_quorum_participants", "groups", _RANK, "Groups that stepped in the last quorum."),
    _gauge("trainer_generation", "generation", _RANK, "Generation of the process."),
    _gauge("trainer_up", "bool", _RANK, "1 while the process runs."),
)

_BY_NAME = {metric.name: metric for metric in CATALOGUE}


class Metrics:
    """Metrics of the catalogue in one registry, made at their first use."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self._made: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str, **labels: object) -> Counter:
        """The counter with these labels. KeyError when the catalogue has none of that name, ValueError for other labels."""
        made = self._get(name, "counter", labels)
        assert isinstance(made, Counter)
        return made

    def gauge(self, name: str, **labels: object) -> Gauge:
        """The gauge with these labels; errors as for `counter`."""
        made = self._get(name, "gauge", labels)
        assert isinstance(made, Gauge)
        return made

    def histogram(self, name: str, **labels: object) -> Histogram:
        """The histogram with these labels; errors as for `counter`."""
        made = self._get(name, "histogram", labels)
        assert isinstance(made, Histogram)
        return made

    def drop(self, name: str, **labels: object) -> None:
        """Export a labelled series no more: what it spoke of is gone."""
        made = self._made.get(name)
        if made is not None:
            made.remove(*(str(labels[label]) for label in _BY_NAME[name].labels))

    def _get(self, name: str, kind: str, labels: dict[str, object]) -> Counter | Gauge | Histogram:
        metric = _BY_NAME.get(name)
        if metric is None or metric.kind != kind:
            raise KeyError(f"the catalogue has no {kind} {name!r}: add it to supervisor/shell/metrics.py")
        if set(labels) != set(metric.labels):
            raise ValueError(f"{name} has the labels {metric.labels}, not {tuple(labels)}")
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = _make(metric, self.registry)
        return made.labels(**{label: str(value) for label, value in labels.items()}) if labels else made


def serve(registry: CollectorRegistry, address: str, port: int, security: Security) -> int:
    """Serve /metrics in a thread; returns the port. With certificates it is TLS, and only for who shows one.

    Raises OSError when the port is taken.
    """
    if not security.tls:
        server, _ = start_http_server(port, addr=address, registry=registry)
        return int(server.server_port)
    server, _ = start_http_server(
        port,
        addr=address,
        registry=registry,
        certfile=security.cert,
        keyfile=security.key,
        client_cafile=security.ca,
        client_auth_required=True,
        tls_min_version=ssl.TLSVersion.TLSv1_2,
    )
    listener: Any = server.socket  # an SSLSocket, whose type lacks the attribute below
    follow(listener.context, security)
    # In each request's own thread: one that connects and says nothing would else keep all others out.
    listener.do_handshake_on_connect = False
    # And what fails there is the client's affair: no traceback in our log for everybody who knocks.
    setattr(server, "handle_error", _refused)  # noqa: B010 - a method, which mypy does not let us assign
    return int(server.server_port)


def _refused(_: Any, client: Any) -> None:
    log.info("no metrics for %s: %s", client, sys.exc_info()[1])


def _make(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    if metric.kind == "counter":
        return Counter(metric.name, metric.help, metric.labels, registry=registry)
    if metric.kind == "gauge":
        return Gauge(metric.name, metric.help, metric.labels, registry=registry)
    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
