"""The committed dashboard is the generated one, and asks only for what is exported."""

from __future__ import annotations

import json
import re

import pytest

from dashboards import build
from supervisor.shell.metrics import CATALOGUE

LABELS = {m.name: set(m.labels) for m in CATALOGUE}


def test_the_committed_dashboard_is_the_generated_one() -> None:
    assert (build.FOLDER / "run.json").read_text() == build.build(), "run `make docs` and commit what it writes"


def test_it_is_the_same_each_time() -> None:
    assert build.build() == build.build()


def test_every_panel_is_there() -> None:
    panels = json.loads(build.build())["panels"]
    assert [p["title"] for p in panels] == [title for title, *_ in (*build.STATS, *build.SERIES)]
    assert [p["targets"][0]["expr"] for p in panels] == [e for _, _, e, _ in (*build.STATS, *build.SERIES)]


@pytest.mark.parametrize("name", ["supervisor_nothing", "agent_up_total", "trainer_loss_bucket"])
@pytest.mark.parametrize("where", ["STATS", "SERIES"])
def test_an_unknown_metric_stops_the_build(monkeypatch: pytest.MonkeyPatch, where: str, name: str) -> None:
    panel = ("Nothing", "none", f"max({name}{{{build.RUN}}})", "")
    monkeypatch.setattr(build, where, (*getattr(build, where), panel))
    with pytest.raises(KeyError, match=f"the catalogue has no metric '{name}'"):
        build.build()


def test_the_parts_of_a_histogram_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    expression = "histogram_quantile(0.9, sum by (le) (rate(supervisor_recovery_seconds_bucket[5m])))"
    monkeypatch.setattr(build, "SERIES", (("Recovery", "s", expression, ""),))
    assert expression in json.dumps(json.loads(build.build())).replace('\\"', '"')


@pytest.mark.parametrize("panel", [*build.STATS, *build.SERIES], ids=lambda p: p[0])
def test_a_panel_asks_for_labels_that_its_metric_has(panel: build.Panel) -> None:
    """A label that is not exported gives an empty panel, and no error."""
    _, _, expression, legend = panel
    names = [n for n in re.findall(r"\b[a-z][a-z_]+\b", expression) if n in LABELS]
    assert len(names) == 1, expression
    asked = set(re.findall(r"(\w+)=", expression))
    for by in re.findall(r"by \(([^)]*)\)", expression):
        asked |= {label.strip() for label in by.split(",")}
    asked |= set(re.findall(r"{{(\w+)}}", legend))
    assert asked <= LABELS[names[0]]
