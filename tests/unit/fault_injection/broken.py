"""The story of `files` as a run that was broken on purpose: with its faults, and its final state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.shell.history.files import FaultDone, History, Left, Seen, Setting
from tests.unit.fault_injection.files import Files, story

SETTING = Setting(
    seed=7,
    plan=("  1  at step 5: sigkill, group 1 rank 0", "  2  at step 13: node_killed, group 1 rank 0"),
    planned=2,
    groups=2,
    ranks=1,
    began=1.0,
    ended=23.0,
    budgets={"restart": 3, "replace": 4, "reallocate": 3},
    window_s=3600.0,
    breaker_window_s=60.0,
    to_its_end=True,
    not_available={"gpu_xid": "no GPU"},
    versions={"torch": "2"},
)

KILL = FaultDone(
    number=1, name="sigkill", group=1, rank=0, generation=1, node="n2", step=5, began=10.5, made=10.55,
    evidence="SIGKILL to pid 101, which has ended", healed=10.6, over=14.3, kinds=("crash",), within_s=10.0, others_within_s=3.0,
)  # fmt: skip

LOSE = FaultDone(
    number=2, name="node_killed", group=1, rank=0, generation=2, node="n2", step=13, began=18.25, made=18.3,
    evidence="SIGKILL to 3 processes of n2", healed=18.3, over=22.3, kinds=("node_lost", "crash"), within_s=10.0, others_within_s=3.0,
)  # fmt: skip


def broken(files: Files) -> History:
    """The files' history, with the faults in it."""
    history = files.history()
    history.setting, history.faults, history.left = SETTING, [KILL, LOSE], Left(processes=(), allocations=())
    history.seen = [Seen(t=10.9, what="incident", subject="i1", says={"state": "acting", "rung": 1})]
    return history


def a_broken_run(folder: Path) -> History:
    """The run as it went well."""
    return broken(story(folder))


def fault(history: History, number: int, **change: Any) -> None:
    """Changes one fault."""
    history.faults[number - 1] = replace(history.faults[number - 1], **change)
