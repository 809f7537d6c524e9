"""Each alert fires for its fault, and clears when that is over, with a real Prometheus and Alertmanager over a real
system. None fires while nothing is wrong.

Durations are divided: a minute is half a second, unless SPEEDS has another.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards import build, rules
from fault_injection.testbed.etcds import slow_disk
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec, world
from supervisor.core.model.spec import BreakerSpec, BudgetSpec
from supervisor.shell.etcd.stubs import rpc
from supervisor.wire import keys
from supervisor.wire.records import Registration, RunRecord
from supervisor.wire.version import DISTRIBUTION
from tests.system.integration.outage import passes
from tests.system.integration.test_cli import cli
from tests.system.prometheus.asked import INHIBITED, Asked, answered, asked

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(1200)]

SPEED = 120.0
SPEEDS = {
    # windows of hours and days
    "FlappingNode": 2880.0,
    "AgentVersionSkew": 7200.0,
    # a minute is six seconds: a few scrapes that a busy machine does not answer are no fault
    "NoLeader": 10.0,
    "StoreAway": 10.0,
    "LighthouseAway": 10.0,
    "SupervisorBlind": 10.0,
    # and so are a few slow writes
    "StoreSlow": 40.0,
    # 15 minutes are 15 seconds: a busy machine may take eight for a step and its scrape
    "RunNotProgressing": 60.0,
}

HEALTHY_S = 50.0
"""Longer than any rule's window and `for` together; the longest is ETTR's, 45 s."""

SOON_S = 45.0
LATER_S = 75.0
"""An hour is half a minute, and the cause of the alert must be out of it."""

SAVED_STEPS = 40
"""Two seconds of a toy's steps."""

UNTESTED = {"StoreLarge", "CertificateExpires", "RunUndecided", "LeaderFlapping"}
"""The first takes 1.5 GiB of etcd, the second days, the third a damaged record or a bug, the last four changes of leader
within seconds: only promtool tests them."""

NOT_OF_TOYS = {
    "Newest checkpoint",
    "Loss",
    "Gradient norm",
    "MFU",
    "Heal: loading the peers' state",
    "Fault injected (marked)",
}
"""Panels for which idle toys have no data; test_up.py has real trainers."""


def quick() -> dict[str, str]:
    """The rules file for each speed, by name."""
    files = {}
    for speed in sorted({SPEED, *SPEEDS.values()}):
        body = rules.build(speed)
        (group,) = body["groups"]
        group["name"] = f"speed {speed:g}"
        group["rules"] = [rule for rule in group["rules"] if SPEEDS.get(rule["alert"], SPEED) == speed]
        files[f"rules-{speed:g}.yml"] = yaml.safe_dump(body)
    return files


class Watched:
    """Three runs, one supervisor, and the Prometheus that watches them."""

    def __init__(self, w: World, asked: Asked) -> None:
        self.w, self.asked = w, asked
        w.supervisor()
        budget = BudgetSpec(restart=3, window_s=25.0)
        # Toys do not speak to the gate, so a lease that lapses is a lost node. It must outlast a slow disk of etcd.
        self.toy = w.launch(toy_spec("toy", budget=budget, node_lease_s=10))
        # one of one is more than any share
        self.held = w.launch(toy_spec("held", groups=1, spares=0, breaker=BreakerSpec(at_least=1)))
        self.saves = w.runs.parent / "saves"
        self.saves.touch()
        observed = toy_spec("shadow", groups=1, spares=0, mode="observe")
        titan = replace(observed.titan, checkpoint_interval_steps=SAVED_STEPS, overrides={"toy.saves": str(self.saves)})
        self.shadow = w.launch(replace(observed, titan=titan))
        for record in (self.toy, self.held, self.shadow):
            eventually(w.running(record), 60, f"{record.spec.name} runs")
        eventually(lambda: w.status(self.toy).spares, 30, "the spare is there")
        self.asked.follow(self.port())
        eventually(lambda: len(asked.value("up == 1")) == 7, 30, "supervisor, host and five nodes are scraped")
        # an incident that began before Prometheus had read anything is no false alarm
        eventually(lambda: asked.firing() == {"Watchdog"}, 30, "nothing but the dead-man's switch fires")
        passes(2.0)

    def port(self) -> int:
        """The port of the newest supervisor, as its log has it."""
        pid = self.w.supervisors[-1].pid
        log = self.w.system / "supervisor.log"

        def said() -> list[str]:
            return re.findall(rf"pid {pid}; page http://127.0.0.1:(\d+)/", log.read_text())

        return int(eventually(said, 30, "it says where it listens")[-1])

    def say(self, *arguments: str) -> None:
        said = cli(*arguments, world=self.w)
        assert said.returncode == 0, said.stdout + said.stderr

    def crash(self, record: RunRecord, group: int, by: signal.Signals = signal.SIGKILL) -> None:
        """Kills a rank of the group, and waits until it is back."""
        before = self.w.status(record).groups[group].generation
        self.w.kill_trainer(record, group, by)
        eventually(
            lambda: self.w.status(record).groups[group].generation > before and self.w.running(record)(),
            60,
            "it is back",
        )

    def everything_of(self, record: RunRecord) -> list[int]:
        """The processes of a run's only group's node, its parent first."""
        node = self.w.status(record).groups[0].node
        registered = self.w.mirror().record(keys.registration(node), Registration)
        assert registered is not None
        return [self.w.shim_pid(node), registered.agent_pid, self.w.trainer(record, 0).pid]

    def alarm(self, action: Any) -> None:
        """Raises or ends etcd's alarm that it is out of space."""
        stub = self.w.store.connection.client.maintenancestub
        member = stub.Status(rpc.StatusRequest(), 5.0).header.member_id
        stub.Alarm(rpc.AlarmRequest(action=action, memberID=member, alarm=rpc.NOSPACE), 5.0)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    with world(folder, nodes=5) as w, asked(folder / "monitoring", quick()) as prometheus:
        yield Watched(w, prometheus)


def other_version(folder: Path) -> str:
    """A PYTHONPATH on which our distribution has another version."""
    about = folder / f"{DISTRIBUTION}-9.9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 9.9\n")
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH", "")])])


def each(run: str, *alerts: str) -> list[str]:
    return [f"{alert} {run}" for alert in alerts]


@pytest.mark.long
def test_alerts_fire_for_their_faults_and_clear(watched: Watched, tmp_path: Path) -> None:
    """One story for all alerts, so that the waits are shared."""
    a, began = watched.asked, time.time()
    before = len(a.person.heard)
    passes(HEALTHY_S)
    assert a.has_fired(began) == {"Watchdog"}
    assert a.person.heard[before:] == []
    assert {name for name, _, _ in a.heartbeat.heard} == {"Watchdog"}

    _faults_of_runs(watched, other_version(tmp_path))
    _nobody_repairs(watched)
    _faults_of_etcd(watched, tmp_path)
    _no_supervisor(watched)

    expected = {alert.name for alert in rules.alerts()} - UNTESTED
    assert {name for name in a.has_fired(began) if " " not in name} == expected
    a.clear(sorted(expected - {"Watchdog"}), LATER_S)
    # the store's alert inhibits those of its consequences if they come later, and the ends of those that it inhibited
    # when they ended
    told = expected - {"Watchdog"} - INHIBITED
    assert a.person.of("firing") - INHIBITED == told
    a.told_over(sorted(told), SOON_S)
    found = answered(a.url, "toy", began)
    assert {where.partition(": ")[2] for where, answer in found.items() if not answer} == NOT_OF_TOYS


def _faults_of_runs(watched: Watched, path: str) -> None:
    """The faults of one run, with their remedies or without; beside it a standby of another version."""
    w, a, began = watched.w, watched.asked, time.time()
    first = watched.port()
    standby = w.supervisor(PYTHONPATH=path, PYTHONSAFEPATH="1")
    a.follow(first, watched.port())
    (spare,) = w.status(watched.toy).spares
    watched.say("cordon", spare, "--because", "the test wants it")
    frozen = watched.everything_of(watched.held)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    w.kill_trainer(watched.shadow, 0)
    node = w.status(watched.toy).groups[1].node
    for by in (signal.SIGSEGV, signal.SIGBUS):  # not from outside, and not the same twice
        watched.crash(watched.toy, 1, by)
    a.fire(
        [*each("toy", "BudgetNearlySpent", "NoSpares"), f"FlappingNode {node}", "BreakerOpen held",
         "ShadowWouldHaveKilled shadow", "AgentVersionSkew"],
        SOON_S,
        began,
    )  # fmt: skip
    watched.say("restart", "0", "--run", "shadow")
    standby.terminate()
    standby.wait(15)
    w.supervisors.remove(standby)
    a.follow(first)
    watched.say("uncordon", spare)
    for pid in reversed(frozen):
        os.kill(pid, signal.SIGCONT)
    a.clear(["NoSpares", "BreakerOpen", "AgentVersionSkew"], SOON_S)


def _nobody_repairs(watched: Watched) -> None:
    """A paused run, of which everything breaks; and one that trains on, and whose checkpoints are not written."""
    w, a, began = watched.w, watched.asked, time.time()
    watched.saves.unlink()
    watched.say("pause", "--run", "toy")
    (lighthouse,) = [name for name in w.host_processes() if name.startswith("lighthouse.toy.")]
    w.kill_host_process(lighthouse)
    for group in (0, 1):
        w.kill_trainer(watched.toy, group)
    a.fire([*each("toy", "LighthouseAway", "RunNotProgressing", "EttrLow"), "CheckpointsBehind shadow"], LATER_S, began)
    watched.saves.touch()
    watched.say("resume", "toy")
    eventually(w.running(watched.toy), 60, "all groups run again")
    a.clear(["LighthouseAway", "RunNotProgressing", "CheckpointsBehind"], SOON_S)


def _faults_of_etcd(watched: Watched, folder: Path) -> None:
    w, a, began = watched.w, watched.asked, time.time()
    with slow_disk([w.etcd.pid], 0.7, folder / "strace.log"):
        a.fire(["StoreSlow"], SOON_S, began)
    a.clear(["StoreSlow"], SOON_S)
    a.told_over(["StoreSlow"], SOON_S)
    watched.alarm(rpc.AlarmRequest.ACTIVATE)
    try:
        a.fire(["StoreOutOfSpace"], SOON_S, began)
    finally:
        watched.alarm(rpc.AlarmRequest.DEACTIVATE)
    a.clear(["StoreOutOfSpace"], SOON_S)
    # what a paused run lost is out of the last hour by now; while etcd is away other alerts stand for it
    a.told_over(["EttrLow"], LATER_S)
    os.kill(w.etcd.pid, signal.SIGSTOP)
    try:
        a.fire(["StoreAway", "NoLeader"], SOON_S, began)
    finally:
        os.kill(w.etcd.pid, signal.SIGCONT)
    a.clear(["StoreAway", "NoLeader"], SOON_S)


def _no_supervisor(watched: Watched) -> None:
    w, a, began = watched.w, watched.asked, time.time()
    only: Sequence[subprocess.Popen[bytes]] = list(w.supervisors)
    for process in only:
        process.kill()
        process.wait()
    a.fire(["SupervisorBlind"], SOON_S, began)
    w.supervisor()
    a.follow(watched.port())
    a.clear(["SupervisorBlind"], SOON_S)


def test_the_rules_are_those_that_are_committed() -> None:
    """Only quicker: by name, severity and words they are the same."""
    told = {rule["alert"]: rule for text in quick().values() for rule in yaml.safe_load(text)["groups"][0]["rules"]}
    committed = yaml.safe_load((build.FOLDER / "rules.yml").read_text())["groups"][0]["rules"]
    assert {r["alert"]: (r["labels"], r["annotations"]) for r in committed} == {
        name: (rule["labels"], rule["annotations"]) for name, rule in told.items()
    }
