"""The digest of the rules changes with any rule, in whichever room of the core it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor import core
from supervisor.shell.control.build_info import program


def test_a_rule_in_a_room_is_a_part_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = tmp_path / "policy" / "ladder.py"
    rule.parent.mkdir()
    rule.write_text("FIRST = 1\n")
    monkeypatch.setattr(core, "__file__", str(tmp_path / "__init__.py"))
    before = program.__wrapped__()
    rule.write_text("FIRST = 2\n")
    assert program.__wrapped__() != before
