"""A build by real processes: whatever ends it, the same command goes on, and the store is the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from fault_injection.testbed.corpus import build_store
from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Fatal
from titan_actor.data import stdlib_files
from titan_actor.tokens import sources
from titan_actor.tokens.build import build
from titan_actor.tokens.format import TokensError, load
from titan_actor.tokens.reader import TokenStore
from titan_actor.tokens.sources import Corpus
from titan_actor.tokens.tokenizer import ASSETS, Encoder

COMMAND = (sys.executable, "-c", "from titan_actor.tokens.command import data; data()", "build")


def command(source: Path, out: Path) -> list[str]:
    return [*COMMAND, str(source), "--tokenizer", "shipped", "--out", str(out), "--processes", "2"]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    files = [path for path in stdlib_files() if Path(path).stat().st_size > 10_000]
    return [Path(path).read_text(encoding="utf-8", errors="replace") for path in files[:120]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    """Some 4 MB: as many shards."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """The store of a build that nothing ended, by one process."""
    out = tmp_path_factory.mktemp("store")
    build(Corpus(source=str(corpus)), ASSETS, out, processes=1)
    return out


def shards(out: Path) -> dict[str, int]:
    """The shards that are done, with the time of each."""
    return {path.name: path.stat().st_mtime_ns for path in (out / "building").glob("shard-*.json")}


def bare(out: Path) -> bool:
    return not list(out.glob(".*"))


def test_the_tokens_are_those_of_each_document(whole: Path, texts: list[str]) -> None:
    encoder = Encoder(ASSETS)
    expected = [[encoder.bos, *found, encoder.eos] for found in encoder.encode(texts)]
    made = load(whole)
    assert len(made.shards) > 3
    assert (made.documents, made.tokens) == (len(texts), sum(map(len, expected)))
    pairs = [pair for document in expected for pair in pairwise(document)]
    store = TokenStore(whole, made.tokenizer.vocabulary)
    for number in range(0, store.windows(1000), 7):
        window = store.window(number, 1000)
        read = list(zip(window.inputs.tolist(), window.labels.tolist(), strict=True))
        assert read == pairs[number * 1000 : number * 1000 + 1000]


def test_a_kill_in_the_middle(corpus: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    first = subprocess.Popen(command(corpus, out), stderr=subprocess.PIPE)
    eventually(lambda: len(shards(out)) >= 2, 60, "two shards")
    workers = [int(pid) for pid in Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()]
    first.kill()
    first.communicate()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 10, "its processes end with it")
    done = shards(out)
    with pytest.raises(TokensError, match="its build is not finished"):
        load(out)
    times = {name: (out / name).stat().st_mtime_ns for each in done for name in (each.replace(".json", ".bin"),)}
    made = build(Corpus(source=str(corpus)), ASSETS, out, processes=2)
    assert made.digest == load(whole).digest
    assert {name: (out / name).stat().st_mtime_ns for name in times} == times, "they are not made again"
    assert bare(out)
    assert not (out / "building").exists()


def test_an_interrupt(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    first = subprocess.Popen(command(corpus, out), stderr=subprocess.PIPE, text=True, start_new_session=True)
    eventually(lambda: shards(out), 60, "a shard")
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does
    _, errors = first.communicate(timeout=30)
    *_, last = errors.strip().splitlines()  # after lines on its progress, where it is slow
    assert (first.returncode, last) == (130, "supervisor: interrupted: run the same command again, and it goes on")


def test_a_process_that_is_killed(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    first = subprocess.Popen(command(corpus, out), stderr=subprocess.PIPE, text=True)
    eventually(lambda: list(out.glob(".shard-*")), 60, "a process at work")
    os.kill(int(next(out.glob(".shard-*")).suffix[1:]), signal.SIGKILL)
    _, errors = first.communicate(timeout=60)
    assert first.returncode == 1
    assert "a process of the build was killed, perhaps for memory: run the same command again" in errors
    assert "Traceback" not in errors


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.root
def test_a_disk_that_fills(corpus: Path, whole: Path, small_disk: Path) -> None:
    out = small_disk / "store"
    sentence = f"no space is left for {out}: free some, and run the same command again"
    with pytest.raises(TokensError) as error:
        build(Corpus(source=str(corpus)), ASSETS, out, processes=1)
    assert str(error.value) == sentence
    assert bare(out), "what was torn is removed"
    done = shards(out)
    assert done
    subprocess.run(["mount", "-o", "remount,size=30m", small_disk], check=True)
    assert build(Corpus(source=str(corpus)), ASSETS, out, processes=1).digest == load(whole).digest


def refused(source: Path, out: Path) -> str:
    with pytest.raises(TokensError) as error:
        build(Corpus(source=str(source)), ASSETS, out, processes=1)
    return str(error.value)


def without_roots_rights() -> list[str]:
    """A prefix for a command that may not read what its modes forbid, for root too."""
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    closed, tokenizer = tmp_path / "closed", tmp_path / "tokenizer"
    closed.mkdir()
    (closed / "a.txt").write_text("text")
    shutil.copytree(ASSETS, tokenizer)
    (tmp_path / "a.txt").write_text("text")
    closed.chmod(0)
    tokenizer.chmod(0)
    too_long = "a" * 300
    for source, with_tokenizer, sentence in (
        (closed / "a.txt", "shipped", f"{closed}/a.txt: Permission denied"),
        (tmp_path / "a.txt", str(tokenizer), f"{tokenizer}/tokenizer.json: Permission denied"),
        (Path(too_long), "shipped", f"{too_long}: File name too long"),
    ):
        arguments = ["--tokenizer", with_tokenizer, "--out", str(tmp_path / "store")]
        found = subprocess.run(
            [*without_roots_rights(), *COMMAND, str(source), *arguments], capture_output=True, text=True, cwd=tmp_path
        )
        assert (found.returncode, found.stderr) == (1, f"supervisor: {sentence}\n")
    closed.chmod(0o700)
    tokenizer.chmod(0o700)


def test_a_data_set_of_the_hub_without_the_hub(tmp_path: Path, texts: list[str]) -> None:
    """By its name, from the cache of `datasets`, which is that of a folder under another name."""
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:20]))
    cache = tmp_path / "cache"
    code = "import sys, datasets; print(datasets.load_dataset(sys.argv[1], split='train').cache_files[0]['filename'])"
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(cache), "HF_HOME": str(tmp_path / "hf")}
    loaded = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "local")], env=env, capture_output=True, text=True, check=True
    )
    made = Path(loaded.stdout.strip()).parent  # NAME/default/0.0.0/HASH
    named = cache / "owner___name" / made.relative_to(cache / "local")
    shutil.copytree(made, named)
    (named / "local-train.arrow").rename(named / "name-train.arrow")
    shutil.rmtree(cache / "local")

    def built(name: str) -> subprocess.CompletedProcess[str]:
        arguments = ["--tokenizer", "shipped", "--out", str(tmp_path / "store")]
        return subprocess.run([*COMMAND, name, *arguments], env=env, capture_output=True, text=True, cwd=tmp_path)

    absent = built("owner/other")
    assert absent.returncode == 1
    sentence = "supervisor: no such file is here, and the Hugging Face hub's data set owner/other cannot be loaded: "
    assert absent.stderr.startswith(sentence)
    assert "OfflineModeIsEnabled" in absent.stderr
    assert "Traceback" not in absent.stderr
    found = built("owner/name")
    assert found.returncode == 0, found.stderr
    assert load(tmp_path / "store").documents == 20
    assert load(tmp_path / "store").sources[0].path == str(named / "name-train.arrow")


def test_an_empty_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.jsonl").write_text('{"text": ""}\n{"text": null}\n\n')
    assert refused(tmp_path, tmp_path / "store") == f"{tmp_path} holds no text: there is nothing to train on"
    assert not list((tmp_path / "store").iterdir())


def test_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one document")
    made = build(Corpus(source=str(tmp_path / "a.txt")), ASSETS, tmp_path / "store", processes=1)
    assert made.documents == 1
    assert TokenStore(tmp_path / "store").windows(4096) == 0
    assert TokenStore(tmp_path / "store").windows(made.tokens - 1) == 1


def test_halves_of_a_surrogate_pair_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "an emoji cut in two: \\ud83d"}\n{"text": "more"}\n')
    assert build(Corpus(source=str(tmp_path)), ASSETS, tmp_path / "store", processes=1).documents == 2


def begun(out: Path, **changes: object) -> None:
    """Leaves an unfinished build of one text file there."""
    (out / "building").mkdir(parents=True)
    mark = Encoder(ASSETS).mark
    read = sources.marks([str(out.parent / "a.txt")])
    plan = {
        "tokenizer": f"{mark.sha256} {mark.bos} {mark.eos}",
        "text_field": "text",
        "sources": sources.as_json(read),
        **changes,
    }
    (out / "building" / "plan.json").write_text(json.dumps(plan))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"tokenizer": "other"}, "tokenizer, or its bos_token and eos_token have changed"),
        ({"text_field": "content"}, "text field"),
        ({"sources": "[]"}, "source, or its files have changed"),
    ],
)
def test_an_unfinished_build_of_something_else(tmp_path: Path, change: dict[str, str], what: str) -> None:
    (tmp_path / "a.txt").write_text("text")
    begun(tmp_path / "store", **change)
    told = refused(tmp_path / "a.txt", tmp_path / "store")
    assert told == (
        f"{tmp_path / 'store'} holds an unfinished build of another {what}: give another --out, or remove it"
    )


def test_an_unfinished_build_with_another_end_of_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    begun(tmp_path / "store")
    other = tmp_path / "tokenizer"
    shutil.copytree(ASSETS, other)
    config = json.loads((other / "tokenizer_config.json").read_text())
    config["eos_token"] = config["bos_token"]
    (other / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokensError, match="of another tokenizer, or its bos_token and eos_token have changed"):
        build(Corpus(source=str(tmp_path / "a.txt")), other, tmp_path / "store", processes=1)
    assert build(Corpus(source=str(tmp_path / "a.txt")), ASSETS, tmp_path / "store", processes=1).documents == 1


def test_a_folder_with_something_in_it(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    assert "is not empty (a.txt): give another --out" in refused(tmp_path / "a.txt", tmp_path)
    assert "holds a token store already" in refused(tmp_path / "a.txt", whole)
    assert "cannot be made: Not a directory" in refused(tmp_path / "a.txt", tmp_path / "a.txt" / "store")


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    cut = sources.chunks

    def grows(found: tuple[sources.Source, ...]) -> list[sources.Chunk]:
        path.write_text("more text")
        return cut(found)

    monkeypatch.setattr(sources, "chunks", grows)
    assert f"{path} has changed while it was read: remove {tmp_path / 'store'}" in refused(path, tmp_path / "store")


def test_two_builds_at_once(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "store"
    first = subprocess.Popen(command(corpus, out), stderr=subprocess.PIPE)
    eventually(lambda: list(out.glob(".shard-*")), 60, "a process at work")
    assert refused(corpus, out) == f"another build is writing to {out}: wait for it, or give another --out"
    first.kill()
    first.communicate()


def test_a_record_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"txt": "two"}\n')
    told = refused(tmp_path, tmp_path / "store")
    assert told == f"{tmp_path}/a.jsonl: the line at byte 16 is not a JSON object with 'text'"


def test_tokenizers_that_cannot_serve(tmp_path: Path) -> None:
    from titan_actor.tokens.tokenizer import folder_of

    with pytest.raises(TokensError, match=r"there is no tokenizer\.json in"):
        folder_of(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokensError, match="cannot be read"):
        Encoder(folder_of(str(tmp_path)))
    (tmp_path / "tokenizer.json").write_bytes((ASSETS / "tokenizer.json").read_bytes())
    with pytest.raises(TokensError, match="has no end of a document: name its eos_token"):
        Encoder(folder_of(str(tmp_path / "tokenizer.json")))
    assert folder_of("shipped") == ASSETS.resolve()


def test_the_store_of_a_run_that_is_started_to_be_broken(tmp_path: Path) -> None:
    build_store(tmp_path / "run" / "tokens", megabytes=0.1)
    assert 1e5 <= (tmp_path / "run" / "tokens.jsonl").stat().st_size < 1e6
    assert TokenStore(tmp_path / "run" / "tokens").windows(256) > 50
    (tmp_path / "taken").touch()
    with pytest.raises(Fatal, match=r"cannot be built: .*taken cannot be made"):
        build_store(tmp_path / "taken", megabytes=0.1)
    with pytest.raises(Fatal, match=r"cannot be written to .*store\.jsonl"):
        build_store(tmp_path / "taken" / "store", megabytes=0.1)
