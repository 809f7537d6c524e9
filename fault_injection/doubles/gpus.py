"""Gives the nodes' agents fake GPUs: a file holds what the driver reports, and can change while they run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from fault_injection.doubles.fake_nvml import FakeNvml, gpu
from supervisor.wire.gpus import VISIBLE

FOLDER = "FAKE_NVML"
"""Environment variable: the folder with a file for each node that has a GPU."""


HURRY = 4.0
"""An Xid is reported within a quarter of a second, and reading the file costs nothing then."""


class Gpus:
    """One GPU on each of these nodes. Events are kept with their time: an agent gets those that came while it ran."""

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for node in nodes:
            self._write(node, {"gpus": [gpu()], "events": []})

    def say(self, node: str, xid: int = 0, **about: Any) -> None:
        """Makes the node's GPU healthy from now on but for `about`, and adds this Xid."""
        events = self._read(node)["events"]
        self._write(node, {"gpus": [gpu(**about)], "events": events + ([[0, xid, time.time()]] if xid else [])})

    def _read(self, node: str) -> Any:
        return json.loads((self.folder / f"{node}.json").read_text())

    def _write(self, node: str, body: dict[str, Any]) -> None:
        path = self.folder / f"{node}.json"
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(body))
        scratch.replace(path)


def stand_in(arguments: Sequence[str]) -> None:
    """Replaces NVML in this process, before any module imports it. A node without a file has no GPU."""
    node = next((a.partition("=")[2] for a in arguments if a.startswith("--node=")), "none")
    file = Path(os.environ.get(FOLDER, "")) / f"{node}.json"
    since = time.time()

    def read() -> dict[str, Any]:
        if not file.is_file():
            return {"init": "LibraryNotFound"}
        body: dict[str, Any] = json.loads(file.read_text())
        body["events"] = [[number, xid] for number, xid, at in body["events"] if at >= since]
        return body

    fake = FakeNvml(read, hurry=HURRY)
    module = ModuleType("pynvml")
    module.__getattr__ = lambda name: getattr(fake, name)  # type: ignore[method-assign]
    sys.modules["pynvml"] = module
    # the list of the machine's visible GPUs does not apply to these, and the agent reads it on import
    visible = os.environ.pop(VISIBLE, None)
    from agents.health.facts import gpu as _  # noqa: F401

    if visible is not None:
        os.environ[VISIBLE] = visible
