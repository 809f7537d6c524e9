"""The catalogue, and the export by it: bounded, and read by Prometheus's own parsers."""

from __future__ import annotations

import gzip
import re

import pytest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from supervisor.core.goodput.causes import Cause
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import Verdict
from supervisor.shell.metrics.catalogue import CATALOGUE, IDENTITIES, RECOVERY, Metric
from supervisor.shell.metrics.exposition import answer, exposed
from supervisor.shell.metrics.registry import Metrics


def filled() -> Metrics:
    """A series of each metric."""
    metrics = Metrics()
    for m in CATALOGUE:
        labels = {label: m.values[label][0] if label in m.values else "1" for label in m.labels}
        about = {"incident": "i12"}
        if m.kind == "counter":
            metrics.counter(m.name, **labels).inc(2, exemplar=about)
        elif m.kind == "gauge":
            metrics.gauge(m.name, **labels).set(2)
        else:
            metrics.histogram(m.name, **labels).observe(0.3, about)
    return metrics


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda m: m.name)
def test_a_label_names_what_there_is_or_is_one_of_an_enum(metric: Metric) -> None:
    assert set(metric.values) | set(IDENTITIES) >= set(metric.labels)
    assert set(metric.values) & set(IDENTITIES) == set()
    for label, values in metric.values.items():
        assert label in metric.labels
        assert 0 < len(values) <= 32
        assert all(re.fullmatch(r"[a-z0-9_]+", value) for value in values)
        assert len(set(values)) == len(values)


def test_the_enums_are_those_of_the_core() -> None:
    values = {(m.name, label): set(v) for m in CATALOGUE for label, v in m.values.items()}
    assert values["supervisor_incidents_total", "kind"] == {k.value for k in Kind}
    assert values["supervisor_incidents_total", "rung"] == {r.name.lower() for r in Rung}
    assert values["supervisor_group_seconds_total", "cause"] == {c.value for c in Cause}
    assert values["trainer_seconds_total", "cause"] == {c.value for c in Cause}
    assert values["supervisor_nodes", "verdict"] == {v.value for v in Verdict}
    assert values["supervisor_recovery_seconds", "phase"] == set(RECOVERY)
    assert "halted" in values["supervisor_run_phase", "phase"]
    assert "silent" in values["agent_gate_groups", "hearing"]


def test_all_that_is_exported_is_in_the_catalogue_and_the_other_way_round() -> None:
    families = {f.name + ("_total" if f.type == "counter" else ""): f.type for f in filled().registry.collect()}
    assert families == {m.name: m.kind for m in CATALOGUE}


def test_openmetrics_with_exemplars() -> None:
    text = exposition.generate_latest(filled().registry).decode()
    found = {f.name: f for f in text_string_to_metric_families(text)}
    assert {name + ("_total" if f.type == "counter" else "") for name, f in found.items()} == {
        m.name for m in CATALOGUE
    }
    for name in ("supervisor_incidents", "supervisor_recovery_seconds"):
        told = [s.exemplar for s in found[name].samples if s.exemplar is not None]
        assert [exemplar.labels for exemplar in told] == [{"incident": "i12"}]
    assert "_created" not in text


def test_what_is_dropped_is_exported_no_more() -> None:
    metrics = Metrics()
    for run in ("a", "b"):
        for group in (0, 1):
            metrics.gauge("trainer_loss", run=run, group=group).set(1)
            metrics.gauge("trainer_up", run=run, group=group, rank=0).set(1)
    metrics.gauge("agent_store_up", node="n0").set(1)

    def left() -> list[tuple[str, ...]]:
        return sorted((s.name, *s.labels.values()) for f in metrics.registry.collect() for s in f.samples)

    metrics.drop("trainer_", run="a", group=0, rank=0)
    assert len(left()) == 8, "a loss has no rank"
    metrics.drop("trainer_", run="a", group=0)
    assert len(left()) == 7
    metrics.drop("trainer_", run="b")
    assert left() == [("agent_store_up", "n0"), ("trainer_loss", "a", "1"), ("trainer_up", "a", "1", "0")]
    metrics.drop("trainer_", run=None)
    assert left() == [("agent_store_up", "n0")]


def test_what_is_written_is_what_the_library_writes() -> None:
    """This covers all of the catalogue, and unusual values and words."""
    metrics = filled()
    metrics.gauge("agent_info", node='a "node"\\ of\ntwo lines', version="=,}").set(1)
    for node, number in (("n", float("nan")), ("i", float("inf")), ("m", -1.5e-9), ("b", 12345678.9)):
        metrics.gauge("agent_disk_free_bytes", node=node).set(number)
    metrics.histogram("trainer_heal_seconds", run="x").observe(0.3)
    assert exposed(metrics.registry) == exposition.generate_latest(metrics.registry)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.3", "openmetrics-text"),
        ("application/openmetrics-text", "openmetrics-text"),
        ("text/plain;version=0.0.4", "text/plain"),
        ("", "text/plain"),
    ],
)
def test_a_scrape_is_answered_as_it_was_asked_for(accept: str, kind: str) -> None:
    registry = filled().registry
    encode, expected = choose_encoder(accept)
    body, headers = answer(registry, accept, "")
    assert dict(headers) == {"Content-Type": expected, "Content-Length": str(len(body))}
    assert kind in expected
    assert body == encode(registry)
    some, _ = answer(registry, accept, "", "name[]=agent_up&name[]=agent_disk_free_bytes&other=1")
    assert some == encode(registry.restricted_registry(["agent_disk_free_bytes"]))
    assert b"agent_disk_free_bytes{" in some
    packed, headers = answer(registry, accept, "br, gzip")
    assert gzip.decompress(packed) == body
    assert dict(headers)["Content-Encoding"] == "gzip"
    assert dict(headers)["Content-Length"] == str(len(packed))
