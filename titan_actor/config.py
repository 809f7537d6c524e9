"""Builds a TorchTitan config from a TitanSpec: recipe, data, checked overrides, and the supervisor's own settings."""

from __future__ import annotations

import dataclasses
import glob
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from supervisor.core.model.spec import DataSpec, TitanSpec
from supervisor.wire.records import TrainerLaunch
from titan_actor import data, fields, mends, recipes
from titan_actor.changes import Setting, Stages, given_up, of_defaults
from titan_actor.lift import IN_THE_RUN, Change, lift, trainer_config
from titan_actor.overrides import RESERVED, fields_of, leaves, nearest_path, set_field, single_fields
from titan_actor.problem import Problem

ASSETS = "tests/assets/"

SEMI_SYNC = "fault_tolerance.semi_sync_method"
"""DiLoCo or LocalSGD."""

OF_DATA = ("dataloader.dataset", "dataloader.dataset_path")
"""Fields that `titan.data` sets, unless its source is the recipe's own."""


class ConfigError(ValueError):
    """The config cannot be built; `problems` lists all errors."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{problem.key}: {problem.message}" for problem in problems))
        self.problems = problems


def from_spec(titan: TitanSpec, ranks: int = 1) -> Any:
    """Returns the config of a spec for groups of that many ranks, checked and mended. Raises ConfigError with every
    problem found."""
    return resolved(titan, ranks)[0]


def resolved(titan: TitanSpec, ranks: int = 1) -> tuple[Any, list[Change]]:
    """Returns the config of a spec and what was changed in the recipe's own. Raises ConfigError."""
    stages = Stages()
    return _resolved(titan, ranks, stages), stages.changes


def shown(titan: TitanSpec, ranks: int = 1) -> list[Setting]:
    """Returns every field of a spec's config with who set it; a model's own fields only where they were changed.
    Raises ConfigError."""
    stages = Stages()
    config = _resolved(titan, ranks, stages)
    # its checkpointer may read the recipe's, but these are what the run goes by
    config.checkpoint.interval, config.checkpoint.keep_latest_k = (
        titan.checkpoint_interval_steps,
        titan.checkpoints_kept,
    )
    stages.after("supervisor", config)
    return stages.settings()


def _resolved(titan: TitanSpec, ranks: int, stages: Stages) -> Any:
    try:
        made = recipes.load(titan.recipe)
    except recipes.RecipeError as error:
        near = error.nearest or nearest_path(titan.recipe, list(recipes.SHIPPED))
        raise ConfigError([Problem("titan.recipe", titan.recipe, str(error), near)]) from error
    stages.after("recipe", made)
    stages.changes += given_up(made, titan)
    overrides, problems = single_fields(made, titan.overrides)
    problems += filter(
        None, [_loop(made, titan.recipe), _optimizer(made), _semi_sync(made, overrides.pop(SEMI_SYNC, None))]
    )
    config = trainer_config(made)
    stages.after("supervisor", config)
    reserved = RESERVED | dict.fromkeys(() if titan.data.source == "recipe" else OF_DATA, "titan.data")
    problems += [found for key, value in overrides.items() if (found := set_field(config, key, value, reserved))]
    problems += _data(config, titan)
    stages.changes += of_defaults(config, titan)
    config.training.steps, config.debug.seed = titan.steps, titan.seed
    stages.after("run file", config)
    problems += _refused(config)
    lift(config, stages.changes)
    stages.after("supervisor", config)
    mends.apply_to("config", config)
    if ranks > 1:
        mends.apply_to("ranks", config)
    if titan.recipe not in recipes.SHIPPED:
        stages.mended(config)
    stages.after("supervisor", config)
    problems += filter(None, [_typechecking(config)])
    if not problems:
        problems += _own_checks(config)
    if problems:
        raise ConfigError(problems)
    return config


def _semi_sync(made: Any, chosen: Any) -> Problem | None:
    """Returns a problem if groups are to average their gradients more rarely than at every step."""
    method = getattr(getattr(made, "fault_tolerance", None), "semi_sync_method", None)
    if chosen == "none" or (method is None and chosen is None):
        return None
    message = 'groups average their gradients at every step here: set it to "none" to train so'
    return Problem(f"titan.overrides.{SEMI_SYNC}", method if chosen is None else chosen, message)


def _loop(made: Any, recipe: str) -> Problem | None:
    """Returns a problem if the trainer has a loop of its own, which the supervised one would take the place of."""
    from torchtitan.trainer import Trainer

    owner = type(trainer_config(made))._owner
    if owner.train is Trainer.train:
        return None
    message = (
        f"its trainer {owner.__name__} trains by {owner.train.__qualname__}(), and the supervised loop would take its place: "
        "override train_step() or forward_backward_step() of TorchTitan's Trainer, or run it as a script of your own "
        "(docs/OWN_SCRIPT.md)"
    )
    return Problem("titan.recipe", recipe, message)


def _optimizer(made: Any) -> Problem | None:
    """Returns a problem if the optimizers' container is a class of its own, which TorchFT's would take the place of."""
    owner = type(made.optimizer)._owner
    if owner.__module__.startswith("torchtitan."):
        return None
    message = (
        f"its optimizer {owner.__name__} is a class of its own, and TorchFT's would take its place: give TorchTitan's "
        "OptimizersContainer an optimizer of yours, or run it as a script of your own (docs/OWN_SCRIPT.md)"
    )
    return Problem("titan.recipe", f"{owner.__module__}.{owner.__qualname__}", message)


def _typechecking(config: Any) -> Problem | None:
    """Returns a problem if types are to be checked of a backend that is not there."""
    backend = config.parallelism.spmd_backend
    if not config.debug.spmd_typechecking or backend == "spmd_types":
        return None
    message = f"it checks what spmd_types does, and ranks of a group train with {backend}: leave it false"
    return Problem("titan.overrides.debug.spmd_typechecking", True, message)


def _own_checks(config: Any) -> Iterator[Problem]:
    """Runs the checks of the config and of its parts again: the recipe's own ran before the overrides."""
    try:
        config.__post_init__()
    except ValueError as error:
        yield Problem("titan.overrides", {}, str(error))
    for name in fields_of(config):
        part = getattr(config, name)
        if hasattr(part, "__post_init__") and fields_of(part):
            try:
                # as TorchTitan does when it builds the part
                dataclasses.replace(part)
            except (TypeError, ValueError) as error:
                yield Problem(f"titan.overrides.{name}", {}, str(error))


def _refused(config: Any) -> Iterator[Problem]:
    """Finds fields that no run can have, set by the recipe or by an override."""
    for key, value in leaves(config):
        row = fields.standing(key)
        if row is not None and row.standing == "refused" and value != row.unless:
            yield Problem(f"titan.overrides.{key}", value, f"{row.note}: leave it {row.unless!r}")
    if "://" in config.dump_folder:
        why = "TorchTitan writes profiles and metrics to a folder: name one that all nodes have"
        yield Problem("titan.overrides.dump_folder", config.dump_folder, why)


def for_launch(launch: TrainerLaunch) -> Any:
    """Returns the config of one rank. Raises ConfigError."""
    config = from_spec(launch.titan, launch.world_size)
    # kept over restarts, which may be on other nodes
    above = f"{launch.run_dir}/titan" if config.dump_folder == IN_THE_RUN else f"{config.dump_folder}/{launch.run}"
    config.dump_folder = f"{above}/group-{launch.group}"
    if config.training.global_batch_size > 0:
        # TorchTitan's trainer knows one group
        config.training.global_batch_size //= launch.groups
    return config


def _data(config: Any, titan: TitanSpec) -> list[Problem]:
    """Puts the run file's data in the place of the recipe's, if it names any."""
    spec = titan.data
    from torchtitan.hf_datasets.text_datasets import ChatDataLoader, HuggingFaceTextDataLoader

    loader = config.dataloader
    of_text = isinstance(loader, HuggingFaceTextDataLoader.Config)
    hint = (
        "name the data under [titan.data]"
        if of_text
        else "set its dataset_path to yours in a recipe of your own"
        if hasattr(loader, "sources")
        else "set titan.overrides.dataloader.dataset_path to yours"
    )
    try:
        if spec.source != "recipe":
            if not of_text:
                name = type(loader).__qualname__
                return [Problem("titan.data.source", spec.source, f"the recipe's {name} reads its own data, no text")]
            if spec.source == "tokens":
                config.dataloader = _tokens(titan)
                return [*_no_use(titan.overrides), *_validated(config)]
            loader.dataset, loader.dataset_path = data.register(spec), None
        elif getattr(loader, "dataset", "") == data.STDLIB:
            data.register(DataSpec(source="python-stdlib"))
        else:
            for source in getattr(loader, "sources", [loader]):  # those of an interleaved loader
                if why := _not_here(source):
                    return [Problem("titan.data.source", spec.source, f"{why}: {hint}")]
                if isinstance(source, ChatDataLoader.Config) and (problem := _chats_not_here(source)):
                    return [problem]
        return _validated(config)
    except (data.DataError, OSError) as error:
        return [Problem("titan.data.path", spec.path, str(error))]


def _validated(config: Any) -> list[Problem]:
    from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader

    validated = config.validator.dataloader
    if not config.validator.enable or not (why := _not_here(validated)):
        return []
    # other data sets of text are laid out as on the hub
    text = isinstance(validated, HuggingFaceTextDataLoader.Config)
    what = "take the data set c4_test with a dataset_path of yours" if text else "set its dataset_path to yours"
    hint = f"set titan.overrides.validator.enable = false, or {what}"
    return [Problem("titan.overrides.validator.dataloader", validated.dataset, f"{why}: {hint}")]


def _tokens(titan: TitanSpec) -> Any:
    from titan_actor.tokens.loader import TokenLoader

    return TokenLoader.Config(dataset="tokens", dataset_path=titan.data.path, seed=titan.seed)


def _no_use(overrides: dict[str, Any]) -> list[Problem]:
    """Finds settings of the text loader, in whose place the token store's is."""
    return [
        Problem(f"titan.overrides.{key}", value, 'it has no effect with titan.data.source = "tokens": remove it')
        for key, value in overrides.items()
        if key.startswith("dataloader.") and key not in OF_DATA
    ]


def _not_here(loader: Any) -> str:
    """Explains why a data set of TorchTitan's cannot be read by the ranks; empty: it may be there, or the loader takes no
    name of a data set."""
    from torchtitan.hf_datasets import text_datasets

    module = type(loader).__module__
    names = ("DATASETS", "MM_DATASETS") if module.startswith("torchtitan.") else ()
    known = next((found for name in names if (found := getattr(sys.modules[module], name, None)) is not None), None)
    if known is None or not getattr(loader, "dataset", ""):
        return ""
    if loader.dataset not in known:
        return f"there is no data set {loader.dataset!r}; TorchTitan knows {', '.join(sorted(known))}"
    path, usual = loader.dataset_path or known[loader.dataset].path, known[loader.dataset].path
    # c4's loader asks for a part of the data set by name
    if Path(path).exists() and module == text_datasets.__name__ and not usual.startswith(ASSETS):
        return f"{loader.dataset!r} is laid out as {usual} of the Hugging Face hub, and {path} is a folder here"
    if Path(path).exists():
        return ""
    if path.startswith(ASSETS):
        return f"{loader.dataset!r} is {path} of TorchTitan's repository, which its wheel does not hold"
    if path.startswith(("/", ".")):
        return f"{loader.dataset!r} is {path}, which is not here"
    return f"{loader.dataset!r} is {path} of the Hugging Face hub, and ranks use no network" if _offline() else ""


def _chats_not_here(loader: Any) -> Problem | None:
    """Explains why conversations cannot be read by the ranks; None: they may be there. `dataset_path` is a folder, a
    data set of the hub, or the name of a format with its files beside it."""
    place, files = "titan.overrides.dataloader", loader.load_dataset_kwargs.get("data_files")
    if files:
        named = [files] if isinstance(files, str) else list(_files(files))
        missing = next((name for name in named if "://" not in name and not glob.glob(name)), "")
        why = f"the data file {missing} is not here: set it to yours"
        return Problem(f"{place}.load_dataset_kwargs.data_files", files, why) if missing else None
    if Path(loader.dataset_path).exists() or not _offline():
        return None
    why = (
        "is of the Hugging Face hub, and ranks use no network: set it to a folder; or for a file of yours set it to "
        '"json", and "dataloader.load_dataset_kwargs" to { data_files = "/PATH", split = "train" }'
    )
    return Problem(f"{place}.dataset_path", loader.dataset_path, f"{loader.dataset_path!r} {why}")


def _files(files: Any) -> Iterator[str]:
    """Yields the names in `data_files` of `datasets.load_dataset`: a list, or one by split."""
    for one in files.values() if isinstance(files, dict) else files:
        if isinstance(one, str):
            yield one
        else:
            yield from _files(one)


def _offline() -> bool:
    # mends.py sets it where the user has not
    return os.environ.get("HF_HUB_OFFLINE", "1") not in ("0", "")
