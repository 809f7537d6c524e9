"""Measures what it costs to be scraped: `python -m benchmarks.metrics [--scrapes N] [--agent SECONDS]`.

A supervisor of 1,000 agents with 8 ranks each, in its own process, is scraped over HTTP while it decides. Measured are
the time of a scrape, and the memory of the whole process. Beside it, one process has the series of all 1,000 agents,
each of its own node. That is their cost if they went through the supervisor, under the same bounds.

For an agent, the processor time of its metrics is measured, with 8 ranks that step once a second and a scrape every 15
s. With --agent a real agent (needs etcd) runs too, for SECONDS without scrapes and as many with a scrape a second.
Exits 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.openmetrics.exposition import generate_latest

from agents.agent.exporter import Exporter
from agents.agent.node_view import View
from agents.agent.reporter import Standing
from agents.shim.settings import Settings
from benchmarks.decide import describe, machine, once, reference
from benchmarks.page import GROUPS, RANKS, RUN, mirror, stepped
from fault_injection.doubles.memory_store import MemoryStore
from fault_injection.sim.lane import commit
from supervisor.core.decide import decide
from supervisor.ports.store import Changes, Item
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.etcd import connect
from supervisor.shell.metrics.exposition import exposed
from supervisor.shell.metrics.live_goodput import told
from supervisor.shell.metrics.registry import Metrics
from supervisor.shell.metrics.registry import serve as listen
from supervisor.shell.metrics.telemetry import Records, Telemetry
from supervisor.shell.web.server import serve
from supervisor.shell.web.watcher import Page
from supervisor.wire.records import Health, ProcessRecord, Progress, Registration, encode
from supervisor.wire.security import Security

SCRAPE_S, MEMORY_MB = 1.0, 200.0
AGENT_CORE = 0.01
EVERY_S, LOOK_S = 15.0, 5.0
"""Seconds. Prometheus's usual scrape interval is 15 s to 60 s; an agent reports its node's health every 5 s."""

RESULTS = Path(__file__).parent / "results" / "metrics.json"
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
"""Headers that Prometheus sends."""


def memory_mb(what: str = "VmRSS") -> float:
    """Returns this process's memory in MB; VmHWM is the most that it ever had."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return round(int(line.split()[1]) / 1024, 1)


def fetch(url: str, headers: dict[str, str] | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=60.0) as answer:
        body: bytes = answer.read()
        return gzip.decompress(body) if answer.headers.get("Content-Encoding") == "gzip" else body


def series(body: bytes) -> int:
    return sum(not line.startswith(b"#") for line in body.splitlines())


def listened() -> Mirror:
    """Returns a mirror of agents that have a listener."""
    made = mirror()
    for key in made.of_sort("registration"):
        node = made.record(key, Registration)
        assert node is not None
        made.apply(Changes(2, (Item(key, encode(replace(node, metrics_port=9000)), 1, 2),)))
    return made


def of_supervisor(scrapes: int) -> dict[str, Any]:
    """Measures a supervisor as `supervisor run` builds it: one mirror for its decisions, one for the page."""
    imported = memory_mb()
    leads, shown = listened(), listened()
    telemetry, page = Telemetry(), Page(MemoryStore())
    telemetry.leading(7)
    server = serve(telemetry.metrics.registry, page, "127.0.0.1", 0, Security())
    url = f"http://127.0.0.1:{server.server_port}"
    run, memory, now = observe.runs(leads)[RUN], observe.memory(leads, RUN), 1000.0
    scraped, targets, rounds, base = [], [], [], []
    for step in range(3, scrapes + 3):
        changes = Changes(step, tuple(stepped(g, step) for g in range(GROUPS)))
        for copy in (leads, shown):
            copy.apply(changes)
        page.look(shown)
        observed = observe.observed(leads, RUN, memory, now := now + 1.0, 500.0)
        decision = decide(observed, run.spec, memory)
        records = Records(told=lambda: told(leads, RUN))
        rounds.append(once(lambda: telemetry.round(run.spec, observed, decision, 0.01, records)))  # noqa: B023
        scraped.append(once(lambda: fetch(f"{url}/metrics", OPENMETRICS)))
        targets.append(once(lambda: fetch(f"{url}/targets")))
        base.append(once(reference))
    body = fetch(f"{url}/metrics", OPENMETRICS)
    return {
        "series": series(body), "bytes": len(body), "scrape": describe(scraped), "targets": describe(targets),
        "targets_listed": len(json.loads(fetch(f"{url}/targets"))), "telemetry_of_a_second": describe(rounds),
        "reference": describe(base), "memory_mb": memory_mb(), "memory_at_most_mb": memory_mb("VmHWM"),
        "memory_after_import_mb": imported,
    }  # fmt: skip


def told_by(rank: int, step: int, group: int = 0) -> Progress:
    return Progress(
        run=RUN, group=group, generation=1, rank=rank, pid=1, sequence=step, phase="step", step=step, commits=step, loss=2.5,
        gradient_norm=1.0, mfu=0.4, tokens_per_s=8192.0, step_s=1.0, compute_s=0.7, data_s=0.1, quorum_id=3, participants=GROUPS,
        seconds={"start": 9.0, "admission": 0.1, "quorum": 0.1 * step, "data": 0.1 * step, "productive": 0.8 * step,
                 "checkpoint": 0.02 * step, "heal": 0.5, "failed_step": 1.0} if rank == 0 else {},
    )  # fmt: skip


class Node:
    """An agent's metrics, with RANKS ranks."""

    def __init__(self, number: int, metrics: Metrics | None = None) -> None:
        self.exporter, self._number = Exporter(f"n{number}", "0", metrics=metrics), number
        self._view = View(Settings(node=f"n{number}", home=Path("/nowhere"), etcd=("127.0.0.1:1",)))
        for rank in range(RANKS):
            self._view.put(ProcessRecord(name=self._name(rank), pid=1, start_ticks=1, folder="/nowhere"))

    def _name(self, rank: int) -> str:
        return f"{RUN}.{self._number}.1.{rank}"

    def step(self, step: int) -> None:
        for rank in range(RANKS):
            self.exporter.progress(self._name(rank), told_by(rank, step, self._number))

    def look(self, step: int) -> None:
        health = Health(
            node=f"n{self._number}", sequence=1, warm="ready", disk_free_bytes=1, memory_available_bytes=1, load_1m=1.0
        )
        self.exporter.node(self._view, health, Standing(store_up=True, lease_held=True, written=step))


def of_all_agents(scrapes: int) -> dict[str, Any]:
    """Measures all agents in one process, which no installation does. Times and CPU include the client's half."""
    imported = memory_mb()
    metrics = Metrics()
    for number in range(GROUPS):
        node = Node(number, metrics)
        node.step(1)
        node.look(1)
        node.exporter.reported(0.003)
    url = f"http://127.0.0.1:{listen(metrics.registry, '127.0.0.1', 0, Security())}/metrics"
    times = [once(lambda: fetch(url, OPENMETRICS)) for _ in range(max(3, scrapes // 4))]
    scrape_s = cpu_s(lambda: fetch(url, OPENMETRICS), 3)
    memory, at_most = memory_mb(), memory_mb("VmHWM")
    own_s = cpu_s(lambda: exposed(metrics.registry), 3)
    library_s = cpu_s(lambda: generate_latest(metrics.registry), 3)  # type: ignore[no-untyped-call]
    body = fetch(url, OPENMETRICS)
    return {
        "series": series(body), "bytes": len(body), "scrape": describe(times), "cpu_of_a_scrape_s": round(scrape_s, 3),
        "writing_over_the_librarys": round(own_s / library_s, 2), "memory_mb": memory,
        "memory_at_most_mb": at_most, "memory_after_import_mb": imported,
    }  # fmt: skip


def cpu_s(work: Callable[[], object], times: int) -> float:
    """Returns the processor seconds of one call, in all threads of this process."""
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


def of_agent() -> dict[str, Any]:
    """Measures one agent's metrics. `cpu_of_a_scrape_s` includes the client's half."""
    node, steps = Node(0), iter(range(1, 10**9))
    node.step(next(steps))
    url = f"http://127.0.0.1:{node.exporter.serve('127.0.0.1', 0, Security())}/metrics"
    node.look(1)
    step_s, look_s = cpu_s(lambda: node.step(next(steps)), 500), cpu_s(lambda: node.look(1), 500)
    scrape_s = cpu_s(lambda: fetch(url, OPENMETRICS), 100)
    return {
        "series": series(fetch(url, OPENMETRICS)), "cpu_of_a_step_of_all_ranks_s": round(step_s, 6), "cpu_of_a_look_s": round(look_s, 6),
        "cpu_of_a_scrape_s": round(scrape_s, 6), "share_of_a_core": round(step_s + look_s / LOOK_S + scrape_s / EVERY_S, 5),
    }  # fmt: skip


def of_real_agent(seconds: float) -> dict[str, Any]:
    """Measures a real agent's whole process, which also watches, reports and obeys: 8 ranks step every second."""
    from fault_injection.testbed.nodes import Nodes, desire, running, trainer
    from fault_injection.testbed.waiting import eventually
    from supervisor.shell.dev.etcd_server import start_etcd

    def ticks(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def share(pid: int, every_s: float) -> float:
        began, before = time.monotonic(), ticks(pid)
        while (left := seconds - (time.monotonic() - began)) > 0:
            if every_s:
                fetch(url, OPENMETRICS)
            time.sleep(min(every_s or left, left))
        return round((ticks(pid) - before) / (time.monotonic() - began), 4)

    with tempfile.TemporaryDirectory() as folder:
        server = start_etcd(Path(folder) / "etcd")
        try:
            with Nodes(Path(folder), server.endpoint) as nodes, connect([server.endpoint]) as store:
                node = nodes.cold("n0", "--report-s=5", f"--slots={RANKS}")
                desire(store, "n0", trainer(world_size=RANKS, toy_step_s=1.0))
                running(store, node, 1, deadline_s=60.0)
                registered = eventually(lambda: store.get("/supervisor/v1/nodes/n0/registration"), 30)
                body = json.loads(registered.value)
                url, pid = f"http://127.0.0.1:{body['metrics_port']}/metrics", int(body["agent_pid"])
                eventually(lambda: f'rank="{RANKS - 1}"'.encode() in fetch(url), 60)
                alone, scraped = share(pid, 0.0), share(pid, 1.0)
                return {
                    "seconds_each": seconds, "series": series(fetch(url, OPENMETRICS)), "share_of_a_core_unscraped": alone,
                    "share_of_a_core_scraped_each_second": scraped, "share_of_one_scrape_in_15_s": round(max(0.0, scraped - alone) / EVERY_S, 5),
                }  # fmt: skip
        finally:
            server.stop()


def in_its_own_process(part: str, scrapes: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.metrics", "--part", part, "--scrapes", str(scrapes)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {"supervisor": of_supervisor, "all_agents": of_all_agents}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scrapes", type=int, default=20)
    parser.add_argument("--agent", type=float, default=0.0)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        print(json.dumps(PARTS[asked.part](asked.scrapes)))
        return 0
    figures = {part: in_its_own_process(part, asked.scrapes) for part in PARTS}
    figures["agent"] = of_agent()
    if asked.agent:
        figures["real_agent"] = of_real_agent(asked.agent)
    one, whole, agent = figures["supervisor"], figures["all_agents"], figures["agent"]
    met = {
        "scrape": one["scrape"]["p99_ms"] <= SCRAPE_S * 1000.0,
        "memory": one["memory_at_most_mb"] <= MEMORY_MB,
        "scrape_of_all_agents": whole["scrape"]["p99_ms"] <= SCRAPE_S * 1000.0,
        "memory_of_all_agents": whole["memory_at_most_mb"] <= MEMORY_MB,
        "agent": agent["share_of_a_core"] <= AGENT_CORE,
    }
    result = {
        "what": f"scraping a supervisor of {GROUPS} agents with {RANKS} ranks each, and an agent",
        "command": f"python -m benchmarks.metrics --scrapes {asked.scrapes} --agent {asked.agent:g}",
        "bounds": {"scrape_s": SCRAPE_S, "memory_mb": MEMORY_MB, "agents_metrics_share_of_a_core": AGENT_CORE},
        "bounds_met": met,
        "figures": figures,
        "commit": commit(),
        "machine": machine(),
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    for name, figure in figures.items():
        print(f"{name}: {json.dumps(figure)}")
    print("bounds: " + ", ".join(f"{name} {'met' if good else 'MISSED'}" for name, good in met.items()))
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
