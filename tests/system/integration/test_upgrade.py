"""A supervisor of the next version takes over a live run of this one; this version refuses the other's records."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import supervisor
from fault_injection.testbed.stopping import frozen
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, World
from supervisor.wire import keys
from supervisor.wire.records import VERSIONS, Health, NodeObserved, RunRecord
from tests.system.integration.test_cli import cli, fails

FIELD = ("core/model/memory.py", "    decisions: int = 0\n", "    decisions: int = 0\n    colour: str = 'blue'\n")
"""A field of a run's memory that this version does not know."""

NOW = VERSIONS["Memory"]
NEWER_MEMORY = ("wire/records.py", f'{{"Memory": {NOW}, ', f'{{"Memory": {NOW + 1}, ')
ALL_NEWER = ("wire/records.py", "\nVERSION = 1\n", "\nVERSION = 2\n")


class Versions:
    """This version's supervisors beside those of a next one: a copy of the package with some of its text changed."""

    def __init__(self, world: World, folder: Path, *changes: tuple[str, str, str]) -> None:
        self.world = world
        (source,) = supervisor.__path__
        copy = folder / "next" / "supervisor"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for name, old, new in changes:
            text = (copy / name).read_text()
            assert text.count(old) == 1, f"{name}: {old!r}"
            (copy / name).write_text(text.replace(old, new))
        self.path = str(copy.parent)

    def this(self) -> subprocess.Popen[bytes]:
        return self._candidate(self.world.supervisor(SUPERVISOR_LOG="INFO"))

    def next(self) -> subprocess.Popen[bytes]:
        # Without the safe path, `-m` would look into the working folder first.
        return self._candidate(self.world.supervisor(PYTHONPATH=self.path, PYTHONSAFEPATH="1", SUPERVISOR_LOG="INFO"))

    def _candidate(self, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        eventually(lambda: f"a candidate for leadership, pid {process.pid}" in self.log(), 30, "it stands by")
        return process

    def log(self) -> str:
        return (self.world.system / "supervisor.log").read_text()

    def lead(self, process: subprocess.Popen[bytes]) -> None:
        def leads() -> bool:
            item = self.world.mirror().items.get(keys.LEADER)
            return item is not None and json.loads(item.value)["pid"] == process.pid

        eventually(leads, 30 + 5 * LEASE_S, f"process {process.pid} leads")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(30)


def _body(w: World, key: str) -> dict[str, Any]:
    found = json.loads(w.mirror().items[key].value)
    assert isinstance(found, dict)
    return found


def _trainers(w: World) -> dict[tuple[int, int], tuple[int, int]]:
    """(group, generation) -> pid and committed steps of every running trainer, as the agents report."""
    found = {}
    for key in w.mirror().keys(keys.NODES):
        seen = w.mirror().record(key, NodeObserved) if key.endswith("/observed") else None
        for t in seen.trainers if seen is not None else ():
            if t.state == "running":
                found[t.group, t.generation] = (t.pid, t.progress.step if t.progress is not None else 0)
    return found


def _steps_on(w: World, before: dict[tuple[int, int], tuple[int, int]]) -> bool:
    """True if the same processes run, and each has made steps since."""
    now = _trainers(w)
    same = {k: pid for k, (pid, _) in now.items()} == {k: pid for k, (pid, _) in before.items()}
    return same and all(now[k][1] > before[k][1] for k in before)


@pytest.mark.long
@pytest.mark.etcd
def test_the_next_version_takes_over_and_this_one_leads_no_more(
    toy_run: tuple[World, RunRecord], tmp_path: Path
) -> None:
    w, record = toy_run
    v = Versions(w, tmp_path, FIELD, NEWER_MEMORY)
    own, before = w.supervisors[0], _trainers(w)
    node = w.status(record).groups[0].node
    assert set(before) == {(0, 1), (1, 1)}
    standby = v.this()
    with frozen(standby.pid):
        newer = v.next()
        _end(own)
        v.lead(newer)
        eventually(lambda: _steps_on(w, before), 20, "nothing was restarted")
        os.kill(
            before[1, 1][0], signal.SIGKILL
        )  # not by `status`: its leader may have written a memory that we cannot read
        eventually(
            lambda: set(_trainers(w)) == {(0, 1), (1, 2)}, 30, "agents of this version obey the next one's leader"
        )
        assert _trainers(w)[0, 1][0] == before[0, 1][0]
        memory = _body(w, keys.memory("toy", "run"))
        assert (memory["$version"], memory["colour"]) == (NOW + 1, "blue")
        assert _body(w, keys.desired(node, "toy"))["$version"] == 1
        before = _trainers(w)
    newer.kill()
    newer.wait(30)
    eventually(lambda: "standing by: etcd holds" in v.log(), 30 + 5 * LEASE_S, "the standby says why it does not lead")
    assert f"runs/toy/memory/run: version {NOW + 1} is newer than this program's {NOW}" in v.log()
    fails(
        cli("run", world=w), 1, f"memory/run: version {NOW + 1} is newer than this program's {NOW}", "docs/UPGRADES.md"
    )
    fails(cli("status", world=w), 1, f"memory/run: version {NOW + 1} is newer")
    again = v.next()
    v.lead(again)
    assert standby.poll() is None
    assert v.log().count("standing by: etcd holds") == 1
    eventually(lambda: _steps_on(w, before), 20, "nothing was restarted")


@pytest.mark.long
@pytest.mark.etcd
def test_a_leader_stands_down_when_it_meets_a_newer_record_and_leads_again_when_that_is_gone(
    toy_run: tuple[World, RunRecord],
) -> None:
    w, _ = toy_run
    before = _trainers(w)
    key = keys.control("toy")
    w.store.put(key, b'{"$kind":"Control","$version":2,"colour":"blue"}')
    eventually(lambda: not w.led(), 20, "it stands down")
    log = w.system / "supervisor.log"
    eventually(lambda: f"{key}: version 2 is newer" in log.read_text(), 10, "it says why")
    w.store.commit({}, [key])
    eventually(w.led, 30, "it leads again")
    assert log.read_text().count("standing by: etcd holds") == 1
    eventually(lambda: _steps_on(w, before), 20, "nothing was restarted")


@pytest.mark.long
@pytest.mark.etcd
def test_agents_leave_what_runs_alone_when_what_is_wanted_is_newer_and_say_so(
    toy_run: tuple[World, RunRecord], tmp_path: Path
) -> None:
    w, record = toy_run
    v = Versions(w, tmp_path, ALL_NEWER)
    before, node = _trainers(w), w.status(record).groups[0].node
    newer = v.next()
    _end(w.supervisors[0])
    v.lead(newer)
    eventually(lambda: _body(w, keys.desired(node, "toy"))["$version"] == 2, 30, "what is wanted is written anew")

    def said() -> bool:
        health = w.mirror().record(keys.health(node), Health)
        return health is not None and any("version 2 is newer" in problem for problem in health.problems)

    eventually(said, 30, "the agent reports it")
    eventually(lambda: _steps_on(w, before), 20, "and leaves what runs alone")
    _end(newer)
    for key in w.mirror().keys(keys.RUNS) + w.mirror().keys(keys.DESIRED):
        assert _body(w, key)["$version"] in (1, *VERSIONS.values())
