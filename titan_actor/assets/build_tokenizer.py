"""Trains the tokenizer that is shipped in `tokenizer/` beside this file.

Made with `python -m titan_actor.assets.build_tokenizer` on CPython 3.11.7's standard library with tokenizers 0.23.3. It
is a byte-level BPE of 2048 tokens, the vocabulary of TorchTitan's debug model.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from titan_actor.data import documents, stdlib_files

VOCABULARY = 2048
BOS, EOS = "<|begin|>", "<|end|>"


def build(folder: Path) -> None:
    """Trains on the standard library's source and writes tokenizer.json and tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (sample["text"] for _, sample in documents(stdlib_files(), "text"))
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": BOS, "eos_token": EOS, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    build(Path(__file__).parent / "tokenizer")
