"""No unit test depends on installed commands: it gets a PATH of its own with those that it needs."""

from __future__ import annotations

import os
import shutil

import pytest

OF_THE_MACHINE = frozenset(os.environ.get("PATH", os.defpath).split(os.pathsep))


@pytest.fixture(autouse=True)
def only_what_a_test_brings_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which

    def which(command: str, mode: int = os.F_OK | os.X_OK, path: str | None = None) -> str | None:
        folders = (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep)
        found = real(command, mode, os.pathsep.join(f for f in folders if f not in OF_THE_MACHINE))
        if found is None and not OF_THE_MACHINE.isdisjoint(folders):
            raise AssertionError(f"a unit test looks for `{command}` on this machine: give it a PATH of its own")
        return found

    monkeypatch.setattr(shutil, "which", which)
