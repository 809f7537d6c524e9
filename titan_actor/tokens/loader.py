"""The data loader of a token store, in the form of TorchTitan's own for text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torchtitan.components.dataloader import BaseDataLoader

from titan_actor.tokens.format import TokensError
from titan_actor.tokens.reader import TokenStore, Window
from titan_actor.tokens.stream import Order

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Draw:
    """The positions of the stream that a rank draws for a step, and those that it likely draws for the next."""

    now: list[int]
    next: list[int]


class TokenLoader(BaseDataLoader):
    """Yields batches without end: {"input", "positions"} and labels, each of shape (local_batch_size, seq_len), int64.

    `draw` says which positions of the stream are next. Unless it is set, the ranks of all groups draw in turn.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """`dataset_path` is the folder of the store."""

        seed: int = 0
        """Seed of the order of the windows."""

        num_workers: int = 0
        """Always 0: a thread reads ahead."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any,
        seq_len: int,
        local_batch_size: int,
        **_: Any,
    ) -> None:
        """Raises TokensError for a store that cannot be read, or is too small for one window."""
        self.dp_world_size, self.dp_rank = dp_world_size, dp_rank
        self.seq_len, self._batch, self.seed = seq_len, local_batch_size, config.seed
        self.store = TokenStore(config.dataset_path or "", tokenizer.get_vocab_size())
        windows = self.store.windows(seq_len)
        if not windows:
            raise TokensError(
                f"{self.store.folder} holds {self.store.manifest.pairs} tokens to train on, and a sample is {seq_len}"
            )
        self._order = Order(config.seed, windows)
        self.draw: Callable[[], Draw] = self._in_turn
        self.first = 0
        """Position of the first sample of the newest batch; its others follow."""
        self._turn = 0
        self._reader = ThreadPoolExecutor(1, "tokens")
        self._ahead: tuple[list[int], Future[list[Window]]] | None = None

    def __iter__(self) -> Iterator[Batch]:
        while True:
            draw = self.draw()
            ahead, self._ahead = self._ahead, None
            windows = ahead[1].result() if ahead is not None and ahead[0] == draw.now else self._read(draw.now)
            if draw.next:
                self._ahead = (draw.next, self._reader.submit(self._read, draw.next))
            for at in range(0, len(draw.now), self._batch):
                self.first = draw.now[at]
                yield _stacked(windows[at : at + self._batch])

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: the place is one for all ranks (titan_actor/tokens/place.py)."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing."""

    def _read(self, positions: list[int]) -> list[Window]:
        return [self.store.window(self._order.window(position), self.seq_len) for position in positions]

    def _in_turn(self) -> Draw:
        at = (self._turn * self.dp_world_size + self.dp_rank) * self._batch
        self._turn += 1
        return Draw(list(range(at, at + self._batch)), [])


def _stacked(windows: list[Window]) -> Batch:
    parts = ([each.inputs for each in windows], [each.positions for each in windows], [each.labels for each in windows])
    inputs, positions, labels = (torch.from_numpy(numpy.stack(part)) for part in parts)
    return {"input": inputs, "positions": positions}, labels
