"""The alerts by promtool: each fires for its fault, not before, and clears."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards import build, rules
from dashboards.expressions import grown
from dashboards.rules import Alert
from tests.prometheus.cases import CASES, Case

ALERTS = rules.alerts()


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=60)


def as_promtool(alert: Alert, case: Case) -> dict[str, Any]:
    """One test of promtool's."""
    firing = {
        "exp_labels": {**case.labels, "severity": alert.severity},
        "exp_annotations": {"summary": case.summary, "runbook": alert.runbook},
    }
    moments = [(case.quiet, []), (case.fires, [firing]), (case.over, [])]
    return {
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{at}m", "alertname": alert.name, "exp_alerts": expected}
            for at, expected in moments
            if at is not None and at >= 0
        ],
    }


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == {alert.name for alert in ALERTS}


def test_each_fires_for_its_fault_and_clears(tmp_path: Path) -> None:
    """In one call, and each rule alone: most of the time would go to rules that a case is not about."""
    committed = yaml.safe_load((build.FOLDER / "rules.yml").read_text())["groups"][0]["rules"]
    for alert, rule in zip(ALERTS, committed, strict=True):
        (tmp_path / f"{alert.name}.yml").write_text(json.dumps({"groups": [{"name": "one", "rules": [rule]}]}))
        tests = [as_promtool(alert, case) for case in CASES[alert.name]]
        body = {"rule_files": [f"{alert.name}.yml"], "evaluation_interval": "1m", "tests": tests}
        (tmp_path / f"{alert.name}.test").write_text(json.dumps(body))
    found = promtool("test", "rules", *(str(tmp_path / f"{alert.name}.test") for alert in ALERTS))
    assert found.returncode == 0, found.stdout + found.stderr


def test_promtool_would_say_if_an_alert_did_not_fire(tmp_path: Path) -> None:
    """The test above can fail."""
    alert = next(a for a in ALERTS if a.name == "BreakerOpen")
    wrong = as_promtool(alert, CASES["BreakerOpen"][0])
    wrong["input_series"][0]["values"] = "0+0x30"
    test = tmp_path / "test.json"
    test.write_text(json.dumps({"rule_files": [str(build.FOLDER / "rules.yml")], "tests": [wrong]}))
    assert promtool("test", "rules", str(test)).returncode != 0


SECONDS = 'supervisor_group_seconds_total{run="r",cause="act",instance="%s"}'


@pytest.mark.parametrize(
    ("series", "at", "grown_s"),
    [
        # at its first scrape it had counted 14 s already, and a second a minute from then on
        ({SECONDS % "a": "_x5 14+1x10"}, "15m", 24.0),
        # the process was there before the time that is looked at
        ({SECONDS % "a": "14+1x80"}, "80m", 60.0),
        # another leads from then on, and counts from 0
        ({SECONDS % "a": "14+1x50 _x30", SECONDS % "b": "_x52 3+1x28"}, "80m", 61.0),
    ],
    ids=["first value", "before", "two leaders"],
)
def test_what_was_counted_before_the_first_scrape_is_not_lost(
    series: dict[str, str], at: str, grown_s: float, tmp_path: Path
) -> None:
    """The panel "Badput in this time by cause"; Prometheus extrapolates by half a scrape at most on each side."""
    asked = grown("supervisor_group_seconds_total", "cause", "1h")
    near = f"abs(({asked}) - {grown_s}) <= bool 2"
    body = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {"expr": near, "eval_time": at, "exp_samples": [{"labels": '{cause="act"}', "value": 1}]}
                ],
            }
        ],
    }
    (tmp_path / "test.json").write_text(json.dumps(body))
    found = promtool("test", "rules", str(tmp_path / "test.json"))
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("speed", [1, 60, 250])
def test_the_rules_are_valid_at_every_speed(speed: float, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(build.alerts(speed))
    found = promtool("check", "rules", str(tmp_path / "rules.yml"))
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{len(ALERTS)} rules found" in found.stdout
