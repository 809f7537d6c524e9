"""Forges the records that a node may write: every kind and every field, a new one among them."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

from supervisor.shell.control.audit import _KINDS
from supervisor.wire import keys

OF_NODES = {
    re.sub(
        r"\[\^/\]\+", "run", pattern.pattern.removeprefix(re.escape(keys.PREFIX)).replace("nodes/[^/]+", "nodes/n1")
    ): kind
    for pattern, kind in _KINDS
    if pattern.pattern.startswith(re.escape(keys.PREFIX) + "nodes/")
}
"""Kinds of records that a node may write, by key below the prefix."""

Leaf = Callable[[Any], Iterator[Any]]


def forged_of(value: Any, hint: Any, leaf: Leaf) -> Iterator[Any]:
    """Yields every change of one value in a record, however deep it lies. `leaf`: what a string or number becomes."""
    options = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        yield from (other for other in options if other != value)
    elif dataclasses.is_dataclass(value):
        hints = typing.get_type_hints(type(value))
        for field in dataclasses.fields(value):
            for other in forged_of(getattr(value, field.name), hints[field.name], leaf):
                yield replace(value, **{field.name: other})  # type: ignore[type-var]
    elif isinstance(value, tuple):
        yield ()
        for number, item in enumerate(value):
            yield (*value, item)
            item_hint = options[0] if options else Any
            yield from ((*value[:number], other, *value[number + 1 :]) for other in forged_of(item, item_hint, leaf))
        if not value and options and dataclasses.is_dataclass(options[0]):
            yield from ((other,) for other in forged_of(least(options[0]), options[0], leaf))
    elif isinstance(value, dict):
        yield from ({key: other} for key in leaf("a") for other in leaf(1.0))
    elif value is None:
        for option in options:
            if option is not type(None):
                there = least(option)
                yield from (there, *forged_of(there, option, leaf))
    elif isinstance(value, bool):
        yield not value
    else:
        yield from (other for other in leaf(value) if other != value)


def least(hint: Any) -> Any:
    """Returns the smallest value of a type: zeros and empty texts, the first of a Literal."""
    origin, options = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is Literal:
        return options[0]
    if origin in (types.UnionType, typing.Union):
        return None
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{field.name: least(hints[field.name]) for field in dataclasses.fields(hint)})  # type: ignore[operator]
    return origin()


def tame(value: Any) -> Iterator[Any]:
    """Yields values that an honest record might have."""
    if isinstance(value, int):
        yield from (0, 1, 2, 10**9, -1)
    elif isinstance(value, float):
        yield from (0.0, 1e-9, 1e9, -1.0)
    elif isinstance(value, str):
        yield from ("", "n1", "run-a1", "/etc/elsewhere", "cut off", "stopped")
