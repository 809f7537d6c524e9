"""A number that is not finite is never committed and never saved, and its group is reported."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.wire.checkpoints import listed
from tests.real_trainers.titan import hanging
from tests.real_trainers.titan.groups import STEPS_WITHIN_S, Groups, Lighthouse, Rank

pytestmark = pytest.mark.trainers

RECIPE = "tests.real_trainers.titan.hanging:small"


@pytest.fixture
def together() -> Iterator[Lighthouse]:
    """A lighthouse that lets no group step without the other."""
    server = Lighthouse(min_replicas=2)
    yield server
    server.close()


def ended(rank: Rank) -> tuple[str, str]:
    """Whose number it was, and the error. Checks the exit code, and that nothing that is not finite was committed."""
    assert rank.exit_code() == 1, rank.log()[-2000:]
    assert all(math.isfinite(line["loss"]) for line in rank.lines("step") if line["committed"])
    progress = rank.progress
    assert progress is not None
    return progress.numerics, progress.error


@pytest.mark.long
def test_one_group_whose_weights_are_spoilt_is_told_from_the_other(groups: Groups) -> None:
    ranks = [groups.start(group, steps=1000, recipe=RECIPE) for group in (0, 1)]
    for rank in ranks:
        rank.reached(5, commits=3)
    hanging.want(ranks[1].launch.run_dir, 1, 1, "nan")
    (whose, error), (other, same) = ended(ranks[0]), ended(ranks[1])
    assert (whose, other) == ("peers", "own")
    assert error == same, "what all see is the same"
    assert error.startswith("NotFinite: loss is nan at step ")


def test_one_group_whose_gradient_is_spoilt_is_told_before_it_spoils_the_weights(groups: Groups) -> None:
    ranks = [groups.start(group, steps=1000, recipe=RECIPE) for group in (0, 1)]
    for rank in ranks:
        rank.reached(5, commits=3)
    hanging.want(ranks[1].launch.run_dir, 1, 1, "nan-gradient")
    (whose, error), (other, same) = ended(ranks[0]), ended(ranks[1])
    assert (whose, other) == ("peers", "own")
    assert error == same, "what all see is the same"
    assert error.startswith("NotFinite: gradient is not finite at step ")
    assert all(math.isfinite(line["gradient_norm"]) for line in ranks[0].lines("step") if line["committed"])


def test_where_the_model_itself_gives_no_number_all_say_so(groups: Groups, together: Lighthouse) -> None:
    """Both compute it in one step. A group whose weights are spoilt a step before the other's is rightly blamed."""
    step = 10
    for group in (0, 1):
        hanging.want(groups.run_dir, group, 1, "nan-unseen", from_step=step)
    ranks = [groups.start(group, steps=1000, recipe=RECIPE, lighthouse=together.address) for group in (0, 1)]
    (whose, error), (other, same) = [ended(rank) for rank in ranks]
    assert (whose, other) == ("own", "own")
    assert error == same == f"NotFinite: loss is nan at step {step + 1}"
    assert [rank.step for rank in ranks] == [step, step], (
        "the step with a finite loss was committed, the next one was not"
    )


def test_no_checkpoint_holds_what_is_not_finite(groups: Groups) -> None:
    rank = groups.start(0, groups=1, recipe=RECIPE, checkpoint_interval_steps=20, checkpoints_kept=100, writer=True)
    rank.reached(22)
    hanging.want(rank.launch.run_dir, 0, 1, "nan-saved")
    whose, error = ended(rank)
    assert whose == "parameters"
    assert error == f"NotFinite: parameters are not finite at step {rank.step}"
    saved = [step for step, _, mark in listed(rank.launch.run_dir) if mark is not None]
    assert rank.step % 20 == 0
    assert max(saved) == rank.step - 20


@pytest.mark.long
def test_a_loss_that_one_group_alone_had_is_told_by_all_as_whose_it_was(groups: Groups) -> None:
    ranks = [groups.start(group, steps=1000, recipe=RECIPE) for group in (0, 1)]
    for rank in ranks:
        rank.reached(30, commits=25)
    hanging.want(ranks[1].launch.run_dir, 1, 1, "spike")

    def told() -> bool:
        return all(rank.progress is not None and rank.progress.spike is not None for rank in ranks)

    eventually(told, STEPS_WITHIN_S, "both tell of it")
    hanging.want(ranks[1].launch.run_dir, 1, 1, "")
    other, own = (rank.progress.spike for rank in ranks if rank.progress is not None and rank.progress.spike)
    assert min(other.spreads, own.spreads, own.own_spreads) > 10.0
    assert other.own_spreads < 10.0
    assert own.own > 100.0 > own.own_usual
    assert own.loss == pytest.approx(own.usual + 50.0, rel=0.1), "the mean over both"
