"""Works out which ranks get which documents of a folder, and which get none: TorchTitan loops over an empty share
forever, at full speed.

The shares are those of `datasets`. Where the number of files is a multiple of the number of ranks, each rank takes
whole files; else each takes every n-th document. The files of a rank are split over its data workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from supervisor.core.model.spec import DataSpec
from titan_actor.data import DataError, documents, folder_files


class NoData(DataError):
    """A group would wait for its first batch forever. Another machine would not change that."""


def empty(files: Sequence[str], text_field: str, ranks: Sequence[int], world_size: int, workers: int) -> list[int]:
    """Returns the ranks whose share, or a data worker's part of it, holds no document. Reads only as much as needed."""
    if len(files) % world_size == 0:
        return [
            r for r in ranks if not all(_some(files[r::world_size][w::workers], text_field) for w in range(workers))
        ]
    least = min(_count(files[w::workers], text_field, max(ranks) + 1) for w in range(workers))
    return [r for r in ranks if r >= least]


def refuse(spec: DataSpec, *, ranks: Sequence[int], groups: int, degree: int, workers: int) -> None:
    """Raises NoData with the groups of `ranks` that get no document, and what to do; DataError for a folder that cannot
    be read. `degree`: data-parallel ranks of a group; `workers`: data workers of a rank."""
    if spec.source != "folder":
        return  # the standard library has enough for all, and a token store is shared by samples
    files = folder_files(spec.path)
    found = empty(files, spec.text_field, ranks, groups * degree, workers)
    if not found:
        return
    shares = groups * degree * workers
    without = sorted({rank // degree for rank in found})
    who = f"group {without[0]} gets" if len(without) == 1 else f"groups {', '.join(map(str, without))} get"
    known = _count(files, spec.text_field, shares)
    more = " or more" if known == shares else ""
    what = "whole files" if len(files) % (groups * degree) == 0 else "single documents"
    raise NoData(
        f"{who} no document of {spec.path}: it holds {_of(known, 'document')}{more} in {_of(len(files), 'file')}, for {shares} shares of {what} "
        f"({_of(groups, 'group')}, {_of(degree, 'data-parallel rank')} each, {_of(workers, 'data worker')} each); "
        "add documents, or lower groups.count or dataloader.num_workers"
    )


def _some(files: Sequence[str], text_field: str) -> bool:
    return _count(files, text_field, 1) > 0


def _count(files: Sequence[str], text_field: str, at_most: int) -> int:
    return sum(1 for _ in islice(documents(list(files), text_field), at_most))


def _of(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
