"""Text is cut into chunks and pieces, and none of it is lost or doubled."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from titan_actor.tokens import sources
from titan_actor.tokens.format import TokensError
from titan_actor.tokens.sources import Chunk, Corpus, Reading, chunks, files, marks
from titan_actor.tokens.tokenizer import ASSETS, Encoder

TEXTS = [f"document {number}\n" + "word " * (number % 40) for number in range(900)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LEAST_BYTES", 4000)
    monkeypatch.setattr(sources, "PIECE", 100)


def documents(found: list[Chunk]) -> list[str]:
    """The documents of all chunks, put together of their pieces."""
    made, current = [], ""
    for chunk in found:
        reading = Reading(chunk, "text")
        for text, last in reading.pieces():
            assert len(text) <= sources.PIECE * 2
            current += text
            if last:
                made.append(current)
                current = ""
        assert reading.done == pytest.approx(sum(span.weight for span in chunk))
    assert not current
    return made


def as_parquet(path: Path) -> None:
    table = pyarrow.table({"text": TEXTS, "more": list(range(len(TEXTS)))})
    parquet.write_table(table, path, row_group_size=70, compression="none")


def as_jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))


def as_text(path: Path) -> None:
    path.mkdir()
    for number, text in enumerate(TEXTS[:200]):
        (path / f"{number:04}.txt").write_text(text)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("name", "write"), [("a.parquet", as_parquet), ("a.jsonl", as_jsonl), ("folder", as_text)])
def test_all_documents_once_and_in_order(tmp_path: Path, name: str, write: Any) -> None:
    write(tmp_path / name)
    found = chunks(marks(files(Corpus(source=str(tmp_path / name)))))
    assert len(found) > 2
    assert documents(found) == (TEXTS[:200] if name == "folder" else TEXTS)


@pytest.mark.usefixtures("small")
def test_a_data_set_that_is_saved(tmp_path: Path) -> None:
    import datasets

    made = datasets.Dataset.from_dict({"text": TEXTS})
    made.save_to_disk(str(tmp_path / "one"), num_proc=None)
    assert documents(chunks(marks(files(Corpus(source=str(tmp_path / "one")))))) == TEXTS
    datasets.DatasetDict({"train": made.select(range(5)), "test": made.select(range(5, 7))}).save_to_disk(
        str(tmp_path / "two")
    )
    assert documents(chunks(marks(files(Corpus(source=str(tmp_path / "two"), split="test"))))) == TEXTS[5:7]
    with pytest.raises(TokensError, match="has no split 'dev': it has train, test; name one by --split"):
        files(Corpus(source=str(tmp_path / "two"), split="dev"))


def test_a_slice_of_a_split_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data set comes from a file instead of the hub, by the library's own reader."""
    import datasets

    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    load = datasets.load_dataset

    def from_file(source: str, split: str) -> Any:
        return load("json", data_files=str(tmp_path / "a.jsonl"), split=split, cache_dir=str(tmp_path / "cache"))

    monkeypatch.setattr(datasets, "load_dataset", from_file)
    assert documents(chunks(marks(files(Corpus(source="hub/name"))))) == TEXTS
    with pytest.raises(TokensError) as error:
        files(Corpus(source="hub/name", split="train[:10%]"))
    assert str(error.value) == (
        "hub/name: train[:10%] has 90 of the 900 rows in its files, and whole files alone are built: name a whole split by "
        "--split"
    )


@settings(deadline=None)
@given(
    texts=st.lists(st.text(max_size=30), max_size=40),
    cuts=st.lists(st.integers(1, 2000), max_size=8),
    ending=st.sampled_from(["\n", "\r\n", "\n\n"]),
    last=st.booleans(),
)
def test_lines_cut_at_any_byte(
    tmp_path_factory: Any, texts: list[str], cuts: list[int], ending: str, last: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    raw = ending.join(json.dumps({"text": text}, ensure_ascii=False) for text in texts)
    path.write_bytes((raw + (ending if last else "")).encode(errors="surrogatepass"))
    size = path.stat().st_size
    ends = [*sorted({cut for cut in cuts if cut < size}), size]
    spans = [
        sources.Span(path=str(path), start=start, end=end, weight=end - start)
        for start, end in zip([0, *ends], ends, strict=False)
    ]
    found = [text for span in spans for text, _ in Reading((span,), "text").pieces()]
    assert found == [text for text in texts if text]


def test_a_long_document_gives_the_tokens_that_it_gives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(Path(sources.__file__).read_text() for _ in range(3)) + "\n\n    x = 1\n\n\nend" + " " * 90 + "z"
    encoder = Encoder(ASSETS)
    (whole,) = encoder.encode([text])
    for size in (200, 999, 5000):
        monkeypatch.setattr(sources, "PIECE", size)
        pieces = [piece for piece, _ in Reading((), "text")._cut(iter([text]))]
        assert "".join(pieces) == text
        assert len(pieces) > 4
        assert [token for found in encoder.encode(pieces) for token in found] == whole


def test_a_long_document_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []

    class Text(str):
        def __getitem__(self, key: Any) -> str:
            found = super().__getitem__(key)
            copied.append(len(found))
            return Text(found)

    monkeypatch.setattr(sources, "PIECE", 100)
    text = "some words " * 1000
    assert "".join(piece for piece, _ in Reading((), "text")._cut(iter([Text(text)]))) == text
    assert sum(copied) < 2 * len(text)


@pytest.mark.usefixtures("small")
def test_a_text_file_is_one_document_read_in_pieces(tmp_path: Path) -> None:
    text = "line of text\r\n" * 1000 + "the end"
    (tmp_path / "a.txt").write_bytes(text.encode())
    pieces = list(Reading(chunks(marks([str(tmp_path / "a.txt")]))[0], "text").pieces())
    assert "".join(piece for piece, _ in pieces) == text.replace("\r\n", "\n")
    assert [last for _, last in pieces] == [False] * (len(pieces) - 1) + [True]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_file_that_is_larger_than_memory_may_be(tmp_path: Path, name: str) -> None:
    """Forty times a piece: what is held at a time does not depend on it."""
    line = json.dumps({"text": "some words of a line " * 40}) + "\n"
    with (tmp_path / name).open("w") as file:
        for _ in range(40 * sources.PIECE // len(line)):
            file.write(line)
    chunk = tuple(span for each in chunks(marks([str(tmp_path / name)])) for span in each)
    tracemalloc.start()
    count = sum(len(text) for text, _ in Reading(chunk, "text").pieces())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count > 30 * sources.PIECE
    assert most < 10 * sources.PIECE


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "a.jsonl",
            b'{"text": "one"}\n{"txt": "two"}\n',
            "a.jsonl: the line at byte 16 is not a JSON object with 'text'",
        ),
        ("a.jsonl", b"{", "a.jsonl: the line at byte 0 is not a JSON object"),
        ("a.parquet", b"PAR1", "a.parquet is no readable parquet file"),
    ],
)
def test_a_file_that_is_no_text(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokensError) as error:
        documents(chunks(marks(files(Corpus(source=str(tmp_path))))))
    assert sentence in str(error.value)


def test_a_table_without_the_column(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"content": ["a"], "id": [1]}), tmp_path / "a.parquet")
    with pytest.raises(TokensError, match="has no column 'text': it has content, id; name one by --text-field"):
        documents(chunks(marks(files(Corpus(source=str(tmp_path / "a.parquet"))))))


def test_a_parquet_file_that_is_damaged_within(tmp_path: Path) -> None:
    as_parquet(tmp_path / "a.parquet")
    raw = bytearray((tmp_path / "a.parquet").read_bytes())
    raw[4:3000] = b"\xff" * 2996
    (tmp_path / "a.parquet").write_bytes(raw)
    with pytest.raises(TokensError, match=r"a\.parquet cannot be read"):
        documents(chunks(marks(files(Corpus(source=str(tmp_path / "a.parquet"))))))


def test_an_error_without_a_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def fails(source: str) -> Any:
        raise AssertionError

    monkeypatch.setattr(datasets, "load_from_disk", fails)
    (tmp_path / "state.json").touch()
    with pytest.raises(TokensError, match="cannot be loaded: AssertionError"):
        files(Corpus(source=str(tmp_path)))


def test_what_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b")
    for source, sentence in (
        (str(tmp_path / "none"), "there is no "),
        (str(tmp_path / "a.csv"), "is none of .txt, .jsonl, .parquet"),
        (str(tmp_path), "holds no .txt, .jsonl, .parquet file"),
    ):
        with pytest.raises(TokensError) as error:
            files(Corpus(source=source))
        assert sentence in str(error.value)
