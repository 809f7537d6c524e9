"""Runs on a token store: each sample once and in order, through kills, heals, failed commits and resumes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fault_injection.in_rank import causes
from supervisor.core.model.spec import DataSpec, GroupsSpec, TitanSpec, TorchFTSpec
from supervisor.wire.records import MISCONFIGURED
from tests.real_trainers.titan.groups import Groups, Rank, assert_equal_digests, complete
from tests.real_trainers.titan.test_parallelism import KINDS
from tests.real_trainers.titan.test_twin import history_of, parity
from tests.unit.titan_actor.tokens.test_stream import EVENTS, SHAPES
from titan_actor import check, data, mends, samples
from titan_actor.cursor import NoPlace
from titan_actor.tokens.build import build
from titan_actor.tokens.loader import Draw, TokenLoader
from titan_actor.tokens.place import FILE, SharedPlace
from titan_actor.tokens.reader import TokenStore
from titan_actor.tokens.sources import Corpus
from titan_actor.tokens.stream import Order, Shape, positions, share
from titan_actor.tokens.tokenizer import ASSETS

SEQ_LEN, LOCAL = 64, 2
"""Tokens and samples of llama3-debug-small."""

SEED = TitanSpec().seed

SHAPE = Shape(ranks=1, local=LOCAL)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents that TorchTitan reads whole: shorter than those that titan_actor/data.py cuts."""
    folder = tmp_path_factory.mktemp("corpus")
    files = [Path(path) for path in data.stdlib_files()]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files if path.stat().st_size < 8000]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:150] if text))
    return folder


@pytest.fixture(scope="module")
def store(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("store")
    build(Corpus(source=str(corpus)), ASSETS, out)
    return out


def source(folder: Path) -> DataSpec:
    return DataSpec(source="tokens", path=str(folder))


def test_windows_are_those_that_torchtitan_packs(corpus: Path, store: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mends.apply()
        from torchtitan.components.tokenizer import HuggingFaceTokenizer
        from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataset

        name = data.register(DataSpec(source="folder", path=str(corpus)))
        theirs = HuggingFaceTextDataset(name, None, HuggingFaceTokenizer(tokenizer_path=str(ASSETS)), seq_len=300)
        mine = TokenStore(store)
        count = 0
        for number, (inputs, labels) in enumerate(theirs):
            window = mine.window(number, 300)
            assert window.inputs.tolist() == inputs["input"].tolist()
            assert window.labels.tolist() == labels.tolist()
            assert window.positions.tolist() == inputs["positions"].tolist()
            count += 1
    assert count == mine.windows(300) > 200


def loader(folder: Path, **ranks: int) -> TokenLoader:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchtitan.components.tokenizer import HuggingFaceTokenizer

        tokenizer = HuggingFaceTokenizer(tokenizer_path=str(ASSETS))
    values = {"dp_world_size": 1, "dp_rank": 0, **ranks}
    made = TokenLoader.Config(dataset_path=str(folder), seed=SEED)
    return TokenLoader(made, tokenizer=tokenizer, seq_len=SEQ_LEN, local_batch_size=LOCAL, **values)


def test_ranks_that_draw_in_turn_draw_each_sample_once(store: Path) -> None:
    alone, *pair = (iter(loader(store, dp_world_size=n, dp_rank=rank)) for n, rank in ((1, 0), (2, 0), (2, 1)))
    by_two = [samples.names(next(each)) for _ in range(3) for each in pair]
    assert by_two == [samples.names(next(alone)) for _ in range(6)]
    batch, labels = next(alone)
    assert {name: tuple(part.shape) for name, part in batch.items()} == {"input": (2, 64), "positions": (2, 64)}
    assert (tuple(labels.shape), str(labels.dtype)) == ((2, 64), "torch.int64")


def test_what_was_read_ahead_counts_only_for_the_share_that_was_likely(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, plain = loader(store), loader(store)
    draws = iter([Draw([0, 1], [4, 5]), Draw([4, 5], [8, 9]), Draw([6, 7], [])])
    made.draw = lambda: next(draws)
    plain_draws = iter([Draw([4, 5], []), Draw([6, 7], [])])
    plain.draw = lambda: next(plain_draws)
    read: list[int] = []
    window = made.store.window
    monkeypatch.setattr(made.store, "window", lambda number, seq_len: read.append(number) or window(number, seq_len))
    found = iter(made)
    next(found)
    for expected in iter(plain):
        assert samples.names(next(found)) == samples.names(expected)
        assert made.first == plain.first
        if plain.first == 6:
            break
    made._reader.shutdown()  # waits for it
    assert len(read) == 8, "0, 1, and ahead 4, 5 and 8, 9, of which the latter were thrown away for 6, 7"


def attempts(rank: Rank) -> list[tuple[dict[str, Any], list[int], list[str]]]:
    """Each attempt of a rank: its line, and the positions and names of the samples that it drew."""
    found, drawn, names = [], [], []
    for line in rank.lines("batch", "step"):
        if line["event"] == "batch":
            drawn += range(line["position"], line["position"] + len(line["samples"]))
            names += line["samples"]
        else:
            found.append((line, drawn, names))
            drawn, names = [], []
    return found


def assert_each_sample_once(ranks: list[Rank], shape: Shape, store: Path, begin: int = 0, planned: int = 2) -> int:
    """Checks each attempt of all ranks against the arithmetic, and that their committed steps follow each other; returns
    the samples after the last. A rank that was killed may lack its last line. `planned`: rounds of a whole step."""
    participants: dict[int, int] = {}
    for rank in ranks:
        for line, _, _ in attempts(rank):
            if line["committed"]:
                assert participants.setdefault(line["step"], line["participants"]) == line["participants"]
    steps = sorted(participants)
    assert steps == list(range(steps[0], steps[-1] + 1))
    at, whole, committed = {}, {}, begin
    for step in steps:
        at[step], whole[step] = committed, planned
        committed += shape.samples(planned, participants[step])
        planned = shape.whole(planned, participants[step])
    trained: dict[int, list[int]] = {step: [] for step in steps}
    names: dict[int, str] = {}
    for rank in ranks:
        for line, drawn, called in attempts(rank):
            place, count = line["participating_rank"], line["participants"]
            step = line["step"] if line["committed"] else line["step"] + 1
            if place is None or step not in at:
                continue
            mine = share(shape.rounds(whole[step], count), place, count)
            assert drawn == positions(at[step], shape, mine, rank.launch.rank), (line, at[step])
            names.update(zip(drawn, called, strict=True))
            if line["committed"]:
                trained[step] += drawn
    ends = [*list(at.values())[1:], committed]
    lacking = [
        step
        for step, end in list(zip(steps, ends, strict=True))[:-1]
        if sorted(trained[step]) != list(range(at[step], end))
    ]
    assert len(lacking) <= 1, f"steps {lacking}: {[trained[step] for step in lacking]}"
    assert_are_the_windows(names, store)
    return committed


def assert_counts_where_it_heals(rank: Rank) -> None:
    """A step in which a group heals is made of its share too."""
    healed = [(line["participants"], bool(drawn)) for line, drawn, _ in attempts(rank) if line["healed"]]
    assert healed
    assert set(healed) == {(2, True)}
    assert [line for line, _, _ in attempts(rank) if line["participating_rank"] is None] == []


def assert_are_the_windows(names: dict[int, str], folder: Path) -> None:
    import torch

    read = TokenStore(folder)
    order = Order(SEED, read.windows(SEQ_LEN))
    for position, name in list(names.items())[::5]:
        window = read.window(order.window(position), SEQ_LEN)
        inputs = {"input": torch.tensor(window.inputs[None]), "positions": torch.tensor(window.positions[None])}
        assert samples.names((inputs, torch.tensor(window.labels[None]))) == [name]


@pytest.mark.trainers
@pytest.mark.parametrize("compared", [False, pytest.param(True, marks=pytest.mark.long)])
def test_each_sample_once_through_a_kill_and_a_heal(groups: Groups, store: Path, compared: bool) -> None:
    """`compared`: with the fault-free twin too."""
    fields = {"data": source(store), "steps": 30}
    first, second = (groups.start(group, **fields) for group in (0, 1))
    for rank in (first, second):
        rank.reached(5, commits=3)
    second.kill()
    first.reached(first.step + 3)
    back = groups.start(1, generation=2, **fields)
    assert [rank.exit_code() for rank in (first, back)] == [0, 0], first.log()[-2000:] + back.log()[-2000:]
    assert_counts_where_it_heals(back)
    assert_equal_digests(first, back)
    ranks = [first, second, back]
    both = [line for line, _, _ in attempts(first) if line["committed"] and line["participants"] == 2]
    alone = [line for line, _, _ in attempts(first) if line["committed"] and line["participants"] == 1]
    assert len(both) > 5
    assert len(alone) >= 2
    assert assert_each_sample_once(ranks, SHAPE, store) == 30 * 2 * LOCAL
    assert not (groups.run_dir / "data").exists(), "nothing is written to the run's folder for it"
    if compared:
        body = parity(history_of(*ranks))
        assert (body["answer"], body["steps"]) == ("pass", 30), body["why"]


def losses(rank: Rank) -> dict[int, float]:
    return {line["step"]: line["loss"] for line, _, _ in attempts(rank) if line["committed"]}


@pytest.mark.trainers
def test_a_step_that_lacks_groups_has_all_samples_and_the_same_loss(groups: Groups, store: Path) -> None:
    """Three groups, of which one is lost, and one group alone in the place of three."""
    fields = {"data": source(store), "steps": 16, "groups": 3, "min_groups": 2}
    three = [groups.start(group, **fields) for group in range(3)]
    for rank in three:
        rank.reached(4, commits=2)
    three[2].kill()
    assert [rank.exit_code() for rank in three[:2]] == [0, 0], three[0].log()[-2000:] + three[1].log()[-2000:]
    assert_equal_digests(*three[:2])
    assert assert_each_sample_once(three, SHAPE, store, planned=3) == 16 * 3 * LOCAL
    shares = {(line["participants"], len(drawn)) for line, drawn, _ in attempts(three[0]) if line["committed"]}
    assert shares >= {(3, LOCAL), (2, 2 * LOCAL)}
    body = parity(history_of(*three))
    assert (body["answer"], body["steps"]) == ("pass", 16), body["why"]
    alone = groups.start(0, generation=2, **{**fields, "min_groups": 1})
    assert alone.exit_code() == 0, alone.log()[-2000:]
    assert losses(alone) == pytest.approx(losses(three[0]), rel=1e-5)
    assert {line["rounds"] for line in (json.loads((alone.folder / "progress.json").read_text()),)} == {3}


@pytest.mark.trainers
@pytest.mark.parametrize(("shrunk_lr", "part"), [("scaled", 2 / 3), ("left", 1.0)])
def test_beyond_the_limit_the_batch_shrinks(groups: Groups, store: Path, shrunk_lr: str, part: float) -> None:
    fields = {"data": source(store), "steps": 4, "groups": 3, "max_accumulation": 2, "shrunk_lr": shrunk_lr}
    alone = groups.start(0, **fields)
    assert alone.exit_code() == 0, alone.log()[-2000:]
    assert assert_each_sample_once([alone], Shape(ranks=1, local=LOCAL, most=2), store, planned=3) == 4 * 2 * LOCAL
    whole = groups.start(0, generation=2, data=source(store), steps=4, groups=1)
    assert whole.exit_code() == 0
    rates, usual = ([line["lr"] for line, _, _ in attempts(rank)] for rank in (alone, whole))
    assert rates == pytest.approx([part * rate for rate in usual])


@pytest.mark.trainers
def test_a_group_is_added_and_lost_while_the_others_train(groups: Groups, store: Path) -> None:
    """As `supervisor scale` does it: only the new one knows of three groups."""
    fields = {"data": source(store), "steps": 30}
    first, second = (groups.start(group, **fields) for group in (0, 1))
    first.reached(4)
    third = groups.start(2, groups=3, **fields)
    third.reached(5, commits=3)
    third.kill()
    ranks = [first, second, third]
    assert [rank.exit_code() for rank in ranks[:2]] == [0, 0], first.log()[-2000:] + second.log()[-2000:]
    assert_equal_digests(first, second)
    steps = [line for line, _, _ in attempts(first) if line["committed"]]
    sizes = {count: [line["step"] for line in steps if line["participants"] == count] for count in (2, 3)}
    begin = sizes[3][0]
    assert sizes[2][-1] > sizes[3][-1], "it was lost before the end"
    assert assert_each_sample_once(ranks, SHAPE, store) == LOCAL * (2 * (begin - 1) + 3 * (30 - begin + 1))


@pytest.mark.trainers
def test_a_group_that_falls_behind_and_heals_without_a_restart(groups: Groups, store: Path) -> None:
    fields = {"data": source(store), "steps": 24, "torchft": TorchFTSpec(process_group_timeout_ms=3000)}
    first, second = (groups.start(group, **fields) for group in (0, 1))
    for rank in (first, second):
        rank.reached(4, commits=3)
    second.signal(signal.SIGSTOP)
    first.reached(first.step + 4)
    second.signal(signal.SIGCONT)
    assert [rank.exit_code() for rank in (first, second)] == [0, 0], first.log()[-2000:] + second.log()[-2000:]
    assert_counts_where_it_heals(second)
    assert_equal_digests(first, second)
    assert_each_sample_once([first, second], SHAPE, store)


@pytest.mark.trainers
@pytest.mark.long
def test_the_ranks_of_a_group_that_heals_take_their_shares(groups: Groups, store: Path) -> None:
    fields = {"data": source(store), "steps": 24}
    first, second = (groups.start_group(group, 2, **fields) for group in (0, 1))
    for rank in (*first, *second):
        rank.reached(5, commits=3)
    for rank in second:
        rank.kill()
    first[0].reached(first[0].step + 2)
    back = groups.start_group(1, 2, generation=2, **fields)
    assert [rank.exit_code() for rank in (*first, *back)] == [0] * 4, first[0].log()[-2000:] + back[0].log()[-2000:]
    for rank in back:
        assert_counts_where_it_heals(rank)
    shape = replace(SHAPE, ranks=2)
    assert assert_each_sample_once([*first, *second, *back], shape, store) == 24 * 2 * 2 * LOCAL


@pytest.mark.trainers
def test_groups_whose_streams_differ_do_not_train_together(groups: Groups, store: Path, tmp_path: Path) -> None:
    """Their shares of a step would overlap, or leave samples out."""
    first = groups.start(0, data=source(store))
    first.reached(2)
    overrides = {"training.local_batch_size": 2 * LOCAL}
    second = groups.start(1, data=source(store), overrides=overrides, resume="peers")
    assert second.exit_code() == 1
    assert second.progress is not None
    assert "this group takes 4 samples at a time, and the other groups 2: after a change of" in second.progress.error
    manifest = json.loads((store / "manifest.json").read_text())
    manifest["shards"][0]["bin_sha256"] = "0" * 64
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    for path in store.glob("shard-*"):
        shutil.copy(path, tmp_path)
    third = groups.start(1, generation=2, data=source(tmp_path), resume="peers")
    assert third.exit_code() == 1
    assert third.progress is not None
    assert f"{tmp_path} on this node is store " in third.progress.error
    steps = first.step
    first.reached(steps + 3)


@pytest.mark.trainers
def test_a_step_that_is_not_committed_draws_the_same_again(groups: Groups, store: Path) -> None:
    fields = {"data": source(store), "steps": 14, "min_groups": 2}
    first, second = (groups.start_obeying(group, **fields) for group in (0, 1))
    for rank in (first, second):
        rank.reached(3, commits=2)
    second.order(causes.ABORT)
    assert second.exit_code() == -signal.SIGABRT, "in its forward pass, while the other waits for it"
    back = groups.start(1, generation=2, **fields)
    assert [rank.exit_code() for rank in (first, back)] == [0, 0], first.log()[-2000:] + back.log()[-2000:]
    failed = [line["step"] for line, _, _ in attempts(first) if not line["committed"]]
    assert len(failed) == 1
    assert assert_each_sample_once([first, second, back], SHAPE, store) == 14 * 2 * LOCAL


@pytest.mark.trainers
def test_a_resume_from_disk_goes_on_with_the_next_sample(groups: Groups, store: Path) -> None:
    fields = {"data": source(store), "groups": 1, "checkpoint_interval_steps": 3, "writer": True}
    first = groups.start(0, steps=8, **fields)
    assert first.exit_code() == 0, first.log()[-2000:]
    mark = next(mark for mark in complete(groups.run_dir) if mark.step == 6)
    kept = json.loads((Path(mark.path) / "stream.json").read_text())
    assert (kept["samples"], kept["seq_len"], kept["seed"]) == (12, SEQ_LEN, SEED)
    shutil.rmtree(complete(groups.run_dir)[-1].path)
    second = groups.start(0, generation=2, checkpoint=mark, steps=9, **fields)
    assert second.exit_code() == 0, second.log()[-2000:]
    assert assert_each_sample_once([second], SHAPE, store, begin=12, planned=1) == 18
    assert second.lines("resumed")[0]["data"] == "sample 12"
    again, before = (dict(zip(*found[0][1:], strict=True)) for found in (attempts(second), attempts(first)[6:]))
    assert again == before, "the repeated step has the same samples"
    (Path(complete(groups.run_dir)[-1].path) / "stream.json").write_text(json.dumps({**kept, "store": "other"}))
    third = groups.start(0, generation=3, steps=11, **fields)
    assert third.exit_code() == MISCONFIGURED
    assert third.progress is not None
    assert f"is in another stream (store other in place of {kept['store']})" in third.progress.error
    begins = {**fields, "data": replace(fields["data"], lost_place="start")}
    fourth = groups.start(0, generation=4, steps=11, **begins)
    assert fourth.exit_code() == 0, fourth.progress
    assert f"(store other in place of {kept['store']}): the stream begins at its first sample" in fourth.log()
    assert attempts(fourth)[0][1] == [0, 1]
    newest, older = complete(groups.run_dir)[-1], complete(groups.run_dir)[-2]
    (Path(newest.path) / "stream.json").write_text("")
    (Path(older.path) / "stream.json").write_text(json.dumps(kept))
    fifth = groups.start(0, generation=5, steps=newest.step, **fields)
    assert fifth.exit_code() == 0
    assert fifth.lines("resumed")[0]["step"] == older.step, "a place that is torn is no place: not the first sample"


@pytest.mark.trainers
@pytest.mark.long
def test_groups_that_resume_at_one_step_with_other_stores_do_not_train(
    groups: Groups, store: Path, tmp_path: Path
) -> None:
    """No group heals, so none meets the other's store, but in the sum of their first step."""
    fields = {"groups": 2, "checkpoint_interval_steps": 3}
    ranks = [groups.start(g, steps=3, data=source(store), writer=g == 0, **fields) for g in (0, 1)]
    assert [rank.exit_code() for rank in ranks] == [0, 0]
    (mark,) = complete(groups.run_dir)
    other = tmp_path / "other"
    shutil.copytree(store, other)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["shards"][0]["bin_sha256"] = "0" * 64  # other tokens, as its hash says
    (other / "manifest.json").write_text(json.dumps(manifest))
    assert TokenStore(other).manifest.digest != TokenStore(store).manifest.digest
    again = [
        groups.start(g, generation=2, steps=6, checkpoint=mark, data=replace(source(at), lost_place="start"), **fields)
        for g, at in enumerate((store, other))
    ]
    assert [rank.exit_code() for rank in again] == [MISCONFIGURED] * 2
    for rank in again:
        assert rank.progress is not None
        assert "the groups do not train on one stream at step 4: here it is sample" in rank.progress.error
        assert rank.lines("digest") == []


@pytest.mark.trainers
@pytest.mark.long
def test_groups_that_start_from_disk_while_their_number_changes_start_again(groups: Groups, store: Path) -> None:
    """As `supervisor scale` makes them: each has the number of groups at its start. By day the property test below."""
    fields = {"checkpoint_interval_steps": 3, "data": source(store)}
    ranks = [groups.start(g, steps=3, writer=g == 0, **fields) for g in (0, 1)]
    assert [rank.exit_code() for rank in ranks] == [0, 0]
    (mark,) = complete(groups.run_dir)
    fields |= {"steps": 6, "checkpoint": mark}
    apart = [groups.start(g, generation=2, groups=2 + g, **fields) for g in (0, 1)]
    assert [rank.exit_code() for rank in apart] == [1, 1]
    for rank, rounds in zip(apart, (2, 3), strict=True):
        assert rank.progress is not None
        assert f"the groups do not make step 4 of one size, here of {rounds} rounds: their" in rank.progress.error
        assert "Traceback" not in rank.log()
        assert not [line for line, _, _ in attempts(rank) if line["committed"]]
    again = [groups.start(g, generation=3, groups=3, **fields) for g in (0, 1)]
    assert [rank.exit_code() for rank in again] == [0, 0], again[0].log()[-2000:]
    assert assert_each_sample_once(again, SHAPE, store, begin=12, planned=3) == 12 + 3 * 3 * LOCAL


@pytest.mark.trainers
def test_ranks_of_a_group_and_their_rounds(groups: Groups, store: Path) -> None:
    fields = {"data": source(store), "steps": 4, "groups": 1, "overrides": {"training.global_batch_size": 8}}
    ranks = groups.start_group(0, 2, **fields)
    assert [rank.exit_code() for rank in ranks] == [0, 0], ranks[0].log()[-2000:]
    assert assert_each_sample_once(ranks, Shape(ranks=2, local=LOCAL, accumulation=2), store) == 32
    assert attempts(ranks[1])[0][1] == [2, 3, 6, 7]


@pytest.mark.trainers
def test_a_shard_that_shrinks_under_the_run_is_named(groups: Groups, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(store, folder)
    rank = groups.start(0, groups=1, data=source(folder))
    rank.reached(2)
    os.truncate(folder / "shard-00000.bin", 100)
    assert rank.exit_code() == 1
    assert rank.progress is not None
    assert f"shard {folder}/shard-00000.bin is shorter than its manifest says: it has changed" in rank.progress.error
    assert "Traceback" not in rank.log()


@pytest.mark.trainers
def test_a_store_of_another_tokenizer_halts_before_the_quorum(groups: Groups, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(store, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["tokenizer"]["sha256"] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    rank = groups.start(0, data=source(folder))
    assert rank.exit_code() == MISCONFIGURED
    assert rank.progress is not None
    assert "was made with another tokenizer" in rank.progress.error


def refused(folder: Path, groups: int = 2, **fields: Any) -> tuple[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (problem,) = check.problems(
            TitanSpec(**{"recipe": "llama3-debug-small", "data": source(folder), **fields}), GroupsSpec(count=groups)
        )
    return str(problem["key"]), str(problem["message"])


def test_what_does_not_fit_is_refused_before_a_node_is_asked_for(store: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not check.problems(TitanSpec(recipe="llama3-debug-small", data=source(store)), GroupsSpec())
    path = "titan.data.path"
    assert refused(tmp_path) == (path, f"{tmp_path} is no token store: there is no manifest.json in it; make one with "
                                 f"`supervisor data build SOURCE --tokenizer T --out {tmp_path}`")  # fmt: skip
    windows = TokenStore(store).windows(SEQ_LEN)
    key, message = refused(store, groups=windows)
    assert key == path
    assert f"holds {windows} samples of 64 tokens, and a step of all groups takes {2 * windows}: add text" in message
    key, message = refused(store, overrides={"training.seq_len": 10**7})
    assert f"{store} holds 0 samples of 10000000 tokens" in message
    key, message = refused(store, overrides={"dataloader.infinite": False})
    assert (key, message) == (
        "titan.overrides.dataloader.infinite",
        'it has no effect with titan.data.source = "tokens": remove it',
    )
    key, message = refused(store, max_accumulation=2, overrides={"training.global_batch_size": 6 * LOCAL})
    assert (key, message) == (
        "titan.max_accumulation",
        "a step of all groups has 3 rounds in each: give at least that, or 0 for no limit",
    )
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(ASSETS, tokenizer)
    assert not json.loads((tokenizer / "tokenizer.json").read_text()).get("truncation")
    with (tokenizer / "tokenizer.json").open("a") as file:
        file.write("\n")
    key, message = refused(store, overrides={"hf_assets_path": str(tokenizer)})
    assert f"{store} was made with another tokenizer ({ASSETS.resolve()}, 2048 tokens) than that of the run" in message


def test_a_store_with_another_begin_or_end_of_documents_is_refused(store: Path, tmp_path: Path) -> None:
    special = json.loads((ASSETS / "tokenizer_config.json").read_text())
    begin, end = special["bos_token"], special["eos_token"]
    for changed, what in (
        ({"bos_token": None}, "bos_token"),
        ({"eos_token": begin}, "eos_token"),
        ({"bos_token": end, "eos_token": begin}, "bos_token and eos_token"),
    ):
        own = tmp_path / what.replace(" ", "_")
        shutil.copytree(ASSETS, own)
        (own / "tokenizer_config.json").write_text(json.dumps(special | changed))
        key, message = refused(store, overrides={"hf_assets_path": str(own)})
        assert (key, message) == (
            "titan.data.path",
            f"{store} was made with another {what} than the tokenizer_config.json in {own} has: copy that of "
            f"{ASSETS.resolve()}, or build the store with the run's tokenizer",
        )
    (own / "tokenizer_config.json").unlink()
    key, message = refused(store, overrides={"hf_assets_path": str(own)})
    assert f"the tokenizer in {own} has no end of a document: name its eos_token in tokenizer_config.json" in message
    (own / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": {"content": begin}, "eos_token": {"content": end}, "chat_template": "other"})
    )
    fine = TitanSpec(recipe="llama3-debug-small", data=source(store), overrides={"hf_assets_path": str(own)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not check.problems(fine, GroupsSpec())


@pytest.mark.trainers
@pytest.mark.parametrize("name", ["pipeline", pytest.param("tensor", marks=pytest.mark.long)])
def test_ranks_that_share_a_model_share_its_samples(groups: Groups, store: Path, name: str) -> None:
    overrides = {**KINDS[name].fields()["overrides"], "training.local_batch_size": 4, "training.seq_len": SEQ_LEN}
    ranks = groups.start_group(0, 2, groups=1, steps=4, data=source(store), overrides=overrides)
    assert [rank.exit_code() for rank in ranks] == [0, 0], ranks[0].log()[-2000:] + ranks[1].log()[-2000:]
    assert assert_each_sample_once(ranks[:1], Shape(ranks=1, local=4), store, planned=1) == 16
    assert not ranks[1].lines("batch")


class Placed:
    """A group of the run: each of its ranks has its place, and they share a quorum."""

    def __init__(self, number: int, count: int, shape: Shape) -> None:
        self._manager = SimpleNamespace(current_step=lambda: 0, _quorum_id=1)
        self.places: list[SharedPlace] = []
        self._loaders: list[Any] = []
        titan = SimpleNamespace(
            global_batch=shape.batch,
            max_accumulation=shape.most,
            shrunk_lr="left",
            data=SimpleNamespace(lost_place="error"),
        )
        for rank in range(shape.ranks):
            loader = SimpleNamespace(
                dp_world_size=count * shape.ranks, dp_rank=number * shape.ranks + rank, seed=5, seq_len=64, first=0,
                store=SimpleNamespace(manifest=SimpleNamespace(digest="abc"), folder=Path("/store")),
            )  # fmt: skip
            trainer = SimpleNamespace(
                dataloader=loader, launch=SimpleNamespace(groups=count, titan=titan), manager=self._manager,
                config=SimpleNamespace(training=SimpleNamespace(local_batch_size=shape.local)),
                gradient_accumulation_steps=shape.accumulation,
            )  # fmt: skip
            self.places.append(SharedPlace(trainer, keeps=rank == 0))
            self._loaders.append(loader)

    @property
    def state(self) -> dict[str, Any]:
        (state,) = {json.dumps(place.state()): place.state() for place in self.places}.values()
        return state

    @property
    def signs(self) -> tuple[int, int]:
        (signs,) = {place.signs for place in self.places}
        return signs

    def heal(self, state: dict[str, Any]) -> None:
        for place in self.places:
            place.take(state)

    def step(self, participants: int, number: int) -> list[int]:
        """All that its ranks draw for a step of `participants` groups, of which it is the `number`th."""
        self._manager._participating_replica_world_size, self._manager._participating_replica_rank = (
            participants,
            number,
        )
        for place in self.places:
            place.begin()
        return [position for loader in self._loaders for position in loader.draw().now]


@pytest.mark.parametrize(("name", "other", "mine"), [("seq_len", 128, 64), ("seed", 6, 5)])
def test_a_checkpoint_of_another_stream_is_refused_at_a_resume(name: str, other: int, mine: int) -> None:
    (place,) = Placed(0, 2, SHAPE).places
    state = {**place.state(), "samples": 12}
    with pytest.raises(NoPlace, match=rf"step-1 is in another stream \({name} {other} in place of {mine}\)\. Put back"):
        place.resume({**state, name: other}, "step-1")
    assert place.committed == 0
    place.resume(state, "step-1")
    assert place.committed == 12


STARTS = st.tuples(st.just("start"), st.lists(st.integers(1, 6), min_size=1, max_size=6))
"""All start from a checkpoint, while the number of groups changes: the number that each starts with."""

SCALED = [("step", {0}, True), ("scale", 5), ("step", {0, 1}, True)]
"""A group that starts with other groups than those that it heals from."""


@settings(deadline=None, max_examples=300)
@example(shape=Shape(ranks=1, local=1), count=3, events=SCALED)
@example(shape=Shape(ranks=1, local=1), count=2, events=[("start", [2, 3])])
@given(shape=SHAPES, count=st.integers(1, 6), events=st.lists(EVENTS | STARTS, max_size=30))
def test_the_places_of_all_ranks_train_each_sample_once_and_in_order(
    shape: Shape,
    count: int,
    events: list[tuple],  # type: ignore[type-arg]
) -> None:
    """The real places, healed from their peers and resumed from checkpoints on disk, through members that come and go,
    commits that fail, the loss of all, changes of the number of groups, while they train and while they start, and
    relaunches with another batch."""
    groups: dict[int, Placed] = {}
    trained: list[int] = []
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top)

        def come(number: int) -> Placed:
            """A group that starts: from its peers if there are some, else from the newest checkpoint."""
            one = Placed(number, count, shape)
            if groups:
                one.heal(max((group.state for group in groups.values()), key=lambda state: state["samples"]))
            elif (folder / FILE).exists():
                for place in one.places:
                    place.resume(place.read(folder), "step-1")
            return one

        def save() -> None:
            newest = max(groups.values(), key=lambda group: group.state["samples"])
            newest.places[0].write(folder, newest.state)

        def saved() -> int:
            return int(json.loads((folder / FILE).read_text())["samples"]) if (folder / FILE).exists() else 0

        def from_disk(counts: list[int]) -> dict[int, Placed]:
            """Groups that start at once, each with its number of groups."""
            nonlocal count
            started = {}
            for number, each in enumerate(counts):
                count = each
                groups.clear()
                started[number] = come(number)
            return started

        for event in events:
            if event[0] == "start":
                del trained[saved() :]
                groups = from_disk(event[1])
                signs = {group.signs for group in groups.values()}
                assert len({stream for stream, _ in signs}) == 1, "no mistake of the run file"
                if len(signs) > 1:  # they end, and start again
                    groups = from_disk([count] * len(groups))
            if event[0] in ("start", "step"):
                members = sorted(groups if event[0] == "start" else event[1])
                assert len({groups[number].signs for number in members if number in groups}) <= 1
                newest = max((group.state["samples"] for group in groups.values()), default=saved())
                for number in members:
                    if number not in groups or groups[number].state["samples"] < newest:
                        groups[number] = come(number)
                drawn = [at for place, number in enumerate(members) for at in groups[number].step(len(members), place)]
                assert sorted(drawn) == list(range(newest, newest + len(drawn)))
                noted = {place.about()["step_samples"] for number in members for place in groups[number].places}
                assert noted == {len(drawn)}
                if event[0] == "start" or event[2]:
                    trained += sorted(drawn)
                    for number in members:
                        for place in groups[number].places:
                            place.advance()
                groups = {number: groups[number] for number in members}  # who was not there is out
            elif event[0] == "lose":
                groups.pop(event[1], None)
                if not groups:
                    del trained[saved() :]
            elif event[0] == "scale":
                count = event[1]
            else:
                if groups and (event[0] == "local" or event[1]):
                    save()
                del trained[saved() :]
                groups = {}
                shape = replace(shape, local=event[1]) if event[0] == "local" else shape
            assert trained == list(range(len(trained)))
