"""Which GPUs of a machine its local nodes are given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from supervisor.shell.engines import local
from supervisor.wire import gpus


@pytest.mark.parametrize(
    ("there", "nodes", "slots", "own", "shared"),
    [
        (8, 4, 2, ["01", "23", "45", "67"], False),
        (8, 3, 2, ["01", "23", "45"], False),
        (8, 4, 3, ["012", "345", "012", "345"], True),
        (1, 4, 1, ["0", "0", "0", "0"], True),
        (2, 4, 1, ["0", "1", "0", "1"], True),
        (1, 1, 1, ["0"], False),
        (1, 2, 2, ["0", "0"], True),
        (1, 1, 2, ["0"], False),
    ],
)
def test_nodes_have_gpus_of_their_own_where_there_are_enough(
    there: int, nodes: int, slots: int, own: Sequence[str], shared: bool
) -> None:
    names = [str(n) for n in range(there)]
    given = [gpus.of_node(names, place, nodes, slots) for place in range(nodes)]
    assert ["".join(each) for each, _ in given] == own
    assert {said for _, said in given} == {shared}


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /dev with the driver's files of two GPUs."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.setattr(local, "DEVICES", tmp_path)
    monkeypatch.delenv(local.VISIBLE, raising=False)
    monkeypatch.delenv(gpus.SHARED, raising=False)
    return tmp_path


def given(place: int, nodes: int, slots: int = 1) -> tuple[str | None, bool]:
    environment = local.environment(place, nodes, slots)
    return environment.get(local.VISIBLE), gpus.SHARED in environment


def test_the_gpus_are_counted_by_the_drivers_files(dev: Path) -> None:
    assert [given(0, 2), given(1, 2)] == [("0", False), ("1", False)]
    assert given(2, 3) == ("0", True)
    (dev / "nvidia1").unlink()
    assert given(1, 2) == ("0", True)


def test_one_that_is_not_ours_does_not_count(dev: Path) -> None:
    (dev / "nvidia0").unlink()
    (dev / "nvidia0").mkdir()  # cannot be opened for writing, not by root either
    assert given(1, 2) == ("0", True)


def test_those_that_are_hidden_from_us_are_hidden_from_the_nodes(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(local.VISIBLE, "5, GPU-1f,7")
    assert [given(place, 3)[0] for place in range(3)] == ["5", "GPU-1f", "7"]
    monkeypatch.setenv(local.VISIBLE, "")
    assert given(0, 3) == ("", False)


def test_without_a_gpu_nothing_is_said(dev: Path) -> None:
    (dev / "nvidia0").unlink()
    (dev / "nvidia1").unlink()
    assert given(1, 3) == (None, False)
