"""A loop has no reason to wait here: all that it waits for is there before its turn."""

from __future__ import annotations

import pytest

from supervisor.shell.control import loop


@pytest.fixture(autouse=True)
def no_turn_waits_for_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "IDLE_S", 0.01)
