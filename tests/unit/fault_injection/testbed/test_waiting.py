"""`eventually`, the tests' only wait."""

from __future__ import annotations

import time

import pytest

from fault_injection.testbed import waiting


def test_what_never_comes_is_waited_for_as_long_as_it_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "slowness", lambda: 1.0)
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"not within 0.2 s: the answer \(last answer 0\)"):
        waiting.eventually(lambda: 0, 0.2, "the answer")
    assert time.monotonic() - began >= 0.2


def test_a_slow_machine_is_given_longer_once_it_is_found_to_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "slowness", lambda: 3.0)
    began = time.monotonic()
    assert waiting.eventually(lambda: time.monotonic() - began > 0.3, 0.2)
    with pytest.raises(AssertionError, match=r"not within 0\.6 s"):
        waiting.eventually(lambda: 0, 0.2)


def test_how_slow_it_is_is_bounded() -> None:
    assert 1.0 <= waiting.slowness() <= 4.0
