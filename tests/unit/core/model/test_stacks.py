"""Stacks that older agents sent as a sentence are read as frames."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from supervisor.core.model.observed import StuckView
from supervisor.core.model.stacks import Frame, StackView, of_text

WAITS, MAIN = Frame("wait", "gloo.py", 91), Frame("<module>", "train.py", 7)
COPIES = Frame("copies", "loader.py", 7)
STUCK: TypeAdapter[StuckView] = TypeAdapter(StuckView)

SENTENCES = [
    ("", None),
    ("in wait (gloo.py:91) < <module> (train.py:7)", StackView(frames=(WAITS, MAIN))),
    ("in wait (gloo.py:91), holding the interpreter's lock", StackView(frames=(WAITS,), holds_lock=True)),
    (
        "in wait (gloo.py:91); another thread holds the interpreter's lock, in copies (loader.py:7)",
        StackView(frames=(WAITS,), held_at=(COPIES,)),
    ),
    ("its main thread runs no Python", StackView()),
    (
        "its main thread runs no Python; another thread holds the interpreter's lock, in copies (loader.py:7)",
        StackView(held_at=(COPIES,)),
    ),
    ("its stack is not known (py-spy does not end)", StackView(unknown="py-spy does not end")),
    ("its stack is not known (ValueError: No such (process)\n)", StackView(unknown="ValueError: No such (process)\n")),
]


@pytest.mark.parametrize(("text", "stack"), SENTENCES, ids=[text for text, _ in SENTENCES])
def test_a_sentence_is_read_as_frames(text: str, stack: StackView | None) -> None:
    assert of_text(text) == stack
    assert STUCK.validate_python({"activity": "data", "stack": text}) == StuckView(activity="data", where=stack)


def test_frames_are_read_back_as_they_were() -> None:
    stuck = StuckView(activity="data", where=StackView(frames=(WAITS, MAIN), held_at=(COPIES,)))
    assert STUCK.validate_json(STUCK.dump_json(stuck)) == stuck
