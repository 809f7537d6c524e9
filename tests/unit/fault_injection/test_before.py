"""fault_injection/before.sh: runs a command on the code before a mend."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import fault_injection

BEFORE = Path(fault_injection.__file__).parent / "before.sh"
WHO = {f"GIT_{who}_{what}": "a@example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(folder: Path, *command: str) -> str:
    done = subprocess.run(
        ["git", *command], cwd=folder, env=os.environ | WHO, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_command_meets_the_code_before_the_mend_and_the_mends_tests(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "tests").mkdir()
    for text in ("broken", "mended", "later"):
        (tmp_path / "code").write_text(text)
        (tmp_path / "tests" / "code").write_text(f"tests of {text}")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "--quiet", "-m", text)
    mend = git(tmp_path, "rev-parse", "HEAD^")
    shows = ["sh", "-c", "cat code tests/code; exit 7"]
    done = subprocess.run(["sh", str(BEFORE), mend, *shows], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "brokentests of mended"), done.stderr
    assert len(git(tmp_path, "worktree", "list").splitlines()) == 1
    assert (tmp_path / "code").read_text() == "later"
