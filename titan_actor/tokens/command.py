"""The commands `supervisor data build` and `supervisor data show`, and the list of `data`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.wire.command_line import commands, later
from supervisor.wire.printer import print_line

if TYPE_CHECKING:
    from titan_actor.tokens.build import Progress
    from titan_actor.tokens.format import Manifest

data = commands("data", "Tokenize a corpus into a store; show and audit one.")

EVERY_S = 10.0
"""Seconds between lines of progress where the output is no terminal."""

Processes = Annotated[int, typer.Option(min=0, help="Processes. Default: one for each core that this program may use.")]


def register(app: typer.Typer) -> None:
    """Adds `data` to the command line."""
    app.add_typer(data)


@contextlib.contextmanager
def _sentences() -> Iterator[None]:
    try:
        from titan_actor.tokens.format import TokensError

        try:
            yield
        except TokensError as error:
            print_line(f"supervisor: {error}", err=True)
            raise typer.Exit(1) from None
        except OSError as error:  # a source, tokenizer or store that this user may not read, or no file can be
            name = f"{error.filename}: " if error.filename else ""
            print_line(f"supervisor: {name}{error.strerror or error}", err=True)
            raise typer.Exit(1) from None
    except ImportError as error:
        print_line(f"supervisor: {error.name} is not installed here: pip install 'everstep[trainer]'", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print_line("\nsupervisor: interrupted: run the same command again, and it goes on", err=True)
        raise typer.Exit(130) from None


@data.command(epilog="Example: supervisor data build corpus/ --tokenizer models/llama3 --out tokens/")
def build(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of .txt, .jsonl or .parquet files; one such file; a data set saved by `datasets`, or its name on "
            "the Hugging Face hub; or a folder of Megatron's .bin and .idx, which stay where they are."
        ),
    ],
    tokenizer: Annotated[
        str, typer.Option(help="Folder with the tokenizer.json that the run will have, or `shipped`.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the store. An unfinished build there goes on.")],
    text_field: Annotated[
        str, typer.Option(help="Column of jsonl, parquet and data sets that holds the text.")
    ] = "text",
    split: Annotated[str, typer.Option(help="Split of a data set.")] = "train",
    processes: Processes = 0,
) -> None:
    """Tokenize a corpus once, into a store that all ranks read at random. Killed or interrupted, the same command goes on
    where it was."""
    with _sentences():
        from titan_actor.tokens import build as builder
        from titan_actor.tokens import check
        from titan_actor.tokens.sources import Corpus
        from titan_actor.tokens.tokenizer import folder_of

        folder = folder_of(tokenizer)
        check.refuse_inside(source, out)
        if check.is_megatrons(source):
            made = check.adopt(Path(source), folder, out)
        else:
            corpus = Corpus(source=source, text_field=text_field, split=split)
            made = builder.build(corpus, folder, out, processes=processes, show=_progress())
        print_line(f"{out}: {_summary(made)}")


@data.command(epilog="Example: supervisor data show tokens/ --verify")
def show(
    folder: Annotated[Path, typer.Argument(help="Folder of the store.")],
    verify: Annotated[bool, typer.Option("--verify", help="Hash all files, and name those that are corrupt.")] = False,
    processes: Processes = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON, without its files.")] = False,
) -> None:
    """Show what a store holds and how it was made."""
    with _sentences():
        from titan_actor.tokens import check
        from titan_actor.tokens.build import cores
        from titan_actor.tokens.format import load

        made = load(folder)
        print_line(json.dumps(_facts(made), indent=2) if as_json else _words(folder, made))
        found = check.corrupt(folder, processes or cores()) if verify else []
        for sentence in found:
            print_line(f"supervisor: {sentence}", err=True)
        if found:
            raise typer.Exit(1)
        if verify and not as_json:
            print_line(f"all files of {len(made.shards):,} shards are as the manifest says")


# it reads a run's records, which only the supervisor knows
later(
    data,
    "",
    "audit",
    "supervisor.cli.samples",
    "Count the samples of a token store that a run used once, twice and never.",
)


def _facts(made: Manifest) -> dict[str, object]:
    return {
        "digest": made.digest,
        "documents": made.documents,
        "tokens": made.tokens,
        "pairs": made.pairs,
        "dtype": made.dtype,
        "shards": len(made.shards),
        "bytes": sum(shard.bin_bytes + shard.idx_bytes for shard in made.shards),
        "vocabulary": made.tokenizer.vocabulary,
        "tokenizer": made.tokenizer.path,
        "tokenizer_sha256": made.tokenizer.sha256,
        "sources": len(made.sources),
        "source_bytes": sum(source.bytes for source in made.sources),
        "text_field": made.text_field,
    }


def _summary(made: Manifest) -> str:
    size = sum(shard.bin_bytes + shard.idx_bytes for shard in made.shards)
    return (
        f"{made.tokens:,} tokens of {made.documents:,} documents in {len(made.shards):,} shards, {_megabytes(size)} MB "
        f"(store {made.digest})"
    )


def _words(folder: Path, made: Manifest) -> str:
    read = sum(source.bytes for source in made.sources)
    lines = [
        f"{folder}: {_summary(made)}",
        f"tokenizer  {made.tokenizer.path}, {made.tokenizer.vocabulary:,} tokens, sha256 {made.tokenizer.sha256[:16]}",
        f"sources    {len(made.sources):,} files, {_megabytes(read)} MB: {made.sources[0].path}"
        + (" and others" if len(made.sources) > 1 else ""),
        f"samples    {made.pairs // 2048:,} of 2,048 tokens, {made.pairs // 8192:,} of 8,192",
    ]
    return "\n".join(lines)


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f}"


def _progress() -> Callable[[Progress], None]:
    """Returns what shows progress: one line that changes in a terminal, else a line every EVERY_S."""
    terminal, last = sys.stderr.isatty(), time.monotonic()

    def show(now: Progress) -> None:
        nonlocal last
        if terminal:
            print(
                f"\r{_line(now)}\x1b[K", end="\n" if now.shards == now.all_shards else "", file=sys.stderr, flush=True
            )
        elif time.monotonic() - last >= EVERY_S:
            last = time.monotonic()
            print_line(_line(now), err=True)

    return show


def _line(now: Progress) -> str:
    speed = (now.done - now.resumed) / now.seconds if now.seconds else 0.0
    left = f", about {(now.total - now.done) / speed:,.0f} s left" if speed > 0 and now.done < now.total else ""
    return (
        f"{_megabytes(now.done)} of {_megabytes(now.total)} MB, {now.shards:,} of {now.all_shards:,} shards, "
        f"{speed / 1e6:,.1f} MB/s{left}"
    )
