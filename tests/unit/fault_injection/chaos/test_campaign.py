"""From a schedule to the resulting files, on a run that is played; also when it is interrupted or given up."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.chaos import certificate, own, runner
from fault_injection.chaos.campaign import Campaign, versions
from fault_injection.chaos.runner import Look
from fault_injection.chaos.schedule import FaultAt, Planned, Schedule, load
from fault_injection.checkers.consistency import check
from fault_injection.checkers.history_file import load as read
from fault_injection.checkers.recovery import ALL
from fault_injection.faults.catalogue import FAULTS
from fault_injection.faults.fault import Fault, Target
from fault_injection.sim.lane import commit
from fault_injection.testbed import corpus
from supervisor.core.model.spec import DataSpec, RunSpec
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.history.files import Left, Seen
from supervisor.wire.records import RunRecord
from tests.unit.fault_injection.files import RUN, story

pytestmark = pytest.mark.usefixtures("able")

SCHEDULE = Schedule(seed=5, fault=(FaultAt(name="hiccup", at_step=3, group=1, rank=0),))


class Played:
    """A run that steps at each look, with the files of the story."""

    def __init__(self, folder: Path) -> None:
        story(folder).write()
        self.record = RunRecord(spec=own.spec(RUN), run_dir=str(folder / RUN), launched_unix_s=0.0)
        self.run, self.run_dir, self.system = RUN, self.record.run_dir, folder / "system"
        self.scene: Any = self
        self.step, self.stopped, self.healed = 0, False, False
        self.at_stop: BaseException | None = None
        self.at_end: BaseException | None = None
        """The exception raised while it stops, and while the system ends."""
        self.ended = ""
        self.spec: RunSpec | None = None
        self.stores: list[Path] = []

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
        if self.at_stop is not None:
            raise self.at_stop
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
    def started(home: Path, spec: RunSpec, *_: Any) -> Iterator[Played]:
        made.spec = spec
        yield made
        if made.at_end is not None:
            raise made.at_end

    monkeypatch.setattr(own, "started", started)
    monkeypatch.setattr(corpus, "build_store", lambda folder, megabytes: made.stores.append(folder))
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
    tokens = tmp_path / "runs" / RUN / "tokens"
    assert played.stores == [tokens]
    assert played.spec is not None
    assert played.spec.titan.data == DataSpec(source="tokens", path=str(tokens))
    assert played.spec.titan.global_batch == "constant"
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
        "sentences": [
            "the plan was given up: interrupted",
            "fault 1 (hiccup of group 1 rank 0 at step 4) left no evidence: interrupted while it was made",
        ],
    }
    (fault,) = report["faults"]
    assert (fault["evidence"], fault["over_s"]) == ("", None)
    assert fault["undone_s"] is not None, "when it was healed is recorded"
    assert report["loss_parity"]["why"] == "the run was interrupted", "who interrupts it does not wait for a twin"


def test_what_is_broken_by_says_which_sources_and_which_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etcd").write_text("#!/bin/sh\necho 'etcd Version: 3.4.23'\necho 'Git SHA: Not provided'\n")
    (tmp_path / "etcd").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    told = versions()
    assert (told["etcd"], told["commit"]) == ("3.4.23", commit())


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
    assert "the plan was given up: the run is halted: enough" in happened(tmp_path)


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


def happened(folder: Path) -> tuple[str, ...]:
    """Sentences of `supervisor chaos check` about it."""
    verdicts = {v.checker: v for v in check(read(folder / "out" / "history.jsonl"), ALL)}
    assert verdicts["every_fault_happened"].answer == "fail"
    return verdicts["every_fault_happened"].sentences


def test_what_nobody_has_foreseen_ends_the_breaking_and_is_judged(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trips(scene: Played, target: Target, after: ExitStack) -> str:
        after.callback(setattr, scene, "healed", True)
        return str(int(""))

    breaks(monkeypatch, trips)
    said: list[str] = []
    assert campaign(tmp_path, said).on_its_own(tmp_path / "runs", RUN, cold=True) is False
    assert played.healed
    assert played.stopped
    why, evidence = happened(tmp_path)
    assert re.fullmatch(r"the plan was given up: ValueError\(.*\) \(test_campaign\.py, line \d+\)", why)
    assert evidence.endswith("left no evidence")
    assert why.replace("the plan was ", "") in said
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("what is this")])
def test_a_system_that_does_not_end_has_its_certificate_and_is_not_well(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    breaks(monkeypatch, hiccup)
    write = certificate.write
    monkeypatch.setattr(certificate, "write", lambda *a: {**write(*a), "green": True})
    played.at_end = error
    said: list[str] = []
    assert campaign(tmp_path, said).on_its_own(tmp_path / "runs", RUN, cold=True) is False
    (told,) = [line for line in said if line.startswith("the system did not end as it should: ")]
    assert str(error) in told
    assert (tmp_path / "out" / "report.html").exists()
    played.at_end = None
    again = replace(campaign(tmp_path / "files", said), out=tmp_path / "again")
    assert again.on_its_own(tmp_path / "runs", RUN, cold=True) is True


def test_a_system_that_does_not_begin_says_so(played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any) -> Any:
        raise Fatal("etcd does not start")

    monkeypatch.setattr(own, "started", started)
    monkeypatch.setattr(corpus, "build_store", lambda folder, megabytes: None)
    with pytest.raises(Fatal, match="etcd does not start"):
        campaign(tmp_path, []).on_its_own(tmp_path / "runs", RUN, cold=True)


def test_a_run_that_does_not_stop_has_its_certificate(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch, hiccup)
    played.at_stop = Retryable("etcd does not answer", after_s=1.0)
    said: list[str] = []
    assert campaign(tmp_path, said).on_its_own(tmp_path / "runs", RUN, cold=True) is False
    assert "the run was not seen to end: etcd does not answer" in said
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["checkers"]["nothing_left"]["answer"] == "unknown"


@pytest.mark.parametrize("while_it", ["is healed", "stops", "ends"])
def test_who_interrupts_what_comes_after_leaves_with_the_history(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, while_it: str
) -> None:
    def interrupted(scene: Played, target: Target, after: ExitStack) -> str:
        if while_it == "is healed":
            after.callback(interrupted_again)
        raise KeyboardInterrupt

    def interrupted_again() -> None:
        raise KeyboardInterrupt

    breaks(monkeypatch, hiccup if while_it == "ends" else interrupted)
    played.at_stop = KeyboardInterrupt() if while_it == "stops" else None
    played.at_end = KeyboardInterrupt() if while_it == "ends" else None
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        campaign(tmp_path, said).on_its_own(tmp_path / "runs", RUN, cold=True)
    assert said[-1] == f"history: {tmp_path / 'out' / 'history.jsonl'}"
    assert ("interrupted: what was broken is healed" in said) == (while_it == "stops")
    assert ("interrupted again: not all that was broken is healed" in said) == (while_it == "is healed")
    history = read(tmp_path / "out" / "history.jsonl")
    assert history.setting is not None
    assert history.setting.given_up == ("" if while_it == "ends" else "interrupted")
    assert [fault.name for fault in history.faults] == ["hiccup"]
    assert (history.left is None) == (while_it != "ends")


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


def test_where_no_token_store_can_be_built_nothing_is_left(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(folder: Path, megabytes: float) -> None:
        folder.mkdir(parents=True)
        raise Fatal("no space is left")

    monkeypatch.setattr(corpus, "build_store", no_space)
    with pytest.raises(Fatal, match="no space is left"):
        campaign(tmp_path, []).on_its_own(tmp_path / "runs", RUN, cold=True)
    assert list((tmp_path / "runs").iterdir()) == [], "the same command may be given again"
    assert not played.stopped
