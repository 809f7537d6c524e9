"""A copy of supervisor/ with a small patch: what an extension of it takes, tried in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Change:
    """Text in the place of another that stands once in a module; `before` empty: a new module."""

    module: str
    """As it is imported."""
    before: str
    after: str

    @property
    def file(self) -> Path:
        return Path(*self.module.split(".")).with_suffix(".py")


def patched(folder: Path, changes: Sequence[Change]) -> set[Path]:
    """Copy supervisor/ into the folder and change the copy. Returns the files that were touched."""
    shutil.copytree(ROOT / "supervisor", folder / "supervisor", ignore=shutil.ignore_patterns("__pycache__"))
    for change in changes:
        path = folder / change.file
        text = path.read_text() if change.before else ""
        assert bool(change.before) == path.exists(), f"{change.file}: is it there?"
        assert text.count(change.before) == 1, (
            f"{change.file}: {change.before!r} stands there {text.count(change.before)} times"
        )
        path.write_text(text.replace(change.before, change.after))
    return {change.file for change in changes}


def told_by(folder: Path, code: str) -> dict[str, Any]:
    """Runs code with the copy. Returns the dictionary `told` that it leaves."""
    code = f"import json, supervisor\n{code}\nprint(json.dumps({{**told, 'of': supervisor.__file__}}))"
    path = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert Path(told.pop("of")).is_relative_to(folder)
    return told
