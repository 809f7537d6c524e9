"""Windows are read as if all documents lay in one list, and an error names the file that is at fault."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.titan_actor.tokens.stores import written
from titan_actor.tokens import reader
from titan_actor.tokens.format import TokensError, load
from titan_actor.tokens.reader import TokenStore

Shards = Sequence[Sequence[Sequence[int]]]

DOCUMENTS = st.lists(st.lists(st.integers(0, 499), min_size=1, max_size=30), min_size=1, max_size=90)


def expected(shards: Shards, seq_len: int) -> list[tuple[list[int], list[int], list[int]]]:
    """All windows, by lists."""
    rows = [
        (token, following, place)
        for documents in shards
        for document in documents
        for place, (token, following) in enumerate(pairwise(document))
    ]
    found = []
    for at in range(0, len(rows) - seq_len + 1, seq_len):
        inputs, labels, places = zip(*rows[at : at + seq_len], strict=True)
        # a document that began before the window is counted from the window's first token
        first = next((number for number, place in enumerate(places) if place == 0 and number), seq_len)
        shown = [place - places[0] if number < first else place for number, place in enumerate(places)]
        found.append((list(inputs), list(labels), shown))
    return found


def read(folder: Path, seq_len: int) -> list[tuple[list[int], list[int], list[int]]]:
    store = TokenStore(folder)
    windows = [store.window(number, seq_len) for number in range(store.windows(seq_len))]
    return [(each.inputs.tolist(), each.labels.tolist(), each.positions.tolist()) for each in windows]


@settings(deadline=None)
@given(shards=st.lists(DOCUMENTS, min_size=1, max_size=3), seq_len=st.integers(1, 70), wide=st.booleans())
def test_windows_are_those_of_one_list(shards: Shards, seq_len: int, wide: bool) -> None:
    with TemporaryDirectory() as folder:
        written(Path(folder), shards, "<i4" if wide else "<u2")
        assert read(Path(folder), seq_len) == expected(shards, seq_len)


def test_more_documents_in_a_window_than_are_looked_up_at_once(tmp_path: Path) -> None:
    shards = [[[1, 2]] * 500 + [[3]] * 300 + [[4, 5, 6]] * 100]
    assert read(written(tmp_path, shards), 350) == expected(shards, 350)


def test_a_window_outside(tmp_path: Path) -> None:
    store = TokenStore(written(tmp_path, [[[1, 2, 3, 4, 5]]]))
    assert store.windows(4) == 1
    assert store.windows(5) == 0
    with pytest.raises(IndexError, match="window 1 of 1"):
        store.window(1, 4)


def test_a_folder_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(TokensError, match="there is no such folder"):
        load(tmp_path / "none")
    with pytest.raises(TokensError, match=r"make one with `supervisor data build"):
        load(tmp_path)
    (tmp_path / "building").mkdir()
    with pytest.raises(TokensError, match="its build is not finished"):
        load(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(TokensError, match=r"manifest\.json is no manifest of a store: "):
        load(tmp_path)


def test_a_manifest_of_another_version(tmp_path: Path) -> None:
    at = written(tmp_path, [[[1, 2]]]) / "manifest.json"
    at.write_text(json.dumps({**json.loads(at.read_text()), "version": 2}))
    with pytest.raises(TokensError, match="is of version 2"):
        load(tmp_path)


def test_a_shard_that_is_gone_or_of_another_size(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", [[[1, 2]], [[3, 4, 5]]])
    shutil.copytree(folder, tmp_path / "b")
    (folder / "s1.bin").unlink()
    with pytest.raises(TokensError, match=r"shard .*s1\.bin cannot be read: No such file"):
        TokenStore(folder)
    os.truncate(tmp_path / "b" / "s1.idx", 40)
    with pytest.raises(TokensError, match=r"shard .*s1\.idx has 40 bytes, and its manifest says"):
        TokenStore(tmp_path / "b")


def test_a_shard_that_shrinks_while_it_is_open(tmp_path: Path) -> None:
    """Mapped, it would end the process by SIGBUS."""
    store = TokenStore(written(tmp_path, [[list(range(1, 100))]]))
    store.window(0, 10)
    os.truncate(tmp_path / "s0.bin", 50)
    with pytest.raises(TokensError, match=r"s0\.bin is shorter than its manifest says"):
        store.window(8, 10)


@pytest.mark.parametrize(("ending", "opened"), [("bin", True), ("bin", False), ("idx", True), ("idx", False)])
def test_a_shard_that_is_written_to_at_the_same_size(tmp_path: Path, ending: str, opened: bool) -> None:
    store = TokenStore(written(tmp_path, [[list(range(1, 100))]]))
    if opened:
        store.window(0, 10)
    file = tmp_path / f"s0.{ending}"

    def write(content: bytes) -> None:
        file.write_bytes(content)
        os.utime(file, ns=(0, file.stat().st_mtime_ns + 10**9))  # a clock may not tell two writes apart

    before = file.read_bytes()
    write(before)
    store.window(8, 10)  # the same bytes: it was touched, or copied again
    write(before[:-1] + bytes([before[-1] ^ 1]))
    with pytest.raises(TokensError, match=rf"s0\.{ending} has been written to under the run, and has other bytes"):
        store.window(8, 10)


def test_a_shard_that_is_replaced_is_looked_at_when_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "OPEN_SHARDS", 1)
    store = TokenStore(written(tmp_path, [[list(range(1, 100))], [list(range(1, 100))]]))
    store.window(0, 10)
    (tmp_path / "other").write_bytes(bytes(len((tmp_path / "s0.bin").read_bytes())))
    os.utime(tmp_path / "other", ns=(0, 0))
    (tmp_path / "other").replace(tmp_path / "s0.bin")
    store.window(1, 10)  # the file that it had opened
    store.window(15, 10)
    with pytest.raises(TokensError, match=r"s0\.bin has been written to under the run"):
        store.window(0, 10)


def test_tokens_that_the_vocabulary_does_not_have(tmp_path: Path) -> None:
    store = TokenStore(written(tmp_path, [[[1, 2, 3, 400, 5]]]), vocabulary=300)
    with pytest.raises(TokensError, match=r"s0\.bin is corrupt: among tokens 0 to 5"):
        store.window(0, 4)


def test_an_index_whose_offsets_are_damaged(tmp_path: Path) -> None:
    written(tmp_path, [[[1, 2, 3]] * 20])
    raw = bytearray((tmp_path / "s0.idx").read_bytes())
    raw[34 + 4 * 20 + 8 * 10 + 7] = 0x7F
    (tmp_path / "s0.idx").write_bytes(raw)
    store = TokenStore(tmp_path)
    with pytest.raises(TokensError, match=r"s0\.idx is corrupt"):
        [store.window(number, 4) for number in range(store.windows(4))]
