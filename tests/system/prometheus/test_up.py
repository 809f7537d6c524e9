"""`supervisor up --with-prometheus` with real trainers, two of which are broken: every expression of every dashboard
finds numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dashboards import rules
from fault_injection.demo.play import spec
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.incident import Incident
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.dev.home import endpoints_of, system_folder
from supervisor.shell.engines.local import LocalEngine
from supervisor.shell.etcd import EtcdStore, connect
from supervisor.shell.inspect import client, status
from supervisor.wire import keys
from supervisor.wire.records import RunRecord
from tests.system.prometheus.asked import answered, ask

NOT_HERE = {"Run: MFU"}
"""There is no GPU."""


@dataclass
class Started:
    """An `up` that runs."""

    home: Path
    url: str
    store: EtcdStore
    record: RunRecord
    began: float

    def mirror(self) -> Mirror:
        return Mirror(self.store.list(keys.PREFIX))

    def generation(self, group: int) -> int:
        return status.run_status(self.mirror(), self.record).groups[group].generation

    def running(self, *generations: int) -> Callable[[], bool]:
        def look() -> bool:
            groups = status.run_status(self.mirror(), self.record).groups
            return [(g.generation, g.phase) for g in groups] == [(n, "running") for n in generations]

        return look

    def node(self, group: int) -> str:
        return status.run_status(self.mirror(), self.record).groups[group].node

    def incidents(self) -> list[Incident]:
        return client.incidents(self.mirror(), self.record.spec.name)

    def commits(self, more: int) -> None:
        """Waits until `more` further steps are committed."""

        def step() -> int:
            return max((g.step or 0) for g in status.run_status(self.mirror(), self.record).groups)

        first = step()
        eventually(lambda: step() >= first + more, 90, f"{more} steps more")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    home, began = tmp_path / "runs", time.time()
    # a process that was started in the background ignores Ctrl-C
    command = ["env", "--default-signal=INT", sys.executable, "-m", "supervisor.cli", "up", "--home", str(home)]
    command += ["--nodes", "4", "--with-prometheus"]
    with (tmp_path / "up.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    said = tmp_path / "up.log"
    try:
        eventually(lambda: "Now: supervisor launch" in said.read_text(), 60, "it is up")
        assert ", Prometheus http://127.0.0.1:" in said.read_text(), said.read_text()
        url = said.read_text().partition(", Prometheus ")[2].partition(". Now")[0]
        store = connect([endpoints_of(home)])
        try:
            yield Started(home, url, store, client.launch(store, replace(spec("debug"), chaos="allowed"), home), began)
        finally:
            store.close()
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    assert LocalEngine(system_folder(home)).stop_all(1.0) == []


def kill_by_chaos(started: Started) -> None:
    """Kills a rank of group 1 by `supervisor chaos`, so that the run's panels mark it as a fault made on purpose."""
    schedule = started.home / "schedule.toml"
    schedule.write_text('[[fault]]\nname = "sigkill"\nat_step = 5\ngroup = 1\n')
    command = [sys.executable, "-m", "fault_injection.chaos", "run", str(schedule), "--run", "debug"]
    done = subprocess.run(
        [*command, "--home", str(started.home)], cwd=started.home, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.trainers
@pytest.mark.long
@pytest.mark.timeout(1080)
def test_every_panel_and_every_rule_finds_numbers_in_a_run_that_was_broken(started: Started) -> None:
    eventually(started.running(1, 1), 120, "both groups train")
    started.commits(10)
    kill_by_chaos(started)
    eventually(started.running(1, 2), 60, "its group is back")
    folder = system_folder(started.home) / "nodes" / started.node(1)
    os.kill(int((folder / "shim.lock").read_text()), signal.SIGKILL)
    eventually(started.running(1, 3), 90, "its group is on another node")
    started.commits(10)
    eventually(lambda: {i.state for i in started.incidents()} == {"recovered"}, 30, "all is over")
    ids = {incident.id for incident in started.incidents()}

    def told() -> bool:
        found = ask(started.url, "query", query='sum(supervisor_recovery_seconds_count{phase="total"})')["result"]
        return bool(found) and float(found[0]["value"][1]) >= len(ids)

    eventually(told, 30, "Prometheus has read that it is over")
    found = answered(started.url, "debug", started.began)
    assert {where for where, answer in found.items() if not answer} == NOT_HERE
    marked = ask(
        started.url,
        "query_exemplars",
        query='supervisor_recovery_seconds_bucket{phase="total"}',
        start=started.began,
        end=time.time(),
    )
    assert {e["labels"]["incident"] for series in marked for e in series["exemplars"]} <= ids
    assert any(series["exemplars"] for series in marked), "an exemplar carries an incident's id"
    loaded = ask(started.url, "rules")["groups"]
    assert [(r["name"], r["health"]) for group in loaded for r in group["rules"]] == [
        (alert.name, "ok") for alert in rules.alerts()
    ]
