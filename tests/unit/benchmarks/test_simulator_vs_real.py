"""Recoveries in a history, and the simulator's way through the same faults. The benchmark itself runs real trainers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import simulator_vs_real as benchmark
from fault_injection.chaos import own
from fault_injection.faults.catalogue import FAULTS
from fault_injection.sim.pace import pace
from supervisor.shell.history.files import FaultDone, History, Process, Steps

FAULT = FaultDone(
    number=1, name="sigkill", group=1, rank=0, generation=1, node="n2", step=5, began=110.0, made=110.2, evidence="SIGKILL",
    healed=None, over=120.0, within_s=60.0, others_within_s=20.0,
)  # fmt: skip


def steps(group: int, generation: int, first: float, count: int, began_at: int = 1) -> Steps:
    lines = [
        {"event": "step", "committed": True, "t": first + n, "start": first + n - 1, "step": began_at + n}
        for n in range(count)
    ]
    return Steps(group, generation, 0, f"n{group + 1}", tuple(lines))


def broken(*faults: FaultDone) -> History:
    """Group 1 is killed at 110.5, begun again at 111, and trains at 114; the other waits from 110 to 112.5 once."""
    processes = [
        Process("n1", "run", 0, 1, 0, 1, spawned=90.0),
        Process("n2", "run", 1, 1, 0, 2, spawned=90.0, exited=110.5, signal=9),
        Process("n2", "run", 1, 2, 0, 3, spawned=111.0),
    ]
    before, after = steps(0, 1, 100.0, 11), steps(0, 1, 112.5, 10, 12)
    trained = [Steps(0, 1, 0, "n1", (*before.lines, *after.lines)), steps(1, 1, 100.0, 11), steps(1, 2, 114.0, 8, 13)]
    return History("run", processes=processes, steps=trained, faults=list(faults))


@pytest.mark.parametrize(
    ("name", "kind", "seconds", "to_spawn"),
    [
        ("sigkill", "a rank is killed", 3.5, 0.5),
        ("node_killed", "a node is killed", 4.0, 1.0),
        ("gate_killed", "the lighthouse is killed", 2.5, None),
    ],
)
def test_how_long_a_recovery_took(name: str, kind: str, seconds: float, to_spawn: float | None) -> None:
    (found,) = benchmark.recoveries(broken(replace(FAULT, name=name)))
    assert (found.kind, found.seconds, found.to_spawn) == (kind, pytest.approx(seconds), to_spawn)


def test_a_stall_that_begins_after_all_was_said_to_be_well_is_found_and_that_of_the_next_fault_is_not() -> None:
    """The step under way may need nothing of the lighthouse that was killed."""
    early = replace(FAULT, name="gate_killed", began=108.5, made=108.5, over=109.1)
    assert [r.seconds for r in benchmark.recoveries(broken(early))] == [pytest.approx(2.5)]
    second = replace(FAULT, name="gate_killed", began=110.1, made=110.1)
    assert [r.seconds for r in benchmark.recoveries(broken(early, second))] == [pytest.approx(1.0), pytest.approx(2.5)]


def test_a_span_has_the_quartiles_of_many_values_and_the_ends_of_few() -> None:
    assert benchmark._span([1.0, 5.0, 2.0]) == (1.0, 5.0)
    evenly = [n / 100 for n in range(100, 301)]
    assert benchmark._span([*evenly, 50.0]) == (pytest.approx(1.0, abs=0.05), pytest.approx(3.0, abs=0.05))
    assert benchmark._span([0.1, 0.1, 0.2, 0.9, 0.9]) == (0.0, pytest.approx(1.0)), "nothing takes less than no time"


def test_a_heal_takes_as_long_as_the_others_make_that_step_longer() -> None:
    history = broken(FAULT)
    rows = [dict(row) for row in history.steps[0].lines]
    rows[-1]["start"] -= 0.7
    healer = [{**rows[-1], "healed": True, "start": rows[-1]["start"] - 5.0}]
    history.steps = [Steps(0, 1, 0, "n1", tuple(rows)), Steps(1, 2, 0, "n2", tuple(healer))]
    assert benchmark.heals_s(history) == [pytest.approx(0.7)]
    assert benchmark.calibrated([history]).heal_s == pytest.approx((0.7, 0.7))


def test_what_did_not_happen_or_was_not_got_over_is_not_counted() -> None:
    faults = [replace(FAULT, made=None), replace(FAULT, after="given up"), replace(FAULT, name="gil_held")]
    assert list(benchmark.recoveries(broken(*faults))) == []


def test_the_pace_is_what_the_history_shows() -> None:
    at = benchmark.calibrated([broken(FAULT)])
    assert at.step_s == 1.0
    assert at.start_s == pytest.approx((1.48, 1.48))  # 3 s, less one and a half steps and a tick of the gate
    assert at.heal_s == (0.0, 0.0)  # no heal was seen
    assert at.lag_s[0] < 0.5 * 0.5 < at.lag_s[1]
    assert at.rejoin_s == 0.0  # no gate was killed


@pytest.mark.parametrize("kind", benchmark.KINDS)
def test_every_kind_is_made_and_got_over_in_the_simulator(kind: str) -> None:
    """The world has two groups and a spare, as the real ones."""
    name = benchmark.KINDS[kind].names[0]
    at = replace(pace(), gate_tick_s=0.02, move_s=(2.0, 2.0), start_s=(2.0, 2.0))
    told = benchmark.simulated(
        own.spec("sim"), [replace(FAULT, name=name), replace(FAULT, name=name, group=0)], at, seed=1
    )
    found = list(benchmark.recoveries(told))
    assert [recovery.kind for recovery in found] == [kind, kind]
    assert all(recovery.seconds > 0 for recovery in found)


def test_every_kind_is_of_the_catalogue() -> None:
    assert set(benchmark.OF) <= FAULTS.keys()


def test_the_shipped_pace_of_the_demo_can_be_read() -> None:
    at = pace(benchmark.PACE)
    assert at.gate_tick_s < pace().gate_tick_s
    assert at.start_s[0] <= at.start_s[1]


def test_a_pace_with_a_typo_is_refused(tmp_path: Path) -> None:
    text = benchmark.PACE.read_text().replace("step_s", "stepp_s")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(text)
    with pytest.raises(ValueError, match="step_s, stepp_s"):
        pace(wrong)
