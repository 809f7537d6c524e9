"""The alerts: each has a severity, a page for the night, and durations that a test may shorten."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from dashboards import rules
from dashboards.expressions import BRIDGED
from dashboards.rules import Alert
from supervisor.shell.web.calls import AWAY_S, CALLS, STILL_S, Level

ROOT = Path(__file__).parents[3]
ALERTS = rules.alerts()
SECTIONS = ("What it means", "What the supervisor has already done", "What to check", "When to get up")

NIGHT_LINES = 60
"""No one reads more at three in the morning."""


def test_names_are_different() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a.name)
def test_each_has_a_page_with_four_answers(alert: Alert) -> None:
    text = (ROOT / alert.runbook).read_text()
    assert text.splitlines()[0] == f"# {alert.name}"
    assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == SECTIONS
    assert f"Severity: **{alert.severity}**" in text
    parts = re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]
    assert all(part.strip() for part in parts)
    assert len(text.splitlines()) <= NIGHT_LINES


BEGINS: Mapping[Level, str] = {"now": "Now", "soon": "In the morning", "no": "When it stops"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a.name)
def test_rule_page_and_runbook_call_a_person_at_the_same_time(alert: Alert) -> None:
    """tests/unit/shell/web/test_snapshot.py checks the page's text for each."""
    answer = (ROOT / alert.runbook).read_text().partition("## When to get up\n\n")[2]
    assert re.match(rf"{BEGINS[CALLS[alert.name]]}\b", answer), answer
    committed = {r["alert"]: r for r in rules.build()["groups"][0]["rules"]}
    assert committed[alert.name]["labels"]["severity"] == rules.SEVERITIES[CALLS[alert.name]]


def test_the_table_has_every_alert_once_and_no_other() -> None:
    assert [*CALLS] == [alert.name for alert in ALERTS]


def test_an_alert_calls_when_the_page_does() -> None:
    lasts = {alert.name: alert.for_s for alert in ALERTS}
    for name in ("NoLeader", "StoreAway", "LighthouseAway"):
        assert lasts[name] == AWAY_S
    (progress,) = [alert for alert in ALERTS if alert.name == "RunNotProgressing"]
    within = _s(re.findall(r"\[(\w+):\]", progress.expression)[0])
    assert progress.for_s + within == STILL_S


def test_there_is_no_page_without_an_alert() -> None:
    pages = {path.name for path in (ROOT / "docs" / "runbooks").glob("*.md")} - {"README.md"}
    assert pages == {Path(alert.runbook).name for alert in ALERTS}


def test_the_list_of_pages_is_whole_and_says_the_severity() -> None:
    text = (ROOT / "docs" / "runbooks" / "README.md").read_text()
    found = re.findall(r"^\| \[(\w+)\]\(([a-z-]+\.md)\) \| (\w+) \|", text, re.MULTILINE)
    assert found == [(alert.name, Path(alert.runbook).name, alert.severity) for alert in ALERTS]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a.name)
def test_what_it_says_has_only_labels_that_it_carries(alert: Alert) -> None:
    for label in re.findall(r"\$labels\.(\w+)", alert.summary):
        assert re.search(rf"\bby \([^)]*\b{label}\b", alert.expression), alert.summary


def test_speed_divides_every_duration() -> None:
    slow, fast = rules.build(), rules.build(speed=60)
    for before, after in zip(slow["groups"][0]["rules"], fast["groups"][0]["rules"], strict=True):
        assert [_s(d) for d in _durations(after)] == pytest.approx([_s(d) / 60 for d in _durations(before)]), before
    assert _durations({"expr": "x[1h:]", "for": "10m"}) == ["10m", "1h"]


def _durations(rule: dict[str, str]) -> list[str]:
    # the length of a bridged gap is no window
    inside = re.findall(r"\[(\w+):?\]|offset (\w+)", rule["expr"].replace(f"[{BRIDGED}] offset", " offset"))
    return ([rule["for"]] if "for" in rule else []) + [a or b for a, b in inside]


def _s(duration: str) -> float:
    number, unit = re.fullmatch(r"(\d+)([a-z]+)", duration).groups()  # type: ignore[union-attr]
    return float(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit]


@pytest.mark.parametrize(
    ("seconds", "text"), [(60, "1m"), (90, "90s"), (3600, "1h"), (86400, "1d"), (0.25, "250ms"), (1.5, "1500ms")]
)
def test_durations_are_written_as_prometheus_reads_them(seconds: float, text: str) -> None:
    assert rules.duration(seconds) == text
