"""The shipped recipes: TorchTitan's Llama 3 debug model, made to run on a CPU as well, and its Llama 3 8B."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKENIZER = Path(__file__).parent / "assets" / "tokenizer"


class RecipeError(ValueError):
    """There is no such recipe, or it returns no TorchTitan FaultTolerantTrainer config."""


def llama3_debug() -> Any:
    """6 layers, 6.16 M parameters, batch 2 of 256 tokens: about 0.8 s a step on one CPU core shared by two groups."""
    return _llama3(layers=6, batch=2, seq_len=256)


def llama3_debug_small() -> Any:
    """2 layers, batch 2 of 64 tokens: about 0.1 s a step, for tests."""
    return _llama3(layers=2, batch=2, seq_len=64)


def llama3_8b() -> Any:
    """TorchTitan's own llama3_8b (8.03 B parameters, batch 1 of 8192 tokens a rank, AdamW at 3e-4) with its TorchFT
    trainer.

    The tokenizer is the one that Everstep ships: set `titan.overrides."hf_assets_path"` to the folder of Llama's own.
    """
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.experiments.torchft.llama3 import config_registry, model_registry
    from torchtitan.experiments.torchft.optimizer import TorchFTOptimizersContainer
    from torchtitan.models.common.config_utils import decoder_vocab_size
    from torchtitan.models.llama3 import config_registry as titan

    theirs, config = titan.llama3_8b(), config_registry.llama3_torchft_debugmodel()
    config.model_spec = model_registry("8B", attn_backend="flex")
    # TorchFT's trainer does not support their chunked loss
    config.loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(config.model_spec))
    config.optimizer = TorchFTOptimizersContainer.Config(param_groups=theirs.optimizer.param_groups)
    config.lr_scheduler, config.training = theirs.lr_scheduler, theirs.training
    config.activation_checkpoint, config.comm = theirs.activation_checkpoint, theirs.comm
    config.hf_assets_path = str(TOKENIZER)
    config.profiler.enable_profiling = False
    config.validator.enable = False
    config.metrics.disable_color_printing = True
    return config


SHIPPED: dict[str, Callable[[], Any]] = {
    "llama3-debug": llama3_debug,
    "llama3-debug-small": llama3_debug_small,
    "llama3-8b": llama3_8b,
}


def load(recipe: str) -> Any:
    """Returns the config of a shipped recipe or of MODULE:FUNCTION. Raises RecipeError."""
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
    # the recipe's 15 s is shorter than a step where many trainers share a few cores
    config.comm.train_timeout_seconds = 60
    return config
