"""Notes beside a change of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.memory import Memory
from supervisor.core.model.spec import (
    AllocationSpec,
    DataSpec,
    EnvSpec,
    GroupsSpec,
    RunSpec,
    SlurmSpec,
    TitanSpec,
    TrainerSpec,
)
from supervisor.ports.errors import Fatal
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import client, relaunch
from supervisor.shell.inspect.relaunch import data_note, refuse, sized
from supervisor.wire import keys
from supervisor.wire.records import RunRecord, encode
from tests.unit.shell.records import MEMORY, SPEC, run_values

TOKENS = DataSpec(source="tokens", path="/tokens")


def test_another_number_of_groups_is_noted_where_it_costs_samples() -> None:
    before = RunSpec(name="run", groups=GroupsSpec(count=2))
    after = replace(before, groups=GroupsSpec(count=3))
    assert "read the shares of 2 groups until they start again, and new ones those of 3" in data_note(before, after)
    assert data_note(before, before) == ""
    longer = replace(after, titan=replace(after.titan, steps=9))
    assert "begins at its first document" in data_note(before, longer)
    titan = replace(before.titan, data=DataSpec(source="tokens", path="/tokens"))
    assert data_note(replace(before, titan=titan), replace(after, titan=titan)) == ""


def lives(memory: Memory = MEMORY) -> tuple[Mirror, RunRecord]:
    store = MemoryStore()
    store.commit(run_values(memory))
    mirror = Mirror(store.list(keys.PREFIX))
    return mirror, client.choose_run(mirror, "run")


def titan(record: RunRecord, **fields: Any) -> RunSpec:
    return replace(record.spec, titan=replace(record.spec.titan, **fields))


def test_data_in_which_the_groups_have_no_place_needs_a_word() -> None:
    mirror, record = lives()
    other = titan(record, data=DataSpec(source="folder", path="/b"))
    with pytest.raises(
        Fatal, match=r"data.source: recipe -> folder, titan.data.path:  -> /b: the groups have no place in"
    ):
        refuse(mirror, record, other)
    refuse(mirror, record, titan(record, data=replace(other.titan.data, lost_place="start")))
    with pytest.raises(Fatal, match=r"data.source: recipe -> tokens, titan.seed"):
        refuse(mirror, record, titan(record, data=TOKENS))
    of_store = replace(record, spec=titan(record, data=TOKENS))
    refuse(mirror, of_store, titan(of_store, data=replace(TOKENS, path="/moved")))
    with pytest.raises(Fatal, match=r"titan.seed: 1234 -> 7: the groups have no place in that data"):
        refuse(mirror, of_store, titan(of_store, data=TOKENS, seed=7))


def on_slurm(record: RunRecord, **fields: Any) -> RunSpec:
    allocation = replace(record.spec.allocation, engine="slurm", slurm=SlurmSpec(partition="a", **fields))
    return replace(record.spec, allocation=allocation)


def test_nodes_of_another_partition_are_not_those_that_it_has() -> None:
    mirror, record = lives()
    record = replace(record, spec=on_slurm(record))
    other = on_slurm(record, gres="gpu:8", time_limit="1:00:00")
    with pytest.raises(Fatal, match=r'allocation.slurm.gres: "" -> "gpu:8": a relaunch keeps the nodes of a run'):
        refuse(mirror, record, other)
    refuse(mirror, record, on_slurm(record, time_limit="1:00:00"))
    ended, _ = lives(replace(MEMORY, phase="stopped"))
    refuse(ended, record, other)
    pooled = replace(record, spec=replace(record.spec, allocation=AllocationSpec(engine="pool", pool="lab")))
    given = replace(pooled.spec, allocation=replace(pooled.spec.allocation, slurm=SlurmSpec(partition="b")))
    assert relaunch.kept(mirror, pooled, given)[1] == [
        "the pool's [allocation.slurm] goes on, not that of the run file"
    ]
    assert relaunch.kept(mirror, pooled, pooled.spec)[1] == []


def test_states_in_memory_are_for_the_same_model_ranks_and_warm_processes() -> None:
    mirror, record = lives()
    relaunch.refuse_from_memory(mirror, record, titan(record, overrides={"optimizer.lr": 1e-3}))
    wrong = {
        "titan.recipe: a state in memory fits the same model and ranks alone": titan(
            record, recipe="llama3-debug-small"
        ),
        "env.set.A: a state in memory": replace(record.spec, env=EnvSpec(set={"A": "1"})),
        r"titan.steps = 3: the groups may end at step \d+": titan(record, steps=3),
        "a command of yours": replace(record.spec, trainer=TrainerSpec(command=("python", "train.py"))),
    }
    for words, after in wrong.items():
        with pytest.raises(Fatal, match=words) as raised:
            relaunch.refuse_from_memory(mirror, record, after)
        assert "leave out --from-memory" in str(raised.value)
    mirror, record = lives(replace(MEMORY, phase="stopped"))
    with pytest.raises(Fatal, match="has ended, so no rank has a state in memory"):
        relaunch.refuse_from_memory(mirror, record, titan(record, steps=10**6))


def test_no_other_wish_comes_while_states_are_put_into_memory() -> None:
    """Some ranks may have ended by then, without a checkpoint."""
    mirror, record = lives(replace(MEMORY, phase="stopping", relaunching=True, from_memory=2))
    with pytest.raises(Fatal, match="is relaunched from memory just now: repeat this once it trains"):
        relaunch.refuse(mirror, record, titan(record, steps=10**6))
    assert "what ranks have kept in memory since step" in client.stopping(mirror, record)


@pytest.mark.parametrize(
    "overrides", [{"training.global_batch_size": 8}, {"training": {"global_batch_size": 8}}], ids=["dotted", "table"]
)
def test_groups_of_other_shares_of_a_step_do_not_train_together(overrides: dict[str, Any]) -> None:
    spec = replace(SPEC, titan=TitanSpec(data=TOKENS, global_batch="shrinks", overrides=overrides))
    with pytest.raises(Fatal) as error:
        sized(spec, 4, None)
    assert str(error.value) == (
        "groups.count: 2 -> 4: each group's share of training.global_batch_size changes, so all groups must start again: "
        "supervisor relaunch run --set groups.count=4 --set allocation.nodes=4"
    )
    assert sized(spec, None, 3).allocation.spares == 3
    store = MemoryStore()
    record = RunRecord(spec=spec, run_dir="/r", launched_unix_s=1.0)
    store.commit({**run_values(), keys.spec("run"): encode(record)})
    said = relaunch.relaunch(
        store, Mirror(store.list(keys.PREFIX)), record, replace(spec, groups=GroupsSpec(count=1)), ""
    )
    assert "Then all start again" in said
    mirror = Mirror(store.list(keys.PREFIX))
    asked = observe.observed(mirror, "run", observe.memory(mirror, "run"), 0.0, 0.0).relaunch
    assert asked is not None
    assert not asked.scales


@pytest.mark.parametrize(
    "titan",
    [
        TitanSpec(data=TOKENS, global_batch="shrinks"),
        TitanSpec(data=TOKENS, overrides={"training.global_batch_size": 8}),
        TitanSpec(overrides={"training.global_batch_size": 8}),
    ],
    ids=["share", "constant", "stream"],
)
def test_other_groups_train_on(titan: TitanSpec) -> None:
    assert sized(replace(SPEC, titan=titan), 4, None).groups.count == 4
