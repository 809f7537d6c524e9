"""Reads tables of a run file as dataclasses: strict types, and the nearest right key for a wrong one."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from supervisor.core.model.spec import KEYS, RunSpec

T = TypeVar("T")


def read(
    body: Mapping[str, Any], kind: type[T], where: str = "", fixed: Callable[[str, str], str] = lambda table, key: ""
) -> tuple[T | None, list[str]]:
    """Returns what a table says, and a sentence for each problem; None if a type is wrong. Keys that do not exist have no
    effect. `where`: the table, as "titan."; empty for a whole run file. `fixed`: explains why a table has no such key."""
    unknown = _unknown_keys(body, kind, where, fixed)
    try:
        # As JSON, for which strict mode builds dataclasses from tables, and accepts only numbers as numbers.
        text = json.dumps(_prune(body, kind), default=str)
        return TypeAdapter(kind).validate_json(text, strict=True), unknown
    except ValidationError as error:
        return None, unknown + [_sentence(e, where) for e in error.errors()]


def _fields(kind: Any) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        default = field.default_factory if field.default_factory is not dataclasses.MISSING else None
        hints[KEYS.get(field.name, field.name)] = default if dataclasses.is_dataclass(default) else None
    return hints


def _unknown_keys(body: Mapping[str, Any], kind: Any, where: str, fixed: Callable[[str, str], str]) -> list[str]:
    known = _fields(kind)
    found = []
    for key, value in body.items():
        path = f"{where}{key}"
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
            elsewhere = [p for p in all_keys() if p.rsplit(".", 1)[-1] == key]
            hint = elsewhere or [f"{where}{n}" for n in near]
            nearest = f"; nearest: {hint[0]}" if hint else f"; known here: {', '.join(sorted(known))}"
            why = fixed(where, key) or f"there is no such key{nearest}"
            found.append(f"{path} = {_short(value)}: {why}")
        elif known[key] is not None and isinstance(value, dict):
            found += _unknown_keys(value, known[key], f"{path}.", fixed)
    return found


def _prune(body: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Returns the body without unknown keys: they are reported with a better hint than pydantic's."""
    known = _fields(kind)
    names = {key: name for name, key in KEYS.items()}
    return {
        names.get(key, key): _prune(value, known[key]) if known[key] is not None and isinstance(value, dict) else value
        for key, value in body.items()
        if key in known
    }


@cache
def all_keys() -> tuple[str, ...]:
    """Returns every key of the run file, dotted."""

    def walk(kind: Any, where: str) -> list[str]:
        keys = []
        for name, inner in _fields(kind).items():
            keys.append(where + name)
            if inner is not None:
                keys += walk(inner, f"{where}{name}.")
        return keys

    return tuple(walk(RunSpec, ""))


def _sentence(error: Any, where: str) -> str:
    path = where + ".".join(KEYS.get(str(part), str(part)) for part in error["loc"])
    if error["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return f"{path}: missing, and it has no default"
    if error["type"] == "literal_error":
        expected = error["ctx"]["expected"]
        near = difflib.get_close_matches(str(error["input"]), re.findall(r"'([^']*)'", expected), n=1)
        return f"{path} = {_short(error['input'])}: must be {expected}" + (f"; nearest: {near[0]!r}" if near else "")
    said = error["msg"].replace("Input should be", "must be")
    return f"{path} = {_short(error['input'])} ({type(error['input']).__name__}): {said}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
