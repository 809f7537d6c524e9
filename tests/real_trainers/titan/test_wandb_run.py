"""The ids of ranks at Weights & Biases."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.wire.records import TrainerLaunch
from titan_actor import wandb_run


@pytest.fixture
def ids(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_RUN_ID", "WANDB_RUN_NAME", "WANDB_RUN_GROUP", "WANDB_RESUME"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")  # put back at the end, whatever is set here
        monkeypatch.delenv(name)


def named(folder: Path, group: int = 0, rank: int = 0, own: str = "") -> str:
    """The id that a rank has in a process of its own."""
    for name in ("WANDB_RUN_ID", "WANDB_RUN_NAME"):
        os.environ.pop(name, None)
    if own:
        os.environ["WANDB_RUN_ID"] = own
    launch = TrainerLaunch(
        run="mine", group=group, generation=1, rank=rank, world_size=2, groups=2, min_groups=1, node="n1",
        node_address="127.0.0.1", master_port=1, lighthouse="", run_dir=str(folder), rank_dir="",
    )  # fmt: skip
    wandb_run.name(launch)
    return os.environ["WANDB_RUN_ID"]


@pytest.mark.usefixtures("ids")
def test_a_group_goes_on_with_its_run_and_no_other_does(tmp_path: Path) -> None:
    first = named(tmp_path / "a")
    assert first.startswith("mine-group-0-")
    assert named(tmp_path / "a") == first, "a restart"
    others = {named(tmp_path / "a", group=1), named(tmp_path / "a", rank=1), named(tmp_path / "b")}
    assert len({first, *others}) == 4
    assert os.environ["WANDB_RUN_GROUP"] == "mine"


@pytest.mark.usefixtures("ids")
def test_an_id_of_the_users_is_that_of_all_groups_so_each_gets_its_number(tmp_path: Path) -> None:
    assert named(tmp_path, own="abc") == "abc-group-0"
    assert named(tmp_path, group=1, rank=1, own="abc") == "abc-group-1-rank-1"


@pytest.mark.usefixtures("ids")
def test_a_file_system_without_links_has_an_id_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(new: Path, path: Path) -> None:
        path.write_text("theirs")  # another rank's, that came in between
        raise PermissionError

    monkeypatch.setattr(os, "link", no_link)
    assert named(tmp_path) == "mine-group-0-theirs" == named(tmp_path)
    (tmp_path / wandb_run.FILE).unlink()
    monkeypatch.setattr(os, "link", lambda new, path: no_link(new, tmp_path / "elsewhere"))
    mine = named(tmp_path)
    (tmp_path / "elsewhere").unlink()
    assert mine == named(tmp_path) != "mine-group-0-theirs"
    assert [path.name for path in tmp_path.iterdir()] == [wandb_run.FILE]
