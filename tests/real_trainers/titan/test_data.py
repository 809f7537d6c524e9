"""The training text, and each rank's place in it."""

from __future__ import annotations

import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.model.spec import DataSpec
from titan_actor import data, mends, recipes, shares
from titan_actor.cursor import Cursor, NoPlace, Reader

SEQ_LEN, BATCH = 64, 2


@pytest.fixture(scope="module", autouse=True)
def _upstream() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mends.apply()
        import torchtitan.hf_datasets.text_datasets  # noqa: F401


def loader(spec: DataSpec, rank: int = 0, world_size: int = 1) -> Any:
    from torchtitan.components.tokenizer import HuggingFaceTokenizer
    from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader

    with warnings.catch_warnings():
        # torchdata calls a deprecated torch function
        warnings.simplefilter("ignore")
        return HuggingFaceTextDataLoader(
            HuggingFaceTextDataLoader.Config(dataset=data.register(spec)),
            dp_world_size=world_size,
            dp_rank=rank,
            tokenizer=HuggingFaceTokenizer(tokenizer_path=str(recipes.TOKENIZER)),
            seq_len=SEQ_LEN,
            local_batch_size=BATCH,
        )


def batches(of: Any, count: int) -> list[list[list[int]]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = iter(of)
        return [next(found)[1].tolist() for _ in range(count)]


def refuse(spec: DataSpec) -> None:
    shares.refuse(spec, ranks=(0,), groups=1, degree=1, workers=1)


def test_stdlib_is_sorted_and_without_installed_packages() -> None:
    files = data.stdlib_files()
    assert files == sorted(files)
    assert len(files) > 500
    assert not [file for file in files if "site-packages" in file or not file.endswith(".py")]


def test_same_rank_reads_the_same_and_others_read_other_text() -> None:
    spec = DataSpec()
    first, again, other = (batches(loader(spec, rank, 2), 5) for rank in (0, 0, 1))
    assert first == again
    assert first != other


def test_a_loader_starts_fast() -> None:
    """Every restart pays for it."""
    loader(DataSpec())
    start = time.monotonic()
    batches(loader(DataSpec()), 1)
    # ten times its duration on an idle machine
    assert time.monotonic() - start < 3.0


def cursor(folder: Path, of: Any, group: int = 0, rank: int = 0, **more: Any) -> Cursor:
    return Cursor(Reader(str(folder), group, rank, reads_for=0, **more), of)


def place_of(folder: Path, group: int = 0, step: int | None = None) -> Path:
    return folder / "data" / (f"step-{step}" if step is not None else "live") / f"g{group}.r0.json"


@pytest.mark.filterwarnings("ignore")
def test_cursor_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = batches(loader(DataSpec(), 1, 2), 12)
    broken = loader(DataSpec(), 1, 2)
    reading = iter(broken)
    for _ in range(7):
        next(reading)
    cursor(tmp_path, broken, 1).at(7)
    resumed = loader(DataSpec(), 1, 2)
    assert cursor(tmp_path, resumed, 1).load(7) == "step-7"
    assert batches(resumed, 5) == whole[7:]


def test_a_place_of_another_share_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = loader(DataSpec(), 0, 2)
    batches(kept, 3)
    cursor(tmp_path, kept, source="folder a").at(3)
    assert cursor(tmp_path, loader(DataSpec(), 0, 4), source="folder a").load(3) == ""
    assert "is a place for 2 ranks: the share of another number begins at its first document" in caplog.text
    other = loader(DataSpec(), 0, 2)
    with pytest.raises(NoPlace, match="is a place in folder a, and this is folder b"):
        cursor(tmp_path, other, source="folder b").load(3)
    assert cursor(tmp_path, other, source="folder b", lost_place="start").load(3) == ""
    assert cursor(tmp_path, loader(DataSpec(), 0, 2), source="folder a").load(3) == "step-3"


def test_a_lost_place_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    own = loader(DataSpec(), 0, 2)
    with pytest.raises(NoPlace, match=r"at step 3 is lost: .*step-3/g0.r0.json is missing.*lost_place=start"):
        cursor(tmp_path, own).load(3)
    batches(own, 3)
    cursor(tmp_path, own).at(3)
    place_of(tmp_path, step=3).write_text("{")
    with pytest.raises(NoPlace, match=r"step-3/g0.r0.json cannot be read \(Expecting"):
        cursor(tmp_path, own).load(3)
    place_of(tmp_path).parent.mkdir()
    place_of(tmp_path).write_text("[]")
    with pytest.raises(NoPlace, match=r"live/g0.r0.json cannot be read"):
        cursor(tmp_path, own).load(None)


@pytest.mark.filterwarnings("ignore")
def test_without_a_place_it_starts_or_skips_where_the_run_file_says_so(tmp_path: Path) -> None:
    whole = batches(loader(DataSpec(), 1, 2), 8)
    first = loader(DataSpec(), 1, 2)
    assert cursor(tmp_path, first, 1, lost_place="start").load(3) == ""
    assert batches(first, 2) == whole[:2]
    later = loader(DataSpec(), 1, 2)
    assert cursor(tmp_path, later, 1, lost_place="skip", batches=2).load(3) == "after 6 batches"
    assert batches(later, 2) == whole[6:]


def test_a_group_that_has_committed_no_step_begins_at_its_first_document(tmp_path: Path) -> None:
    assert cursor(tmp_path, loader(DataSpec(), 1, 2), 1).load(None) == ""
    cursor(tmp_path, loader(DataSpec(), 0, 2)).at(3)
    found = cursor(tmp_path, loader(DataSpec(), 1, 2), 1).load(3)
    assert found == f"the first document in place of {tmp_path}/data/step-3/g1.r0.json"


def test_a_group_that_was_away_at_the_checkpoint_has_its_last_place_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def at(step: int, live: bool = False) -> None:
        kept = cursor(tmp_path, loader(DataSpec(), 0, 2))
        kept.live(step) if live else kept.at(step)

    for step in (10, 20, 50):
        at(step)
    at(33, live=True)
    place_of(tmp_path, 1, 40).parent.mkdir()
    place_of(tmp_path, 1, 40).write_text("{}")  # of another group
    lacking = f"{tmp_path}/data/step-40/g0.r0.json"
    assert cursor(tmp_path, loader(DataSpec(), 0, 2)).load(40) == f"live in place of {lacking}"
    assert f"{lacking} is missing: group 0 was away then, or it is lost; taken: live" in caplog.messages
    at(47, live=True)
    assert cursor(tmp_path, loader(DataSpec(), 0, 2)).load(40) == f"step-20 in place of {lacking}"
    place_of(tmp_path, 1, 5).parent.mkdir()
    place_of(tmp_path, 1, 5).write_text("{}")
    lacking = f"{tmp_path}/data/step-5/g0.r0.json"
    assert cursor(tmp_path, loader(DataSpec(), 0, 2)).load(5) == f"step-10 in place of {lacking}"
    with pytest.raises(NoPlace, match=r"step-45/g0.r0.json is missing"):
        cursor(tmp_path, loader(DataSpec(), 0, 2)).load(45)
    place_of(tmp_path).write_text("{")
    assert cursor(tmp_path, loader(DataSpec(), 0, 2)).load(None) == "step-50"


@pytest.mark.filterwarnings("ignore")
def test_ranks_that_read_the_same_data_share_one_place(tmp_path: Path) -> None:
    """Places of their own could be of different steps: a restart would give halves of one model different data."""
    first, second = (loader(DataSpec(), 0, 1) for _ in range(2))
    batches(first, 3)
    batches(second, 5)
    cursor(tmp_path, second, rank=1).live(5)
    assert not (tmp_path / "data").exists()
    cursor(tmp_path, first).live(3)
    back = [loader(DataSpec(), 0, 1) for _ in range(2)]
    assert [cursor(tmp_path, one, rank=rank).load(None) for rank, one in enumerate(back)] == ["live", "live"]
    assert batches(back[0], 2) == batches(back[1], 2)


def test_cursor_purge(tmp_path: Path) -> None:
    kept = cursor(tmp_path, loader(DataSpec()))
    for step in (5, 10, 15):
        kept.at(step)
    kept.purge(before_step=10)
    assert sorted(os.listdir(tmp_path / "data")) == ["step-10", "step-15"]


def test_folder_of_text(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "a.txt").write_text("alpha " * 20)
    (tmp_path / "b.jsonl").write_text('{"body": "beta"}\n\n{"body": "gamma"}\n')
    pyarrow.parquet.write_table(pyarrow.table({"body": ["delta", None, "epsilon"]}), tmp_path / "c.parquet")
    (tmp_path / "readme.md").write_text("not read")
    files = data.folder_files(str(tmp_path))
    assert [os.path.basename(file) for file in files] == ["a.txt", "b.jsonl", "c.parquet"]
    texts = [sample["text"] for _, sample in data.documents(files, "body")]
    assert texts == ["alpha " * 20, "beta", "gamma", "delta", "epsilon"]
    spec = DataSpec(source="folder", path=str(tmp_path), text_field="body")
    refuse(spec)
    assert batches(loader(spec), 3)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no .txt"),
        ({"a.md": "x"}, "holds no .txt"),
        ({"a.jsonl": "not json\n"}, "a.jsonl:1"),
        ({"a.jsonl": '{"other": "x"}\n'}, "a.jsonl:1"),
        ({"a.jsonl": "[1]\n"}, "a.jsonl:1"),
        ({"a.txt": ""}, "group 0 gets no document of .*: it holds 0 documents in 1 file"),
        ({"a.txt": "", "b.txt": "x"}, None),
    ],
)
def test_folder_that_cannot_be_trained_on(tmp_path: Path, files: dict[str, str], message: str | None) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    spec = DataSpec(source="folder", path=str(tmp_path))
    if message is None:
        refuse(spec)
        return
    with pytest.raises(data.DataError, match=message):
        refuse(spec)


def test_missing_folder() -> None:
    for path in ("", "/no/such/folder"):
        with pytest.raises(data.DataError):
            refuse(DataSpec(source="folder", path=path))


def test_documents_are_cut_at_line_ends(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(5000)) + "x" * 20_000
    (tmp_path / "long.txt").write_text(text)
    pieces = [sample["text"] for _, sample in data.documents([str(tmp_path / "long.txt")], "text")]
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= data.DOCUMENT_CHARACTERS
    assert pieces[0].endswith("\n")


def test_shipped_tokenizer_fits_the_shipped_model() -> None:
    vocabulary = json.loads((recipes.TOKENIZER / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(vocabulary) == 2048


LAYOUTS = {
    "one document": ["x"],
    "one file of two documents": ["x" * (data.DOCUMENT_CHARACTERS + 1)],
    "an empty file each": ["x", ""],
    "an empty file among four": ["x", "x", "x", ""],
    "three files": ["x", "x", "x"],
    "five files, one long": ["x", "x", "x" * 3 * data.DOCUMENT_CHARACTERS, "x", "x"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_empty_share_is_one_that_datasets_gives_nothing(
    tmp_path: Path, layout: str, world_size: int, workers: int
) -> None:
    from datasets.distributed import split_dataset_by_node

    for n, text in enumerate(LAYOUTS[layout]):
        (tmp_path / f"{n}.txt").write_text(text)
    files = data.folder_files(str(tmp_path))
    said = shares.empty(files, "text", range(world_size), world_size, workers)
    truly = []
    for rank in range(world_size):
        found = set()
        for worker in range(workers):
            share = split_dataset_by_node(data._stream(files, "text"), rank, world_size)
            prepared = share._prepare_ex_iterable_for_iteration()
            mine = prepared.split_shard_indices_by_worker(workers, worker, contiguous=False)
            part = prepared.shard_data_sources(workers, worker, contiguous=False) if mine else ()
            found.add(any(True for _ in part))
        if False in found:
            truly.append(rank)
    assert said == truly


def test_a_group_without_data_is_named_with_the_folder_and_what_to_do(tmp_path: Path) -> None:
    spec = DataSpec(source="folder", path=str(tmp_path))
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(shares.NoData) as raised:
        shares.refuse(spec, ranks=range(4), groups=2, degree=2, workers=1)
    said = str(raised.value)
    assert said.startswith(f"groups 0, 1 get no document of {tmp_path}: it holds 1 document in 1 file, for 4 shares")
    assert "add documents, or lower groups.count" in said
    shares.refuse(spec, ranks=(0,), groups=2, degree=2, workers=1)
    (tmp_path / "b.txt").write_text("two")
    (tmp_path / "c.txt").write_text("three")
    with pytest.raises(shares.NoData, match="group 1 gets no document"):
        shares.refuse(spec, ranks=(3,), groups=2, degree=2, workers=1)
