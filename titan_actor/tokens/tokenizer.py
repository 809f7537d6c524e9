"""The tokenizer of a build: the same tokens as TorchTitan's own tokenizer gives, without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from titan_actor.tokens.format import TokenizerMark, TokensError

FILE = "tokenizer.json"

SHIPPED = "shipped"
"""Stands for Everstep's own tokenizer, of the debug recipes."""

ASSETS = Path(__file__).parents[1] / "assets" / "tokenizer"


def folder_of(name: str) -> Path:
    """Returns the folder of a tokenizer that is given as folder, tokenizer.json or SHIPPED. Raises TokensError."""
    folder = ASSETS if name == SHIPPED else Path(name)
    folder = folder.parent if folder.name == FILE else folder
    if not (folder / FILE).is_file():
        raise TokensError(f"there is no {FILE} in {folder}: give the folder of a Hugging Face tokenizer")
    return folder.resolve()


def digest(folder: str | Path) -> str:
    """Returns the hash by which tokenizers are compared. Raises OSError where there is no tokenizer.json."""
    return hashlib.sha256((Path(folder) / FILE).read_bytes()).hexdigest()


class Encoder:
    """Encodes texts, and documents in pieces."""

    def __init__(self, folder: Path) -> None:
        """Raises TokensError for a tokenizer that cannot be read."""
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(folder / FILE))
            config = folder / "tokenizer_config.json"
            special = json.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise TokensError(f"the tokenizer in {folder} cannot be read: {error}") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        names = [_name(special.get(key)) for key in ("bos_token", "eos_token")]
        self._tokenizer.add_special_tokens([name for name in names if name])
        self.bos, self.eos = (self._tokenizer.token_to_id(name) if name else None for name in names)
        if self.eos is None:
            raise TokensError(
                f"the tokenizer in {folder} has no end of a document: name its eos_token in tokenizer_config.json"
            )
        self.mark = TokenizerMark(
            sha256=digest(folder),
            vocabulary=self._tokenizer.get_vocab_size(),
            bos=self.bos,
            eos=self.eos,
            path=str(folder),
        )

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of each text, without those of a beginning and an end."""
        try:
            found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            # JSON may hold halves of a surrogate pair, which are no text
            whole = [text.encode(errors="replace").decode() for text in texts]
            found = self._tokenizer.encode_batch_fast(whole, add_special_tokens=False)
        return [each.ids for each in found]


def _name(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
