from __future__ import annotations

import shutil

import pytest

PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager", "amtool")


@pytest.fixture(scope="session", autouse=True)
def _prometheus() -> None:
    for name in PROGRAMS:
        if shutil.which(name) is None:
            pytest.skip(f"no {name} (Debian: as root: apt-get install prometheus prometheus-alertmanager)")
