"""The shipped notebook runs from its first cell to its last, on a `supervisor up` with four nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.util import run_sync

from fault_injection.testbed.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.trainers, pytest.mark.timeout(900)]

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "everstep.ipynb"


@contextmanager
def up(home: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "supervisor.cli"]
    with (home.parent / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "up", "--nodes", "4", "--home", str(home)], stdout=log, stderr=log, cwd=home.parent
        )
    try:
        eventually(lambda: "Now: supervisor launch" in (home.parent / "up.log").read_text(), 60, "it is up")
        yield
    finally:
        process.terminate()
        process.wait(60)


def outputs(notebook: Any) -> str:
    """Returns the text of all outputs."""
    found = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    return "\n".join(out.get("text") or out.get("data", {}).get("text/plain", "") for out in found)


def run_all(notebook: Any, folder: Path) -> None:
    """Runs all cells, with a new kernel where the notebook says so."""
    executor = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}})
    with executor.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if "after-restart" in cell.metadata.get("tags", ()):
                run_sync(executor.km.restart_kernel)(now=True)
                run_sync(executor.kc.wait_for_ready)(timeout=60)
            executor.execute_cell(cell, index)


BANDS = """
shown = draw(run)
print(len(shown.axes[0].patches), "bands of", len(run.incidents()), "incidents")
plt.close(shown)
"""
"""A cell for the kernel that has drawn: the notebook restarts it later."""


def test_the_notebook_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "runs"
    monkeypatch.setenv("SUPERVISOR_HOME", str(home))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(NOTEBOOK.parents[2]), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is shipped without outputs"
    killed = next(index for index, cell in enumerate(notebook.cells) if "SIGKILL" in cell.source)
    notebook.cells.insert(killed + 1, nbformat.v4.new_code_cell(BANDS))
    with up(home):
        run_all(notebook, tmp_path)
    text = outputs(notebook)
    assert "1 bands of 1 incidents" in text, "the incident is a band in the picture of the loss"
    assert "Incident i1: group 1, rank 0" in text
    assert "{0: (2, 'n1'), 1: (3, 'n2')}" in text
    assert "spec 3: 3 groups; those that stay train on" in text
    assert "<Breakpoint 1.0 in looked_at (" in text
    assert "(True, 1)" in text
    assert "running [(0, 'running'), (1, 'running'), (2, 'running')]" in text
    assert "pool lab: its 4 nodes are given back to the engine" in text
    assert "productive" in text
    pictures = [o.data for c in notebook.cells for o in c.get("outputs", ()) if "image/png" in o.get("data", {})]
    assert len(pictures) == 3, "one of the start, the last of those while a trainer was lost, one with three groups"
