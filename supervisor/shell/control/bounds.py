"""Bounds the content of a node's records: it may write its own keys with any content, and a leader copies much of it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from math import copysign, isnan
from typing import Any, TypeVar, cast

from supervisor.core.model.spec import MAX_GROUPS
from supervisor.wire.records import GateObserved

T = TypeVar("T")

STRING, SHORT = 4096, 256
"""Most characters of a string: as many as a path has; an error has 2,048. SHORT in a record of more than RECORD bytes."""
RECORD = 256 * 1024
"""Bytes of a record. Some of its strings are in several records of one transaction, which holds 1.5 MB by default."""
ITEMS = 256
"""Most items of a list or table: a node has fewer ranks. A gate's record has all groups of its run."""
LARGEST, LARGEST_FLOAT = 2**63 - 1, 5e10
"""As seconds, a date that calendars have (years 385 to 3554). A loss spike beyond it is shown as this."""

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_FREE = re.compile(r"float \| None|bool|Literal\[[^]]*\]")
"""Types of fields that are not bounded: what is decoded into the latter two has a bound already."""


def bounded(record: T, size: int) -> T:
    """Returns a record of `size` bytes within the bounds: strings and lists cut, numbers in 64 bits, no lone surrogates.
    Honest records are hardly touched, and those of older agents stay readable. Numbers that a record may leave out stay as
    they are, not finite ones too: those are for people alone, as a loss."""
    items = MAX_GROUPS if isinstance(record, GateObserved) else ITEMS
    return cast(T, _bounded(record, STRING if size <= RECORD else SHORT, items))


def _bounded(value: Any, most: int, items: int) -> Any:
    """Returns the value itself where it is within the bounds."""
    kind = type(value)
    if kind is str:
        fits = len(value) <= most and (value.isascii() or not _SURROGATE.search(value))
        return value if fits else _SURROGATE.sub("\ufffd", value[:most])
    if kind is float:
        return value if abs(value) <= LARGEST_FLOAT else 0.0 if isnan(value) else copysign(LARGEST_FLOAT, value)
    if kind is int:
        return value if -LARGEST <= value <= LARGEST else LARGEST if value > 0 else -LARGEST
    if kind in (tuple, list):
        found = [_bounded(item, most, items) for item in value[:items]]
        same = len(found) == len(value) and all(map(operator.is_, found, value))
        return value if same else kind(found)
    if kind is dict:
        return {_bounded(k, most, items): _bounded(v, most, items) for k, v in [*value.items()][:items]}
    if is_dataclass(value):
        return _fields_bounded(value, most, items)
    return value


def _fields_bounded(value: Any, most: int, items: int) -> Any:
    names, read = _fields(cast(Hashable, type(value)))
    changed = {}
    for name, old in zip(names, read(value), strict=True):
        # almost all of a leader's values: a call for each would cost more than to decode the record
        kind = type(old)
        if kind is str:
            if len(old) <= most and old.isascii():
                continue
        elif kind is int:
            if -LARGEST <= old <= LARGEST:
                continue
        elif kind is float:
            if -LARGEST_FLOAT <= old <= LARGEST_FLOAT:
                continue
        elif kind is bool or not old:
            continue
        new = _bounded(old, most, items)
        if new is not old and new != old:
            changed[name] = new
    return replace(value, **changed) if changed else value


@cache
def _fields(kind: Hashable) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """Returns the names of the fields that are bounded, and what reads them all of a record."""
    names = tuple(field.name for field in fields(cast(Any, kind)) if not _FREE.fullmatch(str(field.type)))
    if len(names) > 1:
        return names, operator.attrgetter(*names)
    return names, lambda value: tuple(getattr(value, name) for name in names)
