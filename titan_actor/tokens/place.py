"""The place in a token store, which all groups share: the number of committed samples (ADR 26).

It takes the part of `titan_actor.cursor.Cursor`, whose places are each rank's own. It writes nothing but a file in each
checkpoint: a healing group has it from its peer.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from pathlib import Path
from typing import Any

from titan_actor import torchft_names
from titan_actor.cursor import NoPlace
from titan_actor.tokens.format import TokensError
from titan_actor.tokens.loader import Draw, TokenLoader
from titan_actor.tokens.stream import Shape, positions, share

log = logging.getLogger(__name__)

FILE = "stream.json"
"""In a checkpoint's folder."""

SAME = ("store", "seed", "seq_len")
"""Parts of the state that give a position its meaning."""


class SharedPlace:
    """Draws a rank's samples of each step, once its quorum is known."""

    def __init__(self, trainer: Any, keeps: bool) -> None:
        """`keeps`: true on one of the ranks that read the same data; it notes their samples."""
        loader: TokenLoader = trainer.dataloader
        groups = trainer.launch.groups
        ranks = loader.dp_world_size // groups
        self.keeps = keeps
        self.committed = 0
        """Samples."""
        titan = trainer.launch.titan
        self._loader, self._manager = loader, trainer.manager
        self._rank = loader.dp_rank % ranks
        self._shape = Shape(
            ranks=ranks,
            local=trainer.config.training.local_batch_size,
            accumulation=trainer.gradient_accumulation_steps,
            batch=titan.global_batch,
            most=titan.max_accumulation,
        )
        self._planned = groups * self._shape.accumulation
        """Rounds of a whole step. All groups share it: peers that heal take it, and all count the same quorums."""
        self._scaled = titan.shrunk_lr == "scaled"
        self._lost_place = titan.data.lost_place
        self._participants, self._mine = groups, range(0)
        loader.draw = self._draw

    waits = True
    """A step's samples follow from its quorum."""

    @property
    def weight(self) -> float:
        """Weight of this group's mean over its samples in the mean over the groups; 1: all have as many."""
        return self._participants * len(self._mine) / self._shape.rounds(self._planned, self._participants)

    @property
    def lr_factor(self) -> float:
        """Factor of the learning rate of this step; below 1 if the step is smaller than a whole one."""
        if not self._scaled:
            return 1.0
        rounds = self._shape.rounds(self._planned, self._participants)
        return rounds / self._shape.whole(self._planned, self._participants)

    @property
    def signs(self) -> tuple[int, int]:
        """Numbers that all groups of a step must share: of the place and its stream, below 4096, and the rounds of a whole
        step. The sum of those of 4096 groups is exact in single precision."""
        same = [self.committed, *(self.state()[name] for name in SAME)]
        return zlib.crc32(repr(same).encode()) % 4096, self._planned

    def described(self) -> str:
        """Returns the place in words, for a person who compares those of groups that differ."""
        store = self._loader.store
        return (
            f"here it is sample {self.committed} of store {store.manifest.digest} in {store.folder}, seed {self._loader.seed}; copy "
            "one store to all nodes, and `supervisor relaunch`"
        )

    def begin(self) -> int:
        """Returns the rounds of this group in the step of the newest quorum, which was waited for."""
        self._participants, place = torchft_names.place(self._manager)
        rounds = self._shape.rounds(self._planned, self._participants)
        # without a place its state could not be fetched, and the step is not committed
        self._mine = share(rounds, place or 0, self._participants)
        return len(self._mine)

    def advance(self) -> None:
        """Moves on behind the samples of the step that was committed."""
        self.committed += self._shape.samples(self._planned, self._participants)
        self._planned = self._shape.whole(self._planned, self._participants)

    def about(self) -> dict[str, Any]:
        """Returns what a record of the newest batch says beside its samples: of which attempt it is, and its place."""
        return {
            "position": self._loader.first,
            "step": self._manager.current_step() + 1,
            "quorum_id": torchft_names.quorum_id(self._manager),
            # of all groups: an audit finds by it that a rank's records are missing
            "step_samples": self._shape.samples(self._planned, self._participants),
        }

    def state(self) -> dict[str, Any]:
        """Returns the place, and what it is a place in."""
        shrinks = self._shape.batch == "shrinks"
        return {
            "samples": self.committed,
            "rounds": self._planned,
            "store": self._loader.store.manifest.digest,
            "seed": self._loader.seed,
            "seq_len": self._loader.seq_len,
            "share": self._shape.round * (self._shape.accumulation if shrinks else 1),
        }

    def take(self, state: dict[str, Any]) -> None:
        """Takes a peer's place. Raises TokensError if its stream is another one."""
        mine = self.state()
        if state["store"] != mine["store"]:
            raise TokensError(
                f"{self._loader.store.folder} on this node is store {mine['store']}, and the other groups train on store "
                f"{state['store']}: copy it to all nodes again"
            )
        if state["share"] != mine["share"]:
            # each group would take another part of a step than the others leave to it
            raise TokensError(
                f"this group takes {mine['share']} samples at a time, and the other groups {state['share']}: after a change "
                "of groups.count beside training.global_batch_size, use `supervisor relaunch` for all of them"
            )
        self.committed, self._planned = state["samples"], state["rounds"]

    def write(self, folder: Path, state: dict[str, Any]) -> None:
        """Writes a place into a checkpoint's folder, on disk when it returns. Raises OSError."""
        with open(folder / FILE, "w", encoding="utf-8") as file:
            file.write(json.dumps(state))
            file.flush()
            os.fsync(file.fileno())

    def read(self, folder: Path) -> dict[str, Any]:
        """Reads the place from a checkpoint's folder; empty if there is none. Raises OSError or ValueError if it cannot be
        read: an older checkpoint may have one."""
        try:
            state = json.loads((folder / FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        if not isinstance(state, dict):
            raise ValueError(f"{folder / FILE} holds no place in a token store")
        return state

    def resume(self, state: dict[str, Any], where: str) -> None:
        """Takes the place of an earlier start of the run. Raises NoPlace if there is none, or one in another stream, unless
        the run file has the stream begin then. `where`: what should have it."""
        try:
            mine, samples = self.state(), int(state["samples"])
            other = [f"{name} {state[name]} in place of {mine[name]}" for name in SAME if state[name] != mine[name]]
            why = f"is in another stream ({', '.join(other)})" if other else ""
        except (ValueError, KeyError, TypeError):
            why, samples = f"has no {FILE}: it was not trained on a token store, or was copied without it", 0
        if not why:
            self.committed = samples
        elif self._lost_place == "start":
            log.warning("%s %s: the stream begins at its first sample", where, why)
        else:
            raise NoPlace(
                f"{where} {why}. Put back what was changed, or `supervisor relaunch` the run with --set "
                "titan.data.lost_place=start, to begin the stream at its first sample"
            )

    def live(self, step: int) -> None:
        """Writes nothing: a restart has the place from its peers."""

    def at(self, step: int) -> None:
        """Writes nothing: the checkpoint itself has the place."""

    def purge(self, before_step: int) -> None:
        """Removes nothing."""

    def load(self, step: int | None) -> str:
        """Names the place that a checkpoint gave, for the record of a start."""
        return f"sample {self.committed}" if step is not None else ""

    def _draw(self) -> Draw:
        after = self.committed + self._shape.samples(self._planned, self._participants)
        return Draw(*(positions(start, self._shape, self._mine, self._rank) for start in (self.committed, after)))
