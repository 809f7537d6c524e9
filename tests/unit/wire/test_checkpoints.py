"""A checkpoint that another run begins with."""

from __future__ import annotations

from pathlib import Path

from supervisor.wire import checkpoints
from supervisor.wire.records import CheckpointMark, encode


def test_a_checkpoint_is_lent_with_the_places_in_the_data(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    folder, places = old / "checkpoints" / "step-6.g0.gen1", old / "data"
    folder.mkdir(parents=True)
    mark = CheckpointMark(step=6, path=str(folder), group=0, generation=1)
    (folder / "shard").write_text("weights")
    (folder / checkpoints.MARKER).write_bytes(encode(mark))
    for name in ("step-6/g0.r0.json", "step-6/g1.r0.json", "step-6/.g1.r0.json.77", "step-9/g0.r0.json"):
        (places / name).parent.mkdir(parents=True, exist_ok=True)
        (places / name).write_text(name)
    (new / "data" / "step-6").mkdir(parents=True)
    (new / "data" / "step-6" / "g2.r0.json").write_text("of an interrupted launch")
    checkpoints.lend(mark, new)
    lent = checkpoints.mark_of(new / "checkpoints" / "step-6.g0.gen1")
    assert lent is not None
    assert lent.step == 6
    found = sorted(str(path.relative_to(new)) for path in (new / "data").rglob("*") if path.is_file())
    assert found == ["data/step-6/g0.r0.json", "data/step-6/g1.r0.json"]
