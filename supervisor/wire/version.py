"""The name and the version of the installed distribution."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

DISTRIBUTION = "everstep"
"""Its name in `pyproject.toml`, and for pip."""


def version() -> str:
    """Returns the version that pip installed; "unknown" if the sources run without an installation under this name."""
    try:
        return version_of(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
