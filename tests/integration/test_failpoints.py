"""A supervisor killed between any two steps of its loop, and started again, neither loses nor repeats an action."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from supervisor.core.model import Rung
from supervisor.shell.failpoints import NAMES
from tests.helpers.waiting import eventually
from tests.integration.world import World, toy_spec, world

STARTING = tuple(n for n in NAMES if "release" not in n)
"""Reached while a run starts; the two about releasing are reached when an allocation is taken away."""


def _died_at_failpoint(process: object) -> bool:
    return process.poll() == -signal.SIGKILL  # type: ignore[attr-defined]


@pytest.mark.etcd
@pytest.mark.parametrize("name", STARTING)
def test_killed_while_a_run_starts(name: str, tmp_path: Path) -> None:
    with world(tmp_path) as w:
        first = w.supervisor()
        eventually(w.led, 30, "it leads")
        first.terminate()
        first.wait(15)
        # What the engine says is written once for all nodes of a start; the other places are passed again and again.
        nth = 1 if name.endswith("_grant") else 2
        doomed = w.supervisor(failpoint=f"{name}:{nth}")
        record = w.launch(toy_spec())
        eventually(lambda: _died_at_failpoint(doomed), 30, f"the supervisor dies at {name}")
        w.supervisor()
        eventually(w.running(record, 1, 1), 60, "both groups run in their first generation")
        assert w.incidents(record) == []
        w.check(record)


@pytest.mark.etcd
@pytest.mark.parametrize("name", NAMES)
def test_killed_while_it_reallocates(name: str, tmp_path: Path) -> None:
    with world(tmp_path) as w:
        first = w.supervisor()
        record = w.launch(toy_spec(spares=0))
        eventually(w.running(record, 1, 1), 60, "both groups run")
        first.terminate()
        first.wait(15)
        doomed = w.supervisor(failpoint=name)
        w.take_away(w.allocation_of(record, 1))
        eventually(lambda: _died_at_failpoint(doomed), 30, f"the supervisor dies at {name}")
        w.supervisor()
        eventually(lambda: [i.state for i in w.incidents(record)] == ["recovered"], 60, "one incident, recovered")
        # Whether the dead process or the lost allocation is seen first is a race; then rung 1 was tried before rung 3.
        assert w.incidents(record)[0].rung == Rung.REALLOCATE
        assert w.running(record)()
        _only_one_more_allocation(w, record.spec.name)
        w.check(record)


def _only_one_more_allocation(w: World, run: str) -> None:
    keys = w.mirror().keys(f"/supervisor/v1/runs/{run}/allocations/")
    assert [k.rsplit("/", 1)[1] for k in keys] == [f"{run}-a1", f"{run}-a2", f"{run}-a3"]
