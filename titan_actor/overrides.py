"""Sets the overrides of a run file in a config: keys with dots or tables, checked against its fields and their types."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Union

from supervisor.wire.titan_names import renamed
from titan_actor import fields
from titan_actor.problem import Problem

RESERVED = {
    "training.steps": "titan.steps",
    "debug.seed": "titan.seed",
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

SYNONYMS = {"learning_rate": "lr", "max_steps": "steps"}
"""Names of other programs -> TorchTitan's."""


def single_fields(made: Any, overrides: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
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
        fields_of(at) or (value and (isinstance(at, list) or _are_arguments(made, at) or leaf not in _types(owner)))
    ):
        for name, inner in value.items():
            yield from _below_table(made, f"{key}.{name}", inner)
    else:
        yield key, value


def set_field(config: Any, key: str, value: Any, reserved: dict[str, str]) -> Problem | None:
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
    if (row := fields.standing(key)) is not None and row.standing == "ours" and value != row.unless:
        return Problem(place, value, f"it has no effect: {row.note}")
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
        near = renamed(key) if renamed(key) in paths else nearest_path(key, paths)
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
    if name in fields_of(optimizer):
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
    return getattr(owner, name, None) if name in fields_of(owner) else None


def _types(owner: Any) -> dict[str, Any]:
    """Returns name -> type of what can be set in a config, a list or a table."""
    if isinstance(owner, list):
        return {str(number): _type_of(item) for number, item in enumerate(owner)}
    if isinstance(owner, dict):
        return {name: _type_of(value) for name, value in owner.items()}
    return fields_of(owner)


def _type_of(value: Any) -> Any:
    # TOML has no tuple
    return list[float] if isinstance(value, tuple) else float if type(value) is float else type(value)


def _below(path: str, names: Iterable[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in names)


def nearest_path(key: str, known: list[str]) -> str:
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


def fields_of(owner: Any) -> dict[str, Any]:
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
    yield from (path for path, _ in leaves(config))


def leaves(owner: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the path and value of everything in a config that can be set by itself."""
    for name in fields_of(owner):
        yield from _leaves_of(getattr(owner, name), f"{prefix}{name}")


def _leaves_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if fields_of(value):
        yield from leaves(value, f"{path}.")
    elif isinstance(value, list) and any(fields_of(item) for item in value):
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
