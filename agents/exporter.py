"""The node's Prometheus metrics: its own, and those of its ranks."""

from __future__ import annotations

from typing import get_args, get_type_hints

from agents import exits
from agents.names import TrainerName, parse
from agents.reporter import Standing
from agents.view import View, kind
from supervisor.shell.metrics import Metrics, serve
from supervisor.wire.records import GateGroup, Health, ProcessRecord, Progress
from supervisor.wire.security import Security

HEARINGS: tuple[str, ...] = get_args(get_type_hints(GateGroup)["hearing"])

_GAUGES = {
    "trainer_committed_steps": "step",
    "trainer_loss": "loss",
    "trainer_tokens_per_second": "tokens_per_s",
    "trainer_step_seconds": "step_s",
    "trainer_quorum_participants": "participants",
    "trainer_generation": "generation",
}


class Exporter:
    """Sets the metrics of the catalogue from what the agent knows."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._metrics = Metrics()
        self._metrics.gauge("agent_up", node=node).set(1)
        self._commits: dict[str, tuple[int, int]] = {}
        self._standing = Standing()

    def serve(self, address: str, port: int, security: Security) -> int:
        """Listen, with TLS if there are certificates; returns the port. OSError when it is taken."""
        return serve(self._metrics.registry, address, port, security)

    def started(self, record: ProcessRecord) -> None:
        how = "warm" if record.warm else "cold"
        self._metrics.counter("agent_process_starts_total", node=self._node, kind=kind(record.name), how=how).inc()

    def ended(self, record: ProcessRecord) -> None:
        self._metrics.counter(
            "agent_process_exits_total", node=self._node, kind=kind(record.name), how=exits.how(record)
        ).inc()

    def dropped(self, name: str) -> None:
        self._commits.pop(name, None)

    def progress(self, name: str, progress: Progress) -> None:
        rank = {"run": progress.run, "group": progress.group, "rank": progress.rank}
        for metric, field in _GAUGES.items():
            value = getattr(progress, field)
            if value is not None:
                self._metrics.gauge(metric, **rank).set(value)
        before = self._commits.get(name, (0, 0))
        self._commits[name] = (progress.commits, progress.failed_commits)
        # a process counts from 0: what an earlier agent has counted of it is counted again, once
        self._metrics.counter("trainer_commits_total", **rank).inc(max(0, progress.commits - before[0]))
        self._metrics.counter("trainer_failed_commits_total", **rank).inc(max(0, progress.failed_commits - before[1]))

    def node(self, view: View, health: Health, standing: Standing) -> None:
        up = {
            (name.run, name.group, name.rank): 0 for name in map(parse, view.processes) if isinstance(name, TrainerName)
        }
        for text in view.running():
            if isinstance(name := parse(text), TrainerName):
                up[name.run, name.group, name.rank] = 1
        for (run, group, rank), value in up.items():
            self._metrics.gauge("trainer_up", run=run, group=group, rank=rank).set(value)
        gauges = {
            "agent_store_up": float(standing.store_up),
            "agent_lease_held": float(standing.lease_held),
            "agent_warm_ready": float(health.warm == "ready"),
            "agent_disk_free_bytes": health.disk_free_bytes,
            "agent_memory_available_bytes": health.memory_available_bytes,
            "agent_problems": len(health.problems) + len(health.facts),
        }
        for metric, number in gauges.items():
            self._metrics.gauge(metric, node=self._node).set(number)
        running = len(view.running())
        for state, count in (("running", running), ("exited", len(view.processes) - running)):
            self._metrics.gauge("agent_processes", node=self._node, state=state).set(count)
        for run, groups in view.hearing.items():
            for hearing in HEARINGS:
                count = sum(heard == hearing for heard in groups.values())
                self._metrics.gauge("agent_gate_groups", node=self._node, run=run, hearing=hearing).set(count)
        self._metrics.counter("agent_report_failures_total", node=self._node).inc(
            standing.failures - self._standing.failures
        )
        self._metrics.counter("agent_reports_total", node=self._node, record="all").inc(
            standing.written - self._standing.written
        )
        self._standing = Standing(written=standing.written, failures=standing.failures)
