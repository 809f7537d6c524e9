"""A model that compiles does so before its group is let in, and nothing else changes by that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_trainers.titan.groups import Groups, Lighthouse, Rank, Warm, assert_equal_digests

pytestmark = pytest.mark.trainers

COMPILED = {"compile.enable": True, "compile.backend": "aot_eager"}
"""Dynamo and its backward pass, without the minute that a compiler of C++ takes."""

UNREHEARSED = {"recipe": "tests.real_trainers.titan.recipes:that_rehearses_nothing"}


def first_step(rank: Rank) -> float:
    """Seconds of its first step that went to compiling."""
    return float(rank.lines("step")[0]["seconds"]["compile"])


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.long), 2])
def test_the_first_step_compiles_nothing_and_trains_as_it_would_have(
    groups: Groups, warm: Warm, tmp_path: Path, world_size: int
) -> None:
    other_run = tmp_path / "other"
    other_run.mkdir()
    lighthouse = Lighthouse()
    others = Groups(other_run, warm, lighthouse)
    try:
        rehearsed = groups.start_group(0, world_size, groups=1, steps=4, overrides=COMPILED)
        plain = others.start_group(0, world_size, groups=1, steps=4, overrides=COMPILED, **UNREHEARSED)
        for rank in (*rehearsed, *plain):
            assert rank.exit_code(120) == 0, rank.log()[-3000:]
    finally:
        others.close()
        lighthouse.close()
    assert len([line for rank in rehearsed for line in rank.lines("rehearsed")]) == world_size
    assert [line for rank in plain for line in rank.lines("rehearsed")] == []
    assert [first_step(rank) for rank in rehearsed] == [0.0] * world_size
    assert min(first_step(rank) for rank in plain) > 0.0
    for one, other in zip(rehearsed, plain, strict=True):
        assert_equal_digests(one, other, at_least=4)


@pytest.mark.long
def test_a_newcomer_heals_after_its_rehearsal(groups: Groups) -> None:
    first = groups.start(0, steps=1000, overrides=COMPILED)
    first.reached(3)
    second = groups.start(1, resume="peers", steps=1000, overrides=COMPILED)
    second.reached(5, commits=5)
    first.reached(second.step)
    events = [line["event"] for line in second.lines("rehearsed", "built", "heal", "step")]
    assert events[:4] == ["rehearsed", "built", "heal", "step"]
    assert first_step(second) == 0.0
    assert_equal_digests(first, second)


def test_what_does_not_compile_is_not_rehearsed(groups: Groups) -> None:
    rank = groups.start(0, groups=1, steps=1)
    assert rank.exit_code() == 0
    assert rank.lines("rehearsed") == []
