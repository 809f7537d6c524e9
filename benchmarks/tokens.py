"""Measures how fast a corpus is tokenized: `supervisor data build` and `datasets.map` in turn, with the same tokenizer,
text and begin and end of each document, from one data set in Arrow files.

`python -m benchmarks.tokens [--rounds 3] [--megabytes 24]` writes benchmarks/results/tokens.json. Needs some five minutes.

The text is the standard library's source, repeated. A rate is megabytes of text for each second of processor time, of all
processes of a build together and without their start (that of a build of one small document is taken off), so that what
else runs on the machine counts little. `wall_s` has the times by the clock. Both write what they make to a disk.
Memory is the largest process's, for a jsonl file of the size and for one of four times the size, and for a text file that
is one document. `window_us` is the time to read a window at random, from files that are in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.decide import machine
from fault_injection.sim.lane import commit
from titan_actor.data import stdlib_files
from titan_actor.tokens.permutation import permute
from titan_actor.tokens.reader import TokenStore
from titan_actor.tokens.tokenizer import ASSETS

RESULTS = Path(__file__).parent / "results" / "tokens.json"

OURS = "from titan_actor.tokens.command import data; data()"

THEIRS = """
import os, sys
os.environ["TOKENIZERS_PARALLELISM"] = "false"
import datasets
from tokenizers import Tokenizer
source, out, processes = sys.argv[1], sys.argv[2], int(sys.argv[3])
datasets.disable_progress_bars()
tokenizer = Tokenizer.from_file(sys.argv[4])
bos, eos = tokenizer.token_to_id("<|begin|>"), tokenizer.token_to_id("<|end|>")
def encode(batch):
    found = tokenizer.encode_batch(batch["text"], add_special_tokens=False)
    return {"input_ids": [[bos, *each.ids, eos] for each in found]}
made = datasets.load_from_disk(source).map(
    encode, batched=True, remove_columns=["text"], num_proc=processes if processes > 1 else None,
    cache_file_name=None if processes > 1 else out + "/made.arrow",
)
print(sum(map(len, made["input_ids"])))
"""


def corpus(folder: Path, megabytes: float) -> Path:
    """Writes the text as jsonl of this size; returns the file."""
    folder.mkdir()
    texts = [Path(path).read_text(encoding="utf-8", errors="replace") for path in stdlib_files()]
    path, written = folder / "text.jsonl", 0
    with path.open("w", encoding="utf-8") as file:
        while written < megabytes * 1e6:
            for text in texts:
                written += file.write(json.dumps({"text": text}) + "\n")
                if written >= megabytes * 1e6:
                    break
    return path


def ran(command: Sequence[str]) -> tuple[float, float]:
    """Runs a command; returns seconds by the clock, and seconds of processors of all its processes."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu


def built(source: Path, out: Path, processes: int) -> list[str]:
    """Returns the command of a build of ours."""
    where = ["--tokenizer", str(ASSETS), "--out", str(out), "--processes", str(processes)]
    return [sys.executable, "-c", OURS, "build", str(source), *where]


def mapped(source: Path, out: Path, processes: int) -> list[str]:
    """Returns the command of `datasets.map`."""
    out.mkdir()
    return [sys.executable, "-c", THEIRS, str(source), str(out), str(processes), str(ASSETS / "tokenizer.json")]


def compared(folder: Path, text: Path, rounds: int) -> dict[str, Any]:
    """Tokenizes one data set in turn by both; returns their rates."""
    import datasets

    datasets.disable_progress_bars()
    kinds = {"build": built, "datasets_map": mapped}
    small = datasets.Dataset.from_dict({"text": ["one document"]})
    whole = datasets.Dataset.from_json(str(text), cache_dir=str(folder / "cache"))
    small.save_to_disk(str(folder / "small"))
    whole.save_to_disk(str(folder / "whole"))
    megabytes = sum(len(each.encode()) for each in whole["text"]) / 1e6
    found: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    for number in range(rounds):
        for name, make in kinds.items():
            _, start = ran(make(folder / "small", folder / f"{name}-small-{number}", 1))
            wall, cpu = ran(make(folder / "whole", folder / f"{name}-{number}", 1))
            found[name].append({"wall_s": wall, "cpu_s": cpu, "start_cpu_s": start, "rate": megabytes / (cpu - start)})
    rates = {name: statistics.median(each["rate"] for each in runs) for name, runs in found.items()}
    return {
        "megabytes_of_text": megabytes,
        "megabytes_per_core_second": rates,
        "ratio": rates["build"] / rates["datasets_map"],
        "each": found,
    }


def memory(folder: Path, source: Path) -> float:
    """Returns the megabytes of the largest process of a build, of two."""
    command = built(source, folder / f"memory-{source.stem}-{source.suffix[1:]}-{source.stat().st_size}", 2)
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, capture_output=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], check=True, capture_output=True, text=True)
    return int(done.stdout) / 1024


def read(store: Path, seq_len: int, count: int) -> float:
    """Returns the microseconds for a window at random, the mean of `count`."""
    opened = TokenStore(store)
    windows = opened.windows(seq_len)
    drawn = [permute(index % windows, windows, 1) for index in range(count)]
    random.Random(0).shuffle(drawn)
    for number in drawn[: count // 10]:
        opened.window(number, seq_len)
    began = time.process_time()
    for number in drawn:
        opened.window(number, seq_len)
    return (time.process_time() - began) / count * 1e6


def main() -> int:
    """Measures, writes and prints; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=24)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = corpus(folder / "text", chosen.megabytes)
        rates = compared(folder, text, chosen.rounds)
        large = corpus(folder / "large", 4 * chosen.megabytes)
        plain = folder / "one_document.txt"
        plain.write_text("".join(json.loads(line)["text"] for line in text.open()), encoding="utf-8")
        used = {
            "jsonl": memory(folder, text),
            "jsonl_of_four_times_the_size": memory(folder, large),
            "one_document": memory(folder, plain),
        }
        began = time.process_time()
        for index in range(20_000):
            permute(index, 10**9 + 7, 5)
        permuted = (time.process_time() - began) / 20_000 * 1e6
        found = {
            "commit": commit(),
            "machine": machine(),
            **rates,
            "megabytes_of_the_largest_process": used,
            "window_us": {length: read(folder / "build-0", length, 3000) for length in (256, 2048, 8192)},
            "permutation_us": permuted,
        }
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps({key: value for key, value in found.items() if key not in ("each", "machine")}, indent=2))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    sys.exit(main())
