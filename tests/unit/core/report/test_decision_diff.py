"""Comparison of today's answer with the one that was given then."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.decision import Action
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.report.decision_diff import Answer, compare
from tests.helpers.reasons import text

START = Action(
    verb="start", key="start:1:2", reason=text("a process ended"), group=1, generation=2, node="n1", incident="i1"
)
CORDON = Action(verb="cordon", key="cordon:n1:i1", reason=text("incident i1"), node="n1", incident="i1")
INCIDENT = Incident(
    id="i1", kind=Kind.CRASH, group=1, node="n1", rung=Rung.RESTART, generation_before=1, generation_after=2,
    reason=text("a process ended"), evidence=(text("SIGSEGV"),), state="acting", opened=5.0, decided=5.0,
)  # fmt: skip
THEN = Answer((START, CORDON), (INCIDENT,))


def test_the_same() -> None:
    assert compare(THEN, THEN).verdict == "same"
    assert compare(THEN, THEN).differences == ()
    assert compare(Answer(), Answer()).verdict == "same"


def test_other_words_are_told_apart_from_another_deed() -> None:
    said = replace(
        INCIDENT,
        reason=text("it ended"),
        evidence=(text("signal 11"),),
        considered=(text("x"),),
        costs=(text("y"),),
        trace="t",
    )
    found = compare(THEN, Answer((replace(START, reason=text("again")), CORDON), (said,)))
    assert found.verdict == "words"
    assert "action start:1:2: reason was 'a process ended', today it is 'again'" in found.differences
    assert "incident i1: evidence was 'SIGSEGV', today it is 'signal 11'" in found.differences


def test_another_rung_is_another_answer_and_words_are_left_out_of_it() -> None:
    found = compare(THEN, Answer((START, CORDON), (replace(INCIDENT, rung=Rung.REPLACE, reason=text("dearer")),)))
    assert found.verdict == "another"
    assert found.differences == ("incident i1: rung was '1', today it is '2'",)


def test_an_action_more_or_less_is_another_answer() -> None:
    assert compare(THEN, Answer((START,), (INCIDENT,))).differences == ("action cordon:n1:i1: then, and not today",)
    assert compare(Answer((START,), (INCIDENT,)), THEN).differences == ("action cordon:n1:i1: today, and not then",)
    assert compare(THEN, Answer((START, CORDON))).differences == ("incident i1: then, and not today",)


def test_another_order_is_another_answer() -> None:
    found = compare(THEN, Answer((CORDON, START), (INCIDENT,)))
    assert (found.verdict, found.differences) == ("another", ("the actions are in another order",))


def test_a_long_text_is_cut() -> None:
    found = compare(THEN, Answer((replace(START, reason=text("x" * 5000)), CORDON), (INCIDENT,)))
    assert len(found.differences[0]) < 400
