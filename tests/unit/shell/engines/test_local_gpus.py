"""The GPUs of a machine that its local nodes get."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from supervisor.shell.engines.local import Pool, PoolNode, environment
from supervisor.wire import gpus


@pytest.mark.parametrize(
    ("there", "nodes", "slots", "own", "shared"),
    [
        (8, 4, 2, ["01", "23", "45", "67"], False),
        (8, 4, 1, ["0", "2", "4", "6"], False),
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


def test_runs_of_different_sizes_do_not_meet_on_a_gpu() -> None:
    names = [str(n) for n in range(8)]
    given = [gpus.of_node(names, place, 4, slots)[0] for place, slots in enumerate((2, 2, 1, 1))]
    assert len(set().union(*given)) == 6


def test_slices_of_a_gpu_are_shared() -> None:
    slices = ("MIG-a", "MIG-b")
    assert [gpus.of_node(slices, place, 2, 1) for place in (0, 1)] == [(("MIG-a",), True), (("MIG-b",), True)]
    assert gpus.of_node(slices, 0, 1, 1) == (("MIG-a",), False)


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /dev with the driver's files of two GPUs."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    monkeypatch.delenv(gpus.SHARED, raising=False)
    return tmp_path


def test_the_gpus_are_counted_by_the_drivers_files(dev: Path) -> None:
    assert gpus.there() == ("0", "1")
    (dev / "nvidia0").unlink()
    assert gpus.there() == ("0",)
    (dev / "nvidia0").symlink_to("nowhere")  # like another user's process: it may not be read
    assert gpus.there() == ("0",)
    (dev / "nvidia1").unlink()
    assert gpus.there() == ()


@pytest.mark.parametrize(
    ("visible", "expected"), [("5, GPU-1f,7", ("5", "GPU-1f", "7")), ("", ()), ("-1", ()), (" ", ())]
)
def test_those_that_are_hidden_from_us_are_not_there(
    dev: Path, monkeypatch: pytest.MonkeyPatch, visible: str, expected: Sequence[str]
) -> None:
    monkeypatch.setenv(gpus.VISIBLE, visible)
    assert gpus.there() == expected


def given(pool: Pool, slots: int = 1) -> list[tuple[str | None, bool]]:
    told = [environment(pool, node, slots) for node in pool.nodes]
    return [(each.get(gpus.VISIBLE), gpus.SHARED in each) for each in told]


def nodes(count: int) -> tuple[PoolNode, ...]:
    return tuple(PoolNode(f"n{n}") for n in range(count))


def test_a_pool_divides_what_was_there_when_it_was_made(
    dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pool(nodes=nodes(2), etcd="h:1").save(tmp_path)
    (dev / "nvidia1").unlink()
    monkeypatch.setenv(gpus.SHARED, "1")  # started by a user who shares
    pool = Pool.load(tmp_path)
    assert pool is not None
    assert given(pool) == [("0", False), ("1", False)]
    assert given(Pool(nodes=nodes(2), etcd="h:1")) == [("0", True), ("0", True)]


def test_without_a_gpu_nothing_is_said_and_what_is_hidden_stays_hidden(
    dev: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(gpus.VISIBLE, "")
    assert given(Pool(nodes=nodes(3), etcd="h:1")) == [("", False)] * 3
    monkeypatch.delenv(gpus.VISIBLE)
    for name in ("nvidia0", "nvidia1"):
        (dev / name).unlink()
    assert given(Pool(nodes=nodes(3), etcd="h:1")) == [(None, False)] * 3
