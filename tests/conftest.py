"""Writes how long each test of a lane took, and reports a lane that is far over its budget."""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

LANE = "LANE"
"""Environment variable: the lane that runs, as the Makefile names it. Without it nothing is written."""
TESTS = Path(__file__).parent
FOLDER = TESTS.parent / "build/durations"
OVER = 4 / 3
"""A lane that takes this many times its budget is reported."""


# a slow machine is no failure of an example
settings.register_profile("everstep", deadline=None)
settings.load_profile("everstep")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED] = time.monotonic()


STARTED = pytest.StashKey[float]()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lane = os.environ.get(LANE)
    if not lane:
        return
    took_s = time.monotonic() - config.stash[STARTED]
    budget_s = tomllib.loads((TESTS / "lanes.toml").read_text())["budget_s"][lane]
    reports = [r for found in terminalreporter.stats.values() for r in found if isinstance(r, pytest.TestReport)]
    write(FOLDER / f"{lane}.json", reports, took_s, budget_s)
    if said := over(lane, took_s, budget_s):
        terminalreporter.write_line(said, yellow=True)


def write(file: Path, reports: list[pytest.TestReport], took_s: float, budget_s: float) -> None:
    """Writes the seconds of each test, with its fixtures, the longest first."""
    seconds: Counter[str] = Counter()
    for report in reports:
        seconds[report.nodeid] += report.duration
    file.parent.mkdir(parents=True, exist_ok=True)
    tests = {name: round(s, 2) for name, s in seconds.most_common()}
    file.write_text(json.dumps({"seconds": round(took_s, 1), "budget_s": budget_s, "tests": tests}, indent=1) + "\n")


def over(lane: str, took_s: float, budget_s: float) -> str:
    """Returns the sentence about a lane that is over its budget by a third or more; else an empty string."""
    if took_s < OVER * budget_s:
        return ""
    return (
        f"The {lane} lane took {took_s:.0f} s, and its budget is {budget_s:.0f} s (tests/lanes.toml). "
        f"The longest tests are in build/durations/{lane}.json."
    )
