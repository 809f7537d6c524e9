"""Named places at which a test may kill the program."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.shell import failpoints

SHELL = Path(failpoints.__file__).parent
AGENTS = SHELL.parent.parent / "agents"
AGENTS = SHELL.parent.parent / "agents"


def run(variable: str, passes: int, **more: str) -> subprocess.CompletedProcess[str]:
    code = f"from supervisor.shell.failpoints import reach\nfor _ in range({passes}): reach('decided'); print('past', flush=True)"
    environment = {"SUPERVISOR_FAILPOINT": variable, **more}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(("variable", "passes", "past"), [("decided", 1, 0), ("decided:1", 3, 0), ("decided:3", 5, 2)])
def test_it_kills_at_the_nth_pass(variable: str, passes: int, past: int) -> None:
    done = run(variable, passes)
    assert (done.returncode, done.stdout.count("past")) == (-signal.SIGKILL, past)


@pytest.mark.parametrize("variable", ["", "committed", "decided:9"])
def test_otherwise_it_goes_on(variable: str) -> None:
    done = run(variable, 3)
    assert (done.returncode, done.stdout.count("past")) == (0, 3)


@pytest.mark.parametrize("variable", ["decidde", "decided:soon", ":1"])
def test_a_typo_stops_the_start(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERVISOR_FAILPOINT", variable)
    with pytest.raises(failpoints.FailpointError, match=f"SUPERVISOR_FAILPOINT = '{variable}'"):
        failpoints.armed()


def test_once_is_once_for_everybody_who_is_told_of_the_same_file(tmp_path: Path) -> None:
    once = str(tmp_path / "once")
    assert run("decided:2", 3, SUPERVISOR_FAILPOINT_ONCE=once).returncode == -signal.SIGKILL
    again = run("decided:2", 3, SUPERVISOR_FAILPOINT_ONCE=once)
    assert (again.returncode, again.stdout.count("past")) == (0, 3)


def test_a_wrong_name_in_the_code_is_an_error() -> None:
    with pytest.raises(AssertionError):
        failpoints.reach("nowhere")


def test_every_name_is_reached_somewhere_and_no_other() -> None:
    reached = set()
    for path in (*SHELL.rglob("*.py"), *AGENTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reach":
                assert isinstance(node.args[0], ast.Constant)
                reached.add(node.args[0].value)
    assert reached == set(failpoints.NAMES)
