"""Groups of two ranks that run a script of the user's own: they heal rank by rank, and obey a request to one of them."""

from __future__ import annotations

from typing import Any

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.wire import version
from supervisor.wire.address import free_port
from supervisor.wire.records import PEERS_GONE
from tests.real_trainers.titan.groups import Groups, Rank, assert_equal_digests
from titan_actor import quorum

pytestmark = [pytest.mark.trainers, pytest.mark.long]


def pair(groups: Groups, group: int, **fields: Any) -> list[Rank]:
    port, module = free_port(), "tests.real_trainers.titan.own_ranks"
    return [
        groups.start_cold(group, module=module, rank=rank, world_size=2, master_port=port, **fields) for rank in (0, 1)
    ]


def test_a_killed_group_heals_and_a_drain_of_one_rank_ends_both_at_one_step(groups: Groups) -> None:
    first, second = pair(groups, 0), pair(groups, 1)
    for rank in (*first, *second):
        rank.reached(5, commits=3)
    for rank in second:
        rank.kill()
    back = pair(groups, 1, generation=2, resume="peers")
    for rank in (*back, *first):
        rank.reached(second[0].step + 1, commits=5)
    assert all(rank.progress is not None and rank.progress.healed for rank in back)
    back[0].ask("drain")
    first[1].ask("drain")
    assert [rank.exit_code() for rank in (*first, *back)] == [0] * 4
    assert back[0].step == back[1].step
    assert first[0].step == first[1].step
    for number in (0, 1):
        assert_equal_digests(first[number], back[number])


def test_a_group_that_should_heal_and_meets_no_one_trains_nothing(groups: Groups) -> None:
    alone = pair(groups, 0, resume="peers")
    eventually(lambda: not all(rank.running for rank in alone), 60, "one ends, on which its node ends the other")
    assert PEERS_GONE in [rank.exit_code() for rank in alone if not rank.running]
    assert not any(rank.lines("step") for rank in alone)


def test_another_version_of_torchft_is_refused_before_it_connects(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "version_of", lambda package: "0.3.1")
    launch = groups.launch(0)
    with pytest.raises(
        RuntimeError, match=r"node node-0: torchft 0\.3\.1 is installed, and only 0\.2 to below 0\.3 fits"
    ):
        quorum.manager(launch, dict, lambda state: None)
