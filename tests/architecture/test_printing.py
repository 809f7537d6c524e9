"""One module prints, and ruff's settings catch each other way to print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

OTHER_WAYS = {
    "a console of rich's, which reads markup": "from rich.console import Console\n\nConsole().print('[rank0]')",
    "the same under another name": "import rich.console as c\n\nc.Console().print('[rank0]')",
    "rich's own print": "from rich import print\n\nprint('[rank0]')",
    "a text that is read as markup": "from rich.text import Text\n\nText.from_markup('[rank0]')",
    "a text that is read as a terminal's": "from rich.text import Text\n\nText.from_ansi('x')",
    "typer's echo, which passes on what a terminal obeys": "import typer\n\ntyper.echo('x')",
    "click's": "from click import echo\n\necho('x')",
    "print": "print('x')",
}


def lint(code: str, file: str) -> str:
    """The report of ruff, by our settings, on code in the place of that file."""
    done = subprocess.run(
        [Path(sys.executable).parent / "ruff", "check", "--no-cache", "--stdin-filename", file, "-"],
        cwd=ROOT, input=code + "\n", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.parametrize("what", OTHER_WAYS)
def test_each_other_way_to_a_terminal_is_caught(what: str) -> None:
    found = lint(OTHER_WAYS[what], "supervisor/cli/planted.py")
    assert "TID251" in found or "T201" in found


def test_the_printer_is_the_way() -> None:
    code = "from supervisor.wire.printer import Printer, print_line\n\nPrinter().print('x')\nprint_line('x')"
    assert "All checks passed!" in lint(code, "supervisor/cli/planted.py")
