"""A run's few numbers are those of the groups that step together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.shell.inspect import client, status, training
from supervisor.shell.inspect.status import GroupStatus, RunStatus
from tests.unit.shell.records import mirror_of, run_values


def group(number: int, step: int, quorum_id: int, **about: float | int | None) -> GroupStatus:
    known = {"loss": 9.0, "step_s": 1.0, "tokens_per_s": 100.0, "participants": 2, **about}
    return GroupStatus(
        group=number, phase="running", generation=1, node="n", nodes=("n",), hearing="-", incident="", step=step,
        quorum_id=quorum_id, **known,
    )  # fmt: skip


@pytest.fixture
def found() -> RunStatus:
    mirror = mirror_of(run_values())
    return status.run_status(mirror, client.choose_run(mirror, "run"))


def test_a_group_that_fell_behind_is_not_counted(found: RunStatus) -> None:
    groups = (
        group(0, 40, 5, loss=2.5, tokens_per_s=90.0, step_s=0.5),
        group(1, 40, 5, participants=1, loss=7.0),
        group(2, 31, 4, tokens_per_s=1000.0),
    )
    metrics = training.metrics(replace(found, step=40, stepped_unix_s=3.0, groups=groups))
    assert (metrics.run, metrics.step, metrics.stepped_unix_s) == ("run", 40, 3.0)
    assert (metrics.loss, metrics.step_s, metrics.tokens_per_s) == (2.5, 0.5, 190.0)
    assert metrics.groups == groups


def test_before_the_first_step_there_is_no_number(found: RunStatus) -> None:
    groups = (group(0, 0, -1), group(1, 0, -1))
    metrics = training.metrics(replace(found, groups=groups))
    assert (metrics.loss, metrics.step_s, metrics.tokens_per_s) == (None, 0.0, 0.0)
