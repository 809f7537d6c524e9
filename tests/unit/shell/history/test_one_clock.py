"""A leader's clock is hours off those of the nodes: the ledger of its run does not change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.shell.history import account
from supervisor.shell.history.files import read
from supervisor.shell.history.one_clock import retimed
from tests.unit.fault_injection.files import RUN, story

HOUR_S = 3600.0

BORN = {(0, 1): 2.0, (1, 1): 2.0, (1, 2): 11.0, (1, 3): 19.5}
"""Times at which the story's generations were born."""


def told(tmp_path: Path, clock: Callable[[float], float]) -> Path:
    """The story's run, with the run clock in its journal; `clock`: the leader's wall clock at a time of the nodes'."""
    files = story(tmp_path)
    files.decide(23.5, 8, {0: 1, 1: 3})
    for line in files.journal:
        if line["entry"] == "intent":
            line |= {"now": line["t"] + 70.0, "phase": "finished" if line["decision"] == 8 else "running"}
            for group, says in line["groups"].items():
                is_born = BORN[int(group), says["generation"]] < line["t"]
                says["phase"] = line["phase"] if is_born else "starting"
        line["t"] = round(clock(line["t"]), 4)
    files.write()
    (tmp_path / "system").rename(tmp_path / ".supervisor")
    return tmp_path / RUN


def counted(folder: Path) -> dict[str, Any]:
    found = account.of_run(folder, now=1e6)
    return {name: found[name] for name in ("ettr", "causes", "groups", "incidents", "seconds", "wrong", "over")}


@pytest.fixture
def right(tmp_path: Path) -> dict[str, Any]:
    found = counted(told(tmp_path / "right", lambda t: t))
    assert (found["wrong"], found["over"]) == ([], True)
    assert found["ettr"] > 0.6
    return found


@pytest.mark.parametrize("off_s", [HOUR_S, -HOUR_S, 40 * 24 * HOUR_S])
def test_a_leaders_clock_that_is_off_changes_no_second(tmp_path: Path, right: dict[str, Any], off_s: float) -> None:
    """Except for the moment between the quickest decision and its process, known no better: two tenths of a second."""
    found = counted(told(tmp_path / "off", lambda t: t + off_s))
    assert (found["wrong"], found["seconds"]) == ([], right["seconds"])
    assert found["ettr"] == pytest.approx(right["ettr"], abs=0.02)
    for cause, seconds in right["causes"].items():
        assert found["causes"].get(cause, 0.0) == pytest.approx(seconds, abs=0.5), cause


@pytest.mark.parametrize("at", [11.5, 23.2])
def test_one_that_is_set_within_a_term_does_not_either(tmp_path: Path, right: dict[str, Any], at: float) -> None:
    found = counted(told(tmp_path / "set", lambda t: t + (HOUR_S if t >= at else 0.0)))
    assert (found["wrong"], found["ettr"]) == ([], pytest.approx(right["ettr"], abs=0.02))
    assert found["seconds"] == pytest.approx(right["seconds"], abs=1.0)


def test_clocks_that_may_be_one_are_left_alone(tmp_path: Path) -> None:
    folder = told(tmp_path, lambda t: t + 0.3)
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    history = read(RUN, folder, tmp_path / ".supervisor")
    assert retimed(lines, history.processes, history.newest()) == lines
