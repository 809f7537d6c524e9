"""The record of durations, and the report of a lane that is over its budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_lane_that_is_over_its_budget_is_reported_with_its_tests(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tests / "lanes.toml").write_text("[budget_s]\nfast = 0\nlight = 600\n")
    (tests / "test_one.py").write_text(
        "def test_one() -> None:\n    pass\n\n\ndef test_two() -> None:\n    assert False\n"
    )

    def ran(lane: str, *more: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *more, str(tests)]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env={**os.environ, "LANE": lane}
        )
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout

    assert "The fast lane took" in ran("fast", "-n", "2")
    told = json.loads((tmp_path / "build/durations/fast.json").read_text())
    assert set(told["tests"]) == {"tests/test_one.py::test_one", "tests/test_one.py::test_two"}
    assert "lane took" not in ran("light")
    assert (tmp_path / "build/durations/light.json").exists()
    assert "lane took" not in ran("")
