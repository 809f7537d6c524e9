"""An incident in plain words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.model.code import CodeVersion
from supervisor.core.model.incident import Confidence, Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code, Reason
from supervisor.core.report.explain import DONE, FOLLOWED, LEFT, MOVED, OUTSIDE, done, explain
from tests.helpers.reasons import SEGFAULT, spent, text

INCIDENT = Incident(
    id="i7",
    kind=Kind.CRASH,
    group=3,
    node="n4",
    rung=Rung.REPLACE,
    generation_before=2,
    generation_after=3,
    reason=Reason.of(Code.TEXT, text="a process ended"),
    evidence=(SEGFAULT, Reason.of(Code.TEXT, text="once more")),
    considered=(spent("restart", 3),),
    state="recovered",
    opened=100.0,
    decided=100.5,
    acted=102.25,
    recovered=110.0,
)

FRESH = replace(
    INCIDENT,
    node="",
    reason=None,
    considered=(),
    generation_after=2,
    state="open",
    decided=None,
    acted=None,
    recovered=None,
)


def test_it_says_what_was_seen_done_and_considered_and_how_long_it_took() -> None:
    text = "\n".join(explain(INCIDENT))
    for part in (
        "Incident i7: group 3 on node n4: crash",
        "rank 0 was ended by SIGSEGV (signal 11)",
        "once more",
        "rung 2 (replace)",
        DONE[Rung.REPLACE],
        "Why: a process ended.",
        "restart: budget spent (3 within 3600 s)",
        "State: recovered.",
        "Generation 2 -> 3.",
        "detected  at 100.00 s of the run clock",
        "decided   0.50 s later",
        "acted     1.75 s later, 2.25 s after it was detected: its new processes were seen",
        "back      7.75 s later, 10.00 s after it was detected",
    ):
        assert part in text, part


def test_it_says_which_checkpoint_the_group_was_started_from() -> None:
    said = "step 200 of group 0, generation 1, the newest complete one; the record in etcd had step 50"
    assert f"Started from: {said}." in explain(replace(INCIDENT, resumed=text(said)))
    assert "Started from" not in "\n".join(explain(INCIDENT)), "it healed from peers"


def test_the_code_that_failed_is_named() -> None:
    code = CodeVersion(version="3f2a91c0d4e5" + "0" * 52, folder="/home/me/code")
    assert "It ran code 3f2a91c0d4e5 of /home/me/code." in explain(replace(INCIDENT, code=code))
    assert "code" not in "\n".join(explain(INCIDENT))


def test_it_shows_the_traceback_of_an_error() -> None:
    trace = 'Traceback (most recent call last):\n  File "/x.py", line 3, in f\nKeyError: 1'
    lines = explain(replace(INCIDENT, trace=trace))
    assert lines[lines.index("The traceback:") + 1 :][:3] == [f"  {line}" for line in trace.splitlines()]
    assert "The traceback:" not in explain(INCIDENT)


@pytest.mark.parametrize(("kind", "told"), [(Kind.ERROR, 6), (Kind.NUMERICS, 1)])
def test_of_a_long_traceback_it_shows_the_newest_frames(kind: Kind, told: int) -> None:
    """For a number that is not finite it shows the last frame alone: the way there is the same for each."""
    frames = [part for n in range(9) for part in (f'  File "/x.py", line {n}, in f', f"    g({n})")]
    trace = "\n".join(["Traceback (most recent call last):", *frames, "NotFinite: loss is nan"])
    lines = explain(replace(INCIDENT, kind=kind, trace=trace))
    at = lines.index(f"The traceback, without its {9 - told} oldest of 9 frames (--json has all):")
    shown = [*frames[-2 * told :], "NotFinite: loss is nan"]
    assert lines[at + 1 :][: len(shown)] == [f"  {line}" for line in shown]
    assert not any("line 2," in line for line in lines)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({}, DONE[Rung.REPLACE]),
        ({"followed": True}, FOLLOWED),
        ({"outside": True}, OUTSIDE),
        ({"kind": Kind.LEAVING}, LEFT),
        ({"rung": Rung.RESTART, "considered": (Reason.of(Code.MOVED, why=SEGFAULT),)}, MOVED),
    ],
    ids=["replaced", "followed", "outside", "left", "moved"],
)
def test_that_no_host_was_cordoned_is_said_where_none_was(about: dict[str, Any], words: str) -> None:
    assert done(replace(INCIDENT, **about))[1] == f"  {words}"
    assert ("no host was cordoned" in words) == bool(about)


def test_all_nodes_that_a_group_lost_are_named() -> None:
    lost = replace(INCIDENT, kind=Kind.NODE_LOST, nodes=("n3", "n4"))
    assert explain(lost)[0] == "Incident i7: group 3 on nodes n3, n4: node_lost (certain)"
    assert done(lost)[1].startswith(
        "  For each of the nodes n3, n4: the node's host was cordoned, a spare took its place"
    )
    assert "For each" not in done(replace(lost, rung=Rung.RESTART))[1]


def test_what_each_rung_would_cost_is_listed() -> None:
    lines = explain(replace(INCIDENT, costs=(Reason.of(Code.WITHOUT_SPARE),)))
    at = lines.index("What each would cost, in lost group-seconds until it steps again:")
    assert lines[at + 1] == "  - replace: there is no spare"


@pytest.mark.parametrize(
    ("state", "more"),
    [
        ("open", []),
        ("acting", []),
        ("recovered", ["  It recovered by itself."]),
        ("halted", ["  It did not recover by itself."]),
    ],
)
def test_what_was_only_observed_says_how_it_ended_once_it_has(state: str, more: list[str]) -> None:
    told = done(replace(INCIDENT, shadow=True, state=state))
    assert told == ["What would have been done: rung 2 (replace). The policy was only to observe.", *more]


def test_what_has_not_happened_is_not_told() -> None:
    text = "\n".join(explain(FRESH))
    assert "on node -" in text
    assert "Nothing was done yet: nothing was decided." in text
    for part in ("considered", "Generation", "later", "acted", "back ", "What was done", DONE[Rung.REPLACE], "rung"):
        assert part not in text


@pytest.mark.parametrize("rung", list(Rung))
def test_where_nothing_was_decided_nothing_was_done(rung: Rung) -> None:
    """This holds for any rung that it would begin with."""
    assert done(replace(FRESH, rung=rung)) == ["Nothing was done yet: nothing was decided."]
    assert done(replace(FRESH, rung=rung, state="halted")) == ["Nothing was done."]


@pytest.mark.parametrize("rung", [Rung.RESTART, Rung.REPLACE, Rung.REALLOCATE])
def test_what_was_only_decided_is_not_told_as_done(rung: Rung) -> None:
    decided = replace(INCIDENT, rung=rung, state="acting", acted=None, recovered=None)
    name = f"rung {rung.value} ({rung.name.lower()})"
    assert done(decided) == [f"Decided: {name}; it is under way."]
    assert done(replace(decided, state="halted")) == [f"Decided: {name}; it was not carried out any more."]


def test_why_nothing_was_decided_is_told_with_the_decision_too() -> None:
    paused = "group 3: rank 0 ended; the run is paused, nothing is done"
    for of in (FRESH, INCIDENT):
        text = explain(of, waits=(paused,))
        assert text[text.index("Why not at once:") + 1] == f"  - {paused}"


def test_one_whose_kind_changed_tells_its_first_sign_and_when_it_counted_as_what_it_is() -> None:
    hang = replace(INCIDENT, kind=Kind.HANG, took_s=2.07, decided=128.5, acted=130.0, recovered=140.0)
    text = explain(hang, became=((100.0, Kind.SILENT), (128.0, Kind.HANG)))
    when = text[text.index("When:") + 1 :]
    assert when[:4] == [
        "  detected  at 100.00 s of the run clock, as silent (its first sign was 2.07 s before that)",
        "  hang      28.00 s later: only now it counted as that",
        "  decided   0.50 s later, 28.50 s after it was detected",
        "  acted     1.50 s later, 30.00 s after it was detected: its new processes were seen",
    ]


def test_what_the_run_clock_does_not_have_is_added_where_it_was_lost() -> None:
    """It adds no time lost before it was detected, nor after its end; and it does not name the leader of then."""
    text = explain(INCIDENT, stood=((99.0, 500.0), (100.5, 30.0), (110.0, 500.0)))
    when = text[text.index("When:") + 1 :]
    assert when[1:5] == [
        "  decided   0.50 s later",
        "  acted     31.75 s later, 32.25 s after it was detected: its new processes were seen",
        "  back      7.75 s later, 40.00 s after it was detected",
        "  (30.00 s of it are not on the run clock: another supervisor took the lead)",
    ]


def test_an_instant_of_zero_is_an_instant() -> None:
    assert "  decided   0.00 s later" in explain(replace(INCIDENT, opened=0.0, decided=0.0))


def test_when_it_was_is_told_as_it_is_given() -> None:
    assert "  detected  yesterday at noon" in explain(INCIDENT, "yesterday at noon")


@pytest.mark.parametrize("rung", list(Rung))
def test_every_rung_has_its_words(rung: Rung) -> None:
    assert DONE[rung] in "\n".join(explain(replace(INCIDENT, rung=rung)))


@pytest.mark.parametrize(("took_s", "said"), [(30.0, "30 s"), (12.34567, "12.35 s"), (1801.25, "1801.25 s")])
def test_it_says_whose_how_sure_and_how_long_it_had_lasted(took_s: float, said: str) -> None:
    hang = replace(INCIDENT, kind=Kind.HANG, rank=2, confidence=Confidence.LIKELY, took_s=took_s)
    text = explain(hang)
    assert text[0] == "Incident i7: group 3, rank 2, on node n4: hang (likely)"
    assert f"  detected  at 100.00 s of the run clock (it had lasted {said} before it counted as a failure)" in text
    assert "counted as a failure" not in "\n".join(explain(INCIDENT))
