"""Keeps each rank's place in its own data.

A group that heals takes the model from a peer. Its place in the data is its own, kept in small files in the run's
folder. `live` is at most LIVE_EVERY_S old and serves a restart. Another place is kept for each checkpoint's step.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

from titan_actor import pickles

log = logging.getLogger(__name__)

LIVE_EVERY_S = 1.0
"""Seconds of data that a restart repeats at most. Writing more often would load a shared file system."""


class Cursor:
    """One rank's place in the data: its own with data parallelism, a shared one with tensor, context or pipeline
    parallelism."""

    def __init__(self, run_dir: str, group: int, rank: int, reader: int, dataloader: Any) -> None:
        """`reader`: the first of the ranks that read the same data as this one. It alone keeps the place, for all of
        them: places of their own could be of different steps."""
        self._top = Path(run_dir) / "data"
        self._name = f"g{group}.r{reader}.json"
        self.keeps = rank == reader
        self._loader = dataloader
        self._last = 0.0
        self._full = False

    weight = lr_factor = 1.0
    """Groups have equal parts in a step, whatever its size."""

    def begin(self) -> int | None:
        """Leaves the rounds of a step as they are: None."""
        return None

    def advance(self) -> None:
        """Does nothing: the loader itself has moved on."""

    def about(self) -> dict[str, Any]:
        """Returns what a record of the newest batch says beside its samples."""
        return {}

    def state(self) -> dict[str, Any]:
        """Returns nothing: no peer and no checkpoint has this place."""
        return {}

    def take(self, state: dict[str, Any]) -> None:
        """Takes nothing."""

    def write(self, folder: Path, state: dict[str, Any]) -> None:
        """Writes nothing into a checkpoint's folder."""

    sign = 0
    """Groups have streams of their own."""

    def described(self) -> str:
        """Returns nothing."""
        return ""

    def read(self, folder: Path) -> dict[str, Any]:
        """Reads nothing from a checkpoint's folder."""
        return {}

    def resume(self, state: dict[str, Any], where: str) -> None:
        """Takes nothing: `load` does."""

    def live(self) -> None:
        """Keeps the place for a restart, unless it was kept a moment ago."""
        now = time.monotonic()
        if now - self._last >= LIVE_EVERY_S:
            self._last = now
            self._write(self._top / "live")

    def at(self, step: int) -> None:
        """Keeps the place that belongs to the checkpoint of a step."""
        self._write(self._top / f"step-{step}")

    def load(self, step: int | None) -> str:
        """Moves to the place at a step's checkpoint, or (None) to the last place. Returns the one found, or "". Raises
        pickles.Refused."""
        found = self._top / (f"step-{step}" if step is not None else "live") / self._name
        try:
            state = json.loads(found.read_text(encoding="utf-8"))
            places = {name: base64.b64decode(place) for name, place in state["places"].items()}
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError) as error:
            log.warning("the place in the data is lost: %s: %s", found, error)
            return ""
        if state["world_size"] != self._loader.dp_world_size:
            log.warning(
                "the place in the data is for another number of ranks (%s): starting again", state["world_size"]
            )
            return ""
        try:
            self._loader.load_state_dict({**places, "world_size": state["world_size"]})
        except pickles.Refused as error:
            raise pickles.Refused(f"{found}: {error}") from None
        return found.parent.name

    def purge(self, before_step: int) -> None:
        """Removes the places of checkpoints older than a step."""
        for folder in self._top.glob("step-*"):
            number = folder.name.removeprefix("step-")
            if number.isdecimal() and int(number) < before_step:
                shutil.rmtree(folder, ignore_errors=True)

    def _write(self, folder: Path) -> None:
        if not self.keeps:
            return
        state = dict(self._loader.state_dict())
        world_size = state.pop("world_size")
        places = {name: base64.b64encode(place).decode() for name, place in state.items()}
        scratch = folder / f".{self._name}.{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            scratch.write_text(json.dumps({"world_size": world_size, "places": places}), encoding="utf-8")
            os.replace(scratch, folder / self._name)
            self._full = False
        except OSError as error:
            if not self._full:
                log.warning("the place in the data is not saved: %s", error)
            self._full = True
