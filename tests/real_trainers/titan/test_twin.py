"""Real trainers and their fault-free twin: the same losses and states, and a difference for changed records."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fault_injection.in_rank import causes
from fault_injection.parity import twin
from fault_injection.parity.replay import of_history
from supervisor.shell.history.files import History, Steps
from tests.real_trainers.titan.groups import Groups, Rank, complete
from tests.unit.fault_injection.broken import SETTING
from tests.unit.fault_injection.toy_model import ToyRun
from titan_actor.samples import names
from titan_actor.twin import PLAN, Flip, Stream, Twin, Unlike


def history_of(*ranks: Rank) -> History:
    history = History("run", setting=replace(SETTING, ranks=ranks[0].launch.world_size))
    history.steps = [
        Steps(rank.launch.group, rank.launch.generation, rank.launch.rank, rank.launch.node, tuple(rank.lines()))
        for rank in ranks
    ]
    return history


def parity(history: History, trained: twin.Retrained | None = None) -> dict[str, Any]:
    """Compares a history with its twin; `trained` is an earlier twin's result, used where its plan is the same."""
    return twin.parity(history, lambda _: None, None if trained is None else lambda plan, seconds: trained)


def swapped(lines: list[dict[str, Any]]) -> None:
    """Swaps the samples of two of its steps."""
    early, late = [line for line in lines if line["event"] == "batch"][2:4]
    early["samples"], late["samples"] = late["samples"], early["samples"]


def alone(lines: list[dict[str, Any]]) -> None:
    """Records one step of both groups as a step of one."""
    line = [line for line in lines if line["event"] == "step" and line["participants"] == 2][2]
    line["participants"] = 1


def doubled(lines: list[dict[str, Any]]) -> None:
    """Doubles the gradient norm of one step, as if the sum over two groups had been divided by one."""
    line = [line for line in lines if line["event"] == "step" and line["participants"] == 2][2]
    line["gradient_norm"] *= 2


def planted(history: History, change: Callable[[list[dict[str, Any]]], None], group: int) -> History:
    other = copy.deepcopy(history)
    other.steps = [replace(s, lines=tuple(copy.deepcopy(s.lines))) for s in other.steps]
    for steps in other.steps:
        if (steps.group, steps.generation) == (group, 1):
            change(list(steps.lines))
    return other


@pytest.mark.long
@pytest.mark.trainers
@pytest.mark.timeout(900)
def test_a_group_is_killed_and_heals_and_the_losses_are_the_twins(groups: Groups) -> None:
    """By day a lost group has the losses of its twin in `test_tokens.py`."""
    survivor, lost = (groups.start(group, writer=not group) for group in (0, 1))
    lost.reached(8, commits=6)
    lost.kill()
    back = groups.start(1, generation=2, resume="peers")
    back.reached(lost.step + 1, commits=5)
    for rank in (survivor, back):
        rank.ask("drain")
    assert [survivor.exit_code(), back.exit_code()] == [0, 0], survivor.log()[-2000:]
    history = history_of(survivor, lost, back)
    plan, _ = twin.planned(history, of_history(history))
    assert plan is not None
    trained = twin.trained(plan, 100.0)
    body = parity(history, trained)
    steps = max(survivor.step, back.step)  # they end one after the other: the last may have made a step alone
    assert (body["answer"], body["steps"]) == ("pass", steps), body["why"]
    assert body["greatest"]["difference"] < 1e-6
    assert body["states"] == {"equal": steps, "of": steps, "first_other": None}, "to the last bit"

    assert body["norms"]["difference"] < 1e-6

    assert "has a gradient's norm of" in parity(planted(history, doubled, 0), trained)["why"]
    both = parity(planted(planted(history, alone, 0), alone, 1), trained)
    assert (both["answer"], both["steps"] > 0) == ("unknown", True), "two say that they were in it"
    assert "has a loss of" in parity(planted(history, swapped, 0))["why"]


@pytest.mark.long
@pytest.mark.trainers
@pytest.mark.timeout(900)
def test_groups_of_two_ranks_have_a_twin_too(groups: Groups) -> None:
    ranks = [rank for group in (0, 1) for rank in groups.start_group(group, 2, steps=6, min_groups=2)]
    assert [rank.exit_code() for rank in ranks] == [0] * 4, ranks[0].log()[-2000:]
    body = parity(history_of(*ranks))
    assert (body["answer"], body["steps"]) == ("pass", 6), body["why"]
    assert body["states"] is None, "each rank hashes its own part"


@pytest.mark.parametrize(
    ("titan", "why"),
    [
        ({"overrides": {"parallelism.tensor_parallel_degree": 2}}, "parallelism.tensor_parallel_degree is above 1"),
        pytest.param(
            {"data": {"source": "folder", "path": "/nowhere"}},
            "titan.data.path: /nowhere is not a folder",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_cannot_be_trained_again_here_is_unknown(titan: dict[str, Any], why: str) -> None:
    run = ToyRun({"recipe": "llama3-debug-small", **titan})
    run.steps(2)
    body = parity(run.history())
    assert (body["answer"], body["steps"]) == ("unknown", 0)
    assert why in body["why"]


def test_a_bit_is_flipped_where_its_rank_has_it() -> None:
    """FSDP gives each rank a part of the first dimension; the last gets the rest."""
    for rows, ranks in ((4, 1), (4, 2), (7, 3), (5, 2)):
        twin_ = object.__new__(Twin)
        twin_._parameters = [torch.zeros(2), torch.ones(rows, 3)]
        twin_._plan = PLAN.validate_python({"titan": {}, "groups": 1, "ranks": ranks, "reads": 0, "steps": []})
        for rank, part in enumerate(torch.chunk(twin_._parameters[1], ranks)):
            before = part.clone()
            twin_._flip_bit(Flip(rank=rank, parameter=1, element=2, bit=12, t=0.0))
            assert (part != before).flatten().tolist() == [n == 2 for n in range(part.numel())]
            assert part.flatten()[2] == 1 + 2 ** (12 - 23)


def test_a_sample_is_found_again_and_one_of_another_run_is_not() -> None:
    tokens = torch.arange(60).reshape(5, 2, 6)
    data = [({"input": batch}, batch + 1) for batch in tokens]
    stream = Stream(data, 8, "group 1 rank 0")
    for batch in (data[2], data[0], data[3]):  # read again after a restart
        inputs, labels = stream.batch(names(batch))
        assert torch.equal(inputs["input"], batch[0]["input"])
        assert torch.equal(labels, batch[1])
    with pytest.raises(Unlike, match="of group 1 rank 0 is not in the data"):
        stream.batch(names(data[4]))  # further on than any rank has read


def test_a_sample_has_the_same_name_for_the_same_tokens_at_the_same_places() -> None:
    tokens = torch.arange(12).reshape(2, 6)
    both = names(({"input": tokens, "positions": tokens}, tokens + 1))
    assert len(set(both)) == 2
    assert names(({"positions": tokens[1:], "input": tokens[1:]}, tokens[1:] + 1)) == both[1:]
    for place in range(3):
        parts = [tokens.clone(), tokens.clone(), tokens + 1]
        parts[place][1, 3] += 1
        other = names(({"input": parts[0], "positions": parts[1]}, parts[2]))
        assert (other[0] == both[0], other[1] == both[1]) == (True, False)


@pytest.mark.long
@pytest.mark.trainers
@pytest.mark.timeout(900)
def test_the_twin_flips_the_bits_that_were_flipped_in_a_group(groups: Groups) -> None:
    """The flips last until the group is started again. If that group alone goes on, all have its copy."""
    first, second = (groups.start_obeying(group, writer=not group) for group in (0, 1))
    first.reached(6, commits=5)
    second.order(causes.FLIP_BIT)
    second.reached(second.step + 6)
    second.kill()
    back = groups.start_obeying(1, generation=2, resume="peers")
    back.reached(second.step + 1, commits=5)
    first.order(causes.FLIP_BIT)
    first.reached(first.step + 4)
    back.kill()
    last = groups.start_obeying(1, generation=3, resume="peers")
    last.reached(back.step + 1, commits=5)
    for rank in (first, last):
        rank.ask("drain")
    assert [first.exit_code(), last.exit_code()] == [0, 0], first.log()[-2000:]

    history = history_of(first, second, back, last)
    replay = of_history(history)
    copies = [(sorted(one.flips), one.taken) for one in replay.steps]
    order = [key for key, _ in itertools.groupby(copies)]
    assert order == [([], None), ([1], None), ([], None), ([0], None), ([0], 0), ([], None)]
    plan, _ = twin.planned(history, replay)
    assert plan is not None
    trained = twin.trained(plan, 200.0)
    body = parity(history, trained)
    steps = len(replay.steps)
    assert (body["answer"], body["steps"]) == ("pass", steps), body["why"]
    assert body["states"] == {"equal": steps, "of": steps, "first_other": None}, "to the last bit"
    assert "of the faults it makes 2, the flipped bit of step " in body["why"]

    without = replace(plan, steps=tuple(replace(step, flips={}, taken=None) for step in plan.steps))
    other = parity(history, twin.trained(without, 200.0))["states"]
    assert other["first_other"] == next(one.step for one in replay.steps if one.flips)


@pytest.mark.long
@pytest.mark.trainers
@pytest.mark.timeout(900)
def test_a_twin_begins_with_the_weights_that_its_run_began_with(groups: Groups) -> None:
    exports = {"checkpoint.last_save_in_hf": True}
    other = groups.start(0, groups=1, steps=12, overrides=exports, writer=True)
    assert other.exit_code() == 0, other.log()[-2000:]
    (newest,), (export,) = complete(groups.run_dir), (groups.run_dir / "export").iterdir()
    for n, (path, of_hugging_face) in enumerate(((newest.path, False), (str(export), True)), 2):
        groups.run_dir = groups.top / f"run-{n}"
        given = {"checkpoint.initial_load_path": path, "checkpoint.initial_load_in_hf": of_hugging_face}
        rank = groups.start(0, generation=n, groups=1, steps=3, overrides=given)
        assert rank.exit_code() == 0, rank.log()[-2000:]
        found = parity(history_of(rank))
        assert found["answer"] == "pass", found["why"]
        assert rank.lines("step")[0]["loss"] < other.lines("step")[0]["loss"] - 0.5
