"""`supervisor chaos`, as far as it needs no run."""

from __future__ import annotations

import json
from typing import Any

import typer
from typer.testing import CliRunner

from fault_injection.chaos import command
from fault_injection.faults.catalogue import FAULTS


def said(code: int, *arguments: str) -> str:
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    result = CliRunner().invoke(app, ["chaos", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


def test_list_names_every_fault_with_the_reason_why_not(monkeypatch: Any) -> None:
    monkeypatch.setattr(command.sites, "no_memory_cgroup", lambda: "no memory controller")
    rows = json.loads(said(0, "list", "--json"))
    assert [row["fault"] for row in rows] == list(FAULTS)
    why_not = {row["fault"]: row["why_not"] for row in rows}
    assert why_not["sigkill"] == ""
    assert why_not["killed_for_memory"] == "no memory controller"
    assert "disk" in why_not["disk_full"]
    assert "tests/integration/test_gpu.py" in why_not["gpu_xid"]
    table = said(0, "list")
    assert all(name in table for name in FAULTS)
    assert f"{sum(1 for why in why_not.values() if not why)} of {len(FAULTS)} faults can be made here" in table


def test_each_command_has_an_example_that_begins_with_it() -> None:
    for each in command.chaos.registered_commands:
        name = each.name or (each.callback.__name__ if each.callback else "")
        assert (each.epilog or "").startswith(f"Example: supervisor chaos {name}")
