"""The hanging ranks of a group are reported together."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from agents.agent import node_view as views
from agents.agent.node_view import View
from agents.health.step_timing import LEARNED_AT_LEAST, UNSEEN_S, WARM_UP_COMMITS
from agents.shim.settings import Settings
from supervisor.core.model.observed import DebugView
from supervisor.core.model.spec import HangSpec
from supervisor.core.model.stacks import Frame, StackView
from supervisor.wire.activity import Activity
from supervisor.wire.records import ProcessRecord, Progress, encode
from titan_actor.activity import ActivityFile

WAY = "toy.0.1"
A, B = (StackView(frames=(Frame(name, "x.py", 1),)) for name in "ab")
LIMITS = {WAY: HangSpec(factor=10.0, at_least_s=5.0, at_most_s=600.0)}
LEARNED = WARM_UP_COMMITS + LEARNED_AT_LEAST + 1


class Slow:
    """Stacks that arrive when the test decides."""

    def __init__(self) -> None:
        self.known: dict[str, StackView] = {}
        self.asked: set[str] = set()

    def of(self, name: str, pid: int, folder: str) -> StackView | None:
        self.asked.add(name)
        return self.known.get(name)

    def drop(self, name: str) -> None:
        self.known.pop(name, None)
        self.asked.discard(name)


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> Slow:
    made = Slow()
    monkeypatch.setattr(views, "Stacks", lambda: made)
    return made


@pytest.fixture
def view(tmp_path: Path, stacks: Slow) -> View:
    """Two ranks that have learned a bound of 10 s; rank 1's last step was committed half a second after rank 0's."""
    made = View(Settings(node="n1", home=tmp_path, etcd=("h:1",)))
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        made.put(ProcessRecord(name=f"{WAY}.{rank}", pid=os.getpid(), start_ticks=1, folder=str(folder)))
    for step in range(1, LEARNED + 1):
        for rank in range(2):
            commits(made, tmp_path, rank, step)
            made.look_for_hangs(LIMITS, step + 0.5 * rank)
    assert told(made) == set()
    return made


def commits(view: View, home: Path, rank: int, step: int, debugging: DebugView | None = None) -> None:
    progress = Progress(
        run="toy",
        group=0,
        generation=1,
        rank=rank,
        pid=1,
        sequence=step,
        phase="step",
        step=step,
        commits=step,
        step_s=1.0,
        debugging=debugging,
    )
    (home / str(rank) / "progress.json").write_bytes(encode(progress))
    view.poll(100.0 * step + rank)


def told(view: View) -> set[int]:
    return {trainer.rank for trainer in view.observed().trainers if trainer.stuck is not None}


def test_one_that_is_nearly_at_its_bound_is_told_with_the_one_that_is(view: View, stacks: Slow) -> None:
    view.look_for_hangs(LIMITS, LEARNED + 9.9)
    assert stacks.asked == set()
    stacks.known = {f"{WAY}.0": A, f"{WAY}.1": B}
    view.look_for_hangs(LIMITS, LEARNED + 10.1)
    assert told(view) == {0, 1}


@pytest.mark.parametrize("pause", ["checkpoint", "evaluate", "compile", "save"])
def test_who_waits_for_a_rank_that_may_take_longer_does_not_hang_before_that_one(
    view: View, stacks: Slow, tmp_path: Path, pause: Activity
) -> None:
    """Rank 0 alone does `pause` for the first time, and how long that takes is not known yet."""
    ActivityFile(tmp_path / "0").set(pause)
    view.poll(100.0 * LEARNED + 2)
    view.look_for_hangs(LIMITS, LEARNED + 1.0)
    view.look_for_hangs(LIMITS, LEARNED + 1.0 + LIMITS[WAY].at_most_s - 2.0)
    assert stacks.asked == set()
    stacks.known = {f"{WAY}.0": A, f"{WAY}.1": B}
    view.look_for_hangs(LIMITS, LEARNED + 1.0 + LIMITS[WAY].at_most_s)
    assert told(view) == {0, 1}


def test_nobody_is_told_before_the_stacks_of_all_are_known(view: View, stacks: Slow) -> None:
    stacks.known = {f"{WAY}.0": A}
    view.look_for_hangs(LIMITS, LEARNED + 10.1)
    assert told(view) == set()
    stacks.known[f"{WAY}.1"] = B
    view.look_for_hangs(LIMITS, LEARNED + 10.2)
    assert told(view) == {0, 1}


def test_one_that_goes_on_is_told_no_more(view: View, stacks: Slow, tmp_path: Path) -> None:
    stacks.known = {f"{WAY}.0": A, f"{WAY}.1": B}
    view.look_for_hangs(LIMITS, LEARNED + 11.0)
    commits(view, tmp_path, 1, LEARNED + 1)
    view.look_for_hangs(LIMITS, LEARNED + 11.1)
    assert told(view) == {0}
    commits(view, tmp_path, 0, LEARNED + 1)
    view.look_for_hangs(LIMITS, LEARNED + 11.2)
    assert told(view) == set()


def test_a_generation_with_a_rank_in_the_debugger_does_not_hang(view: View, stacks: Slow, tmp_path: Path) -> None:
    before = view.milestones()
    at = DebugView(function="f", file="x.py", line=1, since_unix_s=0.0)
    commits(view, tmp_path, 0, LEARNED + 1, at)
    assert view.milestones() != before, "reported at once"
    assert view.debugged() == {WAY}
    for second in range(1, 3000):
        stacks.known = {f"{WAY}.0": A, f"{WAY}.1": B}
        view.look_for_hangs(LIMITS, LEARNED + 1.0 + second)
    assert told(view) == set()
    commits(view, tmp_path, 0, LEARNED + 2)
    assert view.debugged() == frozenset()
    stacks.known = {f"{WAY}.0": A, f"{WAY}.1": B}
    view.look_for_hangs(LIMITS, LEARNED + 3001.0)
    assert told(view) == set(), "the time in the debugger counts for nothing"
    stacks.known = {f"{WAY}.0": A, f"{WAY}.1": B}
    view.look_for_hangs(LIMITS, LEARNED + 3001.0 + 2 * LIMITS[WAY].at_most_s)
    assert told(view) == {0, 1}, "and then its steps count again"


def test_what_could_not_be_seen_counts_for_nothing(view: View, stacks: Slow, tmp_path: Path) -> None:
    """Their files did not answer for a minute, in which the ranks may or may not have waited for them."""
    view.look_for_hangs(LIMITS, LEARNED + 1.0)
    view.unseen()
    view.look_for_hangs(LIMITS, LEARNED + 61.0)
    stacks.known = {f"{WAY}.0": A, f"{WAY}.1": A}
    view.look_for_hangs(LIMITS, LEARNED + 61.0 + 8.9 - UNSEEN_S)
    assert (told(view), stacks.asked) == (set(), set())
    commits(view, tmp_path, 0, LEARNED + 1)
    stacks.known[f"{WAY}.1"] = A
    view.look_for_hangs(LIMITS, LEARNED + 61.0 + 9.6 - UNSEEN_S)
    assert told(view) == {1}, "one that does not go on hangs, by the bound that it had learned"
    assert view.observed().trainers[0].measured.longest_step_s == 1.0


def test_of_one_that_is_not_seen_any_more_nobody_says_that_it_hangs(view: View, stacks: Slow, tmp_path: Path) -> None:
    """The rank waited for another group; that is back, and all go on while the disk here does not answer."""
    stacks.known = {f"{WAY}.0": A, f"{WAY}.1": B}
    view.look_for_hangs(LIMITS, LEARNED + 11.0)
    assert told(view) == {0, 1}
    before = view.milestones()
    view.unseen()
    assert told(view) == set()
    assert view.milestones() != before, "told at once"
    view.look_for_hangs(LIMITS, LEARNED + 12.0)
    assert told(view) == {0, 1}, "it does still"
    view.unseen()
    commits(view, tmp_path, 0, LEARNED + 1)
    view.look_for_hangs(LIMITS, LEARNED + 13.0)
    assert told(view) == {1}


def test_one_that_cannot_write_its_progress_is_not_told_while_it_goes_on(
    view: View, stacks: Slow, tmp_path: Path
) -> None:
    doing = ActivityFile(tmp_path / "0")
    for tenths in range(1, 1000):
        doing.set("compute" if tenths % 2 else "quorum")
        view.poll(1000.0 + tenths)
        view.look_for_hangs(LIMITS, LEARNED + tenths / 10, untold=True)
        assert 0 not in told(view)
    assert f"{WAY}.0" not in stacks.asked


def test_what_its_disk_says_is_told_with_a_ranks_end(
    view: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence = f"{tmp_path}: No space left on device"
    monkeypatch.setattr(views, "takes_nothing", lambda folder: sentence)
    record = ProcessRecord(name=f"{WAY}.0", pid=os.getpid(), start_ticks=1, folder=str(tmp_path / "0"), exit_code=1)
    assert view.put(replace(record, exited=True))
    (end,) = [trainer.exit for trainer in view.observed().trainers if trainer.state == "exited"]
    assert end is not None
    assert end.disk == sentence


def test_each_generation_that_meets_here_has_another_port(tmp_path: Path) -> None:
    """A store hands out what ranks of the generation before wrote into it."""
    view = View(Settings(node="n1", home=tmp_path, etcd=("h:1",), address="127.0.0.1"))
    first, before = view.observed().store, view.milestones()
    host, _, port = first.rpartition(":")
    assert (host, int(port) > 0) == ("127.0.0.1", True)
    view.used("10.9.8.7:4711")
    assert (view.observed().store, view.milestones()) == (first, before), "they meet on another node"
    view.used(first)
    assert view.observed().store not in ("", first)
    assert view.milestones() != before, "the supervisor hears of it at once"
