"""The installed distribution: its name, its licence, and the types of its packages."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from supervisor.wire.version import DISTRIBUTION

REPOSITORY = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def test_the_version_is_asked_of_the_distribution_that_pip_installs() -> None:
    assert PYPROJECT["project"]["name"] == DISTRIBUTION


def test_every_licence_file_is_there() -> None:
    assert all((REPOSITORY / name).is_file() for name in PYPROJECT["project"]["license-files"])


@pytest.mark.parametrize(
    "package", [name.rstrip("*") for name in PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]]
)
def test_a_package_that_is_typed_is_installed_with_its_mark(package: str) -> None:
    assert package in PYPROJECT["tool"]["mypy"]["packages"]
    assert (REPOSITORY / package / "py.typed").is_file()
    assert "py.typed" in PYPROJECT["tool"]["setuptools"]["package-data"][package]
