"""Builds a token store of the text that is on every machine, for runs that are started to be broken."""

from __future__ import annotations

import json
import math
from pathlib import Path

from supervisor.ports.errors import Fatal
from titan_actor.data import stdlib_files


def build_store(folder: Path, megabytes: float = math.inf) -> None:
    """Builds the store in a folder, from the first megabytes of Python's standard library. Its text is beside it, as
    jsonl. Raises Fatal if it cannot be built there."""
    # only who builds one needs numpy and a tokenizer
    from titan_actor.tokens.build import build
    from titan_actor.tokens.format import TokensError
    from titan_actor.tokens.sources import Corpus
    from titan_actor.tokens.tokenizer import ASSETS

    text = folder.with_name(f"{folder.name}.jsonl")
    try:
        _write_text(text, megabytes)
        build(Corpus(source=str(text)), ASSETS, folder)
    except TokensError as error:
        raise Fatal(f"the token store of the run cannot be built: {error}") from error
    except OSError as error:
        raise Fatal(f"the text of the run cannot be written to {text}: {error.strerror}") from error


def _write_text(path: Path, megabytes: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for source in stdlib_files():
            if text := Path(source).read_text(encoding="utf-8", errors="replace"):
                file.write(json.dumps({"text": text}) + "\n")
            if file.tell() >= megabytes * 1e6:
                break
