"""Stands in for what TorchTitan 0.3.0 takes from newer versions of torch, where only torch 2.11 is installed.

`benchmarks.gpu` puts this folder on PYTHONPATH there and says so in its figures: it is for measuring, not for training.
Python imports it at every start, so it imports torch itself only when another module does.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any


def _fsdp(module: ModuleType) -> None:
    class DataParallelMeshDims:
        def __init__(self, *dims: Any, **named: Any) -> None:
            raise RuntimeError("parallelism over a full mesh needs a newer torch")

    module.DataParallelMeshDims = DataParallelMeshDims  # type: ignore[attr-defined]


def _flex(module: ModuleType) -> None:
    made = module.create_block_mask

    def create_block_mask(*given: Any, separate_full_blocks: bool = True, **named: Any) -> Any:
        assert separate_full_blocks, "torch 2.11 always separates them"
        return made(*given, **named)

    module.create_block_mask = create_block_mask  # type: ignore[attr-defined]


def _varlen(module: ModuleType) -> None:
    attended = module.varlen_attn

    def varlen_attn(*given: Any, num_splits: int | None = None, **named: Any) -> Any:
        # a workaround for a paged cache, which training has not
        return attended(*given, **named)

    module.varlen_attn = varlen_attn  # type: ignore[attr-defined]


def _version(module: ModuleType) -> None:
    # elsewhere a trainer with this torch says so and does not start
    module.FITS["torch"] = ("2.11", "2.15")


STAND_INS = {
    "supervisor.wire.version": _version,
    "torch.distributed.fsdp": _fsdp,
    "torch.nn.attention.flex_attention": _flex,
    "torch.nn.attention.varlen": _varlen,
}


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of STAND_INS as before, and completes each once it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in STAND_INS:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if found is None or found.loader is None:
            return None
        run = found.loader.exec_module

        def completed(module: ModuleType) -> None:
            run(module)
            STAND_INS[name](module)

        found.loader.exec_module = completed  # type: ignore[method-assign]
        return found


sys.meta_path.insert(0, Finder())
