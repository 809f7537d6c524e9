"""A table of a run file by itself, as a script gives it."""

from __future__ import annotations

from supervisor.core.model.spec import DataSpec, TitanSpec
from supervisor.wire import tables


def test_a_table_within_is_read_too() -> None:
    found, problems = tables.read({"steps": 7, "data": {"source": "folder", "path": "/text"}}, TitanSpec, "titan.")
    assert problems == []
    assert found == TitanSpec(steps=7, data=DataSpec(source="folder", path="/text"))


def test_all_problems_are_sentences_with_the_key_in_the_run_file() -> None:
    assert tables.read({"step": 7}, TitanSpec, "titan.") == (
        TitanSpec(),
        ["titan.step = 7: there is no such key; nearest: titan.steps"],
    )
    found, problems = tables.read({"steps": "7", "data": {"sourc": "folder"}}, TitanSpec, "titan.")
    assert found is None
    assert problems == [
        "titan.data.sourc = 'folder': there is no such key; nearest: titan.data.source",
        "titan.steps = '7' (str): must be a valid integer",
    ]
