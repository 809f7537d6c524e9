"""The name and the version of the installed distribution."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

DISTRIBUTION = "everstep"
"""Its name in `pyproject.toml`, and for pip."""

RECORDS = 1
"""Version of the lines of journals and step records that docs/JOURNAL.md describes. A new field needs no new one; a field
that goes or changes its meaning does."""

FITS = {"torch": ("2.13", "2.15"), "torchft": ("0.2", "0.3"), "torchtitan": ("0.3", "0.4")}
"""Package of a trainer -> the oldest version that fits, and the first that does not. As in `pyproject.toml`."""

EXTRAS = {
    "jinja2": "demo",
    "monarch": "monarch",
    "pandas": "pandas",
    "pynvml": "trainer",
    "torch": "trainer",
    "torchft": "trainer",
    "torchtitan": "trainer",
}
"""Module that an installation for a login node lacks -> the extra that brings it."""

INSTALL = f"pip install '{DISTRIBUTION}[trainer]'"


def version() -> str:
    """Returns the version that pip installed; "unknown" if the sources run without an installation under this name."""
    try:
        return version_of(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def misfit(package: str, have: str | None = None) -> str:
    """Returns why the installed version of a package of FITS does not fit, and what to do; empty if it does. `have`: the
    version, if it is known."""
    least, bound = FITS[package]
    if have is None:
        try:
            have = version_of(package)
        except PackageNotFoundError:
            return f"{package} is not installed: {INSTALL}"
    if _release(least) <= _release(have) < _release(bound):
        return ""
    return f"{package} {have} is installed, and only {least} to below {bound} fits: {INSTALL}"


def missing(module: str) -> str:
    """Returns the end of a sentence on a module that is not installed; empty if no extra of ours brings it."""
    name = module.partition(".")[0]
    extra = EXTRAS.get(name)
    return f"needs {name}, which is not installed: pip install '{DISTRIBUTION}[{extra}]'" if extra else ""


def misfits() -> str:
    """Returns the misfits of all packages of a trainer as one sentence; empty if there is none."""
    return "; ".join(filter(None, map(misfit, FITS)))


def _release(text: str) -> tuple[int, ...]:
    """Returns the numbers with which a version begins."""
    begin = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, begin[0].split("."))) if begin is not None else ()
