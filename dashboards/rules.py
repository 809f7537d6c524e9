"""The alerts, as rules for Prometheus. Each has a severity and a page in docs/runbooks of the same name.

page: a person gets up. ticket: a person looks in the morning. none: the dead-man's switch, which always fires. The
status page uses the same table of severities (supervisor/shell/web/calls.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dashboards.expressions import checked, since
from supervisor.core.evidence.checkpoint_lag import BEHIND
from supervisor.core.policy.cordons import REPEATED_S
from supervisor.shell.inspect.doctor.trust import SOON_S
from supervisor.shell.web.calls import AWAY_S, CALLS, STILL_S, Level

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0

ETTR_BOUND = 0.9
"""Least ETTR. Llama 3 405B trained for more than 90% of its time on 16,384 GPUs (The Llama 3 Herd of Models, 3.3.4)."""

STORE_SLOW_S = 0.5
"""Seconds: a tenth of the leases of 5 s that depend on etcd, a sixth of a call's deadline."""

STORE_LARGE_BYTES = int(0.75 * 2 * 1024**3)
"""Three quarters of etcd's default quota, 2 GiB. 1,000 agents need tens of MB."""

NODE_EXPIRES_S = 4 * HOUR_S
"""Half of the eight hours in which an agent renews a certificate of a day."""

TERMS, TERMS_S = 3, 15 * MINUTE_S
"""Changes of the leader within that time that an upgrade of three supervisors explains."""

LOOP_SILENT_S = 30.0
"""Seconds. The loop turns, and asks etcd's watch, every second. The bound is twice what a change of etcd's leaders and
a busy etcd take together."""


SEVERITIES: Mapping[Level, str] = {"now": "page", "soon": "ticket", "no": "none"}


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One rule."""

    name: str
    expression: str
    for_s: float
    """Seconds for which the expression must hold."""
    summary: str
    """Summary for the person who is called, with {{ $labels.x }} and {{ $value }}."""

    @property
    def severity(self) -> str:
        return SEVERITIES[CALLS[self.name]]

    @property
    def runbook(self) -> str:
        """Path in this repository."""
        words = re.findall(r"[A-Z][a-z]+", self.name)
        return f"docs/runbooks/{'-'.join(words).lower()}.md"


def duration(seconds: float) -> str:
    """Returns the duration as Prometheus writes it."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{round(seconds * 1000)}ms"


def alerts(window: Callable[[float], str] = duration) -> tuple[Alert, ...]:
    """Returns all alerts. `window` writes a duration of an expression: tests use shorter ones."""
    # before a rank has reported the metric is 0, which is no step back to a checkpoint
    steps = "(max by (run) (supervisor_committed_steps) > 0)"
    recent_s = 5 * MINUTE_S
    recent = window(recent_s)
    # of a command that reports only its output no step is known
    stepless = f"last_over_time(supervisor_reports_steps[{recent}])"
    debugged = f"max_over_time(supervisor_debugged_groups[{recent}])"
    hour = window(HOUR_S)
    certificate = "agent_certificate_expiry_timestamp_seconds"
    group_seconds = "supervisor_group_seconds_total"
    return (
        Alert(
            name="RunNotProgressing",
            # a change of leader, which drops the series for a moment, does not begin the wait again
            expression=f'max by (run) (last_over_time(supervisor_run_phase{{phase=~"running|resuming|stopping|halted"}}[{recent}])) == 1\n'
            f"and on (run) max by (run) (last_over_time(supervisor_generation[{recent}])) > 0\n"
            f"unless on (run) ((max by (run) ({stepless}) == 0 or max by (run) ({debugged}) > 0)\n"
            f'unless on (run) max by (run) (last_over_time(supervisor_run_phase{{phase="halted"}}[{recent}])) == 1)\n'
            # repeated steps after a crash are some progress; only old ones for an hour, after another reset, are none
            f"unless on (run) (max_over_time({steps}[{recent}:]) > min_over_time({steps}[{recent}:])\n"
            f"unless on (run) (resets({steps}[{hour}:]) > 0\n"
            f"and on (run) max_over_time({steps}[{hour}:]) <= max_over_time({steps}[{hour}:] offset {hour})))",
            for_s=STILL_S - recent_s,
            summary="run {{ $labels.run }} does not progress: no step for 15 minutes, or only repeated steps for an hour",
        ),
        Alert(
            name="RunUndecided",
            expression="max by (run) (supervisor_undecided) == 1",
            for_s=AWAY_S,
            summary="run {{ $labels.run }}: its memory cannot be read, or its decision was refused: its failures are not repaired",
        ),
        Alert(
            name="EttrLow",
            expression=f'sum by (run) (increase({group_seconds}{{cause="productive"}}[{hour}]))\n'
            f"/ sum by (run) (increase({group_seconds}[{hour}])) < {ETTR_BOUND}\n"
            # its first groups started an hour ago: time in a queue before that is no time in which it should train
            f"and on (run) max_over_time((max by (run) (supervisor_generation))[{recent}:] offset {hour}) > 0\n"
            f"unless on (run) max by (run) ({stepless}) == 0",
            for_s=30 * MINUTE_S,
            summary="run {{ $labels.run }} trained for only {{ $value | humanizePercentage }} of the last hour",
        ),
        Alert(
            name="BudgetNearlySpent",
            expression="min by (run, rung) (supervisor_budget_left) <= 1\n"
            "and min by (run, rung) (supervisor_budget_left) < min by (run, rung) (supervisor_budget_allowed)",
            for_s=0,
            summary="run {{ $labels.run }} has {{ $value }} uses left in its {{ $labels.rung }} budget",
        ),
        Alert(
            name="NoSpares",
            expression="max by (run) (supervisor_spare_nodes) == 0\n"
            "and on (run) max by (run) (supervisor_spare_nodes_wanted) > 0\n"
            'and on (run) max by (run) (supervisor_run_phase{phase="running"}) == 1\n'
            "and on (run) max by (run) (supervisor_generation) > 0",  # not for a run that waits for its first nodes
            for_s=10 * MINUTE_S,
            summary="run {{ $labels.run }} has no spare node: replacing the next lost node needs a new allocation",
        ),
        Alert(
            name="CheckpointsBehind",
            expression="max by (run) (supervisor_unsaved_steps)\n"
            f"> {BEHIND} * (max by (run) (supervisor_checkpoint_interval_steps) > 0)\n"
            'and on (run) max by (run) (supervisor_run_phase{phase="running"}) == 1',
            # where three intervals take less, a disk that was full for a moment needs no look in the morning
            for_s=5 * MINUTE_S,
            summary="run {{ $labels.run }} has {{ $value }} steps in no checkpoint: losing all groups at once would lose them",
        ),
        Alert(
            name="FlappingNode",
            expression=f"{since('supervisor_node_incidents_total', 'node', window(REPEATED_S))} >= 2",
            for_s=0,
            summary="node {{ $labels.node }} had {{ $value }} incidents within a day",
        ),
        Alert(
            name="NoLeader",
            expression="max(supervisor_leader) == 0",
            for_s=AWAY_S,
            summary="supervisors run, but none leads: failures are not repaired",
        ),
        Alert(
            name="LeaderFlapping",
            expression=f"changes(max(supervisor_epoch and on (instance) supervisor_leader == 1)[{window(TERMS_S)}:]) > {TERMS}",
            for_s=0,
            summary="the leader changed {{ $value }} times within a quarter of an hour: failures are repaired late or not at all",
        ),
        Alert(
            name="StoreAway",
            expression="max(supervisor_store_up) == 0",
            for_s=AWAY_S,
            summary="etcd does not answer any supervisor: nothing is decided",
        ),
        Alert(
            name="StoreSlow",
            # a read needs no disk, so writes of the leader and of the agents count too
            expression="\nor ".join(
                f"histogram_quantile(0.9, sum by (le) (rate({name}_bucket[{recent}]))) > {STORE_SLOW_S}"
                for name in ("supervisor_store_seconds", "supervisor_commit_seconds", "agent_report_seconds")
            ),
            for_s=5 * MINUTE_S,
            summary="etcd takes {{ $value | humanizeDuration }} to answer: leases may expire",
        ),
        Alert(
            name="StoreOutOfSpace",
            # one that is cut off still shows what it saw last
            expression=f"max(supervisor_store_alarms and on (instance) max_over_time(supervisor_store_up[{window(2 * MINUTE_S)}]) == 1) > 0",
            for_s=0,
            summary="etcd has raised an alarm: it accepts no writes until a person clears it",
        ),
        Alert(
            name="StoreLarge",
            expression=f"max(supervisor_store_size_bytes) > {STORE_LARGE_BYTES}",
            for_s=5 * MINUTE_S,
            summary="etcd's database is {{ $value | humanize1024 }}B large: at its quota it accepts no writes",
        ),
        Alert(
            name="LighthouseAway",
            expression='max by (run) (supervisor_run_phase{phase="running"}) == 1\n'
            "and on (run) max by (run) (supervisor_generation) > 0\n"
            "unless on (run) max by (run) (agent_gate_groups) >= 0",
            for_s=AWAY_S,
            summary="no node reports a gate of run {{ $labels.run }}: without a lighthouse no group steps",
        ),
        Alert(
            name="CertificateExpires",
            expression=f"min by (instance) (supervisor_certificate_expiry_timestamp_seconds) - time() < {SOON_S:.0f}\n"
            # what a node asks for lives for a day, and is renewed within it
            f"or min by (node) ({certificate}) - time() < {SOON_S:.0f}\n"
            f"and min by (node) ({certificate}) == min by (node) (last_over_time({certificate}[{hour}] offset {window(DAY_S)}))\n"
            f"or min by (node) ({certificate}) - time() < {NODE_EXPIRES_S:.0f}",
            for_s=5 * MINUTE_S,
            summary="{{ with $labels.node }}node {{ . }}{{ else }}the supervisor at {{ $labels.instance }}{{ end }}: the first of its certificate, "
            "its authorities and its deny list expires in {{ $value | humanizeDuration }}",
        ),
        Alert(
            name="AgentVersionSkew",
            expression="count(count by (version) (agent_info) or count by (version) (supervisor_info)) > 1",
            for_s=6 * HOUR_S,
            summary="supervisors or agents have run in {{ $value }} versions side by side for hours",
        ),
        Alert(
            name="SupervisorBlind",
            # if all of etcd is silent the lease is lost and no supervisor leads: StoreAway and NoLeader cover that
            expression=f"absent(supervisor_leader)\nor max by (instance) (supervisor_loop_silent_seconds) > {LOOP_SILENT_S:g}",
            for_s=MINUTE_S,
            summary="no supervisor answers Prometheus, or the leader keeps its lease but does nothing",
        ),
        Alert(
            name="BreakerOpen",
            expression="max by (run) (supervisor_breaker_held) == 1",
            for_s=0,
            summary="many nodes or groups of run {{ $labels.run }} failed at once: the breaker holds until they are back or a person decides",
        ),
        Alert(
            name="ShadowWouldHaveKilled",
            expression=f"{since(_KILLS, 'run, rung', hour)} > 0",
            for_s=0,
            summary="run {{ $labels.run }}: in the last hour {{ $labels.rung }} was due {{ $value }} times, and was only observed",
        ),
        Alert(
            name="Watchdog",
            expression="vector(1)",
            for_s=0,
            summary="always fires: if it stops, Prometheus or Alertmanager is down",
        ),
    )


_KILLS = 'supervisor_shadow_incidents_total{rung!="ride_through"}'


def build(speed: float = 1.0) -> dict[str, Any]:
    """Returns the rules file. All durations are divided by `speed`. Raises KeyError or ValueError as `checked`."""

    def faster(seconds: float) -> str:
        return duration(seconds / speed)

    found = []
    for alert in alerts(faster):
        rule: dict[str, Any] = {"alert": alert.name, "expr": checked(alert.expression)}
        if alert.for_s:
            rule["for"] = faster(alert.for_s)
        rule["labels"] = {"severity": alert.severity}
        rule["annotations"] = {"summary": alert.summary, "runbook": alert.runbook}
        found.append(rule)
    return {"groups": [{"name": "supervisor", "rules": found}]}
