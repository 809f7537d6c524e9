"""A real trainer stops at a breakpoint() for longer than a hang may last: the other group trains on, a person looks at a
variable, and it goes on without a restart."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import TORCHFT, World, equal_digests, toy_spec, world
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code
from supervisor.core.model.spec import GroupsSpec, HangSpec, TitanSpec
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

        said = cli(w, tmp_path, "policy", "set", "at_breakpoint=wait", "--because", "a look at one step")
        assert said.returncode == 0, said.stderr
        stopped(w, record, tmp_path, 1)
        (report,) = w.system.glob("nodes/*/ranks/dbg.0.1.0/progress.json")
        eventually(lambda: json.loads(report.read_text())["phase"] == "waiting", 60, "the other group waits")
        assert "the others wait for it" in cli(w, tmp_path, "status").stdout
        stood, since = step_of(w, record, 0), time.monotonic()
        eventually(lambda: time.monotonic() > since + 2 * HANG.at_least_s, 60, "for longer than a hang may last")
        assert (step_of(w, record, 0), json.loads(report.read_text())["step"]) == (stood, stood)
        assert "1.0 | goes on" in cli(w, tmp_path, "debug", "continue").stdout
        eventually(lambda: min(step_of(w, record, g) for g in (0, 1)) > stood + 5, 120, "both train again")
        assert [g.generation for g in w.status(record).groups] == [1, 1], "without a restart"
        assert [i.kind for i in w.incidents(record) if i.rung > Rung.RIDE_THROUGH] == []

        stopped(w, record, tmp_path, 1)
        cli(w, tmp_path, "debug", "cast", "1.0", "quit")
        eventually(w.running(record, 1, 2), 240, "it is started again")
        (last,) = [i for i in w.incidents(record) if i.rung > Rung.RIDE_THROUGH]
        assert (last.kind, last.group, codes(*last.evidence)) == (Kind.DEBUGGER, 1, {Code.DEBUGGED})
        assert last.rung == Rung.RESTART
        assert w.status(record).budgets_left["restart:1"] == spec.policy.budget.restart
        w.check(record)


TWO_RANKS = GroupsSpec(count=2, ranks_per_group=2)
COLLECTIVE_S = 5
"""The timeout of a group's own collectives in TorchTitan's config, which is for trainers that no supervisor watches."""


def standing(w: World, elsewhere: Path, *ranks: tuple[int, int]) -> list[dict[str, object]]:
    """Waits until just these (group, rank) stand at a breakpoint, and returns them as `debug --json` has them."""

    def look() -> list[dict[str, object]] | None:
        found: list[dict[str, object]] = json.loads(cli(w, elsewhere, "debug", "--json").stdout)
        return found if sorted((f["group"], f["rank"]) for f in found) == sorted(ranks) else None

    return eventually(look, 60, f"{ranks} stand")


def test_groups_of_two_ranks(tmp_path: Path) -> None:
    """A breakpoint in one rank of a group, in both, and in both groups at once: none ends, and all train on. The peer of
    the one waits in a collective for longer than the config lets it."""
    titan = TitanSpec(
        recipe="tests.real_trainers.titan.hanging:small", steps=100_000, checkpoint_interval_steps=10,
        digest_interval_steps=5, overrides={"comm.train_timeout_seconds": COLLECTIVE_S},
    )  # fmt: skip
    spec = replace(
        toy_spec("dbg", spares=0, start_timeout_s=300.0, hang=HANG), titan=titan, torchft=TORCHFT, groups=TWO_RANKS
    )
    with world(tmp_path, toys=False) as w:
        w.supervisor()
        record = w.launch(spec)
        eventually(w.running(record, 1, 1), 240, "both groups train")
        eventually(lambda: step_of(w, record, 1) > 5, 120, "they step together")

        def goes_on() -> None:
            ahead = max(step_of(w, record, 0), step_of(w, record, 1))
            eventually(lambda: min(step_of(w, record, g) for g in (0, 1)) > ahead + 5, 120, "both train again")
            assert [g.generation for g in w.status(record).groups] == [1, 1], "without a restart"

        def others_train() -> None:
            begun = step_of(w, record, 0)
            eventually(lambda: step_of(w, record, 0) > begun + 10, 120, "the other group trains on alone")

        def cast() -> list[str]:
            # before its first answer, a rank says where it stands
            said = cli(w, tmp_path, "debug", "cast", "all", "p self.launch.rank").stdout.splitlines()
            return [line for line in said if "| >" not in line and "| ->" not in line]

        # one rank of two: the other waits for it
        hanging.want(record.run_dir, 1, 1, "breakpoint", rank=1)
        standing(w, tmp_path, (1, 1))
        hanging.want(record.run_dir, 1, 1, "")
        since = time.monotonic()
        others_train()
        eventually(lambda: time.monotonic() > since + 3 * COLLECTIVE_S, 60, "for longer than a collective may last")
        assert cast() == ["1.1 | 1"]
        assert cli(w, tmp_path, "debug", "continue").stdout == "1.1 | goes on\n"
        goes_on()

        # both ranks of one group
        hanging.want(record.run_dir, 1, 1, "breakpoint")
        standing(w, tmp_path, (1, 0), (1, 1))
        hanging.want(record.run_dir, 1, 1, "")
        others_train()
        assert cast() == ["1.0 | 0", "1.1 | 1"]
        assert cli(w, tmp_path, "debug", "continue", "1.0,1.1").stdout == "1.0 | goes on\n1.1 | goes on\n"
        goes_on()

        # both groups: no one trains, and no one is blamed
        for group in (0, 1):
            hanging.want(record.run_dir, group, 1, "breakpoint")
        standing(w, tmp_path, (0, 0), (0, 1), (1, 0), (1, 1))
        for group in (0, 1):
            hanging.want(record.run_dir, group, 1, "")
        said = cli(w, tmp_path, "debug", "attach", "0.1", stdin="p secret\ncontinue\n")
        assert said.stdout.splitlines()[-1] == "rank 0.1 goes on", said.stdout
        assert cli(w, tmp_path, "debug", "continue").returncode == 0
        goes_on()
        assert [i for i in w.incidents(record) if i.rung > Rung.RIDE_THROUGH] == []
        assert equal_digests(w, record, 0.0)
        w.check(record)


def test_the_supervisor_may_die_while_a_person_is_attached(tmp_path: Path) -> None:
    titan = TitanSpec(
        recipe="tests.real_trainers.titan.hanging:small", steps=100_000, checkpoint_interval_steps=10,
        digest_interval_steps=5,
    )  # fmt: skip
    spec = replace(toy_spec("dbg", spares=0, start_timeout_s=300.0, hang=HANG), titan=titan, torchft=TORCHFT)
    with world(tmp_path, toys=False) as w:
        leader = w.supervisor()
        record = w.launch(spec)
        eventually(w.running(record, 1, 1), 240, "both groups train")
        eventually(lambda: step_of(w, record, 1) > 5, 120, "they step together")
        stopped(w, record, tmp_path, 1)
        command = [sys.executable, "-m", "supervisor.cli", "debug", "dbg", "attach", "1.0"]
        with subprocess.Popen(
            [*command, "--etcd", w.etcd.endpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as attached:
            assert attached.stdin is not None
            assert attached.stdout is not None
            attached.stdin.write("p secret\n")
            assert [attached.stdout.readline() for _ in range(3)][-1] == "42\n"
            leader.kill()
            leader.wait()
            attached.stdin.write("p secret + 1\n")
            assert attached.stdout.readline() == "43\n", "no supervisor is needed for it"
            w.supervisor()
            eventually(w.led, 60, "the next one leads")
            begun = step_of(w, record, 0)
            # longer than a hang may last, in the eyes of one that did not see it stop
            eventually(lambda: step_of(w, record, 0) > begun + 60, 240, "the other group trains on alone")
            assert [i.kind for i in w.incidents(record)] == []
            attached.stdin.write("p secret + 2\nquit\n")
            attached.stdin.close()
            assert attached.stdout.readline() == "44\n"
            assert attached.wait(60) == 0
        eventually(w.running(record, 1, 2), 240, "its group alone is started again")
        (last,) = [i for i in w.incidents(record) if i.rung > Rung.RIDE_THROUGH]
        assert (last.kind, last.group, codes(*last.evidence)) == (Kind.DEBUGGER, 1, {Code.DEBUGGED})
        assert last.rung == Rung.RESTART
        w.check(record)
