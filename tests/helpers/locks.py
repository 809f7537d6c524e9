"""The lock files of `requirements`, and what `pyproject.toml` asks of them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "requirements"
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


@dataclass(frozen=True, slots=True)
class Pinned:
    version: str
    hashes: frozenset[str]


Lock = dict[str, list[Pinned]]
"""Pins by name: more than one where they differ by the version of Python."""


def read(text: str) -> Lock:
    """Raises ValueError for a line that pins no version."""
    found: Lock = {}
    for entry in re.split(r"\n(?=[^\s#])", "\n" + text.replace("\\\n", " ")):
        lines = [line for line in entry.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if not lines:
            continue
        pin = re.match(r"([a-z0-9-]+)==([^ ;]+)", lines[0])
        if pin is None:
            raise ValueError(f"no pin: {lines[0]}")
        hashes = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})\b", lines[0]))
        found.setdefault(pin[1], []).append(Pinned(pin[2], hashes))
    return found


def lock(name: str) -> Lock:
    return read((FOLDER / f"{name}.lock").read_text())


def asked(extra: str | None = None) -> Iterator[Requirement]:
    """Yields the requirements of the distribution with an extra, those of the extras that it includes among them."""
    project = PYPROJECT["project"]
    for text in project["optional-dependencies"][extra] if extra else project["dependencies"]:
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            yield from (found for inner in requirement.extras for found in asked(inner))
        else:
            yield requirement
    if extra:
        yield from asked()


def problems(have: Lock, requirements: list[Requirement]) -> list[str]:
    """Lists what a lock lacks of the requirements; empty: nothing."""
    found = []
    for requirement in requirements:
        pins = have.get(canonicalize_name(requirement.name), [])
        if not pins:
            found.append(f"{requirement}: not there")
        found += [
            f"{requirement}: {pin.version} is pinned"
            for pin in pins
            if not requirement.specifier.contains(pin.version, prereleases=True)
        ]
    found += [f"{name}=={pin.version}: no hash" for name, pins in have.items() for pin in pins if not pin.hashes]
    return list(dict.fromkeys(found))
