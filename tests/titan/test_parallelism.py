"""Every kind of parallelism inside a group trains through a kill, heals, and resumes from its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.core.model.spec import DataSpec
from tests.titan.groups import Groups, assert_equal_digests, complete
from tests.titan.test_stock import SMALL

pytestmark = pytest.mark.trainers

DEEPSEEK: dict[str, Any] = {
    "recipe": "tests.titan.recipes:a_small_mixture_of_experts",
    "data": DataSpec(source="python-stdlib"),
}

KINDS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "fsdp": (2, {}, {}),
    "tp": (2, {"tensor_parallel_degree": 2}, {}),
    "pp": (2, {"pipeline_parallel_degree": 2}, {}),
    "cp": (2, {"context_parallel_degree": 2}, {"seq_len": 256}),
    "ep": (2, {"expert_parallel_degree": 2}, DEEPSEEK),
    "hsdp": (2, {"data_parallel_replicate_degree": 2}, {}),
    "fsdp-tp": (4, {"tensor_parallel_degree": 2}, {}),
    "fsdp-pp": (4, {"pipeline_parallel_degree": 2}, {}),
}


def fields_of(kind: str) -> tuple[int, dict[str, Any]]:
    """Ranks of a group, and the launch's fields."""
    ranks, degrees, more = KINDS[kind]
    small = SMALL if "recipe" in more else {}
    if "seq_len" in more:
        small, more = {"training.seq_len": more["seq_len"]}, {}
    return ranks, {**more, "overrides": {**small, **{f"parallelism.{name}": n for name, n in degrees.items()}}}


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_heals_to_equal_state(groups: Groups, kind: str) -> None:
    ranks, fields = fields_of(kind)
    survivors = groups.start_group(0, ranks, writer=True, checkpoint_interval_steps=5, **fields)
    lost = groups.start_group(1, ranks, **fields)
    for rank in lost:
        rank.reached(4, commits=2)
    lost[-1].kill()
    for rank in lost[:-1]:
        rank.kill()
    back = groups.start_group(1, ranks, generation=2, resume="peers", **fields)
    for rank in back:
        rank.reached(5, commits=4)
    survivors[-1].ask("drain")
    back[0].ask("drain")
    assert [rank.exit_code() for rank in (*survivors, *back)] == [0] * 2 * ranks, survivors[0].log()[-2000:]
    for number in range(ranks):
        assert_equal_digests(survivors[number], back[number])


@pytest.mark.parametrize("kind", KINDS)
def test_resume_is_the_same_run_as_without_a_break(groups: Groups, tmp_path: Path, kind: str) -> None:
    ranks, fields = fields_of(kind)
    fields |= {"groups": 1, "steps": 9, "checkpoint_interval_steps": 3, "writer": True}
    first = groups.start_group(0, ranks, **fields)
    first[0].ask_when_there("drain", at_step=6)
    assert [rank.exit_code() for rank in first] == [0] * ranks, first[0].log()[-3000:]
    mark = complete(groups.run_dir)[-1]
    assert mark.step == 6
    second = groups.start_group(0, ranks, generation=2, checkpoint=mark, **fields)
    assert [rank.exit_code() for rank in second] == [0] * ranks, second[0].log()[-3000:]
    elsewhere = Groups(tmp_path / "whole", groups.warm, groups.lighthouse)
    elsewhere.top.mkdir()
    whole = elsewhere.start_group(0, ranks, **fields)
    assert [rank.exit_code() for rank in whole] == [0] * ranks
    for one, other in zip(second, whole, strict=True):
        told = {line["step"]: (line["loss"], line["gradient_norm"]) for line in one.lines("step")}
        assert list(told) == [7, 8, 9]
        assert told == {
            line["step"]: (line["loss"], line["gradient_norm"]) for line in other.lines("step") if line["step"] > 6
        }
        assert all(one.digests()[step] == other.digests()[step] for step in told)
