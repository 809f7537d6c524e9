"""Changes a spec by KEY=VALUE, and tells two specs apart."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from supervisor.core.model.spec import RunSpec
from supervisor.shell.runfile import parse


def value_of(text: str) -> Any:
    """Reads a value as TOML, or else as plain text."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError):
        return text


def put(body: dict[str, Any], path: list[str], value: Any) -> str:
    """Puts a value at a path; None removes what is there. Returns why it cannot, or empty."""
    while len(path) > 1 and ".".join(path) not in body:  # a key of overrides may be written with its dots
        inner = body.setdefault(path[0], {})
        if not isinstance(inner, dict):
            return "its parent is not a table"
        body, path = inner, path[1:]
    key = ".".join(path)
    if value is not None:
        body[key] = value
    elif key not in body:
        return "no value is set there"
    else:
        del body[key]
    return ""


def text_of(value: Any) -> str:
    """Writes a value as TOML has it."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(text_of(part) for part in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def flat(body: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Returns all values of a document by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in body.items():
        found |= flat(value, f"{where}{key}.") if isinstance(value, dict) else {where + key: value}
    return found


def changed(spec: RunSpec, given: Sequence[str]) -> RunSpec:
    """Returns the spec with these KEY=VALUE changes. Keys are those of the run file; a key without a value gets its
    default. Relative paths begin at the current folder. Raises parse.RunFileError with all problems."""
    body, problems = parse.document(spec), []
    for pair in given:
        key, equals, text = pair.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            problems.append(f"{pair!r}: give KEY=VALUE, as titan.overrides.optimizer.lr=3e-4")
        elif wrong := put(body, key.split("."), value_of(text.strip()) if text.strip() else None):
            problems.append(f"{key}: {wrong}")
    if problems:
        raise parse.RunFileError(problems)
    return parse.parse(body, base=Path())


def keys_that_differ(before: RunSpec, after: RunSpec) -> list[str]:
    """Returns the dotted keys of the values that differ, in the order of the run file."""
    old, new = flat(parse.document(before)), flat(parse.document(after))
    return [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]


def differences(before: RunSpec, after: RunSpec) -> Iterator[str]:
    """Yields a line for each key that differs, as `KEY: BEFORE -> AFTER`, in the order of the run file."""
    old, new = flat(parse.document(before)), flat(parse.document(after))
    for key in keys_that_differ(before, after):
        was, now = (text_of(each[key]) if key in each else "not set" for each in (old, new))
        yield f"{key}: {was} -> {now}"
