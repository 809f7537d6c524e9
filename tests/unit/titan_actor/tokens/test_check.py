"""Corrupt shards are named, and what Megatron wrote is read where it lies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.titan_actor.tokens.stores import written
from tests.unit.titan_actor.tokens.test_reader import expected, read
from titan_actor.tokens.build import alone
from titan_actor.tokens.check import adopt, corrupt, is_megatrons
from titan_actor.tokens.format import TokensError
from titan_actor.tokens.tokenizer import ASSETS

WRITTEN = Path(__file__).parent / "megatron"
"""By IndexedDatasetBuilder of megatron-core 0.16.1."""

DOCUMENTS = [
    [5, 6, 7, 8, 2],
    [9, 10, 11, 12, 2],
    [13, 2, 14, 15, 16, 17, 2],
    [2],
    [300, 301, 302, 303, 304, 305, 2],
]
"""Their sequences are one, two, three, one and one."""


@pytest.fixture(params=["two_bytes", "four_bytes"])
def megatron(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "megatron"
    folder.mkdir()
    for ending in (".bin", ".idx"):
        shutil.copy(WRITTEN / f"{request.param}{ending}", folder / f"text_document{ending}")
    return folder


@pytest.mark.parametrize("seq_len", [1, 3, 4, 20])
def test_what_megatron_wrote(megatron: Path, tmp_path: Path, seq_len: int) -> None:
    made = adopt(megatron, ASSETS, tmp_path / "store")
    assert (made.documents, made.tokens) == (5, 25)
    assert read(tmp_path / "store", seq_len) == expected([DOCUMENTS], seq_len)
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["manifest.json"], "no file is copied"
    assert not corrupt(tmp_path / "store", 2)


def refused(folder: Path, out: Path) -> str:
    with pytest.raises(TokensError) as error:
        adopt(folder, ASSETS, out)
    assert not list(out.glob("*"))
    return str(error.value)


@pytest.mark.parametrize(
    ("ending", "at", "value", "sentence"),
    [
        (".idx", 0, 0, "is no index of Megatron's format"),
        (".idx", 17, 6, "of type 6: only whole numbers"),
        (".idx", 34, 0, "has an empty sequence"),
        (".idx", 34, 4, "its offsets are not those of its lengths"),
        (".idx", -8, 7, "its documents are not in order"),
        (".bin", 1, 0x7F, "and the tokenizer has 2048"),
    ],
)
def test_files_of_megatron_that_are_torn(
    megatron: Path, tmp_path: Path, ending: str, at: int, value: int, sentence: str
) -> None:
    path = megatron / f"text_document{ending}"
    raw = bytearray(path.read_bytes())
    if ending == ".bin" and len(raw) == 100:
        at = 2
    raw[at] = value
    path.write_bytes(raw)
    assert sentence in refused(megatron, tmp_path / "store")


def test_files_of_megatron_that_do_not_fit(megatron: Path, tmp_path: Path) -> None:
    whole = (megatron / "text_document.idx").read_bytes()
    (megatron / "text_document.idx").write_bytes(whole[:-1])
    assert "is torn: it has 177 bytes of 178" in refused(megatron, tmp_path / "store")
    (megatron / "text_document.idx").write_bytes(whole)
    (megatron / "text_document.bin").write_bytes(b"\x01\x00" * 3)
    assert "does not fit its index: it has 6 bytes for 25 tokens" in refused(megatron, tmp_path / "store")
    (megatron / "text_document.bin").unlink()
    assert "text_document.bin cannot be read: No such file" in refused(megatron, tmp_path / "store")


def test_a_folder_of_both_kinds_is_refused(megatron: Path) -> None:
    assert is_megatrons(str(megatron))
    (megatron / "a.txt").write_text("text")
    with pytest.raises(TokensError, match=r"holds text \(a\.txt\) and Megatron's files \(text_document\.idx\)"):
        is_megatrons(str(megatron))
    assert not is_megatrons(str(megatron / "a.txt"))


@pytest.mark.parametrize(
    ("left", "sentence"),
    [
        ("building/plan.json", "is an unfinished build: finish it by the command that began it"),
        ("manifest.json", "is a token store already: train on it as it is"),
    ],
)
def test_a_store_is_no_folder_of_megatron(megatron: Path, tmp_path: Path, left: str, sentence: str) -> None:
    (megatron / left).parent.mkdir(exist_ok=True)
    (megatron / left).write_text("{}")
    for folder in (megatron, megatron.parent):
        assert refused(folder, tmp_path / "out" / "store") == f"{megatron} {sentence}"


def test_a_folder_in_use_takes_no_manifest(megatron: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    with alone(out):
        assert refused(megatron, out) == f"another build is writing to {out}: wait for it, or give another --out"
    (out / "building").mkdir()
    with pytest.raises(TokensError, match=r"store is not empty \(building\): give another --out"):
        adopt(megatron, ASSETS, out)
    (out / "building").rmdir()
    adopt(megatron, ASSETS, out)
    with pytest.raises(TokensError, match="store holds a token store already: give another --out, or remove it"):
        adopt(megatron, ASSETS, out)


def test_each_corrupt_file_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path, [[[1, 2, 3]], [[4, 5, 6]], [[7, 8]]])
    assert not corrupt(folder, 2)
    raw = bytearray((folder / "s1.bin").read_bytes())
    raw[2] ^= 1
    (folder / "s1.bin").write_bytes(raw)
    (folder / "s2.idx").unlink()
    first, second = corrupt(folder, 2)
    assert first == (
        f"{folder}/s1.bin is corrupt: its hash is not that of the manifest: copy it again, or build the store"
    )
    assert f"{folder}/s2.idx is corrupt: No such file or directory" in second
