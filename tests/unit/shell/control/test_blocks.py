"""Allocations that are asked for together: the nodes of a group, at the start of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from supervisor.core.model.memory import AllocationMemory, Memory
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import AllocationSpec, GroupsSpec, RunSpec, SlurmSpec
from supervisor.shell.control.blocks import blocks
from tests.helpers.reasons import STARTS

SPEC = RunSpec(
    name="run",
    groups=GroupsSpec(count=2, ranks_per_group=2, nodes_per_group=2),
    allocation=AllocationSpec(engine="slurm", nodes=4, spares=2, slurm=SlurmSpec(shape="job_per_group")),
)
RUNNING = Memory(phase="running")


def asked(*numbers: int, state: Literal["wanted", "released"] = "wanted") -> list[AllocationMemory]:
    return [AllocationMemory(key=f"run-a{n}", state=state, since=1.0, reason=STARTS) for n in numbers]


def keys(*numbers: int) -> tuple[str, ...]:
    return tuple(f"run-a{n}" for n in numbers)


def test_the_nodes_of_each_group_are_asked_for_together_and_spares_alone() -> None:
    found = blocks(SPEC, RUNNING, asked(1, 2, 3, 4, 5, 6))
    assert found == {
        **dict.fromkeys(keys(1, 2), keys(1, 2)),
        **dict.fromkeys(keys(3, 4), keys(3, 4)),
    }


def test_numbers_count_and_not_their_order_as_text() -> None:
    many = replace(SPEC, allocation=replace(SPEC.allocation, nodes=12, spares=0))
    in_text = sorted(asked(*range(1, 13)), key=lambda a: a.key)
    assert blocks(many, RUNNING, in_text)["run-a10"] == keys(9, 10)


def test_a_replacement_and_what_is_left_of_a_block_are_asked_for_alone() -> None:
    gone = replace(asked(7)[0], reason=Reason.of(Code.EVERYTHING_GONE))
    left = [*asked(1, state="released"), *asked(2, 3, 4), gone]
    assert blocks(SPEC, RUNNING, left) == dict.fromkeys(keys(3, 4), keys(3, 4))


def test_the_rest_of_a_block_is_waited_for_while_the_run_begins() -> None:
    assert blocks(SPEC, Memory(phase="new"), asked(1, 2, 3)) == {
        **dict.fromkeys(keys(1, 2), keys(1, 2)),
        **dict.fromkeys(keys(3), None),
    }
    assert blocks(SPEC, RUNNING, asked(1, 2, 3)) == dict.fromkeys(keys(1, 2), keys(1, 2))


def test_a_resumed_run_asks_for_blocks_again() -> None:
    before = asked(1, 2, 3, 4, 5, 6, state="released")
    found = blocks(SPEC, RUNNING, [*before, *asked(7, 8, 9, 10, 11)])
    assert found == {**dict.fromkeys(keys(7, 8), keys(7, 8)), **dict.fromkeys(keys(9, 10), keys(9, 10))}


def test_blocks_of_a_run_that_has_a_removed_ones_name_begin_above_its_numbers() -> None:
    assert blocks(SPEC, Memory(allocations_above=3), asked(4, 5))["run-a4"] == keys(4, 5)


def test_other_shapes_and_groups_of_one_node_ask_for_each_alone() -> None:
    single = replace(SPEC, groups=GroupsSpec())
    each = replace(SPEC, allocation=replace(SPEC.allocation, slurm=SlurmSpec()))
    for spec in (single, each):
        assert blocks(spec, RUNNING, asked(1, 2, 3, 4)) == {}
