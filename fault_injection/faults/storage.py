"""Makes the faults of the checkpoints' folder: its disk is full, or it is gone. Each lasts until a checkpoint fails
because of it, and has happened when a later one is written again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from fault_injection.faults import acts
from fault_injection.faults.fault import Scene, Target
from fault_injection.testbed.run_command import run_command
from supervisor.ports.errors import Fatal
from supervisor.wire.checkpoints import folder_of, listed

HIDES = "no-checkpoints"
"""Name of the empty file system that hides the folder, which distinguishes the two."""

NEXT_WITHIN_S = 120.0
"""Seconds from one checkpoint to the next: 25 steps of the debug model. They take ten seconds on two cores, and more
than a minute on two cores that six share."""

TAKES_S = 2 * NEXT_WITHIN_S
"""Seconds until one has failed, and until the next is written."""


def checkpoint_disk_full(scene: Scene, target: Target, after: ExitStack) -> str:
    """Fills the disk and keeps it full: what is purged meanwhile makes no room for another checkpoint."""
    folder = folder_of(scene.run_dir)
    after.callback((folder / acts.FILLER).unlink, missing_ok=True)
    began = time.time()

    def failed() -> str:
        acts.fill_disk(target.group, target.node, folder)
        return _failed(scene, target, began)

    return _written_again(scene, target, after, _until(scene, failed))


def checkpoint_folder_gone(scene: Scene, target: Target, after: ExitStack) -> str:
    """Hides the folder as if its file system were unmounted: nothing is there, and nothing can be written."""
    folder = folder_of(scene.run_dir)
    after.callback(_show, folder)
    began = time.time()
    run_command("mount", "-t", "tmpfs", "-o", "ro,mode=700", HIDES, str(folder))
    if listed(scene.run_dir):
        raise Fatal(f"{folder} still shows checkpoints")
    return _written_again(scene, target, after, _until(scene, lambda: _failed(scene, target, began)))


def _until(scene: Scene, failed: Callable[[], str]) -> str:
    said: list[str] = []

    def once() -> bool:
        said[:] = [failed()]
        return bool(said[0])

    scene.wait(once, NEXT_WITHIN_S, "a checkpoint fails")
    return said[0]


def _written_again(scene: Scene, target: Target, after: ExitStack, said: str) -> str:
    """Heals the fault, and waits for the next checkpoint."""
    after.close()
    healed = _newest(scene)
    scene.wait(lambda: _newest(scene) > healed, NEXT_WITHIN_S, "a checkpoint is written again")
    return f"{said}; it was healed, and that of step {_newest(scene)} was written"


def _newest(scene: Scene) -> int:
    """Returns the step of the newest complete checkpoint."""
    return next((step for step, _, mark in listed(scene.run_dir) if mark is not None), -1)


def _failed(scene: Scene, target: Target, since: float) -> str:
    """Returns the error that the writer noted for a checkpoint that was not written; empty if there is none."""
    rank = f"{scene.run}.{target.group}.{target.generation}.{target.rank}"
    lines = (target.folder / "ranks" / rank / "steps.jsonl").read_bytes().split(b"\n")[:-1]
    ends = (line for line in map(json.loads, lines) if line.get("event") == "checkpoint_end" and line["t"] >= since)
    return next((str(line["error"]) for line in ends if not line["complete"]), "")


def _show(folder: Path) -> None:
    """Removes the empty file system, if it is there."""
    if any(line.split()[:2] == [HIDES, str(folder)] for line in Path("/proc/self/mounts").read_text().splitlines()):
        run_command("umount", "--lazy", str(folder))
