"""The Python API costs little to import, and each public name is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import supervisor.client as everstep

ROOT = Path(__file__).parents[3]

HEAVY = {"torch", "pandas", "numpy", "grpc", "google", "etcd3", "pydantic", "rich", "typer", "asyncio", "ssl"}

OURS = {
    *("supervisor", "supervisor.client", "supervisor.client.errors", "supervisor.client.live"),
    *("supervisor.client.past", "supervisor.client.pool", "supervisor.ports", "supervisor.ports.errors"),
}
"""Modules of ours that importing the API takes."""


def imported(folder: Path, code: str) -> set[str]:
    """Modules that a program has imported when it is done."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"],
        cwd=folder, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=True,
    )  # fmt: skip
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_it_imports_nothing_that_is_slow(tmp_path: Path) -> None:
    """The sign is what is imported: no wall time is asserted."""
    found = imported(tmp_path, "import supervisor.client as everstep")
    assert found & HEAVY == set()
    assert {m for m in found if m.partition(".")[0] == "supervisor"} == OURS


def test_a_folder_is_read_without_what_asks_etcd_or_draws_tables(tmp_path: Path) -> None:
    """A list of an empty journal: what the files take is imported, and no more."""
    (tmp_path / "journal.jsonl").touch()
    code = f"import supervisor.client as everstep; everstep.open({str(tmp_path)!r}).steps_list()"
    assert imported(tmp_path, code) & {"torch", "pandas", "grpc", "etcd3", "rich", "typer"} == set()


@pytest.mark.parametrize("name", everstep.__all__)
def test_each_public_name_is_there_and_documented(name: str) -> None:
    found = getattr(everstep, name)
    assert found.__name__ in (name, "Entry")
    assert (found.__doc__ or "").strip()


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'conect'"):
        _ = everstep.conect  # type: ignore[attr-defined]
