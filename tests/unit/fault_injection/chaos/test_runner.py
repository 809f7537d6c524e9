"""The runner against a run that is played: one second passes at each look, without real waits."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.chaos import runner as runners
from fault_injection.chaos.runner import PATIENCE_S, STEPS_ON, Look, Runner, bounds
from fault_injection.chaos.schedule import Plan, Planned
from fault_injection.faults.catalogue import FAULTS
from fault_injection.faults.fault import Fault, Target
from supervisor.core.model.spec import HangSpec, PolicySpec, RunSpec, TitanSpec, TorchFTSpec
from supervisor.ports.errors import Fatal
from supervisor.shell.history.files import FaultDone

SPEC = RunSpec(
    name="run",
    titan=TitanSpec(digest_interval_steps=3),
    torchft=TorchFTSpec(heartbeat_timeout_ms=1000, join_timeout_ms=2000, process_group_timeout_ms=3000),
    policy=PolicySpec(hang=HangSpec(at_most_s=20.0), start_timeout_s=30.0, backoff_max_s=0.0, node_lease_s=2),
)


class Played:
    """A run that commits a step a second while it is well. A fault of a kind is mended `mended_s` after it, by an
    incident that is acted on after one second."""

    def __init__(self, mended_s: float = 4.0) -> None:
        self.now = 1000.0
        self.step = 0
        self.mended_s = mended_s
        self.broken: dict[int, float] = {}
        self.away: list[int] = []
        """Made faults that must be healed by hand."""
        self.acted: set[tuple[str, int]] = set()
        self.ended = ""
        self.log: list[str] = []
        self.told: list[str] = []
        """Faults that were made, for the metrics."""
        self.scene: Any = self
        self.nowhere_until = 0.0
        """The time until which no group is placed."""

    def pause(self, seconds: float) -> None:
        self.now += 1.0
        for group, at in list(self.broken.items()):
            if self.now - at >= 1.0:
                self.acted.add((f"i-{at:g}", group))
            if self.now - at >= self.mended_s:
                del self.broken[group]
        if not self.broken:
            self.step += 1

    def look(self) -> Look:
        not_well = f"group {min(self.broken)} is starting" if self.broken else ""
        return Look(step=self.step, not_well=not_well, acted=frozenset(self.acted), ended=self.ended)

    def target(self, planned: Planned, fault: Fault) -> Target:
        if self.now < self.nowhere_until:
            raise Fatal(f"node - shows no rank of group {planned.group}")
        return Target(
            group=planned.group, generation=3, node=f"n{planned.group}", rank=planned.rank, pids={planned.rank: 7},
            allocation="", folder=Path(),
        )  # fmt: skip

    def tend(self) -> None:
        self.log.append("tend")

    def made(self, name: str) -> None:
        self.told.append(name)

    def let_go(self) -> None:
        self.log.append("let go")


def inject(name: str, fault: Fault, fails: bool = False) -> Callable[[Any, Target, ExitStack], str]:
    def made(scene: Played, target: Target, after: ExitStack) -> str:
        after.callback(scene.log.append, f"heal {name}")
        scene.log.append(f"{name} at {scene.step}, group {target.group}")
        if fails:
            raise Fatal("there is no such process")
        if fault.kinds:
            scene.broken[target.group] = scene.now
        return f"{name} is broken"

    return made


@pytest.fixture(autouse=True)
def _played_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = {name: replace(f, inject=inject(name, f)) for name, f in FAULTS.items()}
    faults["sigabrt"] = replace(faults["sigabrt"], inject=inject("sigabrt", faults["sigabrt"], fails=True))
    monkeypatch.setattr(runners, "FAULTS", faults)


def planned(*faults: tuple[str, int, str]) -> Plan:
    made = [
        Planned(number=i, name=name, at_step=at, group=i % 2, rank=0, together=together)  # type: ignore[arg-type]
        for i, (name, at, together) in enumerate(faults, 1)
    ]
    return Plan(seed=1, ranks=1, faults=tuple(made), not_available={})


def run(played: Played, plan: Plan) -> list[FaultDone]:
    runner = Runner(played, SPEC, plan, played.log.append, lambda: played.now, played.pause)
    runner.run()
    return runner.done


def of_faults(log: list[str]) -> list[str]:
    return [line for line in log if line.startswith((*FAULTS, "heal", "let go"))]


def test_a_fault_waits_for_its_step_and_is_over_when_all_is_well_and_steps_were_committed() -> None:
    played = Played()
    (done,) = run(played, planned(("sigkill", 5, "")))
    assert of_faults(played.log) == ["sigkill at 5, group 1", "heal sigkill", "let go"]
    assert (done.number, done.name, done.group, done.generation, done.node, done.step) == (1, "sigkill", 1, 3, "n1", 5)
    assert (done.began, done.made, done.evidence) == (1005.0, 1005.0, "sigkill is broken")
    assert done.over is not None
    assert done.over - done.began == 4.0 + 2, "mended, and three steps, of which one was committed meanwhile"
    assert (done.before, done.after, done.kinds) == ("", "", ("crash",))


def test_the_next_waits_until_the_run_is_well_again() -> None:
    played = Played(mended_s=20.0)
    first, second = run(played, planned(("sigkill", 5, ""), ("sigkill", 6, "")))
    assert first.over is not None
    assert second.began > first.over
    assert second.step >= first.step + 2 + 3 + 2, "the groups' states are compared before the next"


def test_after_the_last_one_the_states_are_compared_too() -> None:
    played = Played()
    (done,) = run(played, planned(("sigkill", 5, "")))
    assert done.over is not None
    assert played.now - done.over >= 3 + 2


def test_who_comes_with_another_waits_for_a_group_that_is_being_started() -> None:
    def places(played: Played, at: float) -> None:
        played.nowhere_until = at

    late, alone = Played(), Played()
    late.made = lambda name: places(late, 1008.0) if name == "sigkill" else None  # type: ignore[method-assign]
    first, second = run(late, planned(("sigkill", 2, ""), ("agent_stopped", 2, "with")))
    assert (first.made, second.made, second.after) == (1002.0, 1008.0, "")
    alone.nowhere_until = 1008.0
    (done,) = run(alone, planned(("sigkill", 2, "")))
    assert (done.made, done.after) == (None, "node - shows no rank of group 1")


def test_what_stays_is_healed_after_its_time_and_nothing_may_be_done_about_it() -> None:
    played = Played()
    (done,) = run(played, planned(("agent_stopped", 2, "")))
    assert done.made is not None
    assert done.healed is not None
    assert done.over is not None
    assert done.healed - done.made == FAULTS["agent_stopped"].stays_s
    assert done.over - done.healed == STEPS_ON, "steps were committed since"


def test_two_at_once() -> None:
    played = Played()
    first, second = run(played, planned(("sigkill", 5, ""), ("supervisor_killed", 5, "with")))
    assert first.began == second.began
    assert first.over is not None
    assert second.over is not None


def test_the_bounds_of_faults_that_come_together_add_up() -> None:
    """One may have to be mended before the other can be."""
    crash, kill = (bounds(SPEC, FAULTS[name]) for name in ("sigkill", "lighthouse_killed"))
    done = run(Played(), planned(("sigkill", 5, ""), ("lighthouse_killed", 5, "during"), ("sigkill", 50, "")))
    both = (crash.within_s + kill.within_s, crash.others_within_s + kill.others_within_s)
    assert [(each.within_s, each.others_within_s) for each in done[:2]] == [both, both]
    assert (done[2].within_s, done[2].others_within_s) == (crash.within_s, crash.others_within_s), "alone"


def test_one_while_the_other_is_mended() -> None:
    played = Played()
    first, second = run(played, planned(("sigkill", 5, ""), ("supervisor_killed", 5, "during")))
    assert second.began == first.began + 1.0, "when something was done about the first"
    assert first.over is not None
    assert second.began < first.over


def test_what_comes_while_a_group_begins_anew_is_at_the_step_that_the_run_had_come_to() -> None:
    played = Played()
    look = played.look
    played.look = lambda: replace(look(), step=0 if played.broken else played.step)  # type: ignore[method-assign]
    first, second = run(played, planned(("sigkill", 5, ""), ("supervisor_killed", 5, "during")))
    assert (first.step, second.step) == (5, 5)


def test_what_did_not_happen_is_said_and_the_plan_goes_on() -> None:
    played = Played()
    first, second = run(played, planned(("sigabrt", 2, ""), ("sigkill", 4, "")))
    assert (first.made, first.evidence, first.after) == (None, "", "there is no such process")
    assert second.evidence == "sigkill is broken"
    assert "heal sigabrt" in played.log
    assert played.told == ["sigkill"]


def test_a_file_that_is_not_there_is_a_fault_that_did_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    def inject_(scene: Any, target: Target, after: ExitStack) -> str:
        raise FileNotFoundError(2, "No such file or directory", "/nodes/n1/shim.lock")

    monkeypatch.setattr(runners, "FAULTS", {**FAULTS, "node_killed": replace(FAULTS["node_killed"], inject=inject_)})
    (done,) = run(Played(), planned(("node_killed", 2, "")))
    assert (done.made, "shim.lock" in done.after) == (None, True)


def test_what_does_not_come_back_is_given_up_after_its_bound_and_the_plan_goes_on() -> None:
    played = Played(mended_s=200.0)
    first, second = run(played, planned(("sigkill", 5, ""), ("hiccup", 6, "")))
    assert first.over is None
    assert first.after == f"group 1 is starting after {first.within_s:g} s"
    assert first.healed is not None
    assert second.over is not None


def test_what_nobody_does_anything_about_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played()
    silent = replace(FAULTS["stopped"], inject=lambda scene, target, after: "stopped")
    monkeypatch.setattr(runners, "FAULTS", {**FAULTS, "stopped": silent})
    (done,) = run(played, planned(("stopped", 5, "")))
    assert done.over is None
    assert done.after.startswith("nothing was done about it after ")


def test_a_run_that_does_not_move_is_not_broken() -> None:
    played = Played()
    played.broken = {0: float("inf")}
    with pytest.raises(Fatal, match=f"nothing moved for {PATIENCE_S:g} s before step 5: group 0 is starting"):
        run(played, planned(("sigkill", 5, "")))
    assert of_faults(played.log) == []


def test_a_run_that_has_ended_is_said_at_once_and_what_was_done_is_kept() -> None:
    played = Played()
    runner = Runner(
        played, SPEC, planned(("stopped", 5, "")), played.log.append, lambda: played.now, ending(played, 1007.0)
    )
    with pytest.raises(Fatal, match="the run was halted"):
        runner.run()
    (done,) = runner.done
    assert (done.after, done.over) == ("the run was halted", None)
    assert "heal stopped" in played.log


def ending(played: Played, at: float) -> Callable[[float], None]:
    def pause(seconds: float) -> None:
        played.pause(seconds)
        if played.now >= at:
            played.ended = "the run was halted"

    return pause


@pytest.mark.parametrize("at", [1005.0, 1006.0, 1009.0])
def test_an_interrupt_heals_what_is_broken_before_it_leaves(at: float) -> None:
    played = Played(mended_s=100.0)

    def pause(seconds: float) -> None:
        if played.now >= at:
            raise KeyboardInterrupt
        played.pause(seconds)

    plan = planned(("stopped", 5, ""), ("agent_stopped", 5, "with"))
    runner = Runner(played, SPEC, plan, played.log.append, lambda: played.now, pause)
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    assert {"heal stopped", "heal agent_stopped"} <= set(played.log)
    assert [done.name for done in runner.done] == ["stopped", "agent_stopped"]


@pytest.mark.parametrize("how_often", [1, 2])
@pytest.mark.parametrize("when", ["is over", "has stayed", "is given up", "did not happen"])
def test_one_interrupt_waits_for_a_heal_that_has_begun(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], when: str, how_often: int
) -> None:
    played = Played(mended_s=10_000.0 if when == "is given up" else 4.0)
    name = "agent_stopped" if when == "has stayed" else "sigkill"

    def breaks(scene: Played, target: Target, after: ExitStack) -> str:
        after.callback(scene.log.append, "healed by the other callback")
        after.callback(slowly)
        if when == "did not happen":
            raise Fatal("there is no such process")
        if name == "sigkill":
            scene.broken[target.group] = scene.now
        return "broken"

    def slowly() -> None:
        for n in range(how_often):
            signal.raise_signal([signal.SIGINT, signal.SIGTERM][n])
        played.log.append("healed to its end")

    monkeypatch.setattr(runners, "FAULTS", {**FAULTS, name: replace(FAULTS[name], inject=breaks)})
    runner = Runner(played, SPEC, planned((name, 5, "")), played.log.append, lambda: played.now, played.pause)
    before = {n: signal.signal(n, signal.default_int_handler) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(KeyboardInterrupt):
            runner.run()
    finally:
        for number, handler in before.items():
            assert signal.signal(number, handler) is signal.default_int_handler
    assert ("healed to its end" in played.log) == (how_often == 1)
    assert "healed by the other callback" in played.log
    (done,) = runner.done
    assert (done.healed is not None) == (how_often == 1)
    assert capfd.readouterr().err == (
        "supervisor: what was broken is being healed: leaving after that. Once more to leave now\n"
    )


def test_a_heal_that_fails_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(scene: Played, target: Target, after: ExitStack) -> str:
        after.callback(fails)
        return "broken"

    def fails() -> None:
        raise Fatal("the network has no such link")

    monkeypatch.setattr(runners, "FAULTS", {**FAULTS, "agent_stopped": replace(FAULTS["agent_stopped"], inject=breaks)})
    played = Played()
    runner = Runner(
        played, SPEC, planned(("agent_stopped", 5, "")), played.log.append, lambda: played.now, played.pause
    )
    with pytest.raises(Fatal, match="no such link"):
        runner.run()
    (done,) = runner.done
    assert done.healed is None


def test_parts_that_end_are_tended_while_it_waits() -> None:
    played = Played()
    run(played, planned(("etcd_killed", 3, "")))
    assert played.log.count("tend") > 5


def test_bounds_are_the_timeouts_of_the_run() -> None:
    freed = 1.0 + 2 * (2.0 + 3.0) + 5.0
    crash, hang, agent = (bounds(SPEC, FAULTS[name]) for name in ("sigkill", "endless_loop", "agent_stopped"))
    assert (crash.others_within_s, crash.within_s) == (freed, 2 * 2 + freed + 30.0)
    assert (hang.others_within_s, hang.within_s) == (20.0 + freed, 20.0 + freed + 30.0)
    stopped, never = bounds(SPEC, FAULTS["stopped"]), replace(SPEC.policy.hang, stopped_s=0.0)
    assert (stopped.others_within_s, stopped.within_s) == (1.5 + freed, 1.5 + freed + 30.0)
    assert bounds(replace(SPEC, policy=replace(SPEC.policy, hang=never)), FAULTS["stopped"]) == hang
    nobody_starts = 2 * 2 + freed
    assert (agent.others_within_s, agent.within_s) == (freed, FAULTS["agent_stopped"].stays_s + nobody_starts)
    full = bounds(SPEC, FAULTS["checkpoint_disk_full"])
    assert (full.others_within_s, full.within_s) == (freed, FAULTS["checkpoint_disk_full"].takes_s + nobody_starts)
    lighthouse = bounds(SPEC, FAULTS["lighthouse_stopped"])
    assert lighthouse.others_within_s == lighthouse.within_s == FAULTS["lighthouse_stopped"].stays_s + nobody_starts
