"""Checks that a token store fits a run, before a node is asked for and before a rank joins the quorum."""

from __future__ import annotations

from pathlib import Path

from titan_actor.tokens.format import TokensError
from titan_actor.tokens.reader import TokenStore
from titan_actor.tokens.tokenizer import Encoder, digest


def unfit(folder: str, tokenizer: str, seq_len: int, samples: int) -> str:
    """Explains why a store does not fit; empty: it does. `samples`: those of a step of all groups."""
    try:
        store = TokenStore(folder)
    except TokensError as error:
        return str(error)
    made = store.manifest.tokenizer
    try:
        same = digest(tokenizer) == made.sha256
    except OSError:
        return f"the run's tokenizer has no tokenizer.json in {tokenizer}, by which {folder} could be compared with it"
    if not same:
        return (
            f"{folder} was made with another tokenizer ({made.path}, {made.vocabulary} tokens) than that of the run "
            f"({Path(tokenizer)}): set titan.overrides.hf_assets_path, or build the store with the run's"
        )
    if (windows := store.windows(seq_len)) < samples:
        return (
            f"{folder} holds {windows} samples of {seq_len} tokens, and a step of all groups takes {samples}: add text, or "
            "lower the batch, groups.count or the sequence length"
        )
    return ""


def other_ends(folder: str, tokenizer: str) -> str:
    """Explains why a store, which `unfit` has passed, has other tokens around its documents than the run's tokenizer;
    empty: it has not. Loads the tokenizer, which takes a large one a third of a second: for a check before the start."""
    made = TokenStore(folder).manifest.tokenizer
    try:
        own = Encoder(Path(tokenizer)).mark
    except TokensError as error:
        return str(error)
    # they are named beside tokenizer.json
    differ = [name for name in ("bos", "eos") if getattr(own, name) != getattr(made, name)]
    if differ:
        return (
            f"{folder} was made with another {' and '.join(f'{name}_token' for name in differ)} than the tokenizer_config.json in "
            f"{tokenizer} has: copy that of {made.path}, or build the store with the run's tokenizer"
        )
    return ""
