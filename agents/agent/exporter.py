"""Exports a node's Prometheus metrics: the node's own, and those of its groups and ranks."""

from __future__ import annotations

import itertools
import time

from agents.agent.names import LighthouseName, TrainerName, parse
from agents.agent.node_view import View, kind
from agents.agent.reporter import Standing
from agents.health import exit_decoder
from supervisor.shell.metrics.catalogue import CATALOGUE, CAUSES
from supervisor.shell.metrics.registry import Metrics, serve
from supervisor.wire.expiry import first_expiry_unix_s
from supervisor.wire.records import Health, ProcessRecord, Progress
from supervisor.wire.security import Security

HEARINGS = next(m.values["hearing"] for m in CATALOGUE if m.name == "agent_gate_groups")

_FROM_0 = {m.name: m.values for m in CATALOGUE if m.name in ("agent_process_starts_total", "agent_process_exits_total")}

_OF_GROUP = {
    "trainer_committed_steps": "step",
    "trainer_loss": "loss",
    "trainer_gradient_norm": "gradient_norm",
    "trainer_quorum_participants": "participants",
    "trainer_quorum_id": "quorum_id",
}

_OF_RANK = {"trainer_tokens_per_second": "tokens_per_s", "trainer_mfu_ratio": "mfu"}

STEPS, AT_LEAST_S = 3.0, 10.0
"""A rank whose step takes longer than STEPS of its own and than AT_LEAST_S seconds has no throughput now. It hangs,
waits, evaluates or saves."""

JUST_STARTED = 2
"""Steps, committed or failed, within which a process that is first heard of is counted from its start."""

_COUNTED = {"trainer_commits_total": "commits", "trainer_failed_commits_total": "failed_commits"}


class Exporter:
    """Sets the metrics of the catalogue from the agent's state."""

    def __init__(
        self, node: str, version: str = "", security: Security | None = None, metrics: Metrics | None = None
    ) -> None:
        """`metrics`: a registry that several nodes share, in the benchmark."""
        self._node = node
        self._metrics = metrics if metrics is not None else Metrics()
        self._metrics.gauge("agent_info", node=node, version=version).set(1)
        expiry = self._metrics.gauge("agent_certificate_expiry_timestamp_seconds", node=node)
        expiry.set_function(lambda: first_expiry_unix_s(security or Security()))
        for name, values in _FROM_0.items():  # so that the first one shows as an increase
            for chosen in itertools.product(*values.values()):
                self._metrics.counter(name, node=node, **dict(zip(values, chosen, strict=True)))
        self._newest: dict[str, Progress] = {}
        """The newest progress record of each process."""
        self._stepped: dict[str, float] = {}
        """When each process's newest step was first heard of, by time.monotonic()."""
        self._standing = Standing()
        self._gates: set[str] = set()

    def serve(self, address: str, port: int, security: Security) -> int:
        """Listens, with TLS if there are certificates, and returns the port. Raises OSError when it is taken."""
        return serve(self._metrics.registry, address, port, security)

    def started(self, record: ProcessRecord) -> None:
        how = "warm" if record.warm else "cold"
        self._metrics.counter("agent_process_starts_total", node=self._node, kind=kind(record.name), how=how).inc()

    def ended(self, record: ProcessRecord) -> None:
        self._metrics.counter(
            "agent_process_exits_total", node=self._node, kind=kind(record.name), how=exit_decoder.how(record)
        ).inc()

    def reported(self, seconds: float) -> None:
        """Records how many seconds etcd took for a report. From any thread."""
        self._metrics.histogram("agent_report_seconds", node=self._node).observe(seconds)

    def dropped(self, text: str) -> None:
        """Drops the metrics of a process, and of its group with the last one: the group may train elsewhere by now."""
        self._newest.pop(text, None)
        self._stepped.pop(text, None)
        name = parse(text)
        if not isinstance(name, TrainerName):
            return
        left = [
            n
            for n in map(parse, self._newest)
            if isinstance(n, TrainerName) and (n.run, n.group) == (name.run, name.group)
        ]
        if name.rank not in {n.rank for n in left}:
            self._metrics.drop("trainer_", run=name.run, group=name.group, rank=name.rank)
        if not left:
            self._metrics.drop("trainer_", run=name.run, group=name.group)

    def progress(self, text: str, progress: Progress) -> None:
        before = self._newest.get(text)
        self._newest[text] = progress
        others = (
            p
            for p in self._newest.values()
            if (p.run, p.group, p.rank) == (progress.run, progress.group, progress.rank)
        )
        if any(p.generation > progress.generation for p in others):
            return
        group = {"run": progress.run, "group": progress.group}
        rank = {**group, "rank": progress.rank}
        if before is None or before.step != progress.step:
            self._stepped[text] = time.monotonic()
            self._gauges(_OF_RANK, progress, rank)
        waited_s = max(0.0, progress.step_s - progress.data_s - progress.compute_s)
        came = progress.healing.bytes if progress.healing is not None else 0
        self._metrics.gauge("trainer_heal_bytes", **rank).set(came)
        for phase, seconds in (("data", progress.data_s), ("compute", progress.compute_s), ("wait", waited_s)):
            self._metrics.gauge("trainer_step_seconds", **rank, phase=phase).set(seconds)
        if progress.rank == 0:
            self._gauges(_OF_GROUP, progress, group)
            self._count(before, progress, group)

    def _gauges(self, fields: dict[str, str], progress: Progress, labels: dict[str, object]) -> None:
        for metric, field in fields.items():
            value = getattr(progress, field)
            if value is not None:
                self._metrics.gauge(metric, **labels).set(value)

    def _count(self, before: Progress | None, progress: Progress, group: dict[str, object]) -> None:
        """Counts from a process's start. One that an earlier agent saw is counted from its first record here. The
        counter began at 0 with this agent, so counting all of it would be a jump."""
        if before is None and progress.commits + progress.failed_commits > JUST_STARTED:
            before = progress
        for metric, field in _COUNTED.items():
            more = getattr(progress, field) - (getattr(before, field) if before is not None else 0)
            self._metrics.counter(metric, **group).inc(max(0, more))
        for cause, seconds in progress.seconds.items():
            more_s = max(0.0, seconds - (before.seconds.get(cause, 0.0) if before is not None else 0.0))
            known = cause if cause in CAUSES else "other"  # a trainer that is newer than this agent may send others
            self._metrics.counter("trainer_seconds_total", **group, cause=known).inc(more_s)
            first = before is None or before.commits == 0  # later it waits while others heal
            if cause == "heal" and more_s > 0 and first and progress.healed:
                self._metrics.histogram("trainer_heal_seconds", run=progress.run).observe(more_s)

    def node(self, view: View, health: Health, standing: Standing) -> None:
        up = {
            (name.run, name.group, name.rank): 0 for name in map(parse, view.processes) if isinstance(name, TrainerName)
        }
        for text in view.running():
            if isinstance(name := parse(text), TrainerName):
                up[name.run, name.group, name.rank] = 1
        self._standing_still(set(view.running()))
        for (run, group, rank), value in up.items():
            self._metrics.gauge("trainer_up", run=run, group=group, rank=rank).set(value)
        gauges = {
            "agent_store_up": float(standing.store_up),
            "agent_lease_held": float(standing.lease_held),
            "agent_warm_ready": float(health.warm == "ready"),
            "agent_disk_free_bytes": health.disk_free_bytes,
            "agent_memory_available_bytes": health.memory_available_bytes,
            "agent_standbys": health.standbys,
            "agent_standby_bytes": health.standby_bytes,
            "agent_problems": len(health.problems) + len(health.facts),
        }
        for metric, number in gauges.items():
            self._metrics.gauge(metric, node=self._node).set(number)
        running = len(view.running())
        for state, count in (("running", running), ("exited", len(view.processes) - running)):
            self._metrics.gauge("agent_processes", node=self._node, state=state).set(count)
        self._hearing(view)
        self._metrics.counter("agent_report_failures_total", node=self._node).inc(
            standing.failures - self._standing.failures
        )
        self._metrics.counter("agent_reports_total", node=self._node).inc(standing.written - self._standing.written)
        self._standing = Standing(written=standing.written, failures=standing.failures)

    def _standing_still(self, running: set[str]) -> None:
        now = time.monotonic()
        newest: dict[tuple[str, int, int], int] = {}
        for p in self._newest.values():
            rank = (p.run, p.group, p.rank)
            newest[rank] = max(p.generation, newest.get(rank, p.generation))
        for text, progress in self._newest.items():
            late = now - self._stepped.get(text, now) > max(AT_LEAST_S, STEPS * progress.step_s)
            newer = newest[progress.run, progress.group, progress.rank] > progress.generation
            if newer or not (late or text not in running):
                continue
            for metric, field in _OF_RANK.items():
                if getattr(progress, field) is not None:
                    labels = {"run": progress.run, "group": progress.group, "rank": progress.rank}
                    self._metrics.gauge(metric, **labels).set(0)

    def _hearing(self, view: View) -> None:
        """Sets the metric for gates that run here. An ended gate hears nothing, and its run has another by now."""
        here = {name.run for name in map(parse, view.running()) if isinstance(name, LighthouseName)}
        for run in self._gates - here:
            self._metrics.drop("agent_gate_groups", run=run)
        self._gates = here & view.hearing.keys()
        for run in self._gates:
            for hearing in HEARINGS:
                count = sum(heard == hearing for heard in view.hearing[run].values())
                self._metrics.gauge("agent_gate_groups", node=self._node, run=run, hearing=hearing).set(count)
