"""The ledger of a run: of a story in files, and of a real run against its trainers' own records.

`fault_injection/recorded_run`: the first 640 s of a run of two groups on one machine. It was broken 28 times, with
hangs, and once both groups were lost. It has the records of its shims and trainers and its supervisor's decisions.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.goodput.causes import Cause, Interval, ratios, totals
from supervisor.shell.history.files import History
from supervisor.shell.history.goodput import Span, does_not_add_up, ledger, windows
from tests.unit.fault_injection.files import Files, incident, line, place, recorded, seconds, step, story

SPAN = Span(1.0, 30.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> History:
    return recorded(tmp_path_factory.mktemp("run"))


def whole(history: History) -> Span:
    assert history.setting is not None
    return Span(history.setting.began, history.setting.ended)


def overlap(interval: Interval, begin: float, end: float) -> float:
    return max(0.0, min(interval.end, end) - max(interval.start, begin))


def lines(history: History, group: int) -> list[dict[str, Any]]:
    """The lines of a group's trainers, one after the other."""
    return [x for s in history.of_group(group) for x in s.lines]


# --- a real run ---


@pytest.mark.parametrize("group", [0, 1])
def test_every_second_of_a_real_run_is_under_one_cause(run: History, group: int) -> None:
    span = whole(run)
    found = ledger(run, group, span)
    assert sum(totals(found).values()) == pytest.approx(span.end - span.begin, rel=1e-9)
    assert all(a.end == pytest.approx(b.start, abs=1e-6) for a, b in itertools.pairwise(found))


def test_so_is_every_second_of_the_run(run: History) -> None:
    """ETTR is the time that the trainers computed and committed, the first time, of all that there was."""
    span = whole(run)
    ledgers = {g: ledger(run, g, span) for g in (0, 1)}
    assert does_not_add_up(run, ledgers, span) == []
    ettr, badput = ratios(ledgers.values())
    computed = 0.0
    for group in (0, 1):
        newest = 0
        for x in (x for x in lines(run, group) if x["event"] == "step" and x["committed"]):
            computed += x["seconds"]["compute"] + x["seconds"]["commit"] if x["step"] > newest else 0.0
            newest = max(newest, x["step"])
    assert ettr == pytest.approx(computed / (2 * (span.end - span.begin)), rel=0.002)
    assert Cause.OTHER not in badput, "the loads of checkpoints and the ends by an error have their causes"
    stood = sum(totals(x).get(Cause.HUNG, 0.0) for x in ledgers.values())
    assert badput["hung"] == pytest.approx(stood / (2 * (span.end - span.begin)), rel=1e-6)


@pytest.mark.parametrize("group", [0, 1])
def test_it_is_what_the_trainers_wrote_of_their_steps(run: History, group: int) -> None:
    """Both agree within 1% of the time: data, quorum, heal and checkpoints second by second. The steps' own seconds,
    under any causes, are all of those that the trainers computed and committed."""
    span = whole(run)
    found = totals(ledger(run, group, span))
    steps = [x for x in lines(run, group) if x["event"] == "step" and x["committed"]]
    near = {"abs": 0.01 * (span.end - span.begin)}
    for cause in (Cause.DATA, Cause.QUORUM, Cause.HEAL):
        assert found.get(cause, 0.0) == pytest.approx(sum(x["seconds"][cause.value] for x in steps), **near), cause
    saved = sum(x["t"] - x["start"] for x in lines(run, group) if x["event"].startswith("checkpoint"))
    assert found.get(Cause.CHECKPOINT, 0.0) == pytest.approx(saved, **near)
    computed = sum(x["seconds"]["compute"] + x["seconds"]["commit"] for x in steps)
    told = found[Cause.PRODUCTIVE] + found.get(Cause.RECOMPUTE, 0.0)
    assert computed - 1.0 <= told <= computed + 1e-6, "but for a step in which an incident ended its group"


@pytest.mark.parametrize("group", [0, 1])
def test_what_torchft_did_not_commit_is_failed_or_hung(run: History, group: int) -> None:
    failed = sum(x["t"] - x["start"] for x in lines(run, group) if x["event"] == "step" and not x["committed"])
    intervals = ledger(run, group, whole(run))
    found = totals(intervals)
    assert failed > 0
    waited = sum(
        overlap(i, x["start"], x["t"])
        for i in intervals
        for x in lines(run, group)
        if i.cause == Cause.HUNG and x["event"] == "step" and not x["committed"]
    )
    assert found[Cause.FAILED_STEP] + waited == pytest.approx(failed, abs=1e-6)
    hangs = [w for w in windows(run) if w.incident["kind"] == "hang"]
    own = sum(w.acted - w.began for w in hangs if w.incident["group"] == group)
    others = sum(w.acted - w.began for w in hangs if w.incident["group"] != group)
    assert found[Cause.HUNG] == pytest.approx(own + waited, abs=1e-6), "its own hangs, and those for which it waited"
    assert 0 < waited < others


def test_steps_that_were_committed_twice_are_recomputed(run: History) -> None:
    """Both groups were lost once, and repeated the steps that they had committed since the checkpoint. Counted here by
    the steps' numbers alone."""
    for group in (0, 1):
        newest, twice = 0, 0.0
        for x in (x for x in lines(run, group) if x["event"] == "step" and x["committed"]):
            if x["step"] <= newest:
                twice += x["seconds"]["compute"] + x["seconds"]["commit"]
            newest = max(newest, x["step"])
        assert twice > 5.0
        assert totals(ledger(run, group, whole(run)))[Cause.RECOMPUTE] == pytest.approx(twice, rel=0.01)


def test_a_hang_is_hung_for_as_long_as_it_lasted(run: History) -> None:
    hangs = [w for w in windows(run) if w.incident["kind"] == "hang"]
    assert len(hangs) >= 3
    for hang in hangs:
        found = [
            i
            for i in ledger(run, hang.incident["group"], whole(run))
            if overlap(i, hang.began + 1e-6, hang.acted - 1e-6)
        ]
        assert {i.cause for i in found} == {Cause.HUNG}
        assert hang.acted - hang.began >= hang.incident["took_s"]


# --- a story ---


def crash(folder: Path) -> Files:
    """Group 0 trains from 5 on; its process ends at 9.5, seen at 10, decided on at 15, and started again at 15.6."""
    f = Files(folder)
    f.decide(1.0, 1, {0: 1}, [place(0, 1, "n1")])
    one = ("i1", "crash", 0, 1)
    f.decide(9.9, 2, {0: 1}, [], [incident(*one, 1, "open")])
    f.decide(14.9, 3, {0: 2}, [place(0, 2, "n1", "start")], [incident(*one, 2, "acting")])
    f.decide(18.9, 4, {0: 2}, [], [incident(*one, 2, "recovered", acted=16.0, recovered=19.0)])
    f.shims["n1"] = []
    f.shim(2.0, "spawned", "n1", 0, 1)
    f.shim(9.5, "exited", "n1", 0, 1, exit_code=None, signal=11)
    f.shim(15.6, "spawned", "n1", 0, 2)
    f.steps["n1", 0, 1] = [line("start", 2.0, 5.0), *seconds(5.0, 1, 4)]
    f.steps["n1", 0, 2] = [line("start", 15.6, 17.0), *seconds(17.0, 3, 5)]
    return f


def test_what_was_detected_and_not_decided_on_waits_for_the_decision(tmp_path: Path) -> None:
    found = totals(ledger(crash(tmp_path).history(), 0, Span(2.0, 22.0)))
    assert found == {
        Cause.START: pytest.approx(3.0 + 1.4),
        Cause.PRODUCTIVE: pytest.approx(4.0 + 3.0),
        Cause.LOST_STEP: pytest.approx(0.5),
        Cause.DETECT: pytest.approx(0.5),
        Cause.DECIDE: pytest.approx(5.0),
        Cause.ACT: pytest.approx(0.6),
        Cause.RECOMPUTE: pytest.approx(2.0),
    }


def test_a_lost_node_is_waited_for_before_that_is_decided(tmp_path: Path) -> None:
    """It is silent at 9, missed at 10, given up at 15, fenced until 16, started elsewhere at 16.6."""
    f = Files(tmp_path)
    f.decide(1.0, 1, {0: 1}, [place(0, 1, "n1")])
    f.decide(9.9, 2, {0: 1}, [], [incident("i1", "silent", 0, 1, 1, "acting", rung=0)])
    f.decide(14.9, 3, {0: 2}, [], [incident("i1", "node_lost", 0, 1, 2, "acting", rung=2)])
    f.decide(15.9, 4, {0: 2}, [place(0, 2, "n2")])
    f.shims["n1"], f.shims["n2"] = [], []
    f.shim(2.0, "spawned", "n1", 0, 1)
    f.shim(16.6, "spawned", "n2", 0, 2)
    f.steps["n1", 0, 1] = [line("start", 2.0, 5.0), *seconds(5.0, 1, 4)]
    f.steps["n2", 0, 2] = [line("start", 16.6, 18.0), *seconds(18.0, 5, 6)]
    found = totals(ledger(f.history(), 0, Span(2.0, 20.0)))
    assert found == {
        Cause.START: pytest.approx(3.0 + 1.4),
        Cause.PRODUCTIVE: pytest.approx(4.0 + 2.0),
        Cause.DETECT: pytest.approx(1.0),
        Cause.DECIDE: pytest.approx(5.0),
        Cause.PLACE: pytest.approx(1.0),
        Cause.ACT: pytest.approx(0.6),
    }


def test_a_store_that_was_away_is_told_as_the_cause(tmp_path: Path) -> None:
    """This holds while a group has no process; one that trains goes on."""
    f = crash(tmp_path)
    f.journal += [
        {"t": 8.0, "entry": "event", "event": "store", "up": False, "silent_s": 2.0},
        {"t": 12.0, "entry": "event", "event": "term", "epoch": 2},
        {"t": 15.5, "entry": "event", "event": "store", "up": False, "silent_s": 0.3},
    ]
    f.journal.sort(key=lambda x: x["t"])
    history = f.history()
    assert [(o.start, o.end) for o in history.outages] == [(6.0, 12.0), (15.2, 19.0)]
    found = totals(ledger(history, 0, Span(2.0, 22.0)))
    assert found[Cause.STORE_AWAY] == pytest.approx(2.5 + 0.4)
    assert found[Cause.PRODUCTIVE] == pytest.approx(7.0)
    assert Cause.DETECT not in found
    assert sum(found.values()) == pytest.approx(20.0)


@pytest.mark.parametrize(("kind", "cause", "own"), [("hang", Cause.HUNG, 3.0), ("straggler", Cause.STRAGGLING, 2.0)])
def test_what_the_others_waited_for_it_beyond_an_ordinary_step(
    tmp_path: Path, kind: str, cause: Cause, own: float
) -> None:
    """Steps take a second, except one of three seconds, while the incident lasts."""
    f = Files(tmp_path)
    f.decide(1.0, 1, {0: 1, 1: 1}, [place(0, 1, "n1"), place(1, 1, "n2")])
    about = {"took_s": 2.0}
    f.decide(12.0, 2, {0: 1, 1: 1}, [], [incident("i1", kind, 1, 1, 1, "open", **about)])
    f.decide(12.9, 3, {0: 1, 1: 1}, [], [incident("i1", kind, 1, 1, 1, "recovered", **about)])
    for group, node in ((0, "n1"), (1, "n2")):
        f.shims[node] = []
        f.shim(2.0, "spawned", node, group, 1)
        ordinary = {"data": 0.0, "compute": 1.0}
        f.steps[node, group, 1] = [
            line("start", 2.0, 5.0),
            *({**x, "seconds": ordinary} for x in seconds(5.0, 1, 5)),
            {**step(10.0, 13.0, 6), "seconds": {"data": 0.0, "compute": 3.0}},
            *({**x, "seconds": ordinary} for x in seconds(13.0, 7, 7)),
        ]
    history = f.history()
    (window,) = windows(history)
    assert (window.began, window.over) == (10.0, 13.0)
    others = totals(ledger(history, 0, Span(2.0, 20.0)))
    assert others == {Cause.START: 3.0, Cause.PRODUCTIVE: pytest.approx(13.0), cause: pytest.approx(2.0)}
    assert totals(ledger(history, 1, Span(2.0, 20.0)))[cause] == pytest.approx(own)


@pytest.mark.parametrize("parts", [{}, {"quorum": 0.0}, {"quorum": 0.001}, {"data": 0.5, "commit": 0.4}])
@pytest.mark.parametrize("committed", [True, False])
def test_parts_that_fall_short_of_their_step_are_found(
    tmp_path: Path, parts: dict[str, float], committed: bool
) -> None:
    """Else the ledger would stretch them to the step's length, and a millisecond's wait would become a second's."""
    files = story(tmp_path)
    (lines,) = (x for (_, group, _), x in files.steps.items() if group == 0)
    lines[5] |= {"seconds": parts, "committed": committed}
    history = files.history()
    span = Span(1.0, 23.0)
    found = does_not_add_up(history, {0: ledger(history, 0, span)}, span)
    assert found == [f"group 0 generation 1: step 3 took 1.00 s, and its parts {sum(parts.values()):.2f} s"]
