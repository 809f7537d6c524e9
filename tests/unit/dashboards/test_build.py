"""The committed dashboards and rules are the generated ones, and query only exported metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from dashboards import build
from dashboards.boards import BOARDS, VARIABLES, Board
from dashboards.panels import Panel
from supervisor.core.model import Verdict
from supervisor.shell.metrics.catalogue import CAUSES, GROUP_PHASES

ALL = build.files()
PANELS = [pytest.param(panel, id=f"{board.title}: {panel.title}") for board in BOARDS for panel in board.panels]


@pytest.mark.parametrize("name", ALL)
def test_the_committed_file_is_the_generated_one(name: str) -> None:
    assert (build.FOLDER / name).read_text() == ALL[name], "run `make docs` and commit what it writes"


def test_nothing_else_is_committed() -> None:
    found = {path.name for path in build.FOLDER.iterdir() if path.suffix in (".json", ".yml")}
    assert found == set(ALL)


def test_it_is_the_same_each_time() -> None:
    assert build.files() == ALL


def body(board: Board) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ALL[board.file])
    return found


@pytest.mark.parametrize("board", BOARDS, ids=lambda b: b.title)
def test_every_panel_is_there_in_its_row_and_none_covers_another(board: Board) -> None:
    panels = body(board)["panels"]
    titles = [title for row, inside in board.rows.items() for title in (row, *(p.title for p in inside))]
    assert [p["title"] for p in panels] == titles
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    asked = [[t["expr"] for t in p["targets"]] for p in panels if p["type"] != "row"]
    assert asked == [[expression for expression, _ in panel.queries] for panel in board.panels]


@pytest.mark.parametrize("board", BOARDS, ids=lambda b: b.title)
def test_a_variable_is_there_for_each_that_is_asked_for(board: Board) -> None:
    names = [v["name"] for v in body(board)["templating"]["list"]]
    assert names == ["source", *build.used(board)]
    assert set(build.used(board)) <= set(VARIABLES)


def test_run_group_and_node_can_be_chosen() -> None:
    assert {name for board in BOARDS for name in build.used(board)} == {"run", "group", "node"}


def test_incidents_are_marked_where_a_run_is_shown() -> None:
    for board in BOARDS:
        marked = [a["name"] for a in body(board)["annotations"]["list"]]
        assert (marked == ["Incident open", "Incident closed", "Fault injected"]) == ("run" in build.used(board))


def test_badput_is_stacked_to_the_whole() -> None:
    (panel,) = [p for board in BOARDS for p in body(board)["panels"] if p["title"] == "Group-seconds by cause"]
    assert panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "percent"


def colours(title: str) -> dict[str, str]:
    (panel,) = [p for board in BOARDS for p in body(board)["panels"] if p["title"] == title]
    found = panel["fieldConfig"]["overrides"]
    return {o["matcher"]["options"]: o["properties"][0]["value"]["fixedColor"] for o in found}


def test_what_is_good_is_green_and_every_phase_and_verdict_has_a_colour() -> None:
    phases, verdicts = colours("Groups by phase"), colours("Nodes by verdict")
    assert set(phases) == set(GROUP_PHASES)
    assert set(verdicts) == {verdict.value for verdict in Verdict}
    good = {phases["running"], verdicts["healthy"], colours("Group-seconds by cause")["productive"]}
    assert len(good) == 1
    (green,) = good
    assert "green" in green
    assert [*phases.values(), *verdicts.values()].count(green) == 2


def test_every_cause_has_its_own_colour_and_what_trains_alone_is_green() -> None:
    found = colours("Group-seconds by cause")
    assert set(found) == set(CAUSES)
    assert len(set(found.values())) == len(found)
    assert [cause for cause, colour in found.items() if "green" in colour] == ["productive"]


def panel(expression: str, legend: str = "") -> Panel:
    return Panel(title="Nothing", kind="lines", queries=((expression, legend),))


@pytest.mark.parametrize(
    "name",
    [
        "supervisor_nothing",
        "agent_up_total",
        "trainer_loss_bucket",
        "supervisor_decide_seconds",
        "superviser_leader",
        "trainers_loss",
        "supervisor_leader2",
        "up",
    ],
)
def test_an_unknown_metric_stops_the_build(name: str) -> None:
    """Prometheus keeps only the parts of a histogram."""
    wrong = replace(BOARDS[0], rows={"Row": (panel(f"max({name})"),)})
    with pytest.raises(KeyError, match=f"the catalogue has no metric '{name}'"):
        build.board(wrong)


@pytest.mark.parametrize(
    ("expression", "legend", "what"),
    [
        ('max(trainer_loss{node="n1"})', "", "trainer_loss has no label 'node'"),
        ("max by (rank) (trainer_loss)", "", "has the label 'rank'"),
        ("max by (group) (trainer_loss)", "{{grp}}", "has the label 'grp'"),
        ('max(supervisor_run_phase{phase="runing"})', "", "phase of supervisor_run_phase is one of"),
        ('max(supervisor_run_phase{phase=~"running|halt"})', "", "not 'halt'"),
        ("sum by (le) (supervisor_recovery_seconds_sum)", "", "has the label 'le'"),
    ],
)
def test_a_label_that_is_not_exported_stops_the_build(expression: str, legend: str, what: str) -> None:
    wrong = replace(BOARDS[0], rows={"Row": (panel(expression, legend),)})
    with pytest.raises(ValueError, match=what):
        build.board(wrong)


def test_the_parts_of_a_histogram_are_known() -> None:
    expression = "histogram_quantile(0.9, sum by (le) (rate(supervisor_recovery_seconds_bucket[5m])))"
    made = build.board(replace(BOARDS[0], rows={"Row": (panel(expression),)}))
    assert json.loads(made)["panels"][1]["targets"][0]["expr"] == expression


@pytest.mark.parametrize("panel", PANELS)
def test_series_are_told_apart(panel: Panel) -> None:
    """Several series of one panel with the same name would have one colour, and give no answer."""
    for expression, legend in panel.queries:
        outer = expression.partition("(")[0]
        assert ("by" in outer.split()) <= ("{{" in legend), expression
    assert len({legend for _, legend in panel.queries}) == len(panel.queries)


def test_rules_are_yaml_that_is_read_as_it_was_meant() -> None:
    from dashboards import rules

    assert yaml.safe_load(ALL["rules.yml"]) == rules.build()
