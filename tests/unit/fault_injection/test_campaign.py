"""From a schedule to the files that are left, on a run that is played; also when it is interrupted or given up."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.chaos import own, runner
from fault_injection.chaos.campaign import Campaign, versions
from fault_injection.chaos.runner import Look
from fault_injection.chaos.schedule import FaultAt, Planned, Schedule, load
from fault_injection.faults.catalogue import FAULTS
from fault_injection.faults.fault import Fault, Target
from fault_injection.history import Left, Seen
from fault_injection.promises import ALL
from fault_injection.recorded import load as read
from fault_injection.sim.lane import commit
from supervisor.ports.errors import Fatal
from supervisor.wire.records import RunRecord
from tests.unit.fault_injection.files import RUN, story

SCHEDULE = Schedule(seed=5, fault=(FaultAt(name="hiccup", at_step=3, group=1, rank=0),))


class Played:
    """A run that steps at each look, with the files of the story."""

    def __init__(self, folder: Path) -> None:
        story(folder).write()
        self.record = RunRecord(spec=own.spec(RUN), run_dir=str(folder / RUN), launched_unix_s=0.0)
        self.run, self.run_dir, self.system = RUN, self.record.run_dir, folder / "system"
        self.scene: Any = self
        self.step, self.stopped, self.healed = 0, False, False
        self.ended = ""

    def look(self) -> Look:
        self.step += 1
        return Look(step=self.step, not_well="", acted=frozenset(), ended=self.ended)

    def target(self, planned: Planned, fault: Fault) -> Target:
        return Target(group=1, generation=1, node="n2", rank=0, pids={0: 1}, allocation="", folder=self.system)

    def tend(self) -> None:
        pass

    def made(self, name: str) -> None:
        pass

    def let_go(self) -> None:
        pass

    def stop(self, within_s: float) -> None:
        self.stopped = True

    def left(self, ended: bool) -> Left:
        assert ended
        return Left(processes=(), allocations=())

    def seen(self) -> list[Seen]:
        return [Seen(t=1.0, what="leader", subject="", says={"pid": 1})]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    made = Played(tmp_path / "files")

    @contextmanager
    def started(*_: Any) -> Iterator[Played]:
        yield made

    monkeypatch.setattr(own, "started", started)
    monkeypatch.setattr(runner, "LOOK_S", 0.001)
    return made


def breaks(monkeypatch: pytest.MonkeyPatch, inject: Callable[[Any, Target, ExitStack], str]) -> None:
    hiccup = replace(FAULTS["hiccup"], inject=inject, stays_s=0.01)
    monkeypatch.setattr(runner, "FAULTS", {**FAULTS, "hiccup": hiccup})


def campaign(folder: Path, said: list[str]) -> Campaign:
    (folder / "out").mkdir()
    return Campaign(wanted=lambda site: SCHEDULE, say=said.append, out=folder / "out")


def hiccup(scene: Played, target: Target, after: ExitStack) -> str:
    after.callback(setattr, scene, "healed", True)
    return f"group {target.group} hiccups"


def test_all_files_are_left_and_the_history_says_what_the_report_says(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch, hiccup)
    said: list[str] = []
    green = campaign(tmp_path, said).on_its_own(tmp_path / "runs", RUN, cold=True)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert green is report["green"] is False, "the story is over long before"
    assert report["checkers"]["digests_equal"]["answer"] == "unknown"
    assert report["faults"][0]["evidence"] == "group 1 hiccups"
    assert played.healed
    assert played.stopped
    assert [f.name for f in load(tmp_path / "out" / "plan.toml").fault] == ["hiccup"]
    history = read(tmp_path / "out" / "history.jsonl")
    assert history.setting is not None
    assert (history.setting.seed, history.setting.planned, history.left) == (5, 1, Left(processes=(), allocations=()))
    assert [s.what for s in history.seen] == ["leader"]
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!doctype html>")
    assert any(line.startswith("UNKNOWN: digests_equal: ") for line in said)
    assert report["loss_parity"]["why"] == "step 1: group 0 does not say which samples it read"
    assert f"loss parity: unknown: {report['loss_parity']['why']}" in said
    assert said[-1] == f"report: {tmp_path / 'out' / 'report.html'}"
    assert any(line.startswith("checkers: ") and line.endswith(f"of {len(ALL)} pass") for line in said)


def test_an_interrupt_leaves_the_files_too(played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(scene: Played, target: Target, after: ExitStack) -> str:
        after.callback(setattr, scene, "healed", True)
        raise KeyboardInterrupt

    breaks(monkeypatch, interrupted)
    said: list[str] = []
    assert campaign(tmp_path, said).on_its_own(tmp_path / "runs", RUN, cold=True) is False
    assert "interrupted: what was broken is healed" in said
    assert played.healed
    assert played.stopped
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["checkers"]["every_fault_happened"] == {
        "answer": "fail",
        "sentences": ["fault 1 (hiccup of group 1 rank 0 at step 4) left no evidence: interrupted while it was made"],
    }
    (fault,) = report["faults"]
    assert (fault["evidence"], fault["over_s"]) == ("", None)
    assert fault["undone_s"] is not None, "when it was healed is recorded"
    assert report["loss_parity"]["why"] == "the run was interrupted", "who interrupts it does not wait for a twin"


def test_what_is_broken_by_says_which_sources_and_which_etcd() -> None:
    told = versions()
    assert told["commit"] == commit()
    assert re.fullmatch(r"\d+\.\d+\.\d+", told["etcd"])


def test_where_nothing_can_be_written_nothing_is_started(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    asked = campaign(tmp_path, said)
    (tmp_path / "out" / "report.json").write_text("of an earlier one")
    with pytest.raises(Fatal, match=r"report\.json is there already, from an earlier one: choose another --out"):
        asked.on_its_own(tmp_path / "runs", RUN, cold=True)
    (tmp_path / "a file").write_text("")
    with pytest.raises(Fatal, match=r"cannot be written into .*/a file: File exists; choose --out"):
        replace(asked, out=tmp_path / "a file").on_its_own(tmp_path / "runs", RUN, cold=True)
    assert played.step == 0
    assert (tmp_path / "out" / "report.json").read_text() == "of an earlier one"


def test_a_run_that_is_halted_is_given_up_with_its_files(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halts(scene: Played, target: Target, after: ExitStack) -> str:
        scene.ended = "the run is halted: enough"
        return "broken for good"

    breaks(monkeypatch, halts)
    said: list[str] = []
    assert campaign(tmp_path, said).on_its_own(tmp_path / "runs", RUN, cold=True) is False
    assert "given up: the run is halted: enough" in said
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["checkers"]["recovered_in_time"]["answer"] == "fail"
    assert report["faults"][0]["problem"] == "the run is halted: enough"


def test_what_cannot_be_healed_is_said_and_the_files_are_left(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stays(scene: Played, target: Target, after: ExitStack) -> str:
        after.callback((tmp_path / "none" / "filler").unlink)
        return "broken"

    breaks(monkeypatch, stays)
    said: list[str] = []
    assert campaign(tmp_path, said).on_its_own(tmp_path / "runs", RUN, cold=True) is False
    assert any(line.startswith("given up: ") and "No such file" in line for line in said)
    assert (tmp_path / "out" / "report.html").exists()


def test_the_plan_is_saved_before_anything_is_broken(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[bool] = []

    def looks(scene: Played, target: Target, after: ExitStack) -> str:
        there.append((tmp_path / "out" / "plan.toml").exists())
        return "x"

    breaks(monkeypatch, looks)
    campaign(tmp_path, []).on_its_own(tmp_path / "runs", RUN, cold=True)
    assert there == [True]
