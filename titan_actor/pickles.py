"""Reads the pickles of a checkpoint and of a place in the data as data: of classes and functions, only those load that
such a file holds. So no file runs code here. The faults are in mends.py.
"""

from __future__ import annotations

import io
import pickle
import types
from typing import IO, Any

METADATA = frozenset(
    {
        *(
            f"torch.distributed.checkpoint.metadata.{name}"
            for name in (
                "BytesStorageMetadata",
                "ChunkStorageMetadata",
                "Metadata",
                "MetadataIndex",
                "StorageMeta",
                "TensorProperties",
                "TensorStorageMetadata",
                "_MEM_FORMAT_ENCODING",
            )
        ),
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "torch.Size",
        "torch.serialization._get_layout",
        "collections.OrderedDict",
        "pathlib.PosixPath",
    }
)
"""The contents of DCP's .metadata beside torch's dtypes. Calling any of these with any arguments does nothing."""

PLACE = frozenset(
    {
        *(f"builtins.{name}" for name in ("bytearray", "complex", "frozenset", "range", "set", "slice")),
        *(f"collections.{name}" for name in ("Counter", "OrderedDict", "deque")),
        "torch.Size",
        "torch._utils._rebuild_tensor_v2",
        "torch.storage._load_from_bytes",
    }
)
"""The contents of a data loader's state: plain values and tensors. None of numpy: its dtype can lay objects over any
bytes."""


class Refused(BaseException):
    """A file holds a class or function that no such file of ours holds; the text says what to do.

    Not an Exception: DCP takes each of those for a file that is not there, and reads another.
    """


def _refusal(where: str, what: str) -> Refused:
    return Refused(
        f"{where} holds {what}, which could run code, so it is not loaded: if others may write there, remove it and "
        "start from another checkpoint; if a recipe of yours saves it, call torch.serialization.add_safe_globals there"
    )


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, known: frozenset[str], where: str) -> None:
        super().__init__(file)
        self._known, self._where = known, where

    def find_class(self, module: str, name: str) -> Any:
        """Returns what a pickle names. Raises Refused."""
        import torch

        # as Python 3.13 writes it
        full = f"{'pathlib' if module == 'pathlib._local' else module}.{name}"
        if full == "torch.storage._load_from_bytes" and full in self._known:
            return _tensors_only
        if full in self._known or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(full.rpartition(".")[0], name)
        for one in torch.serialization.get_safe_globals():
            value, given = one if isinstance(one, tuple) else (one, f"{one.__module__}.{one.__qualname__}")
            if given == full:
                return value
        raise _refusal(self._where, full)


def _tensors_only(content: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(content), weights_only=True)


def mend_metadata() -> None:
    """Has DCP load metadata by the list."""
    import torch.distributed.checkpoint.filesystem as filesystem

    def load(file: IO[bytes]) -> Any:
        return _Unpickler(file, METADATA, str(file.name)).load()

    filesystem.pickle = types.SimpleNamespace(dump=pickle.dump, load=load)


def mend_items() -> None:
    """Has DCP load what is no tensor as plain values and tensors."""
    from torch.distributed.checkpoint import default_planner

    def load_bytes(self: Any, read_item: Any, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        item = _item(name, value)
        if self.flatten_state_dict:
            default_planner.set_element(self.original_state_dict, self.mappings[name], item)
        else:
            self.state_dict[name] = item

    default_planner.DefaultLoadPlanner.load_bytes = load_bytes


def _item(name: str, value: io.BytesIO) -> Any:
    import torch

    try:
        return torch.load(value, weights_only=True)
    except pickle.UnpicklingError:
        value.seek(0)
        try:
            found = torch.serialization.get_unsafe_globals_in_checkpoint(value)
        except (ValueError, RuntimeError, pickle.UnpicklingError):
            found = []
        if found:
            raise _refusal(f"the item {name} of the checkpoint", ", ".join(found)) from None
        raise  # torn


def mend_data_place() -> None:
    """Has a data loader load its place by the list."""
    import torchtitan.components.dataloader as dataloader

    def loads(content: bytes) -> Any:
        return _Unpickler(io.BytesIO(content), PLACE, "the place in the data").load()

    dataloader.pickle = types.SimpleNamespace(dumps=pickle.dumps, loads=loads)
