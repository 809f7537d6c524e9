"""A run that begins with another run's checkpoint: `supervisor launch --resume-from`."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.ports.errors import Fatal
from supervisor.shell.inspect import client
from supervisor.wire import keys
from supervisor.wire.checkpoints import MARKER, listed
from supervisor.wire.records import CheckpointMark, LeaderRecord, encode
from tests.unit.shell.records import SPEC


@pytest.fixture
def lent(tmp_path: Path) -> tuple[MemoryStore, Path]:
    """A store with a leader, and a complete checkpoint of another run."""
    store, made = MemoryStore(), tmp_path / "old" / "checkpoints" / "step-40.g0.gen2"
    store.put(keys.LEADER, encode(LeaderRecord(host="h", pid=1, home="")))
    (made / "shards").mkdir(parents=True)
    (made / "shards" / "0.distcp").write_bytes(b"weights")
    (made / MARKER).write_bytes(encode(CheckpointMark(step=40, path="/elsewhere", group=0, generation=2)))
    return store, made


@pytest.mark.parametrize("linked", [True, False])
def test_a_run_begins_with_the_checkpoint_of_another(
    lent: tuple[MemoryStore, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    store, given = lent
    if not linked:
        monkeypatch.setattr("os.link", Mock(side_effect=OSError(errno.EXDEV, "another file system")))
    mark = client.resumed_from(given, SPEC)
    record = client.launch(store, SPEC, tmp_path, begins_with=mark)
    ((step, folder, found),) = listed(record.run_dir)
    assert (step, found) == (40, replace(mark, path=str(folder)))
    shard, old = folder / "shards" / "0.distcp", given / "shards" / "0.distcp"
    assert (shard.read_bytes(), shard.samefile(old)) == (b"weights", linked)


def test_what_an_interrupted_launch_left_is_made_again(lent: tuple[MemoryStore, Path], tmp_path: Path) -> None:
    store, given = lent
    torn = tmp_path / "run" / "checkpoints" / given.name
    torn.mkdir(parents=True)
    (torn / "half").touch()
    client.launch(store, SPEC, tmp_path, begins_with=client.resumed_from(given, SPEC))
    assert sorted(path.name for path in torn.iterdir()) == [MARKER, "shards"]


def test_what_no_run_can_begin_with_is_refused(lent: tuple[MemoryStore, Path], tmp_path: Path) -> None:
    store, given = lent
    with pytest.raises(Fatal, match=r"checkpoints is no complete checkpoint of a run: give a folder such as"):
        client.resumed_from(given.parent, SPEC)
    with pytest.raises(Fatal, match=r"is at step 40, and titan\.steps = 40: raise that"):
        client.resumed_from(given, replace(SPEC, titan=replace(SPEC.titan, steps=40)))
    mark = client.resumed_from(given, SPEC)
    with pytest.raises(Fatal, match="is in the folder of this very run"):
        client.launch(store, replace(SPEC, name="old"), tmp_path, begins_with=mark)
    shutil.copytree(given, (tmp_path / "run" / "checkpoints" / "step-20.g0.gen1"))
    own = tmp_path / "run" / "checkpoints" / "step-20.g0.gen1"
    (own / MARKER).write_bytes(encode(CheckpointMark(step=20, path="", group=0, generation=1)))
    with pytest.raises(Fatal, match="has checkpoints already"):
        client.launch(store, SPEC, tmp_path, begins_with=mark)
    assert store.get(keys.spec("run")) is None
