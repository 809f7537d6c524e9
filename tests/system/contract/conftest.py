"""One Slurm for a file; every test finds it idle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.testbed.own_slurm import Slurm, available, slurm
from tests.system.contract.places import NODES, SlurmPlace


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm with three nodes. A node that is down stays so until a test brings it back."""
    if available():
        pytest.skip(available())
    with slurm(tmp_path_factory.mktemp("slurm"), len(NODES), preempt=True, return_to_service=1) as running:
        yield running


@pytest.fixture
def at_slurm(lab: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmPlace:
    lab.clear()
    return SlurmPlace(lab, tmp_path, monkeypatch)
