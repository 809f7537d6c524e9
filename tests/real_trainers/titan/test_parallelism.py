"""Every kind of parallelism inside a group trains through a kill, heals, and resumes from its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.model.spec import DataSpec
from supervisor.wire.records import MISCONFIGURED
from tests.real_trainers.titan import hanging
from tests.real_trainers.titan.groups import Groups, Rank, assert_equal_digests, complete
from tests.real_trainers.titan.stock_configs import SMALL

pytestmark = pytest.mark.trainers


@dataclass(frozen=True)
class Kind:
    """How the ranks of a group share the model."""

    degrees: dict[str, Any]
    ranks: int = 2
    experts: bool = False
    sequence: int = 64
    readers: tuple[int, ...] = (0,)
    """The first rank of each share of a group's data."""

    def fields(self) -> dict[str, Any]:
        """The launch's fields."""
        overrides = {f"parallelism.{name}": degree for name, degree in self.degrees.items()}
        if not self.experts:
            return {"overrides": {**overrides, "training.seq_len": self.sequence}}
        return {
            "recipe": "tests.real_trainers.titan.recipes:a_small_mixture_of_experts",
            "data": DataSpec(source="python-stdlib"),
            "overrides": {**SMALL, **overrides},
        }


TENSOR, PIPELINE, CONTEXT = "tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree"
EXPERT, SCHEDULE = "expert_parallel_degree", "pipeline_parallel_schedule"

KINDS = {
    "tensor": Kind({TENSOR: 2}),
    "pipeline": Kind({PIPELINE: 2}),
    "pipeline-interleaved": Kind({PIPELINE: 2, SCHEDULE: "Interleaved1F1B"}),
    "pipeline-zero-bubble": Kind({PIPELINE: 2, SCHEDULE: "ZBVZeroBubble"}),
    "context": Kind({CONTEXT: 2}, sequence=256),
    "expert": Kind({EXPERT: 2}, experts=True, readers=(0, 1)),
    "expert-tensor": Kind({EXPERT: 2, TENSOR: 2}, experts=True),
    "expert-pipeline": Kind({PIPELINE: 2}, experts=True),
    "replicated": Kind({"data_parallel_replicate_degree": 2}, readers=(0, 1)),
    "sharded-tensor": Kind({TENSOR: 2}, ranks=4, readers=(0, 2)),
    "sharded-pipeline": Kind({PIPELINE: 2}, ranks=4, readers=(0, 1)),
    "tensor-pipeline": Kind({TENSOR: 2, PIPELINE: 2}, ranks=4),
}
"""Sharded data alone: `test_groups.py` has it heal, and below it resumes."""

DAY = ("pipeline",)


def exits(ranks: list[Rank]) -> list[int]:
    """Exit codes, with the logs of those that failed in the captured output."""
    codes = [rank.exit_code() for rank in ranks]
    for rank, code in zip(ranks, codes, strict=True):
        if code:
            print(f"group {rank.launch.group} rank {rank.launch.rank}: {rank.log()[-3000:]}")
    return codes


def numbers(rank: Rank, after: int = 0) -> dict[int, tuple[float, float]]:
    """Loss and gradient norm of each committed step above `after`."""
    lines = [line for line in rank.lines("step") if line["committed"] and line["step"] > after]
    return {line["step"]: (line["loss"], line["gradient_norm"]) for line in lines}


@pytest.mark.parametrize(
    "name", [name if name in DAY else pytest.param(name, marks=pytest.mark.long) for name in KINDS]
)
def test_a_group_that_lost_a_rank_heals_to_equal_state(groups: Groups, name: str) -> None:
    kind = KINDS[name]
    fields = kind.fields()
    survivors = groups.start_group(0, kind.ranks, writer=True, checkpoint_interval_steps=5, **fields)
    lost = groups.start_group(1, kind.ranks, **fields)
    for rank in lost:
        rank.reached(4, commits=2)
    for rank in reversed(lost):  # its agent ends what is left of a group
        rank.kill()
    back = groups.start_group(1, kind.ranks, generation=2, resume="peers", **fields)
    for rank in back:
        rank.reached(5, commits=4)
    survivors[-1].ask("drain")
    back[0].ask("drain")
    assert exits([*survivors, *back]) == [0] * 2 * kind.ranks
    for number in range(kind.ranks):
        assert_equal_digests(survivors[number], back[number])
    # all ranks of all groups report one loss, whichever of them has it: that of an untrained model is ln(2048) = 7.6
    told = numbers(back[0])
    assert all(3 < loss < 9 and norm > 0 for loss, norm in told.values())
    assert all(numbers(rank) == told for rank in back)
    shared = numbers(survivors[0])
    assert [told[step][0] for step in told if step in shared] == [shared[step][0] for step in told if step in shared]
    assert [rank.launch.rank for rank in survivors if rank.lines("batch")] == list(kind.readers)
    assert complete(groups.run_dir)


@pytest.mark.parametrize("name", ["sharded", *KINDS])
@pytest.mark.long
def test_resume_is_the_same_run_as_without_a_break(groups: Groups, tmp_path: Path, name: str) -> None:
    kind = KINDS.get(name, Kind({}))
    fields = {**kind.fields(), "groups": 1, "steps": 9, "checkpoint_interval_steps": 3, "writer": True}
    first = groups.start_group(0, kind.ranks, **fields)
    first[0].ask_when_there("drain", at_step=6)
    assert exits(first) == [0] * kind.ranks
    mark = complete(groups.run_dir)[-1]
    assert mark.step == 6
    second = groups.start_group(0, kind.ranks, generation=2, checkpoint=mark, **fields)
    assert exits(second) == [0] * kind.ranks
    elsewhere = Groups(tmp_path / "whole", groups.warm, groups.lighthouse)
    elsewhere.top.mkdir()
    whole = elsewhere.start_group(0, kind.ranks, **fields)
    assert exits(whole) == [0] * kind.ranks
    for one, other in zip(second, whole, strict=True):
        assert list(numbers(one)) == [7, 8, 9]
        assert numbers(one) == numbers(other, after=6)
        assert [one.digests()[step] for step in (7, 8, 9)] == [other.digests()[step] for step in (7, 8, 9)]


@pytest.mark.parametrize("name", ["tensor", "pipeline", "context", "expert-tensor"])
@pytest.mark.long
def test_a_checkpoint_of_one_rank_goes_on_with_the_same_losses_in_two(groups: Groups, name: str) -> None:
    """So the parts of the model that the ranks hold, and what they sum, are right, and not only equal."""
    fields: dict[str, Any] = {"groups": 1, "steps": 6, "checkpoint_interval_steps": 3, "writer": True}
    kind = replace(KINDS[name], sequence=256)
    alone = groups.start(0, **replace(kind, degrees={}).fields(), **fields)
    assert exits([alone]) == [0]
    mark = next(mark for mark in complete(groups.run_dir) if mark.step == 3)
    ranks = groups.start_group(0, 2, generation=2, checkpoint=mark, **kind.fields(), **{**fields, "writer": False})
    assert exits(ranks) == [0, 0]
    for rank in ranks:
        assert list(numbers(rank)) == [4, 5, 6]
        for step, (loss, norm) in numbers(rank).items():
            one, of_one = numbers(alone)[step]
            assert loss == pytest.approx(one, rel=1e-5)
            assert norm == pytest.approx(of_one, rel=1e-3)


@pytest.mark.parametrize("name", ["tensor", "pipeline"])
@pytest.mark.long
def test_a_gradient_that_one_rank_alone_has_not_finite_ends_all_ranks(groups: Groups, name: str) -> None:
    fields = {**KINDS[name].fields(), "recipe": "tests.real_trainers.titan.recipes:that_spoils_one_rank_of_group_1"}
    other, spoilt = (groups.start_group(group, 2, **fields) for group in (0, 1))
    assert [rank.exit_code() for rank in (*other, *spoilt)] == [1] * 4
    found = [rank.progress for rank in (*other, *spoilt) if rank.progress]
    [error] = {progress.error for progress in found}
    assert error.startswith("NotFinite: gradient is not finite at step ")
    assert [progress.numerics for progress in found] == ["peers", "peers", "group", "own"]


@pytest.mark.long
def test_a_loss_that_is_not_finite_is_that_of_all_stages_of_its_group(groups: Groups) -> None:
    fields = {**KINDS["pipeline"].fields(), "recipe": "tests.real_trainers.titan.hanging:small"}
    other, spoilt = (groups.start_group(group, 2, **fields) for group in (0, 1))
    for rank in (*other, *spoilt):
        rank.reached(4, commits=2)
    hanging.want(groups.run_dir, 1, 1, "nan")
    assert [rank.exit_code() for rank in (*other, *spoilt)] == [1] * 4
    found = [rank.progress for rank in (*other, *spoilt) if rank.progress]
    [error] = {progress.error for progress in found}
    assert error.startswith("NotFinite: loss is nan at step ")
    assert [progress.numerics for progress in found] == ["peers", "peers", "own", "own"]


@pytest.mark.long
def test_a_loss_that_is_not_finite_is_that_of_the_rank_whose_parameters_are_not(groups: Groups) -> None:
    """All ranks of its group compute with its part of them. By day `tests/unit/core/evidence/test_nonfinite.py`."""
    fields = {"recipe": "tests.real_trainers.titan.hanging:small"}
    other, spoilt = (groups.start_group(group, 2, **fields) for group in (0, 1))
    for rank in (*other, *spoilt):
        rank.reached(4, commits=2)
    hanging.want(groups.run_dir, 1, 1, "nan", rank=1)
    assert [rank.exit_code() for rank in (*other, *spoilt)] == [1] * 4
    found = [rank.progress for rank in (*other, *spoilt) if rank.progress]
    [error] = {progress.error for progress in found}
    assert error.startswith("NotFinite: loss is nan at step ")
    assert [progress.numerics for progress in found] == ["peers", "peers", "group", "own"]


@pytest.mark.long
def test_parameters_that_one_rank_alone_has_not_finite_end_all_ranks_of_its_group(groups: Groups) -> None:
    recipe = "tests.real_trainers.titan.recipes:that_spoils_one_rank_before_it_saves"
    fields = {**KINDS["tensor"].fields(), "recipe": recipe, "writer": True, "checkpoint_interval_steps": 3}
    ranks = groups.start_group(0, 2, groups=1, **fields)
    assert [rank.exit_code() for rank in ranks] == [1, 1]
    told = [(rank.progress.error, rank.progress.numerics) for rank in ranks if rank.progress]
    assert told == [("NotFinite: parameters are not finite at step 3", "parameters")] * 2
    assert not complete(groups.run_dir)


@pytest.mark.long
def test_experts_that_need_gpus_are_refused_where_there_are_none(groups: Groups) -> None:
    rank = groups.start(
        0,
        groups=1,
        recipe="torchtitan.models.deepseek_v3.config_registry:deepseek_v3_debugmodel_hybridep",
        data=DataSpec(source="python-stdlib"),
        overrides={**SMALL, "parallelism.expert_parallel_degree": 2},
    )
    assert rank.exit_code() == MISCONFIGURED
    assert rank.progress is not None
    assert "exchange tokens by HybridEP, which needs GPUs, and this node has none: set it to 1" in rank.progress.error
    assert "Traceback" not in rank.log()
