"""Keeps each rank's place in its own data.

A group that heals takes the model from a peer. Its place in the data is its own, kept in small files in the run's
folder. The live one is at most LIVE_EVERY_S old and serves a restart. Another is kept for each checkpoint's step.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.core.model.spec import LostPlace
from supervisor.wire.checkpoints import places_of
from titan_actor import pickles

log = logging.getLogger(__name__)

LIVE = "live"
"""Folder of the newest places."""

LIVE_EVERY_S = 1.0
"""Seconds of data that a restart repeats at most. Writing more often would load a shared file system."""


class NoPlace(ValueError):
    """A rank's place in the data is lost, and `titan.data.lost_place` does not say how to go on without."""


@dataclass(frozen=True)
class Reader:
    """A rank, as one that reads data."""

    run_dir: str
    group: int
    rank: int
    reads_for: int
    """The first of the ranks that read the same data as this one. It alone keeps the place, for all of them: places of
    their own could be of different steps."""
    source: str = ""
    """Name of the data."""
    batches: int = 1
    """Batches that it takes in a step."""
    lost_place: LostPlace = "error"


class Cursor:
    """One rank's place in the data: its own with data parallelism, a shared one with tensor, context or pipeline
    parallelism."""

    def __init__(self, reader: Reader, dataloader: Any) -> None:
        self._top = places_of(reader.run_dir)
        self._name = f"g{reader.group}.r{reader.reads_for}.json"
        self.keeps = reader.rank == reader.reads_for
        self._reader, self._loader = reader, dataloader
        self._last = 0.0
        self._full = False

    waits = False
    """A step's first forward pass need not wait for its quorum: the data is this group's own."""

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

    signs = (0, 0)
    """Groups have streams of their own."""

    def described(self) -> str:
        """Returns nothing."""
        return ""

    def read(self, folder: Path) -> dict[str, Any]:
        """Reads nothing from a checkpoint's folder."""
        return {}

    def resume(self, state: dict[str, Any], where: str) -> None:
        """Takes nothing: `load` does."""

    def live(self, step: int) -> None:
        """Keeps the place behind a committed step for a restart, unless one was kept a moment ago."""
        now = time.monotonic()
        if now - self._last >= LIVE_EVERY_S:
            self._last = now
            self._write(self._top / LIVE, step)

    def at(self, step: int) -> None:
        """Keeps the place that belongs to the checkpoint of a step."""
        self._write(self._top / f"step-{step}", step, synced=True)

    def load(self, step: int | None) -> str:
        """Moves to the place at a step's checkpoint, or (None) to the last place. Returns the one found, or "": the share
        begins at its first document. Raises NoPlace where a place is lost, and pickles.Refused.

        A group that was away at the checkpoint has none of that step: its last place before is that of its last commit. No
        record shows whether it was away or its file is lost, so what is returned then names the file too.
        """
        found, unread = self._kept(step)
        lacks = ""
        if step is not None:
            wanted = self._top / f"step-{step}" / self._name
            if wanted in unread:
                return self._without(step, f"{wanted} cannot be read ({unread[wanted]})")
            if not any(wanted.parent.glob("g*.json")):
                return self._without(step, f"{wanted} is missing")
            lacks = "" if wanted.exists() else str(wanted)
        if not found:
            if unread:
                return self._without(step or 0, f"{next(iter(unread))} cannot be read")
            return self._instead("the first document", lacks) if lacks else ""  # it has committed no step
        path, state = found[0]
        if (other := state.get("source", self._reader.source)) != self._reader.source:
            return self._without(step or 0, f"{path} is a place in {other}, and this is {self._reader.source}")
        if (ranks := state["world_size"]) != self._loader.dp_world_size:
            log.warning(
                "%s is a place for %s ranks: the share of another number begins at its first document", path, ranks
            )
            return ""
        places = {name: base64.b64decode(place) for name, place in state["places"].items()}
        try:
            self._loader.load_state_dict({**places, "world_size": state["world_size"]})
        except pickles.Refused as error:
            raise pickles.Refused(f"{path}: {error}") from None
        return self._instead(path.parent.name, lacks) if lacks else path.parent.name

    def _instead(self, taken: str, lacks: str) -> str:
        log.warning("%s is missing: group %d was away then, or it is lost; taken: %s", lacks, self._reader.group, taken)
        return f"{taken} in place of {lacks}"

    def _kept(self, step: int | None) -> tuple[list[tuple[Path, dict[str, Any]]], dict[Path, str]]:
        """Returns this rank's places, the best for the step (or for now) first, and the files that cannot be read."""
        found: list[tuple[int, Path, dict[str, Any]]] = []
        unread: dict[Path, str] = {}
        for path in self._top.glob(f"*/{self._name}"):
            number = path.parent.name.removeprefix("step-")
            try:
                state = json.loads(path.read_text(encoding="utf-8"))
                at = int(number) if number.isdecimal() else int(state.get("step", 0))
                found.append((at, path, {**state, "places": dict(state["places"])}))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                log.warning("%s cannot be read: %s", path, error)
                unread[path] = str(error)

        def distance(kept: tuple[int, Path, dict[str, Any]]) -> tuple[bool, int]:
            at, path, _ = kept
            if step is None:
                return path.parent.name != LIVE, -at
            # a place behind the step leaves samples out, one before it repeats some
            return at > step, abs(at - step)

        return [(path, state) for _, path, state in sorted(found, key=distance)], unread

    def _without(self, step: int, why: str) -> str:
        if self._reader.lost_place == "error":
            raise NoPlace(
                f"the place in the data at step {step} is lost: {why}. Put it back from where the checkpoint is from, or "
                "`supervisor relaunch` the run with --set titan.data.lost_place=start (the share begins at its first "
                "document) or =skip (as many batches as the steps took are read first, within policy.start_timeout_s)"
            )
        log.warning("%s: titan.data.lost_place = %s", why, self._reader.lost_place)
        if self._reader.lost_place == "start":
            return ""
        reading = iter(self._loader)
        for _ in range(step * self._reader.batches):
            next(reading, None)  # finite data may end before
        self._loader.load_state_dict(self._loader.state_dict())
        return f"after {step * self._reader.batches} batches"

    def purge(self, before_step: int) -> None:
        """Removes the places of checkpoints older than a step."""
        for folder in self._top.glob("step-*"):
            number = folder.name.removeprefix("step-")
            if number.isdecimal() and int(number) < before_step:
                shutil.rmtree(folder, ignore_errors=True)

    def _write(self, folder: Path, step: int, synced: bool = False) -> None:
        if not self.keeps:
            return
        state = dict(self._loader.state_dict())
        kept = {"step": step, "source": self._reader.source, "world_size": state.pop("world_size")}
        kept["places"] = {name: base64.b64encode(place).decode() for name, place in state.items()}
        scratch = folder / f".{self._name}.{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with open(scratch, "w", encoding="utf-8") as file:
                file.write(json.dumps(kept))
                file.flush()
                if synced:
                    os.fsync(file.fileno())
            os.replace(scratch, folder / self._name)
            self._full = False
        except OSError as error:
            if not self._full:
                log.warning("the place in the data is not saved: %s", error)
            self._full = True
