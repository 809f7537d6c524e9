"""Builds a TorchTitan config from a TitanSpec: recipe, data, checked overrides, and the supervisor's own settings."""

from __future__ import annotations

import dataclasses
import difflib
import glob
import inspect
import os
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union

from supervisor.core.model.spec import DataSpec, TitanSpec
from supervisor.wire.records import TrainerLaunch
from supervisor.wire.titan_names import renamed
from titan_actor import data, fields, mends, recipes
from titan_actor.lift import Change, lift, trainer_config

ASSETS = "tests/assets/"

RESERVED = {
    "training.steps": "titan.steps",
    "debug.seed": "titan.seed",
    "dump_folder": "the run's own folder",
    "model_spec.name": "titan.recipe",
    "model_spec.flavor": "titan.recipe",
    "fault_tolerance": "groups and torchft",
    **{
        f"checkpoint.{name}": "titan.checkpoint_interval_steps and titan.checkpoints_kept"
        for name, row in fields.TABLE["checkpoint"].items()
        if row.standing == "ours"
    },
}
"""Fields that a key of the run file sets: an override would conflict with it."""

SEMI_SYNC = "fault_tolerance.semi_sync_method"
"""DiLoCo or LocalSGD."""

SYNONYMS = {"learning_rate": "lr", "max_steps": "steps"}
"""Names of other programs -> TorchTitan's."""

OF_DATA = ("dataloader.dataset", "dataloader.dataset_path")
"""Fields that `titan.data` sets, unless its source is the recipe's own."""


@dataclass(frozen=True)
class Problem:
    """One error in a run file's Titan part; `key` is its path from the top of the run file."""

    key: str
    value: Any
    message: str
    nearest: str = ""


class ConfigError(ValueError):
    """The config cannot be built; `problems` lists all errors."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{problem.key}: {problem.message}" for problem in problems))
        self.problems = problems


@dataclass(frozen=True)
class Setting:
    """One field of a resolved config. `by`: who set its value."""

    key: str
    value: Any
    by: Literal["recipe", "run file", "supervisor"]
    reason: str = ""
    before: Any = None
    """The recipe's value, if another one set it."""


def from_spec(titan: TitanSpec, ranks: int = 1) -> Any:
    """Returns the config of a spec for groups of that many ranks, checked and mended. Raises ConfigError with every
    problem found."""
    return resolved(titan, ranks)[0]


def resolved(titan: TitanSpec, ranks: int = 1) -> tuple[Any, list[Change]]:
    """Returns the config of a spec and what was changed in the recipe's own. Raises ConfigError."""
    stages = _Stages()
    return _resolved(titan, ranks, stages), stages.changes


def shown(titan: TitanSpec, ranks: int = 1) -> list[Setting]:
    """Returns every field of a spec's config with who set it; a model's own fields only where they were changed.
    Raises ConfigError."""
    stages = _Stages()
    config = _resolved(titan, ranks, stages)
    config.dump_folder = "RUN/titan/group-N"  # as for_launch sets it
    # its checkpointer may read the recipe's, but these are what the run goes by
    config.checkpoint.interval, config.checkpoint.keep_latest_k = (
        titan.checkpoint_interval_steps,
        titan.checkpoints_kept,
    )
    stages.after("supervisor", config)
    return stages.settings()


class _Stages:
    """Looks at a config after each stage of its making, to tell who set a field."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._seen: list[tuple[Literal["recipe", "run file", "supervisor"], dict[str, Any]]] = []

    def after(self, by: Literal["recipe", "run file", "supervisor"], config: Any) -> None:
        self._seen.append((by, dict(_leaves(config))))

    def settings(self) -> list[Setting]:
        reasons = {change.key: change.reason for change in self.changes}
        first, last = self._seen[0][1], self._seen[-1][1]
        found = []
        for key, value in last.items():
            by, then = self._seen[0][0], first.get(key)
            for who, leaves in self._seen[1:]:
                if leaves.get(key) != then:
                    by, then = who, leaves.get(key)
            if by == "recipe" and key.startswith("model_spec."):
                continue
            row = fields.standing(key)
            if by == "recipe" and row is not None and row.standing == "ours":
                by = "supervisor"  # whatever the recipe says
            reason = reasons.get(key, row.note if row is not None and by == "supervisor" else "")
            found.append(Setting(key, value, by, reason, None if by == "recipe" else first.get(key)))
        return found


def _resolved(titan: TitanSpec, ranks: int, stages: _Stages) -> Any:
    try:
        made = recipes.load(titan.recipe)
    except recipes.RecipeError as error:
        near = error.nearest or _nearest(titan.recipe, list(recipes.SHIPPED))
        raise ConfigError([Problem("titan.recipe", titan.recipe, str(error), near)]) from error
    stages.after("recipe", made)
    overrides, problems = _single(made, titan.overrides)
    problems += filter(None, [_semi_sync(made, overrides.pop(SEMI_SYNC, None))])
    config = trainer_config(made)
    stages.after("supervisor", config)
    reserved = RESERVED | dict.fromkeys(() if titan.data.source == "recipe" else OF_DATA, "titan.data")
    problems += [found for key, value in overrides.items() if (found := _override(config, key, value, reserved))]
    problems += _data(config, titan.data)
    stages.changes += _default_steps(config, titan)
    config.training.steps, config.debug.seed = titan.steps, titan.seed
    stages.after("run file", config)
    problems += _refused(config)
    lift(config, stages.changes)
    mends.apply_to("config", config)
    if ranks > 1:
        mends.apply_to("ranks", config)
    stages.after("supervisor", config)
    if not problems:
        problems += _own_checks(config)
    if problems:
        raise ConfigError(problems)
    return config


def _default_steps(config: Any, titan: TitanSpec) -> list[Change]:
    """Names the steps of a recipe that the run file's default takes the place of: those of a shipped one are ours."""
    own, key = config.training.steps, "training.steps"
    if titan.recipe in recipes.SHIPPED or own == titan.steps or titan.steps != TitanSpec().steps:
        return []
    return [Change(key, own, titan.steps, f"the default of titan.steps; titan.steps = {own} keeps the recipe's")]


def _semi_sync(made: Any, chosen: Any) -> Problem | None:
    """Returns a problem if groups are to average their gradients more rarely than at every step."""
    method = getattr(getattr(made, "fault_tolerance", None), "semi_sync_method", None)
    if chosen == "none" or (method is None and chosen is None):
        return None
    message = 'groups average their gradients at every step here: set it to "none" to train so'
    return Problem(f"titan.overrides.{SEMI_SYNC}", chosen or method, message)


def _own_checks(config: Any) -> Iterator[Problem]:
    """Runs the checks of the config and of its parts again: the recipe's own ran before the overrides."""
    try:
        config.__post_init__()
    except ValueError as error:
        yield Problem("titan.overrides", {}, str(error))
    for name in _fields(config):
        part = getattr(config, name)
        if hasattr(part, "__post_init__") and _fields(part):
            try:
                # as TorchTitan does when it builds the part
                dataclasses.replace(part)
            except (TypeError, ValueError) as error:
                yield Problem(f"titan.overrides.{name}", {}, str(error))


def _refused(config: Any) -> Iterator[Problem]:
    """Finds fields that no run can have, set by the recipe or by an override."""
    for key, value in _leaves(config):
        row = fields.standing(key)
        if row is not None and row.standing == "refused" and value != row.unless:
            yield Problem(f"titan.overrides.{key}", value, f"{row.note}: leave it {row.unless!r}")


def for_launch(launch: TrainerLaunch) -> Any:
    """Returns the config of one rank. Raises ConfigError."""
    config = from_spec(launch.titan, launch.world_size)
    # kept over restarts, which may be on other nodes
    config.dump_folder = f"{launch.run_dir}/titan/group-{launch.group}"
    if config.training.global_batch_size > 0:
        # TorchTitan's trainer knows one group
        config.training.global_batch_size //= launch.groups
    return config


def _data(config: Any, spec: DataSpec) -> list[Problem]:
    """Puts the run file's data in the place of the recipe's, if it names any."""
    from torchtitan.hf_datasets.text_datasets import DATASETS, ChatDataLoader, HuggingFaceTextDataLoader

    loader = config.dataloader
    try:
        if spec.source != "recipe":
            if not isinstance(loader, HuggingFaceTextDataLoader.Config):
                name = type(loader).__qualname__
                return [Problem("titan.data.source", spec.source, f"the recipe's {name} reads its own data, no text")]
            loader.dataset, loader.dataset_path = data.register(spec), None
        elif getattr(loader, "dataset", "") == data.STDLIB:
            data.register(DataSpec(source="python-stdlib"))
        elif type(loader) is HuggingFaceTextDataLoader.Config and (why := _not_here(loader, DATASETS)):
            return [Problem("titan.data.source", spec.source, f"{why}: name the data under [titan.data]")]
        elif type(loader) is ChatDataLoader.Config and (problem := _chats_not_here(loader)):
            return [problem]
        validated = config.validator.dataloader
        if config.validator.enable and type(validated) is HuggingFaceTextDataLoader.Config:
            why = _not_here(validated, DATASETS)
            hint = "set titan.overrides.validator.enable = false, or take the data set c4_test with a dataset_path of yours"
            return [Problem("titan.overrides.validator.dataloader", validated.dataset, f"{why}: {hint}")] if why else []
    except (data.DataError, OSError) as error:
        return [Problem("titan.data.path", spec.path, str(error))]
    return []


def _not_here(loader: Any, known: Any) -> str:
    """Explains why a data set of TorchTitan's cannot be read by the ranks; empty: it may be there."""
    if loader.dataset not in known:
        return f"there is no data set {loader.dataset!r}; TorchTitan knows {', '.join(sorted(known))}"
    path, usual = loader.dataset_path or known[loader.dataset].path, known[loader.dataset].path
    if Path(path).exists() and not usual.startswith(ASSETS):
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


def _single(made: Any, overrides: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Returns the overrides of single fields, those for all parameter groups before those for one, and a problem for each
    that a table gives again."""
    single: dict[str, Any] = {}
    problems = []
    for key, value in (pair for given in overrides.items() for pair in _below_table(made, *given)):
        if key in single:
            problems.append(
                Problem(f"titan.overrides.{key}", value, f"is given twice, also as {single[key]!r}: remove one")
            )
        single.setdefault(key, value)
    return dict(sorted(single.items(), key=lambda pair: ".optimizer_kwargs." in pair[0])), problems


def _below_table(made: Any, key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields what a table sets, each with its own key. A field whose value is a table itself takes it as a whole, but not
    an optimizer's arguments: those that it leaves out stay the recipe's."""
    *path, leaf = key.split(".")
    owner = made
    for name in path:
        owner = _inner(owner, name)
    at = _inner(owner, leaf)
    if isinstance(value, dict) and (
        _fields(at) or (value and (isinstance(at, list) or _are_arguments(made, at) or leaf not in _types(owner)))
    ):
        for name, inner in value.items():
            yield from _below_table(made, f"{key}.{name}", inner)
    else:
        yield key, value


def _override(config: Any, key: str, value: Any, reserved: dict[str, str]) -> Problem | None:
    """Sets one field, or returns why it cannot be set."""
    place = f"titan.overrides.{key}"
    if key == "activation_checkpoint" and isinstance(value, str):
        # an object that no text can be
        if value not in (kinds := _activation_checkpoints()):
            return Problem(place, value, f"{key!r} = {value!r}: expected one of {', '.join(kinds)}")
        config.activation_checkpoint = kinds[value]
        return None
    for name, instead in reserved.items():
        if _below(key, (name,)):
            return Problem(place, value, f"is not an override: set {instead}")
    if key.startswith("optimizer.") and (groups := _optimizers_with(config, key.removeprefix("optimizer."))):
        leaf = key.removeprefix("optimizer.")
        owners: list[Any] = list(groups)
        hint: Any = _argument(config.optimizer, groups[0], leaf)
    else:
        *path, leaf = key.split(".")
        owner = config
        for name in path:
            owner = _inner(owner, name)
        owners = [owner]
        hint = _argument(config.optimizer, owner, leaf) if _are_arguments(config, owner) else _types(owner).get(leaf)
    if hint is None:
        paths = list(_paths(config))
        near = renamed(key) if renamed(key) in paths else _nearest(key, paths)
        of_all = near.rpartition(".")[2]
        if (
            "param_groups" not in key
            and near.startswith("optimizer.param_groups.")
            and _optimizers_with(config, of_all)
        ):
            near = f"optimizer.{of_all}"
        ours = next((instead for name, instead in reserved.items() if near and _below(near, (name,))), "")
        nearest = ours or (f"titan.overrides.{near}" if near else "")
        return Problem(place, value, f"{key!r} = {value!r}: no such field", nearest)
    if not _fits(value, hint):
        return Problem(place, value, f"{key!r} = {value!r}: expected {_named(hint)}{_kind(value, hint)}")
    for owner in owners:
        if isinstance(owner, list):
            owner[int(leaf)] = value
        elif isinstance(owner, dict):
            owner[leaf] = tuple(value) if isinstance(owner.get(leaf), tuple) else value
        else:
            setattr(owner, leaf, value)
    return None


def _activation_checkpoints() -> dict[str, Any]:
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC

    return {"none": None, "full": FullAC.Config(), "selective": SelectiveAC.Config()}


def _optimizers_with(config: Any, name: str) -> list[dict[str, Any]]:
    """Returns the arguments of each parameter group's optimizer, if they all take one of this name. The field itself
    would be `optimizer.param_groups.0.optimizer_kwargs.lr`."""
    optimizer = config.optimizer
    if name in _fields(optimizer):
        return []
    groups = getattr(optimizer, "param_groups", [])
    taken = [
        group.optimizer_kwargs for group in groups if _argument(optimizer, group.optimizer_kwargs, name) is not None
    ]
    return taken if len(taken) == len(groups) else []


def _are_arguments(config: Any, at: Any) -> bool:
    """Returns true for the table of arguments of a parameter group's optimizer."""
    return any(at is group.optimizer_kwargs for group in getattr(config.optimizer, "param_groups", []))


def _argument(optimizer: Any, arguments: dict[str, Any], name: str) -> Any:
    """Returns the type of a group's optimizer's argument, by its value or its default; None: it has none."""
    if name in arguments:
        return _type_of(arguments[name])
    group = next(group for group in optimizer.param_groups if group.optimizer_kwargs is arguments)
    factory = type(optimizer)._owner._resolve_optimizer_factory(group.optimizer_name)
    try:
        signature = inspect.signature(factory, eval_str=True)
    except NameError:  # an annotation that is imported for types alone
        signature = inspect.signature(factory)
    found = signature.parameters.get(name)
    if found is None or found.default is inspect.Parameter.empty:
        return None
    # fused and foreach are None by default
    return found.annotation if found.default is None else _type_of(found.default)


def _inner(owner: Any, name: str) -> Any:
    """Returns the field, item or value of this name; None: there is none."""
    if isinstance(owner, list):
        return owner[int(name)] if name.isdecimal() and int(name) < len(owner) else None
    if isinstance(owner, dict):
        return owner.get(name)
    return getattr(owner, name, None) if name in _fields(owner) else None


def _types(owner: Any) -> dict[str, Any]:
    """Returns name -> type of what can be set in a config, a list or a table."""
    if isinstance(owner, list):
        return {str(number): _type_of(item) for number, item in enumerate(owner)}
    if isinstance(owner, dict):
        return {name: _type_of(value) for name, value in owner.items()}
    return _fields(owner)


def _type_of(value: Any) -> Any:
    # TOML has no tuple
    return list[float] if isinstance(value, tuple) else float if type(value) is float else type(value)


def _below(path: str, names: Iterable[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in names)


def _nearest(key: str, known: list[str]) -> str:
    """Returns the known path that a key most likely means: one with the same last part, or else one that is written
    much like it."""
    section, _, leaf = key.rpartition(".")
    leaf = SYNONYMS.get(leaf, leaf)
    leaves: dict[str, str] = {}
    for path in known:
        leaves.setdefault(path.rpartition(".")[2], path)
    here = {path.rpartition(".")[2]: path for path in known if path.rpartition(".")[0] == section}
    if leaf in leaves:
        return here.get(leaf, leaves[leaf])
    if close := difflib.get_close_matches(leaf, here, n=1, cutoff=0.8):
        return here[close[0]]
    if close := difflib.get_close_matches(key, known, n=1, cutoff=0.8):
        return close[0]
    return next((leaves[one] for one in difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.8)), "")


def _fields(owner: Any) -> dict[str, Any]:
    """Returns name -> type of a dataclass instance's fields; empty for anything else."""
    if not dataclasses.is_dataclass(owner) or isinstance(owner, type):
        return {}
    try:
        hints = typing.get_type_hints(type(owner))
    except (NameError, TypeError):
        # the type is imported only under TYPE_CHECKING
        hints = {}
    return {field.name: hints.get(field.name, Any) for field in dataclasses.fields(owner)}


def _paths(config: Any) -> Iterator[str]:
    yield from (path for path, _ in _leaves(config))


def _leaves(owner: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the path and value of everything in a config that can be set by itself."""
    for name in _fields(owner):
        yield from _leaves_of(getattr(owner, name), f"{prefix}{name}")


def _leaves_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if _fields(value):
        yield from _leaves(value, f"{path}.")
    elif isinstance(value, list) and any(_fields(item) for item in value):
        for number, item in enumerate(value):
            yield from _leaves_of(item, f"{path}.{number}")
    elif isinstance(value, dict) and value:
        yield from ((f"{path}.{name}", inner) for name, inner in value.items())
    else:
        yield path, value


def _fits(value: Any, hint: Any) -> bool:
    """Returns true if a value from TOML or JSON is of the type. An int counts as a float; nothing else is coerced."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is typing.Annotated:
        return _fits(value, arguments[0])
    if origin in (Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, arguments[1]) for item in value.values())
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint in (int, bool, str, list, dict):
        return type(value) is hint
    return False


def _kind(value: Any, hint: Any) -> str:
    return "" if typing.get_origin(hint) is Literal else f", not {type(value).__name__}"


def _named(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_named(argument) for argument in arguments)
    if hint is type(None):
        return "nothing"
    return getattr(hint, "__name__", str(hint)) if origin is None else str(hint)
