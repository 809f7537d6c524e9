"""A real trainer stops at a breakpoint() for longer than a hang may last: the other group trains on, a person looks at a
variable, and it goes on without a restart."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import TORCHFT, World, equal_digests, toy_spec, world
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code
from supervisor.core.model.spec import HangSpec, TitanSpec
from supervisor.wire.records import RunRecord
from tests.helpers.reasons import codes
from tests.real_trainers.titan import hanging

pytestmark = [pytest.mark.etcd, pytest.mark.trainers, pytest.mark.timeout(900), pytest.mark.long]

HANG = HangSpec(factor=10.0, at_least_s=8.0, at_most_s=30.0)


def cli(w: World, elsewhere: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "supervisor.cli", *arguments, "--etcd", w.etcd.endpoint, "--home", str(elsewhere)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=90)


def step_of(w: World, record: RunRecord, group: int) -> int:
    return w.status(record).groups[group].step


def stopped(w: World, record: RunRecord, elsewhere: Path, generation: int) -> dict[str, object]:
    hanging.want(record.run_dir, 1, generation, "breakpoint")
    (found,) = eventually(lambda: json.loads(cli(w, elsewhere, "debug", "--json").stdout), 60, "it stands")
    hanging.want(record.run_dir, 1, generation, "")
    assert isinstance(found, dict)
    return found


def test_attach_look_and_continue_while_the_other_group_trains(tmp_path: Path) -> None:
    titan = TitanSpec(
        recipe="tests.real_trainers.titan.hanging:small", steps=100_000, checkpoint_interval_steps=10,
        digest_interval_steps=5,
    )  # fmt: skip
    spec = replace(toy_spec("dbg", spares=0, start_timeout_s=300.0, hang=HANG), titan=titan, torchft=TORCHFT)
    with world(tmp_path, toys=False) as w:
        w.supervisor()
        record = w.launch(spec)
        eventually(w.running(record, 1, 1), 240, "both groups train")
        eventually(lambda: step_of(w, record, 1) > 8, 120, "they step together")
        found = stopped(w, record, tmp_path / "none", 1)
        assert (found["group"], found["rank"], found["function"]) == (1, 0, "forward_backward_step")
        assert str(found["file"]).endswith("hanging.py")
        begun = step_of(w, record, 0)
        # more steps than the time of a hang, of which each has some 0.3 s
        eventually(lambda: step_of(w, record, 0) > begun + 60, 240, "the other group trains on alone")
        shown = cli(w, tmp_path, "status").stdout
        assert "a person has rank 0 in the debugger, in forward_backward_step (hanging.py:" in shown
        said = cli(w, tmp_path, "debug", "attach", "1.0", stdin="p secret\np self.launch.group\n")
        assert said.returncode == 0, said.stderr
        assert "forward_backward_step()" in said.stdout
        assert said.stdout.splitlines()[-3:-1] == ["42", "1"]
        assert said.stdout.splitlines()[-1].startswith("rank 1.0 stays stopped")
        assert cli(w, tmp_path, "debug", "cast", "all", "p secret + 1").stdout == "1.0 | 43\n"
        assert [i.kind for i in w.incidents(record)] == []
        assert "1.0 | goes on" in cli(w, tmp_path, "debug", "continue").stdout
        ahead = step_of(w, record, 0)
        eventually(lambda: step_of(w, record, 1) > ahead + 5, 120, "it trains with the other again")
        assert [g.generation for g in w.status(record).groups] == [1, 1], "without a restart"
        assert [i.kind for i in w.incidents(record) if i.rung > Rung.RIDE_THROUGH] == []
        assert equal_digests(w, record, 0.0)

        stopped(w, record, tmp_path, 1)
        cli(w, tmp_path, "debug", "cast", "1.0", "quit")
        eventually(w.running(record, 1, 2), 240, "it is started again")
        (last,) = [i for i in w.incidents(record) if i.rung > Rung.RIDE_THROUGH]
        assert (last.kind, last.group, codes(*last.evidence)) == (Kind.REQUESTED, 1, {Code.DEBUGGED})
        assert w.status(record).budgets_left["restart:1"] == spec.policy.budget.restart
        w.check(record)
