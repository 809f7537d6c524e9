"""Checkpoints on disk: save, torn, resume, purge, a full disk; and a group that finds no peers."""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.wire.address import free_port
from supervisor.wire.records import MISCONFIGURED, PEERS_GONE, CheckpointMark, encode
from tests.real_trainers.titan.groups import STEPS_WITHIN_S, Gate, Groups, Rank, complete
from tests.real_trainers.titan.recipes import WHOLE
from titan_actor import checkpoint


def folder(run_dir: Path, step: int, group: int = 0, generation: int = 1, torn: bool = False) -> CheckpointMark:
    """A checkpoint folder with nothing in it but its marker."""
    path = run_dir / "checkpoints" / f"step-{step}.g{group}.gen{generation}"
    path.mkdir(parents=True)
    mark = CheckpointMark(step=step, path=str(path), group=group, generation=generation)
    (path / "__0_0.distcp").write_bytes(b"shard")
    if not torn:
        (path / checkpoint.MARKER).write_bytes(encode(mark))
    return mark


def left(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_listed_names_complete_and_torn(tmp_path: Path) -> None:
    folder(tmp_path, 5)
    folder(tmp_path, 10, torn=True)
    folder(tmp_path, 10, generation=2)
    (tmp_path / "checkpoints" / "step-x").mkdir()
    found = [(step, mark is not None, path.name) for step, path, mark in checkpoint.listed(str(tmp_path))]
    assert found == [(10, True, "step-10.g0.gen2"), (10, False, "step-10.g0.gen1"), (5, True, "step-5.g0.gen1")]


def test_a_moved_checkpoint_is_found_where_it_is(tmp_path: Path) -> None:
    folder(tmp_path / "old", 5)
    shutil.move(tmp_path / "old", tmp_path / "new")
    [(_, path, mark)] = checkpoint.listed(str(tmp_path / "new"))
    assert mark is not None
    assert mark.path == str(path)


def test_purge_keeps_the_newest_up_to_its_own(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        folder(tmp_path, step)
    newest = folder(tmp_path, 20)
    folder(tmp_path, 25)
    folder(tmp_path, 12, torn=True)
    folder(tmp_path, 30, torn=True)
    gone = checkpoint.purge(str(tmp_path), newest, kept=2)
    # 25 is another's; 30 may still be in the writing
    assert left(tmp_path) == ["step-15.g0.gen1", "step-20.g0.gen1", "step-25.g0.gen1", "step-30.g0.gen1"]
    assert sorted(path.name for path in gone) == ["step-10.g0.gen1", "step-12.g0.gen1", "step-5.g0.gen1"]


def test_purge_never_removes_its_own(tmp_path: Path) -> None:
    newest = folder(tmp_path, 10, generation=1)
    folder(tmp_path, 10, generation=2)
    checkpoint.purge(str(tmp_path), newest, kept=1)
    assert "step-10.g0.gen1" in left(tmp_path)


def test_a_writer_purges_only_after_a_quorum_that_it_asked_for_later(tmp_path: Path) -> None:
    """A checkpoint completes during a step, maybe before the step's quorum. A frozen writer makes no such commit."""
    purge, first, second = checkpoint.Purge(), folder(tmp_path, 10), folder(tmp_path, 20)
    commits = [None, first, first, first, second, second]
    assert [purge.committed(mark) for mark in commits] == [None, None, first, None, None, second]


@pytest.mark.trainers
def test_resume_is_the_same_run_as_without_a_break(groups: Groups, tmp_path: Path) -> None:
    """Model, optimizer, learning rate, manager's step and the place in the data: all digests equal."""
    fields = {"groups": 1, "steps": 9, "checkpoint_interval_steps": 3, "writer": True}
    first = groups.start(0, **fields)
    first.ask_when_there("drain", at_step=6)
    assert first.exit_code() == 0
    assert first.step == 6
    marks = complete(groups.run_dir)
    assert [mark.step for mark in marks] == [3, 6]
    assert first.progress is not None
    assert first.progress.checkpoint == marks[-1]

    second = groups.start(0, generation=2, checkpoint=marks[-1], **fields)
    assert second.exit_code() == 0
    steps = [line["step"] for line in second.lines("step")]
    assert steps == [7, 8, 9], "the manager's step goes on from the checkpoint's"
    assert [line["step"] for line in second.lines("resumed")] == [6]

    elsewhere = Groups(tmp_path / "whole", groups.warm, groups.lighthouse)
    elsewhere.top.mkdir()
    whole = elsewhere.start(0, **fields)
    assert whole.exit_code() == 0
    for step in (7, 8, 9):
        assert second.digests()[step] == whole.digests()[step]

    lost = Path(groups.run_dir) / "data" / "step-6"
    shutil.rmtree(lost)
    third = groups.start(0, generation=3, checkpoint=marks[-1], **fields)
    assert third.exit_code() == MISCONFIGURED
    assert third.progress is not None
    assert third.progress.error.startswith(
        f"NoPlace: the place in the data at step 6 is lost: {lost}/g0.r0.json is missing"
    )


def start_on(system: Groups, nodes: int, here: int = 2, **fields: Any) -> list[Rank]:
    """Starts group 0 on N nodes with `here` ranks each, which meet at the store of the first."""
    port = free_port()
    return [
        system.start(
            0,
            rank=rank,
            world_size=nodes * here,
            first_rank=rank - rank % here,
            ranks_here=here,
            store="127.0.0.1",
            master_port=port,
            **fields,
        )
        for rank in range(nodes * here)
    ]


def whole(rank: Rank, event: str) -> dict[int, str]:
    """Returns the hashes of the whole state by step, where it was saved or loaded."""
    lines = [json.loads(line) for line in (rank.folder / WHOLE).read_text().splitlines()]
    return {line["step"]: line["value"] for line in lines if line["event"] == event}


@pytest.mark.trainers
@pytest.mark.long
@pytest.mark.timeout(900)
def test_resume_on_more_nodes_and_on_fewer(groups: Groups) -> None:
    """2 ranks, then 4 on two nodes, 3 on three (which do not divide its width of 256) and 2 again: the whole model and
    its moments are those that were saved."""
    fields = {
        "recipe": "tests.real_trainers.titan.recipes:that_hashes_its_whole_state",
        "groups": 1,
        "checkpoint_interval_steps": 3,
        "writer": True,
    }
    before: list[Rank] = []
    for generation, (nodes, here) in enumerate(((1, 2), (2, 2), (3, 1), (1, 2)), start=1):
        steps = 3 * generation
        mark = complete(groups.run_dir)[-1] if before else None
        ranks = start_on(groups, nodes, here, generation=generation, steps=steps, checkpoint=mark, **fields)
        assert [rank.exit_code(120) for rank in ranks] == [0] * here * nodes
        assert [line["step"] for line in ranks[0].lines("step")] == [steps - 2, steps - 1, steps]
        if before:
            assert whole(ranks[-1], "loaded") == {steps - 3: whole(before[0], "saved")[steps - 3]}
            assert "the share of another number begins at its first document" in ranks[0].log(), (
                "each rank reads other data"
            )
        before = ranks


@pytest.mark.trainers
@pytest.mark.long
def test_a_checkpoint_of_another_model_is_refused_with_the_reason(groups: Groups) -> None:
    fields = {"groups": 1, "checkpoint_interval_steps": 3, "writer": True, "steps": 3}
    first = start_on(groups, 1, generation=1, **fields)
    assert [rank.exit_code() for rank in first] == [0, 0]
    (mark,) = complete(groups.run_dir)
    second = start_on(groups, 2, generation=2, recipe="llama3-debug", checkpoint=mark, **{**fields, "steps": 6})
    assert [rank.exit_code(120) for rank in second] == [1] * 4
    assert second[0].progress is not None
    assert f"{Path(mark.path).name}: " in second[0].progress.error
    assert "layers.2" in second[0].progress.error, "it names what the checkpoint lacks"


@pytest.mark.trainers
def test_torn_checkpoint_falls_back_to_the_newest_complete(groups: Groups) -> None:
    fields = {"groups": 1, "checkpoint_interval_steps": 2, "writer": True}
    first = groups.start(0, steps=2, **fields)
    assert first.exit_code() == 0
    torn = folder(groups.run_dir, 50, torn=True)
    second = groups.start(0, generation=2, steps=4, checkpoint=torn, **fields)
    assert second.exit_code() == 0
    assert [line["step"] for line in second.lines("step")] == [3, 4]
    assert "is torn or gone: falling back" in second.log()


@pytest.mark.trainers
def test_lost_checkpoint_stops_the_start(groups: Groups) -> None:
    """Training from scratch would throw the run's steps away in silence."""
    gone = CheckpointMark(step=50, path=str(groups.run_dir / "checkpoints" / "step-50.g0.gen1"), group=0, generation=1)
    rank = groups.start(0, groups=1, checkpoint=gone)
    assert rank.exit_code() == 1
    assert rank.progress is not None
    assert "no checkpoint can be read" in rank.progress.error


class Code:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.trainers
@pytest.mark.parametrize("name", ["checkpoint", "place"])
def test_a_file_with_code_ends_the_start_with_a_sentence(groups: Groups, tmp_path: Path, name: str) -> None:
    """It is not read, and no older checkpoint hides it."""
    fields = {"groups": 1, "checkpoint_interval_steps": 2, "writer": True}
    assert groups.start(0, steps=4, **fields).exit_code() == 0
    mark = complete(groups.run_dir)[-1]
    ran, evil = tmp_path / "ran", Path(mark.path) / ".metadata"
    if name == "checkpoint":
        evil.write_bytes(pickle.dumps(Code(ran)))
    else:
        (evil,) = (groups.run_dir / "data" / f"step-{mark.step}").iterdir()
        state = json.loads(evil.read_text())
        state["places"] = {place: base64.b64encode(pickle.dumps(Code(ran))).decode() for place in state["places"]}
        evil.write_text(json.dumps(state))
        # on a slow machine there is a newest place too, of the same step, which is as good
        shutil.rmtree(groups.run_dir / "data" / "live", ignore_errors=True)
    second = groups.start(0, generation=2, steps=6, checkpoint=mark, **fields)
    assert second.exit_code() == 1
    assert not ran.exists()
    assert second.progress is not None
    assert str(evil) in second.progress.error
    assert "holds posix.mkdir" in second.progress.error
    assert "start from another checkpoint" in second.progress.error
    assert "Traceback" not in second.log()
    assert (second.folder / "error.json").exists()


@pytest.mark.trainers
@pytest.mark.parametrize("of_titan", [False, True])
def test_weights_with_code_end_the_start_with_a_sentence(groups: Groups, tmp_path: Path, of_titan: bool) -> None:
    ran, weights = tmp_path / "ran", Path(folder(tmp_path / "other", 5, torn=of_titan).path)
    (weights / ".metadata").write_bytes(pickle.dumps(Code(ran)))
    rank = groups.start(0, groups=1, steps=1, overrides={"checkpoint.initial_load_path": str(weights)})
    assert rank.exit_code() == 1
    assert not ran.exists()
    assert rank.progress is not None
    assert f"{weights / '.metadata'} holds posix.mkdir" in rank.progress.error
    assert "Traceback" not in rank.log()


def test_a_folder_of_another_user_or_open_to_all_is_refused(tmp_path: Path) -> None:
    """One that a group shares is not."""
    mark = folder(tmp_path, 5)
    above, own = tmp_path / "checkpoints", Path(mark.path)
    assert checkpoint.refuse_open(str(tmp_path), mark) == ""
    for mode in (0o770, 0o772):
        above.chmod(mode)
        assert checkpoint.refuse_open(str(tmp_path), mark) == ""
    own.chmod(0o772)
    assert checkpoint.refuse_open(str(tmp_path), mark) == "", "as a mount gives it to all"
    above.chmod(0o770)
    assert f"every user may write into {own}: run `chmod o-w {own}`" in checkpoint.refuse_open(str(tmp_path), mark)
    assert checkpoint.refuse_open(str(tmp_path / "none"), None) == ""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_folder_of_another_user_is_refused_unless_the_run_is_theirs_or_a_group_shares_it(tmp_path: Path) -> None:
    mark = folder(tmp_path, 5)
    for place in (tmp_path / "checkpoints", Path(mark.path)):
        os.chown(place, 65534, -1)
        assert f"{place} belongs to another user (nobody)" in checkpoint.refuse_open(str(tmp_path), mark)
        os.chown(tmp_path, 65534, -1)
        assert checkpoint.refuse_open(str(tmp_path), mark) == ""
        os.chown(place, 0, -1)
        os.chown(tmp_path, 0, -1)
    os.chown(mark.path, 65534, -1)
    (tmp_path / "checkpoints").chmod(0o770)
    assert checkpoint.refuse_open(str(tmp_path), mark) == "", (
        "a group shares it on purpose, and another of it saved this one"
    )
    (tmp_path / "checkpoints").chmod(0o777)
    assert "belongs to another user (nobody)" in checkpoint.refuse_open(str(tmp_path), mark)


@pytest.mark.trainers
def test_a_start_from_an_open_folder_ends_with_a_sentence(groups: Groups) -> None:
    mark = folder(groups.run_dir, 5)
    Path(mark.path).chmod(0o777)
    rank = groups.start(0, groups=1, checkpoint=mark)
    assert rank.exit_code() == 1
    assert rank.progress is not None
    assert "every user may write into" in rank.progress.error
    assert "Traceback" not in rank.log()


@pytest.mark.trainers
def test_without_peers_it_ends_before_a_step(groups: Groups) -> None:
    mark = CheckpointMark(step=50, path="/nowhere", group=0, generation=1)
    rank = groups.start(0, resume="peers", checkpoint=mark)
    assert rank.exit_code() == PEERS_GONE
    assert not rank.lines("step")
    assert rank.progress is not None
    assert rank.progress.phase == "failed"
    assert "cannot heal from peers" in rank.progress.error


@pytest.mark.trainers
def test_without_peers_and_without_a_checkpoint_it_ends_too(groups: Groups) -> None:
    """A checkpoint may have been saved since it was started, and the others are started again from there. Had it
    trained alone from scratch for longer than that takes, they would heal from it."""
    rank = groups.start(0, resume="peers", steps=2)
    assert rank.exit_code() == PEERS_GONE
    assert not rank.lines("step")
    assert rank.progress is not None
    assert "the others had trained" in rank.progress.error


@pytest.mark.trainers
def test_a_checkpoint_that_others_save_while_it_waits_for_its_first_quorum_is_not_trained_past(
    groups: Groups, gate: Gate
) -> None:
    """The others were lost then, and come back from the checkpoint."""
    rank = groups.start(0, steps=2, lighthouse=gate.address, environment={"SUPERVISOR_NO_GATE": "0"})
    eventually(lambda: len(gate.built) >= 2, STEPS_WITHIN_S, "it is built, and not let in")
    folder(groups.run_dir, 50)
    gate.open.set()
    assert rank.exit_code() == PEERS_GONE
    assert not rank.lines("step")


@pytest.mark.trainers
def test_a_writer_purges_by_its_own_word(groups: Groups) -> None:
    """There is no supervisor here, and only the checkpoints that must be kept are left."""
    folder(groups.run_dir, 1, torn=True)
    rank = groups.start(0, groups=1, checkpoint_interval_steps=2, checkpoints_kept=2, writer=True)

    def purged() -> list[str]:
        return [Path(path).name for line in rank.lines("purged") for path in line["paths"]]

    eventually(lambda: len(purged()) >= 5, STEPS_WITHIN_S, "it purges as it goes on")
    rank.ask("drain")
    assert rank.exit_code() == 0
    # one that is due while the one before is still being written is skipped
    steps = [int(name.removeprefix("step-").partition(".")[0]) for name in purged()]
    assert steps[0] == 1, "the torn one with the oldest"
    left = sorted(mark.step for mark in complete(groups.run_dir))
    assert len(left) >= 2
    assert min(left) > max(steps), "only the newest ones are left"


@pytest.mark.trainers
def test_writer_command(groups: Groups) -> None:
    rank = groups.start(0, groups=1, checkpoint_interval_steps=2)
    rank.reached(3)
    assert complete(groups.run_dir) == []
    assert rank.ask("writer", writer=True) == {"ok": True}
    eventually(lambda: len(complete(groups.run_dir)) >= 2, 30, "two checkpoints")
    # orders that an agent sends for trainers of older versions are ignored
    assert rank.ask("writer", writer=False, pointer=None) == {"ok": True}
    rank.ask("drain")
    assert rank.exit_code() == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB for the checkpoints."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "run" / "checkpoints"
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.trainers
@pytest.mark.root
def test_full_disk_costs_the_checkpoint_and_nothing_else(groups: Groups, small_disk: Path) -> None:
    rank = groups.start(0, groups=1, steps=9, checkpoint_interval_steps=3, writer=True)
    assert rank.exit_code() == 0
    assert rank.step == 9
    assert rank.progress is not None
    assert "checkpoint of step 9 failed" in rank.progress.error
    assert "No space left on device" in rank.progress.error
    assert rank.progress.checkpoint is None
    assert list(small_disk.iterdir()) == [], "the torn folder is removed"
    assert "training goes on" in rank.log()
    assert not any(line["complete"] for line in rank.lines("checkpoint_end"))


@pytest.mark.trainers
@pytest.mark.long
def test_settings_of_the_optimizer_that_the_run_file_has_changed_hold_after_a_load(groups: Groups) -> None:
    """A checkpoint has those of its own run file. The schedule computes the learning rate by the new config anyway."""
    fields = {"groups": 1, "checkpoint_interval_steps": 3, "writer": True}
    first = groups.start(0, steps=3, **fields)
    assert first.exit_code() == 0
    [mark] = complete(groups.run_dir)
    changed = {"optimizer.weight_decay": 0.3, "optimizer.lr": 0.002}
    second = groups.start(0, generation=2, checkpoint=mark, steps=6, overrides=changed, **fields)
    assert second.exit_code() == 0
    assert "weight_decay of the optimizer is 0.3, as the run file says: it was 0.1" in second.log()
    [_, newest] = complete(groups.run_dir)
    [[group]] = json.loads((Path(newest.path) / "optimizer.json").read_text())
    assert (group["weight_decay"], group["initial_lr"]) == (0.3, 0.002)
    third = groups.start(0, generation=3, checkpoint=newest, steps=7, overrides=changed, **fields)
    assert third.exit_code() == 0
    assert "as the run file says" not in third.log(), "nothing has changed since"
