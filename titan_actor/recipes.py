"""The shipped recipes: TorchTitan's Llama 3 debug model, made to run on a CPU as well, and its Llama 3 8B."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from titan_actor.data import STDLIB
from titan_actor.lift import TOKENIZER


class RecipeError(ValueError):
    """There is no such recipe, or it returns no config of a TorchTitan trainer. `nearest`: the recipe likely meant."""

    def __init__(self, message: str, nearest: str = "") -> None:
        super().__init__(message)
        self.nearest = nearest


def llama3_debug() -> Any:
    """6 layers, 6.16 M parameters, batch 2 of 256 tokens: about 0.8 s a step on one CPU core shared by two groups."""
    return _llama3(layers=6, batch=2, seq_len=256)


def llama3_debug_small() -> Any:
    """2 layers, batch 2 of 64 tokens: about 0.1 s a step, for tests."""
    return _llama3(layers=2, batch=2, seq_len=64)


def llama3_8b() -> Any:
    """TorchTitan's own llama3_8b (8.03 B parameters, batch 1 of 8192 tokens a rank, AdamW at 3e-4).

    The tokenizer is the one that Everstep ships: set `titan.overrides."hf_assets_path"` to the folder of Llama's own.
    """
    from torchtitan.models.llama3 import config_registry

    config = config_registry.llama3_8b()
    config.hf_assets_path = str(TOKENIZER)
    config.dataloader.dataset = STDLIB
    config.profiler.enable_profiling = False
    config.validator.enable = False
    config.metrics.disable_color_printing = True
    return config


PACKAGES = {
    "fla": "flash-linear-attention",
    "torchao": "torchao",
    "torchvision": "torchvision",
    "transformers": "transformers",
}
"""Module that some of TorchTitan's configs need -> the package that has it."""

SHIPPED: dict[str, Callable[[], Any]] = {
    "llama3-debug": llama3_debug,
    "llama3-debug-small": llama3_debug_small,
    "llama3-8b": llama3_8b,
}


def load(recipe: str) -> Any:
    """Returns the config of a shipped recipe, of MODULE:FUNCTION, or of TorchTitan's own `--module M --config C`. Raises
    RecipeError."""
    from torchtitan.trainer import Trainer

    if recipe in SHIPPED:
        return SHIPPED[recipe]()
    module, colon, function = recipe.partition(":")
    pair = recipe.startswith("--")
    if not (pair or colon):
        known = ", ".join(SHIPPED)
        raise RecipeError(
            f"no recipe {recipe!r}: shipped are {known}, or give MODULE:FUNCTION or --module M --config C"
        )
    try:
        made = _of_titan(recipe) if pair else _of_module(module, function)
    except RecipeError:
        raise
    except Exception as error:
        # the user's own code may raise anything
        if isinstance(error, ImportError) and (module := _not_installed(error)):
            what = f"{module}, which is not installed: pip install {PACKAGES[module]}"
            raise RecipeError(f"recipe {recipe!r} needs {what}, on this machine and on the nodes") from error
        raise RecipeError(f"recipe {recipe!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(made, Trainer.Config):
        raise RecipeError(f"recipe {recipe!r} gives a {type(made).__name__}, not the config of a TorchTitan trainer")
    return made


def _of_module(module: str, function: str) -> Any:
    """Returns what a function gives; its tokenizer may be named as a path from the module's folder."""
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it imports another that is not here
        what = f"no module {error.name!r} is installed or in env.directory"
        raise RecipeError(f"{what}: set env.directory to the folder that holds it") from error
    if not hasattr(imported, function):
        known = [name for name, value in vars(imported).items() if callable(value)]
        near = difflib.get_close_matches(function, known, n=1)
        raise RecipeError(f"{module} has no function {function!r}", f"{module}:{near[0]}" if near else "")
    made = getattr(imported, function)()
    beside = Path(imported.__file__ or "").parent / getattr(made, "hf_assets_path", "")
    if hasattr(made, "hf_assets_path") and beside.is_dir():
        # ranks run in other folders than the recipe's author
        made.hf_assets_path = str(beside.resolve())
    return made


def _not_installed(error: ImportError) -> str:
    """Returns the module of PACKAGES whose lack an error is of; empty if it is of none."""
    if error.name is not None:
        top = error.name.partition(".")[0]
        return top if top in PACKAGES and isinstance(error, ModuleNotFoundError) else ""
    # a converter's own sentence on its package
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    raised_by = frame.f_globals.get("__name__", "")
    lacks = raised_by.startswith("torchtitan.components.quantization.") and importlib.util.find_spec("torchao") is None
    return "torchao" if lacks else ""


def _of_titan(arguments: str) -> Any:
    """Returns the config that TorchTitan's command line builds from these arguments. Raises RecipeError for others than
    the pair, and what TorchTitan raises."""
    from torchtitan.config import ConfigManager

    pair = re.fullmatch(r"--module[ =](\S+)\s+--config[ =](\S+)", arguments.strip())
    if pair is None:
        raise RecipeError("give --module M --config C and nothing more; other settings go under [titan.overrides]")
    if pair[1].isidentifier() and importlib.util.find_spec(f"torchtitan.models.{pair[1]}") is not None:
        # TorchTitan passes over a registry that it cannot import, and does not say which package is missing
        importlib.import_module(f"torchtitan.models.{pair[1]}.config_registry")
    return ConfigManager().parse_args(["--module", pair[1], "--config", pair[2]])


def _llama3(*, layers: int, batch: int, seq_len: int) -> Any:
    from torchtitan.models.llama3 import config_registry

    config = config_registry.llama3_debugmodel_ce_loss()
    config.dataloader.dataset = STDLIB
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
