"""The shipped recipes: TorchTitan's Llama 3 debug model, made to run on a CPU as well."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKENIZER = Path(__file__).parent / "assets" / "tokenizer"


class RecipeError(ValueError):
    """No such recipe, or it gives no TorchTitan FaultTolerantTrainer config."""


def llama3_debug() -> Any:
    """6 layers, 6.16 M parameters, batch 2 of 256 tokens: about 0.8 s a step on one CPU core shared by two groups."""
    return _llama3(layers=6, batch=2, seq_len=256)


def llama3_debug_small() -> Any:
    """2 layers, batch 2 of 64 tokens: about 0.1 s a step, for tests."""
    return _llama3(layers=2, batch=2, seq_len=64)


SHIPPED: dict[str, Callable[[], Any]] = {"llama3-debug": llama3_debug, "llama3-debug-small": llama3_debug_small}


def load(recipe: str) -> Any:
    """The config of a shipped recipe or of MODULE:FUNCTION; raises RecipeError."""
    from torchtitan.experiments.torchft.trainer import FaultTolerantTrainer

    if recipe in SHIPPED:
        return SHIPPED[recipe]()
    module, colon, function = recipe.partition(":")
    if not colon:
        raise RecipeError(f"no recipe {recipe!r}: shipped are {', '.join(SHIPPED)}, or give MODULE:FUNCTION")
    try:
        made = getattr(importlib.import_module(module), function)()
    except Exception as error:
        # the user's own code may raise anything
        raise RecipeError(f"recipe {recipe!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(made, FaultTolerantTrainer.Config):
        raise RecipeError(f"recipe {recipe!r} gives a {type(made).__name__}, not a FaultTolerantTrainer.Config")
    return made


def _llama3(*, layers: int, batch: int, seq_len: int) -> Any:
    from torchtitan.experiments.torchft.llama3 import config_registry, model_registry

    config = config_registry.llama3_torchft_debugmodel()
    config.model_spec = model_registry("debugmodel", attn_backend="flex")
    config.model_spec.model.layers = config.model_spec.model.layers[:layers]
    config.hf_assets_path = str(TOKENIZER)
    config.profiler.enable_profiling = False
    config.validator.enable = False
    config.activation_checkpoint = None
    config.metrics.log_freq = 1
    config.metrics.disable_color_printing = True
    config.training.local_batch_size, config.training.seq_len = batch, seq_len
    config.training.mixed_precision_param = "float32"
    config.comm.trace_buf_size = 0
    # the recipe's 15 s is shorter than a step on a machine whose few cores many trainers share
    config.comm.train_timeout_seconds = 60
    return config
