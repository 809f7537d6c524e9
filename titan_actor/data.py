"""The training text: the standard library's own source, or a local folder of .txt, .jsonl or .parquet files.

Files are read one at a time when their turn comes, so that a restart pays for none of them. TorchTitan splits the
stream over groups and ranks, and its state is a file number and a place in it. Nothing uses the network.
"""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from supervisor.core.model.spec import DataSpec

STDLIB = "python-stdlib"
FOLDER = "supervisor-folder"
SUFFIXES = (".txt", ".jsonl", ".parquet")

DOCUMENT_CHARACTERS = 8192
"""Characters of the longest document: the cost of TorchTitan's packing grows with its square."""


class DataError(ValueError):
    """The data folder is missing, empty or unreadable."""


def stdlib_files() -> list[str]:
    """Returns the standard library's .py files in sorted order, without installed packages and their caches."""
    top = sysconfig.get_paths()["stdlib"]
    found: list[str] = []
    for folder, inner, names in os.walk(top):
        inner[:] = sorted(name for name in inner if name not in ("site-packages", "dist-packages", "__pycache__"))
        found.extend(os.path.join(folder, name) for name in names if name.endswith(".py"))
    return sorted(found)


def folder_files(path: str) -> list[str]:
    """Returns the readable training files under a folder, sorted. Raises DataError when there are none."""
    if not path:
        raise DataError("a folder is needed when the source is folder")
    if not os.path.isdir(path):
        raise DataError(f"{path} is not a folder")
    found = sorted(str(file) for file in Path(path).rglob("*") if file.suffix in SUFFIXES and file.is_file())
    if not found:
        raise DataError(f"{path} holds no {', '.join(SUFFIXES)} file")
    for file in found:
        if not os.access(file, os.R_OK):
            raise DataError(f"{file} cannot be read")
    return found


def texts(file: str, text_field: str) -> Iterator[str]:
    """Yields the texts of one file. Raises DataError for a record without the text field or a corrupt file."""
    if file.endswith(".jsonl"):
        with open(file, encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield field_of(line, text_field, f"{file}:{number}")
    elif file.endswith(".parquet"):
        import pyarrow.parquet as parquet

        table = parquet.ParquetFile(file)
        if text_field not in table.schema_arrow.names:
            raise DataError(f"{file} has no column {text_field!r}: it has {table.schema_arrow.names}")
        for batch in table.iter_batches(columns=[text_field]):
            yield from (str(value) for value in batch.column(0).to_pylist() if value)
    else:
        yield Path(file).read_text(encoding="utf-8", errors="replace")


def field_of(line: str, text_field: str, place: str) -> str:
    """Returns the text of a line of jsonl. Raises DataError with its place for a line without."""
    try:
        text = json.loads(line)[text_field]
        return "" if text is None else str(text)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{place} is not a JSON object with {text_field!r}") from error


def documents(files: list[str], text_field: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields (key, {"text": document}) of all files, in pieces of at most DOCUMENT_CHARACTERS, cut at line ends."""
    for file in files:
        for number, text in enumerate(texts(file, text_field)):
            for piece, document in enumerate(_pieces(text)):
                yield f"{file}#{number}.{piece}", {"text": document}


def _pieces(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        end = at + DOCUMENT_CHARACTERS
        if end < len(text):
            # without a line end, cut the piece where it is full
            end = text.rfind("\n", at + 1, end) + 1 or end
        yield text[at:end]
        at = end


def _stream(files: list[str], text_field: str) -> Any:
    from datasets import IterableDataset
    from datasets.iterable_dataset import ExamplesIterable

    # `datasets` takes the list as shards: it resumes by skipping whole files
    return IterableDataset(ExamplesIterable(documents, {"files": files, "text_field": text_field}))


def register(spec: DataSpec) -> str:
    """Registers the spec's source in TorchTitan's DATASETS and returns the name to train on. Raises DataError."""
    from torchtitan.hf_datasets import DatasetConfig
    from torchtitan.hf_datasets.text_datasets import DATASETS

    def text(sample: dict[str, str]) -> str:
        return sample["text"]

    if spec.source == "folder":
        files = folder_files(spec.path)
        DATASETS[FOLDER] = DatasetConfig(
            path=spec.path, loader=lambda path: _stream(files, spec.text_field), sample_processor=text
        )
        return FOLDER
    DATASETS[STDLIB] = DatasetConfig(
        path=STDLIB, loader=lambda path: _stream(stdlib_files(), "text"), sample_processor=text
    )
    return STDLIB
