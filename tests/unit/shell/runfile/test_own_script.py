"""A run file that names a command of the user's own instead of TorchTitan's trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.shell.inspect import client
from supervisor.shell.runfile.parse import RunFileError, parse

COMMAND = {"command": ["python", "train.py"]}


def problems(body: dict[str, Any]) -> list[str]:
    with pytest.raises(RunFileError) as error:
        parse({"name": "run", **body})
    return error.value.problems


def test_a_command_starts_in_the_run_files_folder_and_no_titan_config_is_built(tmp_path: Path) -> None:
    spec = parse(
        {"name": "run", "trainer": COMMAND, "env": {"directory": str(tmp_path / "code")}, "titan": {"steps": 5}},
        base=tmp_path,
    )
    assert spec.trainer.command == ("python", "train.py")
    assert parse({"name": "run", "trainer": COMMAND}, base=tmp_path).env.directory == str(tmp_path)
    script = tmp_path / "code" / "train.py"
    missing = f"trainer.command: there is no {script} on this machine; each node must have it"
    assert client.check_titan(spec) == ([], [missing])
    script.parent.mkdir()
    script.touch()
    assert client.check_titan(spec) == ([], [])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"trainer": COMMAND, "titan": {"recipe": "llama3-8b"}}, "titan.recipe: has no effect with trainer.command"),
        ({"trainer": COMMAND, "titan": {"overrides": {"a.b": 1}}}, "titan.overrides: has no effect with trainer.comm"),
        ({"trainer": {"reports": "output"}}, "trainer.reports: has no effect without trainer.command"),
        ({"trainer": {"command": [""]}}, 'trainer.command = [""]: begins with the name of a program'),
        ({"trainer": {**COMMAND, "silent_after_s": 5}}, 'no effect with reports = "steps"'),
        ({"trainer": {**COMMAND, "reports": "output", "silent_after_s": -1}}, "silent_after_s = -1: must be at least 0"),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_refused(body: dict[str, Any], expected: str) -> None:
    [problem] = problems(body)
    assert expected in problem
