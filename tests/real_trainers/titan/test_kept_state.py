"""A rank's state in its node's memory, from its last step to its next start."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.wire.records import TrainerLaunch
from titan_actor import kept_state

LAUNCH: dict[str, Any] = {
    "run": "r", "group": 1, "generation": 3, "rank": 0, "world_size": 2, "groups": 2, "min_groups": 1, "node": "n1",
    "node_address": "127.0.0.1", "master_port": 0, "lighthouse": "", "run_dir": "", "rank_dir": "",
}  # fmt: skip


def launch(**fields: Any) -> TrainerLaunch:
    return TrainerLaunch(**{**LAUNCH, **fields})


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process with a file, as after a fork."""
    descriptor = os.memfd_create("test")
    monkeypatch.setattr(kept_state, "DESCRIPTOR", descriptor)
    holder = os.pidfd_open(os.getpid())
    monkeypatch.setattr(kept_state, "HOLDER", holder)
    yield
    os.close(descriptor)
    os.close(holder)


def test_the_next_start_takes_what_was_kept_for_it_and_no_other_one_does(forked: None) -> None:
    import torch

    weights = torch.arange(6.0).reshape(2, 3)
    assert kept_state.take(launch(from_memory=2)) is None
    assert kept_state.keep(2, launch(), 40, {"parameters": [[weights]], "lr": 0.5})
    weights.zero_()
    kept = kept_state.take(launch(from_memory=2))
    assert kept is not None
    assert (kept.step, kept.state["lr"]) == (40, 0.5)
    assert kept.state["parameters"][0][0].tolist() == [[0, 1, 2], [3, 4, 5]]
    for other in (launch(), launch(from_memory=3), launch(from_memory=2, world_size=1)):
        assert kept_state.take(other) is None
    assert kept_state.DESCRIPTOR is not None
    os.pwrite(kept_state.DESCRIPTOR, b"torn", 0)
    assert kept_state.take(launch(from_memory=2)) is None, "what cannot be read gives way to the checkpoint"
    assert kept_state.keep(2, launch(), 40, {"parameters": [[weights]]})
    kept_state.drop()
    assert os.fstat(kept_state.DESCRIPTOR).st_size == 0
    assert kept_state.take(launch(from_memory=2)) is None


def test_nothing_is_kept_without_a_warm_process_or_room(
    forked: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    state = {"parameters": [[torch.zeros(1000)]]}
    monkeypatch.setattr(kept_state, "free_bytes", lambda: 15999)
    assert not kept_state.keep(2, launch(), 40, state)
    assert "that of the ranks here has 8000 bytes, and 15999 are free" in caplog.text
    monkeypatch.setattr(kept_state, "free_bytes", lambda: 16000)
    assert kept_state.keep(2, launch(), 40, state)
    with subprocess.Popen(["true"]) as ended:
        gone = os.pidfd_open(ended.pid)
    with monkeypatch.context() as replaced:
        replaced.setattr(kept_state, "HOLDER", gone)
        assert not kept_state.keep(2, launch(), 40, state), "another warm process has taken its place"
    os.close(gone)
    monkeypatch.setattr(kept_state, "DESCRIPTOR", None)
    assert not kept_state.keep(2, launch(), 40, state)
    assert kept_state.take(launch(from_memory=2)) is None


def test_the_warm_process_has_one_file_for_each_rank_of_the_run_that_uses_the_node(tmp_path: Path) -> None:
    files, path = kept_state.Files(), tmp_path / "launch.json"

    def of(**fields: Any) -> int:
        path.write_text(json.dumps({**LAUNCH, **fields}))
        return files.of(str(path))

    first, second = of(rank=0), of(rank=1)
    assert first != second
    assert (of(rank=0, generation=4), of(rank=1, generation=4)) == (first, second)
    other = of(run="another")
    for closed in {first, second} - {other}:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(closed)
    os.close(other)
