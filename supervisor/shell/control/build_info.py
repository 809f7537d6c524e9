"""The identity of this program: its version and a digest of its rules."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from supervisor import core
from supervisor.wire.version import version


@cache
def program() -> str:
    """Returns the version and a digest of the rules, since programs of one version may differ in development."""
    assert core.__file__ is not None
    rules = hashlib.sha256()
    folder = Path(core.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        rules.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return f"{version()} (rules {rules.hexdigest()[:8]})"
