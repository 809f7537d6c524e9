"""When no group can heal from a process that has not ended; and which start is a resume from disk then."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fault_injection.checkers import ownership
from fault_injection.checkers.ownership import without_life
from supervisor.shell.history.files import Steps
from tests.unit.fault_injection.broken import KILL


def history(*faults: Any, fenced: dict[int, float] | None = None) -> Any:
    """Group 0 commits until 10 s and ends at 30 s. Group 1 is killed at 11 s; its next generation, of 12 s, reads the
    disk. `fenced`: when the gate must admit this generation of group 0 alone."""
    decided = [
        SimpleNamespace(t=t, actions=[{"verb": "fence", "key": f"fence:0:{n}"}]) for n, t in (fenced or {}).items()
    ]
    lives = {(0, 1): (1.0, 30.0, (5.0, 10.0)), (1, 1): (1.0, 11.0, (5.0, 10.0)), (1, 2): (12.0, None, (31.0, 40.0))}
    process = [
        SimpleNamespace(group=g, generation=n, rank=0, spawned=begin, exited=end)
        for (g, n), (begin, end, _) in lives.items()
    ]
    steps = [
        SimpleNamespace(group=g, generation=n, rank=0, lines=[{"t": t, "committed": True} for t in commits])
        for (g, n), (_, _, commits) in lives.items()
    ]
    return SimpleNamespace(processes=process, steps=steps, faults=list(faults), committed=lambda: decided)


FAULT = replace(KILL, group=0, generation=1, began=9.0, made=9.5)


@pytest.mark.parametrize("kind", ["hang", "node_lost", "gpu"])
def test_who_hangs_is_silent_or_has_lost_its_gpu_gives_its_state_to_nobody(kind: str) -> None:
    """So the other's end leaves the run without its state: compound faults of two groups."""
    assert without_life(history(replace(FAULT, kinds=(kind,)))) == [11.0]


def test_who_is_fenced_gives_its_state_to_nobody() -> None:
    """Two groups of two nodes lost a node each: the neighbours of one ended after the other had begun from disk."""
    assert without_life(history(fenced={2: 11.2})) == [11.2]
    assert without_life(history(fenced={2: 8.0})) == [11.0], "it was in a step, which another had too"
    assert without_life(history(fenced={1: 11.2})) == [], "its own generation is let in"


def test_whoever_else_lives_could_have_been_healed_from() -> None:
    assert without_life(history()) == []
    assert without_life(history(replace(FAULT, kinds=("crash",)))) == []
    assert without_life(history(replace(FAULT, kinds=("hang",), generation=2))) == [], "of another generation"
    assert without_life(history(replace(FAULT, kinds=("hang",), made=None))) == [], "it did not happen"


def test_a_generation_has_lost_its_state_with_the_first_of_its_ranks() -> None:
    """Its other ranks may live on in a part of the network that was cut off."""
    found = history()
    cut_off = SimpleNamespace(group=0, generation=1, rank=1, spawned=1.0, exited=11.5)
    lines = [{"t": t, "committed": True} for t in (5.0, 10.0)]
    found.processes.append(cut_off)
    found.steps.append(SimpleNamespace(group=0, generation=1, rank=1, lines=lines))
    assert without_life(found) == [11.5]


def a_group_that_moves(begun: float, places: list[str], of_two: bool) -> Any:
    """Group 1 begins its generation 2 at `places`, decided at 20 s. Generation 1 was on n1, and on n2 too with `of_two`;
    it began its last step on n1 at `begun`, and ended it a second later."""
    action = {"verb": "start", "group": 1, "generation": 2, "node": places[0], "nodes": places}
    decided = SimpleNamespace(t=20.0, actions=[action])
    steps = [
        Steps(1, 1, rank, node, ({"event": "step", "committed": True, "step": 9, "start": begun, "t": begun + 1.0},))
        for rank, node in enumerate(("n1", "n2") if of_two else ("n1",))
        if node == "n1"
    ]
    return SimpleNamespace(steps=steps, committed=lambda: [decided])


def test_of_several_nodes_the_one_that_stays_is_fenced_too() -> None:
    """No agent sees all nodes of a group, so the generation before may go on nowhere; on one node its agent ends it."""
    (said,) = ownership._commits_of_the_fenced(a_group_that_moves(20.5, ["n1", "n3"], of_two=True))
    assert said == (
        "group 1 generation 1 on n1 began step 9 after generation 2 was to begin on n1, n3: it was not fenced"
    )
    assert not list(ownership._commits_of_the_fenced(a_group_that_moves(19.5, ["n1", "n3"], of_two=True)))
    assert not list(ownership._commits_of_the_fenced(a_group_that_moves(20.5, ["n1"], of_two=False)))
    assert list(ownership._commits_of_the_fenced(a_group_that_moves(20.5, ["n3"], of_two=False)))
