"""The alerts by promtool: each fires for its fault, not before, and clears."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from dashboards import build, rules
from dashboards.boards import BOARDS
from dashboards.expressions import grown, since
from dashboards.rules import Alert
from tests.system.prometheus.asked import filled
from tests.system.prometheus.cases import CASES, Case
from tests.unit.shell.metrics.test_metrics import filled as a_series_of_each

ALERTS = rules.alerts()


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=60)


def as_promtool(alert: Alert, case: Case) -> dict[str, Any]:
    """The case as a test of promtool's."""
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
    """One call tests all, but each rule alone: most of the time would go to rules that a case is not about."""
    committed = yaml.safe_load((build.FOLDER / "rules.yml").read_text())["groups"][0]["rules"]
    for alert, rule in zip(ALERTS, committed, strict=True):
        (tmp_path / f"{alert.name}.yml").write_text(json.dumps({"groups": [{"name": "one", "rules": [rule]}]}))
        tests = [as_promtool(alert, case) for case in CASES[alert.name]]
        body = {"rule_files": [f"{alert.name}.yml"], "evaluation_interval": "1m", "tests": tests}
        (tmp_path / f"{alert.name}.test").write_text(json.dumps(body))
    found = promtool("test", "rules", *(str(tmp_path / f"{alert.name}.test") for alert in ALERTS))
    assert found.returncode == 0, found.stdout + found.stderr


def test_promtool_would_say_if_an_alert_did_not_fire(tmp_path: Path) -> None:
    alert = next(a for a in ALERTS if a.name == "BreakerOpen")
    wrong = as_promtool(alert, CASES["BreakerOpen"][0])
    wrong["input_series"][0]["values"] = "0+0x30"
    test = tmp_path / "test.json"
    test.write_text(json.dumps({"rule_files": [str(build.FOLDER / "rules.yml")], "tests": [wrong]}))
    assert promtool("test", "rules", str(test)).returncode != 0


LAUNCHED = 'supervisor_run_launched_timestamp_seconds{run="r"}'
SECONDS = 'supervisor_group_seconds_total{run="r",cause="act",instance="%s"}'


@pytest.mark.parametrize(
    ("series", "at", "grown_s"),
    [
        # at its first scrape it had counted 14 s already, and a second a minute from then on
        ({LAUNCHED: "0+0x15", SECONDS % "a": "_x5 14+1x10"}, "15m", 24.0),
        # the run is older than Prometheus, and the causes of its earlier seconds are not known
        ({LAUNCHED: "-864000+0x15", SECONDS % "a": "_x5 900000+1x10"}, "15m", 10.0),
        # the process was there before the queried time
        ({LAUNCHED: "0+0x80", SECONDS % "a": "14+1x80"}, "80m", 60.0),
        # so it was, though that scrape failed
        ({LAUNCHED: "-864000+0x80", SECONDS % "a": "900000+1x18 stale _x1 900021+1x60"}, "80m", 60.0),
        # another leads from then on, and counts from 0
        ({LAUNCHED: "-864000+0x80", SECONDS % "a": "14+1x50 _x30", SECONDS % "b": "_x52 3+1x28"}, "80m", 61.0),
    ],
    ids=["first value", "new Prometheus", "before", "failed scrape", "two leaders"],
)
def test_what_was_counted_before_the_first_scrape_is_not_lost(
    series: dict[str, str], at: str, grown_s: float, tmp_path: Path
) -> None:
    """The panel "Badput in the chosen time by cause"; Prometheus extrapolates by half a scrape at most on each side."""
    asked = grown("supervisor_group_seconds_total", "cause", "1h")
    near = f"abs(({asked}) - {grown_s}) <= bool 2"
    assert_answer(near, at, '{cause="act"}', 1, series, tmp_path)


def assert_answer(asked: str, at: str, labels: str, value: float, series: dict[str, str], folder: Path) -> None:
    """Checks promtool's answer to an expression."""
    expected = {"expr": asked, "eval_time": at, "exp_samples": [{"labels": labels, "value": value}]}
    given = [{"series": name, "values": values} for name, values in series.items()]
    one = {"interval": "1m", "input_series": given, "promql_expr_test": [expected]}
    (folder / "test.json").write_text(json.dumps({"evaluation_interval": "1m", "tests": [one]}))
    found = promtool("test", "rules", str(folder / "test.json"))
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("speed", [1, 60, 250])
def test_the_rules_are_valid_at_every_speed(speed: float, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(build.alerts(speed))
    found = promtool("check", "rules", str(tmp_path / "rules.yml"))
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{len(ALERTS)} rules found" in found.stdout


CLOSED = 'supervisor_incidents_total{run="r",kind="crash",rung="restart",instance="%s"}'


@pytest.mark.parametrize(
    ("series", "at", "closed"),
    [
        ({LAUNCHED: "300+0x15", CLOSED % "a": "_x5 0 1+0x10"}, "15m", 1),
        # of a run that was launched since, also the part before the first scrape
        ({LAUNCHED: "300+0x15", CLOSED % "a": "_x5 2+0x10"}, "15m", 2),
        ({LAUNCHED: "-864000+0x15", CLOSED % "a": "_x5 40 41+0x10"}, "15m", 1),
        ({LAUNCHED: "-864000+0x80", CLOSED % "a": "40+0x18 stale _x1 40+0x20 41+0x50"}, "80m", 1),
        ({LAUNCHED: "-864000+0x80", CLOSED % "a": "40+0x18 _x60", CLOSED % "b": "_x22 40+0x20 41+0x50"}, "80m", 1),
        # its kind was first exported within the hour, its run before
        ({LAUNCHED: "-864000+0x80", CLOSED % "a": "_x40 1+0x50"}, "80m", 1),
    ],
    ids=["from 0", "launched since", "new Prometheus", "failed scrape", "two leaders", "new series"],
)
def test_incidents_of_a_time_are_those_that_were_closed_in_it(
    series: dict[str, str], at: str, closed: int, tmp_path: Path
) -> None:
    asked = since("supervisor_incidents_total", "kind", "1h")
    assert_answer(asked, at, '{kind="crash"}', closed, series, tmp_path)


def panel(title: str, kind: str = "stat") -> str:
    """The expression of the panel with that title, of run r in the last hour."""
    (asked,) = {q for board in BOARDS for p in board.panels if p.title == title for q, _ in p.queries if p.kind == kind}
    return filled(asked, "r", 3600.0)


PHASE, GENERATION = 'supervisor_run_phase{run="%s",phase="running"}', 'supervisor_generation{run="%s",group="0"}'


def test_a_run_in_the_queue_does_not_train(tmp_path: Path) -> None:
    series = {PHASE % "r": "1+0x20", GENERATION % "r": "1+0x20", PHASE % "q": "1+0x20", GENERATION % "q": "0+0x20"}
    assert_answer(panel("Runs training"), "15m", "{}", 1, series, tmp_path)
    assert_answer(panel("Runs training"), "15m", "{}", 0, {PHASE % "q": "1+0x20", GENERATION % "q": "0+0x20"}, tmp_path)


def test_the_time_in_the_queue_is_no_time_between_incidents(tmp_path: Path) -> None:
    closed = {LAUNCHED: "0+0x60", CLOSED % "a": "0+0x50 1+0x10"}
    series = {PHASE % "r": "1+0x60", GENERATION % "r": "0+0x29 1+0x30", **closed}
    near = f"abs({panel('Mean time between incidents')} - 1800) <= bool 60"
    assert_answer(near, "59m", "{}", 1, series, tmp_path)


def test_a_group_that_hangs_still_tells_of_the_quorum_before(tmp_path: Path) -> None:
    told = {"0": (3, 12), "1": (4, 11), "2": (3, 12), "3": (3, 12)}
    series = {}
    for group, (participants, number) in told.items():
        about = f'{{run="r",group="{group}",instance="n{group}"}}'
        series |= {f"trainer_quorum_participants{about}": f"{participants}+0x20"}
        series |= {f"trainer_quorum_id{about}": f"{number}+0x20"}
    assert_answer(panel("Groups in the quorum"), "15m", "{}", 3, series, tmp_path)


def test_how_long_heals_took_outlives_the_node_that_told_of_one(tmp_path: Path) -> None:
    """n1 has reported one that took more than half a second, and is gone; n2 a quick one."""
    series = {LAUNCHED: "300+0x40"}
    for node, until, slow in (("n1", 20, True), ("n2", 40, False)):
        for bound in ("0.5", "1.0", "+Inf"):
            count = 0 if slow and bound == "0.5" else 1
            name = f'trainer_heal_seconds_bucket{{run="r",le="{bound}",instance="{node}"}}'
            series[name] = f"_x10 {count}+0x{until - 10}"
    asked = panel("Heal: loading the peers' state", "lines")
    assert_answer(f"abs({asked} - 0.9) <= bool 0.01", "40m", "{}", 1, series, tmp_path)


def test_it_has_nothing_to_say_of_what_we_export() -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=generate_latest(a_series_of_each().registry),
        capture_output=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (0, "", "")
