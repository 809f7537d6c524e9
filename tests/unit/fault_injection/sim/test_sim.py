"""The simulator itself: a seed repeats its run, its faults hit something, and a failure is reported well."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fault_injection.sim import __main__ as command
from fault_injection.sim import faults, lane
from fault_injection.sim.__main__ import read_plan
from fault_injection.sim.faults import KINDS, Fault
from fault_injection.sim.judge import KINDS_OF, SEEN_S, Struck, recorded
from fault_injection.sim.lane import Kept, LaneError, Part, commit
from fault_injection.sim.leaders import Killed
from fault_injection.sim.nodes import Node
from fault_injection.sim.run import Result, run
from fault_injection.sim.shrink import ddmin, shrunk
from fault_injection.sim.store import SimStore
from fault_injection.sim.world import World, spec
from fault_injection.testbed.nodes import trainer
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.kinds import Kind
from supervisor.core.remediation import apply
from supervisor.shell.history import files
from supervisor.shell.history.incidents import incidents
from supervisor.wire import keys
from supervisor.wire.records import NodeDesired, encode
from tests.system.sim.planted import no_proof_of_emptiness

NODES = 4


def test_the_same_seed_is_the_same_trace_whatever_the_hash_of_strings() -> None:
    """The trace has every write with its virtual time, in two processes."""
    code = "import sys; from fault_injection.sim.run import run; print(*(run(s, 4).digest for s in (1, 14)))"
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hashes}, capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for hashes in ("1", "4242")
    ]  # fmt: skip
    assert said[0] == said[1]
    assert len(set(said[0].split())) == 2


def test_another_plan_or_seed_is_another_trace() -> None:
    plan = [Fault(20.0, "crash", 1, 1.0)]
    digests = {run(seed, NODES, chosen).digest for seed in (1, 2) for chosen in (plan, [])}
    assert len(digests) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_finds_somebody_and_the_run_gets_over_it(kind: str) -> None:
    """A fault that hits nothing would leave the checks untested."""
    result = run(1, NODES, [Fault(20.0, kind, 1, 6.0)])
    assert result.hit == (kind,)
    assert result.broken == ()
    assert result.recovered_s is not None


def test_plans_hold_every_kind_two_at_once_and_the_same_again() -> None:
    plans = [faults.plan(seed) for seed in range(200)]
    assert {fault.kind for plan in plans for fault in plan} == set(KINDS)
    assert any(a.at == b.at for plan in plans for a, b in pairwise(plan))
    assert plans[:5] == [faults.plan(seed) for seed in range(5)]


def test_a_node_is_lost_where_nobody_can_say_that_its_allocation_was_taken() -> None:
    taken, away = Fault(80.0, "allocation_taken", 1, 6.6), Fault(80.0, "engine_away", 3, 15.6)
    for plan in ([taken], [taken, away]):
        result = run(1, NODES, plan)
        assert (result.broken, result.asked.one) == ((), 1)


def test_a_seed_does_not_end_before_its_last_fault_is_seen() -> None:
    result = run(1, NODES, [Fault(80.0, "node_lost", 1, 1.0)])
    assert (result.broken, result.asked.one) == ((), 1)


def test_of_three_plans_one_begins_at_the_launch_one_when_all_train_and_one_has_faults_one_by_one() -> None:
    early, late, apart = ([faults.plan(seed) for seed in range(first, 600, 3) if seed % 8 != 7] for first in range(3))
    assert KINDS_OF.keys() == set(faults.OF_ONE_GROUP)
    assert max(plan[0].at for plan in early) < faults.LAST_S
    assert min(plan[0].at for plan in (*late, *apart)) > faults.TRAINED_S
    assert all(b.at - a.at - a.seconds > SEEN_S for plan in apart for a, b in pairwise(plan))
    kinds = [fault.kind for plan in apart for fault in plan]
    assert set(kinds) == set(KINDS)
    assert sum(kind in faults.OF_ONE_GROUP for kind in kinds) > len(kinds) / 2


def test_one_of_eight_plans_hits_one_group_again_and_again_within_the_window_of_small_budgets_and_some_after_it() -> (
    None
):
    window_s = spec(NODES, tight=True).policy.budget.window_s
    seeds = range(7, 400, 8)
    plans = [faults.plan(seed) for seed in seeds]
    assert all(faults.is_tight(seed) for seed in seeds)
    assert all(plan[2].at - plan[0].at < window_s for plan in plans)
    assert {plan[1].kind for plan in plans} == {"crash_again", "node_lost"}
    assert 0 < sum(b.at - a.at > window_s for plan in plans for a, b in pairwise(plan)) < len(plans)
    asked = [run(seed, 6) for seed in (7, 23)]
    assert all(not result.broken for result in asked)


@pytest.mark.parametrize(
    ("kind", "said", "at_least_s"),
    [("frozen_for_good", Kind.STALLED, 5.0), ("frozen_at_start", Kind.START_TIMEOUT, 20.0)],
)
def test_who_is_frozen_for_good_trains_again_only_once_it_is_ended(kind: str, said: Kind, at_least_s: float) -> None:
    world = World(spec(NODES), 1)
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    began = world.clock.now
    assert faults.inject(world, Fault(0.0, kind, 1, 1.0))
    faults.heal(world)
    world.clock.run_until(began + 90.0, lambda: world.clock.now > began + 3.0 and world.healthy())
    assert world.healthy()
    assert said in {incident.kind for incident in world.checks.incidents.values()}
    assert world.clock.now - began > at_least_s


def test_a_group_that_is_frozen_while_the_lighthouse_moves_goes_on() -> None:
    """Its new gate has never heard it. Only hang detection would find it, which the simulator does not model."""
    result = run(1, NODES, [Fault(80.0, "frozen_for_good", 1, 1.0), Fault(80.0, "gate_killed", 1, 1.0)])
    assert result.broken == ()


def test_what_a_fault_did_is_over_when_all_is_well_and_not_when_that_is_looked_for() -> None:
    world = World(spec(NODES), 1)
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    struck = Struck(world)
    struck.look()
    assert struck.add(Fault(0.0, "crash", 1, 1.0), faults.inject)
    began = world.clock.now
    world.clock.run_until(began + SEEN_S + 5.0)
    (done,) = struck.done(None)
    assert done.over is not None
    assert done.over - began < SEEN_S - 2
    assert done.node == struck.all[0].groups[done.group] != ""


@pytest.mark.parametrize("error", [KeyError("planted"), ValueError("budget of replace is spent")])
def test_an_error_of_the_program_is_a_violation_with_its_seed_and_its_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def moved(*about: object) -> None:
        raise error

    monkeypatch.setattr(apply, "_move_away", moved)
    plan, out = tmp_path / "plan.jsonl", tmp_path / "out.json"
    plan.write_text(
        "".join(json.dumps(Fault(80.0, kind, 1, 1.0).told()) + "\n" for kind in ("watch_late", "node_lost"))
    )
    monkeypatch.setattr(sys, "argv", ["sim", "--seed", "1", "--nodes", "4", "--plan", str(plan)])
    assert command.main() == 1
    said = capsys.readouterr().out
    assert "seed 1, 4 nodes: 2 faults, of which 1 are enough" in said
    assert f"crash: {type(error).__name__}: {error} at supervisor/core/remediation/apply.py:" in said
    monkeypatch.setattr(faults, "plan", lambda seed: read_plan(plan))
    monkeypatch.setattr(sys, "argv", ["sim", "--seeds", "1", "--nodes", "4", "--out", str(out)])
    assert command.main() == 1
    assert json.loads(out.read_text())["violations"] == 1


def test_ddmin_leaves_what_is_needed() -> None:
    plan = [Fault(float(n), "crash", n, 1.0) for n in range(9)]
    needed = {plan[2], plan[7]}
    assert ddmin(plan, lambda part: needed <= set(part)) == [plan[2], plan[7]]
    assert ddmin(plan, lambda part: plan[4] in part) == [plan[4]]
    assert ddmin(plan, lambda part: True) == []


def test_a_failure_is_told_with_its_seed_and_the_fewest_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    no_proof_of_emptiness(monkeypatch)
    taken = Fault(20.0, "allocation_taken", 1, 1.0)
    result = run(1, NODES, [Fault(5.0, "watch_late", 0, 1.0), taken, Fault(20.0, "engine_pending", 0, 3.0)])
    assert result.broken
    assert shrunk(result).plan == (taken,)
    text = command.failure(result)
    assert "3 faults, of which 1 are enough" in text
    assert "allocation_taken" in text
    assert "--seed 1 --nodes 4" in text


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def says(*asked: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["sim", *asked])
        return command.main(), capsys.readouterr().out

    code, text = says("--seeds", "2", "--nodes", "4")
    assert code == 0
    assert "2 seeds of 4 nodes: 0 broken" in text
    plan = tmp_path / "plan.jsonl"
    fault = Fault(20.0, "crash", 1, 1.0)
    plan.write_text(json.dumps(fault.told()) + "\n")
    code, text = says("--seed", "5", "--nodes", "4", "--plan", str(plan))
    assert code == 0
    assert '"kind": "crash"' in text
    plan.write_text(json.dumps(replace(fault, kind="gremlin").told()))
    assert says("--seed", "5", "--plan", str(plan))[0] == 2
    assert says("--seed", "5", "--plan", str(tmp_path / "none"))[0] == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"target": "a"}, "line 1: target is 'a', and must be a whole number from 0"),
        ({"target": 1.5}, "line 1: target is 1.5, and must be a whole number from 0"),
        ({"at": "soon"}, "line 1: at is 'soon', and must be a number of seconds from 0 to 86400"),
        ({"seconds": None}, "line 1: seconds is None, and must be a number of seconds from 0 to 86400"),
        ({"at": 1e300}, "line 1: at is 1e+300, and must be a number of seconds from 0 to 86400"),
        ({"seconds": -1}, "line 1: seconds is -1, and must be a number of seconds from 0 to 86400"),
        ({"kind": ["crash"]}, "line 1: there is no fault ['crash']; known: crash"),
        ({"more": 1}, "line 1: a fault must be one JSON object with at, kind, seconds, target, and no other keys"),
        (None, "line 1: a fault must be one JSON object with at, kind, seconds, target, and no other keys"),
    ],
)
def test_a_plan_of_something_else_is_said_before_anything_is_played(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, object] | None,
    says: str,
) -> None:
    plan = tmp_path / "plan.jsonl"
    told = Fault(20.0, "crash", 1, 1.0).told()
    plan.write_text(json.dumps([1] if change is None else {**told, **change}))
    monkeypatch.setattr(sys, "argv", ["sim", "--seed", "5", "--nodes", "4", "--plan", str(plan)])
    monkeypatch.setattr(command, "run", None)
    assert command.main() == 2
    assert says in capsys.readouterr().err


def test_a_plan_that_nobody_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan.jsonl").write_text("[" * 200_000)
    monkeypatch.setattr(sys, "argv", ["sim", "--seed", "5", "--plan", str(tmp_path / "plan.jsonl")])
    assert command.main() == 2


@pytest.mark.parametrize(
    "asked",
    [
        ("--go-on", "--out", "F", "--first", "3"), ("--seed", "1", "--out", "F"), ("--seed", "1", "--jobs", "2"),
        ("--seed", "1", "--first", "2"), ("--seed", "1", "--seeds", "3"), ("--seeds", "abc"), ("--seeds", "0"),
    ],
)  # fmt: skip
def test_what_would_be_ignored_is_refused(monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]) -> None:
    monkeypatch.setattr(sys, "argv", ["sim", *asked])
    with pytest.raises(SystemExit, match="2"):
        command.main()


@pytest.mark.parametrize(("place", "says"), [("", "is not a file"), ("file/out.json", "cannot be written")])
def test_a_file_of_results_that_cannot_be_written_is_said_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str, says: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "argv", ["sim", "--nodes", "4", "--out", str(tmp_path / place)])
    monkeypatch.setattr(command, "play", None)
    assert command.main() == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_disk_that_fails_while_it_is_played_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Path, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "argv", ["sim", "--nodes", "4", "--seeds", "1", "--out", str(tmp_path / "out.json")])
    monkeypatch.setattr(Path, "write_text", full)
    assert command.main() == 1
    assert "any more (No space left on device)" in capsys.readouterr().err


def test_a_lane_keeps_what_it_has_and_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "simulator.json"

    def says(*asked: str) -> int:
        monkeypatch.setattr(sys, "argv", ["sim", "--nodes", "4", "--out", str(out), *asked])
        return command.main()

    assert says("--seeds", "1") == 0
    assert says("--seeds", "3", "--go-on", "--jobs", "2") == 0
    body = json.loads(out.read_text())
    assert [(p["first"], p["seeds"], p["jobs"]) for p in body["parts"]] == [(0, 1, 1), (1, 2, 2)]
    assert (body["seeds"], body["nodes"], body["violations"]) == (3, 4, 0)
    monkeypatch.setattr(sys, "argv", ["sim", "--nodes", "5", "--out", str(out), "--go-on"])
    assert command.main() == 2
    assert "of 4 nodes, not of 5" in capsys.readouterr().err


def test_a_lane_that_is_begun_anew_leaves_the_older_one_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "simulator.json"
    monkeypatch.setattr(sys, "argv", ["sim", "--nodes", "4", "--out", str(out), "--seeds", "2"])
    assert command.main() == 0
    first = out.read_text()
    monkeypatch.setattr(sys, "argv", ["sim", "--nodes", "4", "--out", str(out), "--seeds", "1"])
    assert command.main() == 0
    assert json.loads(out.read_text())["seeds"] == 1
    assert out.with_name("simulator.json.before").read_text() == first


def test_what_broke_before_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Fault(at=3.0, kind="crash", target=1, seconds=0.0)

    def breaks(seed: int, nodes: int, asked: Sequence[Fault] | None = None, size: int = 1) -> Result:
        assert asked in (None, [plan]), "what broke is played, not what the seed would draw today"
        return replace(run(seed, nodes, []), plan=(plan,), broken=("it breaks",) if seed == 0 else ())

    out = tmp_path / "simulator.json"
    monkeypatch.setattr(command, "failure", lambda result: f"seed {result.seed} broke")
    monkeypatch.setattr(command, "play", lambda seeds, nodes, *_: ((breaks(seed, nodes), 0.5) for seed in seeds))
    monkeypatch.setattr(command, "run", breaks)
    for seeds in ("1", "2", "2"):
        monkeypatch.setattr(sys, "argv", ["sim", "--nodes", "4", "--out", str(out), "--seeds", seeds, "--go-on"])
        assert command.main() == 1
    assert capsys.readouterr().err.count("held 1 broken seeds; played again, 1 of them still break") == 2
    assert json.loads(out.read_text())["violations"] == 1
    monkeypatch.undo()
    monkeypatch.setattr(sys, "argv", ["sim", "--nodes", "4", "--out", str(out), "--seeds", "2", "--go-on"])
    for said in ("held 1 broken seeds; played again, 0 of them still break", "nothing is left to play"):
        assert command.main() == 0, "it is mended"
        assert said in capsys.readouterr().err
    body = json.loads(out.read_text())
    (kept,) = body["parts"][0]["violations"]
    assert (body["violations"], kept["says"], kept["plan"]) == (0, ["it breaks"], [plan.told()])
    assert kept["played_again"] == {"commit": commit(), "says": []}


def test_a_lane_that_goes_on_says_what_it_does_not_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "simulator.json"
    monkeypatch.setattr(command, "play", None)
    monkeypatch.setattr(sys, "argv", ["sim", "--nodes", "4", "--out", str(out), "--seeds", "3", "--go-on"])
    out.write_text(PART % (4, 0, 5, "[]"))
    assert command.main() == 0
    assert "holds seeds 0 to 4 already: nothing is left to play" in capsys.readouterr().err
    out.write_text(PART % (4, 8, 1, "[]"))
    assert command.main() == 2
    assert "lacks 8 seeds below 9, the first is 0" in capsys.readouterr().err


def descendants(pid: int) -> list[int]:
    own = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return own + [each for child in own for each in descendants(child)]


def cpu_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_a_process_that_is_killed_ends_the_lane_and_costs_nothing_that_was_played(tmp_path: Path) -> None:
    out = tmp_path / "simulator.json"
    asked = [
        sys.executable,
        "-m",
        "fault_injection.sim",
        "--nodes",
        "4",
        "--seeds",
        "100000",
        "--jobs",
        "2",
        "--out",
        str(out),
    ]
    with subprocess.Popen(asked, stderr=subprocess.PIPE, text=True) as lane:
        try:
            eventually(out.exists, 60, "something is kept")
            os.kill(max(descendants(lane.pid), key=cpu_ticks), signal.SIGKILL)
            _, said = lane.communicate(timeout=60)
        finally:
            for each in descendants(lane.pid) if lane.poll() is None else ():
                os.kill(each, signal.SIGKILL)
            lane.kill()
    assert lane.returncode == 1
    assert "has died, perhaps out of memory; the results so far are kept: go on with --go-on" in said
    assert json.loads(out.read_text())["seeds"] > 0


def test_a_violation_is_kept_with_what_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, kept = Part(8, NODES, 1), Kept(tmp_path / "kept.json", NODES, go_on=False)
    found = replace(run(0, NODES, []), seed=8, broken=("at 1.00 s: owners: two",))
    assert lane.command(replace(found, nodes_per_group=2)) == f"{lane.command(found)} --nodes-per-group 2"
    part.add(found, 0.5)
    kept.keep(part, at_once=True)
    body = json.loads(kept.path.read_text())
    assert body["violations"] == 1
    assert body["parts"][0]["violations"] == [
        {
            "seed": 8,
            "plan": [],
            "says": ["at 1.00 s: owners: two"],
            "again": "python -m fault_injection.sim --seed 8 --nodes 4",
        }
    ]


PART = '{"nodes": %s, "parts": [{"first": %s, "seeds": %s, "violations": %s}]}'


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", '{"nodes": 4}', '{"nodes": 4, "parts": [{}]}', "[" * 200_000, PART % ("1e999", 0, 1, "[]"),
        PART % (4, '"x"', 1, "[]"), PART % (4, 0, "null", "[]"), PART % (4, 0, 1, "null"),
        PART % (4, 0, 1, '[{"seed": "x", "plan": []}]'), PART % (4, 0, 1, '[{"seed": 1}]'),
    ],
    ids=range(11),
)  # fmt: skip
def test_a_file_of_something_else_is_not_gone_on_with(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(LaneError, match="holds no results"):
        Kept(path, NODES, go_on=True)


def test_a_node_begins_what_is_wanted_by_etcd_and_not_by_its_late_watch_and_only_while_it_is_registered() -> None:
    world = World(spec(NODES), 1)
    node, leader, clock = Node(world, "n9999", "", "trainer"), SimStore(world.etcd, "leader"), world.clock
    world.etcd.delay_s = (0.0, 0.0)

    def desire(*generations: int) -> None:
        wanted = NodeDesired(node="n9999", trainers=tuple(trainer(0, g, run="run") for g in generations))
        leader.put(keys.desired("n9999", "run"), encode(wanted))

    desire(1)
    node._turn()
    assert not node.trainers, "it was not registered yet"
    world.etcd.delay_s = (5.0, 5.0)
    desire()
    node._turn()
    assert not node.trainers, "it was withdrawn"
    clock.now += 5.0
    world.etcd.delay_s = (0.0, 0.0)
    desire(2)
    assert node._lease is not None
    node._lease.revoke()
    node._turn()
    assert not node.trainers, "its lease was lost"
    node._turn()
    assert list(node.trainers) == ["run.0.2.0"]


def test_a_leader_that_dies_when_its_last_decision_is_committed_leaves_no_incident_open() -> None:
    """The decision has no outcome in the journal, and nothing has been decided since: the memory's count shows it."""
    world = World(spec(NODES), 1)
    world.clock.run_until(world.clock.now + 60.0, world.healthy)
    assert faults.inject(world, Fault(0.0, "crash", 0, 1.0))
    world.clock.run_until(world.clock.now + 60.0, lambda: bool(world.checks.memory.incidents))
    leader = next(s for s in world.supervisors if s.leads)

    def dies(at: str) -> None:
        if at == "after" and not world.checks.memory.incidents:
            raise Killed

    leader.store.on_commit = dies
    world.clock.run_until(world.clock.now + 60.0, lambda: leader.dead)
    assert leader.dead
    (incident,) = incidents(recorded(world))
    assert incident.recovered is not None


def test_the_lines_of_a_run_say_as_files_what_they_say_in_memory(tmp_path: Path) -> None:
    """The checkers get what real files would have held."""
    world = World(spec(NODES), 3)
    world.clock.run_until(60.0)
    in_memory = recorded(world)
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in world.journal))
    for node, lines in world.shims.items():
        folder = tmp_path / "nodes" / node
        folder.mkdir(parents=True)
        (folder / "shim.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for steps in in_memory.steps:
        name = f"run.{steps.group}.{steps.generation}.{steps.rank}"
        folder = tmp_path / "nodes" / steps.node / "ranks" / name
        folder.mkdir(parents=True)
        (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps.lines))
    on_disk = files.read("run", tmp_path, tmp_path)
    assert in_memory.decisions == on_disk.decisions
    assert in_memory.decisions
    assert (in_memory.processes, in_memory.signals) == (on_disk.processes, on_disk.signals)
    assert sorted(in_memory.steps, key=str) == sorted(on_disk.steps, key=str)


@pytest.mark.parametrize(
    ("seed", "plan"),
    [
        (1, [Fault(80.0, "crash", 1, 1.0), Fault(80.0, "etcd_away", 1, 19.5)]),
        (3, [Fault(75.0, "node_lost", 1, 1.0), Fault(100.0, "etcd_away", 1, 12.0), Fault(138.0, "node_lost", 2, 1.0)]),
        (4, [Fault(80.0, "agent_killed", 36235, 12.1), Fault(80.0, "error", 60386, 1.0)]),
    ],
    ids=["a gate closes without etcd", "a run's clock stands still", "an agent is away"],
)
def test_what_a_supervisor_does_right_is_not_held_against_it(seed: int, plan: list[Fault]) -> None:
    assert run(seed, 12, plan).broken == ()
