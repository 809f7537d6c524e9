"""The four Grafana dashboards: their panels, queries, variables and annotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.models.common import StackingMode

from dashboards.colours import GREEN, GREY, OF_CAUSE
from dashboards.expressions import grown, since
from dashboards.panels import Panel
from supervisor.core.model.observed import Verdict

RUN, GROUP, NODE = 'run="$run"', 'group=~"$group"', 'node=~"$node"'
RATE = "$__rate_interval"
RANGE = "$__range"
PER_S = "suffix: /s"


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A choice at the head of a dashboard."""

    query: str
    all: bool
    """True if it may be everything, and several."""


VARIABLES: Mapping[str, Variable] = {
    "run": Variable(query="label_values(supervisor_run_phase, run)", all=False),
    "group": Variable(query=f"label_values(supervisor_generation{{{RUN}}}, group)", all=True),
    "node": Variable(query="label_values(agent_info, node)", all=True),
}


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """Events that are marked on every time series of a dashboard."""

    name: str
    expression: str
    title: str
    text: str
    colour: str


@dataclass(frozen=True, kw_only=True)
class Board:
    """One dashboard."""

    title: str
    file: str
    since: str
    """How far back the dashboard looks at first."""
    rows: Mapping[str, tuple[Panel, ...]]
    annotations: tuple[Annotation, ...] = ()

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows.values() for panel in row)


INCIDENTS = (
    Annotation(
        name="Incident open",
        expression=f"max(supervisor_incidents_open{{{RUN}}}) > 0",
        title="an incident is open",
        text="supervisor incidents",
        colour="orange",
    ),
    Annotation(
        name="Incident closed",
        # an incident of a second is over before a query sees it open
        expression=since(f"supervisor_incidents_total{{{RUN}}}", "kind, rung", "1m") + " > 0",
        title="{{kind}}",
        text="rung: {{rung}}",
        colour="red",
    ),
    Annotation(
        name="Fault injected",
        expression=since(f"supervisor_injected_faults_total{{{RUN}}}", "fault", "1m") + " > 0",
        title="chaos: {{fault}}",
        text="injected on purpose",
        colour="purple",
    ),
)


def _stat(title: str, expression: str, unit: str = "none", legend: str = "", **more: float | str | None) -> Panel:
    return Panel(title=title, kind="stat", unit=unit, span=4, height=4, queries=((expression, legend),), **more)  # type: ignore[arg-type]


def _lines(title: str, unit: str, *queries: tuple[str, str], about: str = "", **more: Any) -> Panel:
    return Panel(title=title, kind="lines", unit=unit, queries=queries, about=about, **more)


_PHASES = {
    "running": GREEN,
    "starting": "blue",
    "placing": "yellow",
    "fencing": "orange",
    "unplaced": "purple",
    "finished": GREY,
}
_VERDICTS = {Verdict.HEALTHY.value: GREEN, Verdict.DEAD.value: "red", Verdict.UNKNOWN.value: GREY}
_BADPUT = grown(f'supervisor_group_seconds_total{{{RUN}, cause!="productive"}}', "cause", RANGE)


def _started(of: str = "") -> str:
    """Returns the query of runs that are running, except those that wait in the queue for their first nodes."""
    phase = ", ".join([*filter(None, [of]), 'phase="running"'])
    return f"max by (run) (supervisor_run_phase{{{phase}}}) == 1\nand on (run) max by (run) (supervisor_generation) > 0"


FLEET = Board(
    title="Fleet",
    file="fleet.json",
    since="now-6h",
    rows={
        "Now": (
            _stat("Runs training", f"count({_started()}) or vector(0)"),
            _stat("Runs halted", 'sum(supervisor_run_phase{phase="halted"})', red_from=1),
            _stat("Open incidents", "sum(supervisor_incidents_open)", red_from=1),
            _stat("Nodes", "count(agent_info)"),
            _stat("Spare nodes", "sum(supervisor_spare_nodes)"),
            _stat("Cordoned hosts, most in one run", "max(supervisor_cordoned_hosts)", red_from=1),
        ),
        "Runs": (
            Panel(
                title="Effective training time by run",
                kind="bars",
                unit="percentunit",
                queries=(("max by (run) (supervisor_ettr_ratio)", "{{run}}"),),
                about="Since the launch of each run.",
            ),
            _lines("Committed steps per second", PER_S, (f"max by (run) (sum by (run, group) (rate(trainer_commits_total[{RATE}])))", "{{run}}")),
            _lines("Tokens per second", "none", ("sum by (run) (trainer_tokens_per_second)", "{{run}}")),
            _lines("Incidents in the last hour", "none", (since("supervisor_incidents_total", "kind", "1h") + " > 0", "{{kind}}")),
        ),
        "Nodes": (
            _lines("Nodes by verdict", "none", ("sum by (verdict) (supervisor_nodes)", "{{verdict}}"), colours=_VERDICTS),
            _lines("Problems that nodes report", "none", (f"topk(20, max by (node) (agent_problems{{{NODE}}}))", "{{node}}")),
            _lines("Disk free", "bytes", (f"bottomk(20, min by (node) (agent_disk_free_bytes{{{NODE}}}))", "{{node}}")),
            _lines("Memory available", "bytes", (f"bottomk(20, min by (node) (agent_memory_available_bytes{{{NODE}}}))", "{{node}}")),
            _lines(
                "Processes started", "none",
                (f"sum by (kind, how) (increase(agent_process_starts_total{{{NODE}}}[{RATE}]))", "{{kind}}, {{how}}"),
            ),
            _lines(
                "Processes ended", "none",
                (f"sum by (kind, how) (increase(agent_process_exits_total{{{NODE}}}[{RATE}]))", "{{kind}}, {{how}}"),
            ),
        ),
    },
)  # fmt: skip

RUN_BOARD = Board(
    title="Run",
    file="run.json",
    since="now-1h",
    annotations=INCIDENTS,
    rows={
        "Now": (
            _stat(
                "Effective training time", f"max(supervisor_ettr_ratio{{{RUN}}})", "percentunit", green_from=0.9,
                about="Since the launch, under all leaders; the status page shows the same.",
            ),
            _stat("Committed step", f"max(supervisor_committed_steps{{{RUN}}})"),
            _stat("Newest checkpoint", f"max(supervisor_checkpoint_step{{{RUN}}})"),
            _stat(
                "Groups in the quorum",
                # a rank that hangs still reports the quorum before
                f"max(trainer_quorum_participants{{{RUN}}}\n"
                f"and on (run, group) trainer_quorum_id{{{RUN}}} == on (run) group_left max by (run) (trainer_quorum_id{{{RUN}}}))",
            ),
            _stat("Open incidents", f"max(supervisor_incidents_open{{{RUN}}})", red_from=1),
            _stat("Spare nodes", f"max(supervisor_spare_nodes{{{RUN}}})"),
        ),
        "Where the time goes": (
            Panel(
                title="Group-seconds by cause",
                kind="lines",
                unit="percentunit",
                span=16,
                stack=StackingMode.PERCENT,
                colours=OF_CAUSE,
                queries=((f"sum by (cause) (rate(supervisor_group_seconds_total{{{RUN}}}[{RATE}])) > 0", "{{cause}}"),),
                about="All causes but productive are badput. The leader's view; `trainer_seconds_total` is the trainers' view. "
                "Time without a process is counted once it ends, so it appears up to a minute late.",
            ),
            Panel(
                title="Badput in the chosen time by cause",
                kind="bars",
                unit="s",
                span=8,
                queries=((f"sort_desc({_BADPUT} > 0)", "{{cause}}"),),
                about="Group-seconds. If the chosen time covers the whole run, these and the productive seconds add up to all group time.",
            ),
            _lines(
                "Productive share by group", "percentunit",
                (
                    f'sum by (group) (rate(trainer_seconds_total{{{RUN}, {GROUP}, cause="productive"}}[{RATE}]))\n'
                    f"/ (sum by (group) (rate(trainer_seconds_total{{{RUN}, {GROUP}}}[{RATE}])) > 0)\n"
                    f"or max by (group) (supervisor_generation{{{RUN}, {GROUP}}}) * 0",
                    "group {{group}}",
                ),
                about="0: the group has no process that could train.",
            ),
            _lines(
                "Groups by phase",
                "none",
                (f"max by (phase) (supervisor_groups{{{RUN}}})", "{{phase}}"),
                (f"max(supervisor_debugged_groups{{{RUN}}})", "in the debugger"),
                colours=_PHASES,
            ),
        ),
        "Steps": (
            _lines(
                "Step time", "s",
                (f"max by (group) (sum by (group, rank) (trainer_step_seconds{{{RUN}, {GROUP}}}))", "group {{group}}"),
                about="Time of the slowest rank. Marks: incidents, and injected faults.",
            ),
            _lines("Step time by phase", "s", (f"max by (phase) (trainer_step_seconds{{{RUN}, {GROUP}}})", "{{phase}}")),
            _lines("Loss", "none", (f"max by (group) (trainer_loss{{{RUN}, {GROUP}}})", "group {{group}}")),
            _lines("Gradient norm", "none", (f"max by (group) (trainer_gradient_norm{{{RUN}, {GROUP}}})", "group {{group}}")),
            _lines("Tokens per second", "none", (f"sum by (group) (trainer_tokens_per_second{{{RUN}, {GROUP}}})", "group {{group}}")),
            _lines("MFU", "percentunit", (f"avg by (group) (trainer_mfu_ratio{{{RUN}, {GROUP}}})", "group {{group}}"), about="Empty without a GPU."),
        ),
        "Ranks and nodes": (
            _lines(
                "Slowest ranks", "s",
                (
                    f'topk(10, sum by (group, rank, instance) (trainer_step_seconds{{{RUN}, {GROUP}, phase!="wait"}}))',
                    "{{group}}/{{rank}} on {{instance}}",
                ),
                about="Step time without the wait for others. Ranks that share one model wait for each other inside a step, "
                "which counts as their own.",
                span=12,
            ),
            _lines(
                "Ranks up by node", "none",
                (f"sum by (group, instance) (trainer_up{{{RUN}, {GROUP}}})", "group {{group}} on {{instance}}"),
                span=12,
            ),
        ),
        "Quorum": (
            _lines("Groups in the quorum", "none", (f"max by (group) (trainer_quorum_participants{{{RUN}, {GROUP}}})", "as group {{group}} sees it")),
            _lines("Quorum id", "none", (f"max(trainer_quorum_id{{{RUN}}})", "id"), about="The id grows with every change of membership."),
            _lines("Commits per second", PER_S, (f"sum by (group) (rate(trainer_commits_total{{{RUN}, {GROUP}}}[{RATE}]))", "group {{group}}")),
            _lines(
                "Steps not committed", "none",
                (f"sum by (group) (increase(trainer_failed_commits_total{{{RUN}, {GROUP}}}[{RATE}]))", "group {{group}}"),
            ),
        ),
    },
)  # fmt: skip

_CLOSED = f"supervisor_incidents_total{{{RUN}}}"
_ON_NODES = f"supervisor_node_incidents_total{{{RUN}, {NODE}}}"
_RUNNING_S = f"scalar(sum_over_time((count({_started(RUN)}) > bool 0)[{RANGE}:15s])) * 15"
_RECOVERY = f'supervisor_recovery_seconds_bucket{{{RUN}, phase="total"}}'

# agents come and go with their nodes, each with its own counts
_HEALS = grown(f"trainer_heal_seconds_bucket{{{RUN}}}", "le", RANGE)

RECOVERY = Board(
    title="Recovery",
    file="recovery.json",
    since="now-24h",
    annotations=INCIDENTS,
    rows={
        "Mean time to recovery": (
            _stat(
                "Mean time to recovery",
                f'sum(supervisor_recovery_seconds_sum{{{RUN}, phase="total"}}) / (sum(supervisor_recovery_seconds_count{{{RUN}, phase="total"}}) > 0)',
                "s",
            ),
            _stat("9 of 10 within", f"histogram_quantile(0.9, sum by (le) ({_RECOVERY}))", "s"),
            _stat("Incidents since the launch", f"sum({_CLOSED})"),
            _stat("Open now", f"max(supervisor_incidents_open{{{RUN}}})", red_from=1),
            _stat("Mean time between incidents", f"{_RUNNING_S} / sum({since(_CLOSED, 'kind', RANGE)} > 0)", "s"),
            _stat("Faults injected", f"sum(supervisor_injected_faults_total{{{RUN}}}) or vector(0)"),
            Panel(
                title="Mean time to recovery by phase, since the launch",
                kind="lines",
                unit="s",
                stack=StackingMode.NORMAL,
                queries=(
                    (
                        f'sum by (phase) (supervisor_recovery_seconds_sum{{{RUN}, phase!="total"}})\n'
                        f'/ (sum by (phase) (supervisor_recovery_seconds_count{{{RUN}, phase!="total"}}) > 0)',
                        "{{phase}}",
                    ),
                ),
                about="detect: from the first sign until it counted as a failure. decide: until the decision. act: until the new processes were seen. rejoin: until the group committed again.",
            ),
            _lines(
                "Time to recovery: median and 90th percentile", "s",
                (f"histogram_quantile(0.5, sum by (le) ({_RECOVERY}))", "median"),
                (f"histogram_quantile(0.9, sum by (le) ({_RECOVERY}))", "90th percentile"),
                about="Dots are incidents: `supervisor explain ID` explains one.", exemplars=True,
            ),
            _lines(
                "Heal: loading the peers' state", "s",
                (f"histogram_quantile(0.9, {_HEALS})", "90th percentile"),
                about="Each point covers the heals of a period before it, as long as the chosen time.",
            ),
            _lines("Incidents since the launch by rung", "none", (f"sum by (rung) ({_CLOSED})", "{{rung}}")),
        ),
        "Mean time between failures, in the chosen time": (
            Panel(
                title="By kind", kind="bars", unit="s",
                queries=((f"sort({_RUNNING_S} / ({since(_CLOSED, 'kind', RANGE)} > 0))", "{{kind}}"),),
            ),
            Panel(
                title="By node", kind="bars", unit="s",
                queries=((f"bottomk(20, {_RUNNING_S} / ({since(_ON_NODES, 'node', RANGE)} > 0))", "{{node}}"),),
                about="The twenty worst nodes.",
            ),
        ),
        "Worst nodes and budgets": (
            Panel(
                title="Worst nodes: incidents since the launch", kind="bars", unit="none",
                queries=((f"topk(10, sum by (node) ({_ON_NODES}))", "{{node}}"),),
            ),
            _lines("Budget left by rung", "none", (f"min by (rung) (supervisor_budget_left{{{RUN}}})", "{{rung}}")),
        ),
    },
)  # fmt: skip


def _quantiles(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket{by}[{RATE}])))", f"{q:.0%}")
        for q in (0.5, 0.9, 0.99)
    )


CONTROL_PLANE = Board(
    title="Control plane",
    file="control-plane.json",
    since="now-1h",
    rows={
        "Now": (
            _stat("Leaders", "sum(supervisor_leader)", green_from=1, red_from=2),
            _stat("Supervisors", "count(supervisor_info)"),
            _stat("Epoch", "max(supervisor_epoch)"),
            _stat("etcd answers", "min(supervisor_store_up)", green_from=1),
            _stat("etcd's alarms", "max(supervisor_store_alarms)", red_from=1),
            _stat("Breakers open", "sum(supervisor_breaker_held)", red_from=1),
        ),
        "Deciding": (
            _lines("Time of one round of decide", "s", *_quantiles("supervisor_decide_seconds")),
            _lines("Time to write a decision", "s", *_quantiles("supervisor_commit_seconds")),
            _lines("Decisions per second", PER_S, (f"sum by (run) (rate(supervisor_decisions_total[{RATE}]))", "{{run}}")),
            _lines("Actions", "none", (f"sum by (action) (increase(supervisor_actions_total[{RATE}]))", "{{action}}")),
            _lines("Failures only observed in the last hour", "none", (since("supervisor_shadow_incidents_total", "run, rung", "1h"), "{{run}}: {{rung}}")),
            _lines("Paused or observing runs", "none", ("max by (run) (supervisor_paused)", "{{run}} paused"), ("max by (run) (supervisor_observe)", "{{run}} observes")),
        ),
        "etcd": (
            _lines("Time that etcd takes to answer", "s", *_quantiles("supervisor_store_seconds")),
            _lines("Silence of etcd's watch", "s", ("max by (instance) (supervisor_watch_silent_seconds)", "{{instance}}"), ("max(supervisor_loop_silent_seconds)", "leading loop")),
            _lines("Size of etcd's database", "bytes", ("max(supervisor_store_size_bytes)", "size")),
            _lines("Time to write a node's report", "s", *_quantiles("agent_report_seconds", f"{{{NODE}}}")),
        ),
        "Agents": (
            _lines("Agents by version", "none", ("count by (version) (agent_info)", "{{version}}")),
            _lines(
                "Agents without etcd or without a lease", "none",
                (f"count(agent_store_up{{{NODE}}} == 0) or vector(0)", "without etcd"),
                (f"count(agent_lease_held{{{NODE}}} == 0) or vector(0)", "without a lease"),
                about="Reported by the agents that Prometheus reaches. It scrapes an agent for an hour after its registration ends.",
            ),
            _lines("Reports per second", PER_S, (f"sum(rate(agent_reports_total{{{NODE}}}[{RATE}]))", "written"), (f"sum(rate(agent_report_failures_total{{{NODE}}}[{RATE}]))", "failed")),
            _lines("Groups at the gate by what it hears", "none", ("sum by (run, hearing) (agent_gate_groups)", "{{run}}: {{hearing}}")),
        ),
    },
)  # fmt: skip

BOARDS = (FLEET, RUN_BOARD, RECOVERY, CONTROL_PLANE)
