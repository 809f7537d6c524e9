"""A process that was frozen looks again before it judges, and a node that reaches no one stops its trainers in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.agent.isolation import CutOff
from agents.shim.active_clock import AwakeClock, Still
from fault_injection.testbed.nodes import trainer

WAY = "toy.0.1"


def test_a_gap_between_two_looks_counts_little() -> None:
    clock = AwakeClock(0.5)
    assert [clock.look(at) for at in (100.0, 100.1, 160.0, 160.2)] == pytest.approx([0.0, 0.1, 0.6, 0.8])


def test_what_has_moved_is_not_still() -> None:
    still = Still()
    assert [still.look(mark, now) for mark, now in ((1, 5.0), (1, 7.0), (2, 8.0), (2, 9.0))] == [0.0, 2.0, 0.0, 1.0]


def test_only_both_ways_out_closed_for_longer_than_the_policy_stop_a_generation(tmp_path: Path) -> None:
    cut_off = CutOff(tmp_path / "cut-off.json")
    cut_off.wanted([trainer(cut_off_stop_s=10.0), trainer(1)])
    ways = [WAY, "toy.1.1"]
    deaf = dict.fromkeys(ways, False)

    def stopped(now: float, held: bool, reaches: dict[str, bool]) -> list[str]:
        return sorted(cut_off.look(ways, held, reaches, now))

    assert stopped(0.0, True, dict.fromkeys(ways, True)) == []
    assert stopped(100.0, False, dict.fromkeys(ways, True)) == [], "etcd alone"
    assert stopped(101.0, True, deaf) == []
    assert stopped(200.0, True, deaf) == [], "the gate alone"
    assert stopped(201.0, False, deaf) == []
    assert stopped(202.0, False, {}) == [], "what is not known of the gate is no evidence"
    assert stopped(205.0, False, deaf) == []
    assert stopped(215.0, False, deaf) == [], "the lease is lost since 201, but the gate only since 205"
    assert stopped(215.1, False, deaf) == [WAY], "the policy of the other is: never"
    assert stopped(216.0, True, dict.fromkeys(ways, True)) == [WAY], "once begun it is carried through"
    ways.remove(WAY)
    assert stopped(217.0, True, {}) == []


def test_a_policy_is_known_to_the_next_agent(tmp_path: Path) -> None:
    first = CutOff(tmp_path / "cut-off.json")
    first.wanted([trainer(cut_off_stop_s=10.0)])
    second = CutOff(tmp_path / "cut-off.json")
    assert not second.look([WAY], False, {WAY: False}, 0.0)
    assert second.look([WAY], False, {WAY: False}, 10.1)[WAY].limit_s == 10.0
    (tmp_path / "cut-off.json").write_text("{")
    broken = CutOff(tmp_path / "cut-off.json")
    broken.look([WAY], False, {WAY: False}, 0.0)
    assert not broken.look([WAY], False, {WAY: False}, 1000.0)
