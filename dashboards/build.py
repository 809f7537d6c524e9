"""`python -m dashboards.build`: the Grafana dashboards, generated from the metric catalogue. A metric that the catalogue
does not have stops the build."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

from supervisor.shell.metrics import CATALOGUE

FOLDER = Path(__file__).parent

KNOWN = {metric.name for metric in CATALOGUE} | {
    metric.name + suffix
    for metric in CATALOGUE
    if metric.kind == "histogram"
    for suffix in ("_bucket", "_sum", "_count")
}

RUN = 'run="$run"'

Panel = tuple[str, str, str, str]
"""Title, unit, expression, legend."""

STATS: tuple[Panel, ...] = (
    ("Committed step", "none", f"max(supervisor_committed_steps{{{RUN}}})", ""),
    ("Effective training time", "percentunit", f"max(supervisor_ettr_ratio{{{RUN}}})", ""),
    ("Open incidents", "none", f"max(supervisor_incidents_open{{{RUN}}})", ""),
    ("Spare nodes", "none", f"max(supervisor_spare_nodes{{{RUN}}})", ""),
)

SERIES: tuple[Panel, ...] = (
    ("Loss", "none", f"max by (group) (trainer_loss{{{RUN}}})", "group {{group}}"),
    ("Step time", "s", f'sum by (group) (trainer_step_seconds{{{RUN}, rank="0"}})', "group {{group}}"),
    ("Groups in the quorum", "none", f"max(trainer_quorum_participants{{{RUN}}})", "groups"),
    ("Groups by phase", "none", f"max by (phase) (supervisor_groups{{{RUN}}})", "{{phase}}"),
    ("Tokens per second", "none", f"sum by (group) (trainer_tokens_per_second{{{RUN}}})", "group {{group}}"),
    (
        "Badput by cause",
        "s",
        f'sum by (cause) (rate(supervisor_group_seconds_total{{{RUN}, cause!="productive"}}[1m]))',
        "{{cause}}",
    ),
    (
        "Incidents by kind",
        "none",
        f"sum by (kind, rung) (supervisor_incidents_total{{{RUN}}})",
        "{{kind}}, rung {{rung}}",
    ),
    ("Process starts", "none", "sum by (how) (agent_process_starts_total)", "{{how}}"),
)


def build() -> str:
    """The dashboard as JSON; raises KeyError for a metric that is not in the catalogue."""
    for _, _, expression, _ in (*STATS, *SERIES):
        for name in re.findall(r"\b(?:supervisor|agent|trainer)_[a-z_]+", expression):
            if name not in KNOWN:
                raise KeyError(f"the catalogue has no metric {name!r}: see supervisor/shell/metrics.py")
    source = DataSourceRef(type_val="prometheus", uid="${source}")
    board = (
        dashboard.Dashboard("Pretraining run")
        .uid("pretraining-run")
        .refresh("5s")
        .time("now-15m", "now")
        .with_variable(dashboard.DatasourceVariable("source").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("run").datasource(source).query("label_values(supervisor_committed_steps, run)")
        )
    )
    for title, unit, expression, _ in STATS:
        target = prometheus.Dataquery().expr(expression)
        board = board.with_panel(
            stat.Panel().title(title).unit(unit).datasource(source).height(4).span(6).with_target(target)
        )
    for title, unit, expression, legend in SERIES:
        target = prometheus.Dataquery().expr(expression).legend_format(legend)
        board = board.with_panel(
            timeseries.Panel().title(title).unit(unit).datasource(source).height(8).span(12).with_target(target)
        )
    return str(JSONEncoder(sort_keys=True, indent=1).encode(board.build())) + "\n"


def main() -> int:
    (FOLDER / "run.json").write_text(build())
    return 0


if __name__ == "__main__":
    sys.exit(main())
