"""Real trainers that have no data: they end with the reason, before the others wait for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.core.model.spec import DataSpec
from supervisor.wire.records import MISCONFIGURED
from tests.real_trainers.titan.groups import Groups


@pytest.mark.trainers
def test_a_rank_without_data_ends_before_it_is_built(groups: Groups, tmp_path: Path) -> None:
    """Built, it would take a processor, and the others would wait for it in a quorum."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_text("one document")
    rank = groups.start(1, data=DataSpec(source="folder", path=str(folder)))
    assert rank.exit_code() == MISCONFIGURED
    assert rank.progress is not None
    assert f"NoData: group 1 gets no document of {folder}: it holds 1 document" in rank.progress.error
    assert (rank.folder / "error.json").exists()
    assert not rank.lines("built", "step")


@pytest.mark.trainers
def test_data_that_ends_before_the_first_step_is_no_clean_end(groups: Groups, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_text("one document")
    overrides = {"dataloader.infinite": False}
    rank = groups.start(0, groups=1, data=DataSpec(source="folder", path=str(folder)), overrides=overrides)
    assert rank.exit_code() == MISCONFIGURED
    assert rank.progress is not None
    assert "the data of group 0" in rank.progress.error
    assert "ends before its first step" in rank.progress.error
