"""A real Prometheus scrapes a real run: the supervisors' targets, each number once, also when another leads."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, World, toy_spec, world
from supervisor.shell.metrics.catalogue import CATALOGUE
from supervisor.wire import keys
from supervisor.wire.records import FaultsMade, LeaderRecord, Registration, encode
from tests.helpers.prometheus import BINARY, Prometheus, prometheus

pytestmark = [pytest.mark.etcd, pytest.mark.skipif(BINARY is None, reason="prometheus is not installed")]

OF_HISTOGRAMS = ("_bucket", "_sum", "_count")
OWN = ("up", "scrape_")
"""Prefixes of the series that Prometheus adds."""


def leader(w: World) -> LeaderRecord | None:
    return w.mirror().record(keys.LEADER, LeaderRecord)


def page(w: World, log_line: int = 0) -> str:
    """The page of a supervisor, by its place among the starts in the log."""
    log = (w.system / "supervisor.log").read_text()
    return [line.rpartition("page ")[2].strip() for line in log.splitlines() if "a candidate for leadership" in line][
        log_line
    ]


def exported(p: Prometheus) -> set[str]:
    """Exported metrics, of the catalogue and others."""
    known = {m.name: m.kind for m in CATALOGUE}
    found = set()
    for name in p.names():
        base = next(
            (name.removesuffix(s) for s in OF_HISTOGRAMS if known.get(name.removesuffix(s)) == "histogram"), name
        )
        if not name.startswith(OWN):
            found.add(base)
    return found


def test_each_number_is_told_once_whoever_leads(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        first = w.supervisor()
        eventually(lambda: (found := leader(w)) and found.pid == first.pid, 30, "the first leads")
        w.supervisor()
        eventually(lambda: (w.system / "supervisor.log").read_text().count("a candidate for leadership") == 2, 30)
        pages = [page(w, 0), page(w, 1)]
        record = w.launch(toy_spec())
        w.store.put(keys.faults("toy"), encode(FaultsMade(made={"rank_killed": 1})))
        eventually(w.running(record, 1, 1), 60, "both groups run")
        with prometheus(tmp_path / "prometheus", pages) as p:
            nodes = {f"n{i}" for i in range(1, 5)} | {"host"}
            there = {n for n in nodes if w.mirror().record(keys.registration(n), Registration)}
            addresses = {url.removeprefix("http://").rstrip("/") for url in pages}
            eventually(lambda: p.up() == there | addresses, 40, "all are scraped")
            w.kill_trainer(record, 1, by=signal.SIGSEGV)  # SIGKILL comes from outside, and accuses no node
            eventually(lambda: p.value("sum(supervisor_incidents_total)") == 1, 60, "the incident is told")
            # a target whose page a scrape did not get in time is missing until the next one
            before = eventually(lambda: p.value("sum(supervisor_recovery_seconds_sum{phase='total'})"), 30)
            for query, number in (
                ("count(supervisor_committed_steps)", 1),
                ("sum(supervisor_leader)", 1),
                ("count(supervisor_leader)", 2),
                ("count(supervisor_store_up == 1)", 2),
            ):
                eventually(lambda query=query, number=number: p.value(query) == number, 30, query)
            seconds = eventually(lambda: p.value("sum(supervisor_group_seconds_total{cause='productive'})"), 30)
            incidents = p.ask("query_exemplars", query="supervisor_recovery_seconds_bucket", start=str(time.time() - 600), end=str(time.time()))  # fmt: skip
            told = {e["labels"]["incident"] for series in incidents for e in series["exemplars"]}
            assert told == {i.id for i in w.incidents(record)}

            first.kill()
            first.wait()
            eventually(lambda: (found := leader(w)) and found.pid != first.pid, 10 * LEASE_S, "the standby leads")
            eventually(lambda: p.value("sum(supervisor_leader)") == 1 and p.value("count(supervisor_leader)") == 1, 60)
            eventually(lambda: p.value("sum(supervisor_incidents_total)") == 1, 30, "the next leader tells the same")
            seconds_told = eventually(lambda: p.value("sum(supervisor_recovery_seconds_sum{phase='total'})"), 30)
            assert seconds_told == pytest.approx(before)
            # a scrape may have come between the two
            eventually(lambda: p.value("sum(supervisor_injected_faults_total)") == 1, 30, "so it is with faults")
            # the lowest of all scrapes, so that it doesn't matter how long ago the second began to lead
            lowest = "min_over_time(supervisor_group_seconds_total{cause='productive'}[10m])"
            standby = pages[1].removeprefix("http://").rstrip("/")
            again = eventually(lambda: p.value(f"sum({lowest} and on(instance) up{{instance='{standby}'}})"), 30)
            assert again < seconds, "these begin at 0 in each term"
            names = {m.name for m in CATALOGUE}
            found = exported(p)
            assert found <= names
            # metrics that idle toys cannot have
            assert names - found <= {
                "supervisor_checkpoint_step", "trainer_loss", "trainer_gradient_norm", "trainer_mfu_ratio",
                "trainer_seconds_total", "trainer_heal_seconds", "agent_report_failures_total",
            }  # fmt: skip
        w.check(record)
