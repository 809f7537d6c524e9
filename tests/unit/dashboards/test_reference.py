"""The generated pages are the ones in docs/, and leave nothing out."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import report
from dashboards import reference
from supervisor.shell.metrics.catalogue import CATALOGUE, Metric
from supervisor.wire import tables


def test_the_page_of_benchmarks_is_made_from_their_results() -> None:
    assert (report.DOCS / "BENCHMARKS.md").read_text() == report.page(), "run `make docs` and commit what it writes"


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_committed_page_is_the_generated_one(name: str) -> None:
    assert (reference.DOCS / name).read_text() == reference.PAGES[name](), "run `make docs` and commit what it writes"


def rows(page: str) -> dict[str, list[list[str]]]:
    """Section -> its table's rows; a `\\|` is no border."""
    found: dict[str, list[list[str]]] = {"": []}
    section = ""
    for line in page.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ").strip("[]")
            found[section] = []
        elif line.startswith("| `"):
            cells = line.strip("|").replace("\\|", "/").split("|")
            found[section].append([cell.strip().strip("`") for cell in cells])
    return found


def test_every_key_of_a_run_file_is_told_once() -> None:
    found = Counter(
        key if section == "top level" else f"{section}.{key}"
        for section, table in rows(reference.run_file()).items()
        for key, *_ in table
    )
    sections = {section for section in rows(reference.run_file()) if section not in ("", "top level")}
    assert set(found) | sections == set(tables.all_keys())
    assert set(found.values()) == {1}


def test_every_key_has_a_type_a_default_and_a_reason() -> None:
    for section, table in rows(reference.run_file()).items():
        for row in table:
            assert len(row) == 4, (section, row)
            assert all(row), (section, row)


def test_every_metric_is_told_once() -> None:
    told = [row[0] for table in rows(reference.metrics()).values() for row in table]
    assert told == [m.name for m in CATALOGUE]
    assert set(Counter(told).values()) == {1}


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda m: m.name)
def test_a_metrics_name_follows_the_rules(metric: Metric) -> None:
    assert metric.name.startswith(("supervisor_", "agent_", "trainer_"))
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert metric.help.endswith(".")
    assert len(set(metric.labels)) == len(metric.labels)
    if metric.unit in ("seconds", "bytes", "ratio"):
        assert metric.unit in metric.name
