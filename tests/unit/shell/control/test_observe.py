"""Conversion of records to the input of `decide`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.model.measured import NOTHING, Measured
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import Checkpoint, GpuFact, Grant
from supervisor.core.model.seats import Seat
from supervisor.core.timeouts import solver
from supervisor.ports.store import Changes, Item
from supervisor.shell.control import observe
from supervisor.wire import keys
from supervisor.wire.records import (
    CheckpointMark,
    Control,
    ExitObserved,
    Fact,
    GateGroup,
    GateObserved,
    HealFailed,
    Health,
    NodeObserved,
    Progress,
    TrainerObserved,
    encode,
)
from tests.unit.shell.records import MEMORY, mirror_of, registration, run_values

PROGRESS = Progress(
    run="run", group=0, generation=1, rank=0, pid=7, sequence=1, phase="step", step=9, commits=4, step_s=0.5,
    checkpoint=CheckpointMark(step=5, path="p", group=0, generation=1),
)  # fmt: skip


def observed_record(node: str, *trainers: TrainerObserved) -> dict[str, bytes]:
    return {keys.observed(node): encode(NodeObserved(node=node, sequence=1, trainers=trainers))}


def trainer(run: str = "run", **about: object) -> TrainerObserved:
    return TrainerObserved(
        **{"run": run, "group": 0, "generation": 1, "rank": 0, "pid": 7, "state": "running", **about}  # type: ignore[arg-type]
    )


def grant(number: int, state: str = "granted", node: str = "") -> dict[str, bytes]:
    key = f"run-a{number}"
    record = Grant(key=key, state=state, nodes=(node,) if node else (), engine_id="e", reason="r")  # type: ignore[arg-type]
    return {keys.grant("run", key): encode(record)}


# --- memory ---


def test_memory_comes_back_whole() -> None:
    assert observe.memory(mirror_of(run_values()), "run") == MEMORY


def test_a_run_that_was_never_decided_about_has_a_fresh_memory() -> None:
    values = run_values()
    mirror = mirror_of({keys.spec("run"): values[keys.spec("run")]})
    assert observe.memory(mirror, "run") == Memory()


def test_closed_incidents_stay_in_their_records() -> None:
    closed = replace(MEMORY.incidents["i1"], state="recovered")
    mirror = mirror_of({**run_values(), keys.incident("run", "i1"): encode(closed)})
    assert observe.memory(mirror, "run").incidents == {}


@pytest.mark.parametrize(
    "key",
    [
        keys.memory("run", "run"),
        keys.memory("run", "group-1"),
        keys.allocation("run", "run-a1"),
        keys.incident("run", "i1"),
    ],
)
@pytest.mark.parametrize("value", [b"{torn", b'{"$kind":"Other","$version":1}', b'{"$kind":"Memory","$version":99}'])
def test_an_unreadable_part_leaves_the_run_alone_and_the_others_not(key: str, value: bytes) -> None:
    mirror = mirror_of({**run_values(), **run_values(name="other"), key: value})
    with pytest.raises(observe.Unreadable, match="run run is left alone") as error:
        observe.memory(mirror, "run")
    assert key in str(error.value)
    assert observe.memory(mirror, "other") == MEMORY
    assert sorted(observe.runs(mirror)) == ["other", "run"]


@pytest.mark.parametrize("repaired", ["put", "deleted", "reset"])
def test_an_unreadable_part_that_is_repaired_is_read_again(repaired: str) -> None:
    key = keys.memory("run", "group-7")
    good = {**run_values(), keys.memory("run", "group-1"): encode(MEMORY.groups[1])}
    mirror = mirror_of({**good, key: b"{torn"})
    with pytest.raises(observe.Unreadable):
        observe.memory(mirror, "run")
    if repaired == "put":
        mirror.apply(Changes(2, puts=(Item(key, good[keys.memory("run", "group-1")], 1, 2),)))
    elif repaired == "deleted":
        mirror.apply(Changes(2, deletes=(key,)))
    else:
        mirror.apply(Changes(2, puts=tuple(Item(k, v, 1, 2) for k, v in good.items()), reset=True))
    assert observe.memory(mirror, "run") == MEMORY


def test_an_incident_that_nobody_is_in_the_middle_of_may_be_unreadable() -> None:
    mirror = mirror_of({**run_values(), keys.incident("run", "i2"): b"{torn"})
    assert observe.memory(mirror, "run") == MEMORY
    assert keys.incident("run", "i2") in mirror.unreadable


def test_a_run_whose_spec_cannot_be_read_is_left_out() -> None:
    mirror = mirror_of({**run_values(), **run_values(name="other"), keys.spec("run"): b"{torn"})
    assert list(observe.runs(mirror)) == ["other"]
    assert keys.spec("run") in mirror.unreadable


def test_another_runs_unreadable_record_is_not_ours() -> None:
    mirror = mirror_of({**run_values(), **run_values(name="run-2"), keys.memory("run-2", "run"): b"{torn"})
    assert observe.memory(mirror, "run") == MEMORY
    with pytest.raises(observe.Unreadable):
        observe.memory(mirror, "run-2")


# --- observed ---


def test_what_is_seen_is_one_revision_and_the_time_given() -> None:
    seen = observe.observed(mirror_of(run_values(), revision=7), "run", MEMORY, now=3.5, store_stable_s=2.5)
    assert (seen.revision, seen.now, seen.store_stable_s) == (7, 3.5, 2.5)


def test_a_rank_is_seen_with_its_progress_and_end() -> None:
    ended = trainer(state="exited", progress=PROGRESS, exit=ExitObserved(signal=11, error_file="ValueError: x"))
    # a record of an older agent: missing fields are unknown
    values = {**run_values(), **registration("n1", allocation="run-a1"), **grant(1, node="n1")}
    mirror = mirror_of({**values, **observed_record("n1", ended, trainer(run="other"))})
    (rank,) = observe.observed(mirror, "run", MEMORY, 0.0, 0.0).nodes["n1"].ranks
    assert (rank.state, rank.signal, rank.exit_code, rank.error) == ("exited", 11, None, "ValueError: x")
    assert (rank.trace, rank.last_words, rank.told, rank.oom, rank.kernel, rank.ended_s) == (
        "",
        "",
        None,
        None,
        "",
        0.0,
    )
    assert (rank.step, rank.commits, rank.step_s, rank.phase) == (9, 4, 0.5, "step")
    assert rank.checkpoint == Checkpoint(5, "/runs/run/checkpoints/step-5.g0.gen1", 0, 1), "its own word is 'p'"


def test_an_end_is_seen_with_all_that_is_known_of_it() -> None:
    known = {"trace": "t", "last_words": "w", "told": "cut off", "oom": True, "kernel": "k", "ended_s": 1.5}
    ended = trainer(state="exited", exit=ExitObserved(exit_code=1, raised="KeyError: 1", **known))
    mirror = mirror_of({**run_values(), **registration("n1"), **observed_record("n1", ended)})
    (rank,) = observe.observed(mirror, "run", MEMORY, 0.0, 0.0).nodes["n1"].ranks
    assert {name: getattr(rank, name) for name in known} == known
    assert rank.error == "KeyError: 1", "of the log, where no error file was left"


def test_why_a_checkpoint_failed_is_told_by_a_rank_that_trains() -> None:
    why = "checkpoint of step 9 failed: No space left on device"

    def told(phase: str = "step", **about: object) -> str:
        progress = replace(PROGRESS, phase=phase, error=why)  # type: ignore[arg-type]
        mirror = mirror_of({**run_values(), **observed_record("n1", trainer(progress=progress, **about))})
        (rank,) = observe.observed(mirror, "run", MEMORY, 0.0, 0.0).nodes["n1"].ranks
        return rank.save_failed

    assert told() == why
    assert told(phase="failed") == "", "that is why it ends"
    assert told(state="exited", exit=ExitObserved(signal=9)) == ""


def test_a_heal_that_fails_again_and_again_is_told_with_its_source() -> None:
    def told(times: int, **about: object) -> str:
        failed = HealFailed(source="10.0.0.1:43", error="URLError: refused", times=times, for_s=41.2)
        progress = replace(PROGRESS, heal_failed=failed)
        mirror = mirror_of({**run_values(), **observed_record("n1", trainer(progress=progress, **about))})
        (rank,) = observe.observed(mirror, "run", MEMORY, 0.0, 0.0).nodes["n1"].ranks
        return rank.heal_failed

    assert told(3) == "its heal from 10.0.0.1:43 has failed 3 times in 41 s: URLError: refused"
    assert told(1) == "", "the peer may have ended meanwhile"


def test_a_rank_without_progress_is_starting() -> None:
    mirror = mirror_of({**run_values(), **registration("n1"), **observed_record("n1", trainer(state="starting"))})
    (rank,) = observe.observed(mirror, "run", MEMORY, 0.0, 0.0).nodes["n1"].ranks
    assert (rank.phase, rank.step, rank.commits, rank.checkpoint) == ("starting", 0, 0, None)


@pytest.mark.parametrize(
    ("node", "values", "seen"),
    [
        ("n1", {}, True),  # held by group 0
        ("n9", {}, True),  # the old node of group 1, being fenced
        ("n3", grant(1, node="n3"), True),  # of a wanted allocation
        ("n4", grant(2, node="n4"), False),  # of a released one
        ("n5", {}, False),  # of no run of ours
        ("host", registration("host", role="service"), True),
    ],
)
def test_only_our_nodes_are_seen(node: str, values: dict[str, bytes], seen: bool) -> None:
    mirror = mirror_of({**run_values(), **registration(node), **values})
    assert (node in observe.observed(mirror, "run", MEMORY, 0.0, 0.0).nodes) is seen


def test_a_node_whose_lease_lapsed_is_seen_as_such() -> None:
    mirror = mirror_of({**run_values(), **grant(1, node="n1"), **observed_record("n1", trainer())})
    node = observe.observed(mirror, "run", MEMORY, 0.0, 0.0).nodes["n1"]
    assert (node.registered, node.allocation, len(node.ranks)) == (False, "run-a1", 1)


def test_a_node_is_seen_with_its_host_and_with_why_it_is_leaving() -> None:
    told = {keys.observed("h1.7"): encode(NodeObserved(node="h1.7", sequence=1, leaving="time limit"))}
    values = {**run_values(), **grant(1, node="h1.7"), **told}
    named = mirror_of({**values, **registration("h1.7", host="h1")})
    node = observe.observed(named, "run", MEMORY, 0.0, 0.0).nodes["h1.7"]
    assert (node.host, node.leaving) == ("h1", "time limit")
    node = observe.observed(mirror_of({**values, **registration("h1.7")}), "run", MEMORY, 0.0, 0.0).nodes["h1.7"]
    assert node.host == "h1.7", "an engine without host names: the node's own"


def test_what_was_measured_is_seen_and_what_an_older_agent_does_not_say_is_not_known() -> None:
    about = {"node": "n1", "sequence": 1, "disk_free_bytes": 1, "memory_available_bytes": 1, "load_1m": 0.0}
    health = encode(Health(warm="off", store_ms=8.0, **about))
    told = observed_record("n1", trainer(measured=Measured(step_s=1.5, gate_ms=2.0)))
    for of_today in (True, False):
        values = {**run_values(), **registration("n1"), **told, keys.health("n1"): health}
        if not of_today:
            older = {key: json.loads(values[key]) for key in (keys.health("n1"), keys.observed("n1"))}
            del older[keys.health("n1")]["store_ms"], older[keys.observed("n1")]["trainers"][0]["measured"]
            values |= {key: json.dumps(body).encode() for key, body in older.items()}
        seen = observe.observed(mirror_of(values), "run", MEMORY, 0.0, 0.0)
        wanted = Measured(step_s=1.5, gate_ms=2.0, store_ms=8.0) if of_today else NOTHING
        assert solver.measured(seen) == wanted


@pytest.mark.parametrize("said", ["off", "starting", "ready", ""])
def test_a_node_is_warm_while_it_lives_and_says_so(said: Any) -> None:
    health = Health(node="n1", sequence=1, warm=said, disk_free_bytes=1, memory_available_bytes=1, load_1m=0.0)
    told = {keys.health("n1"): encode(health)} if said else {}
    values = {**run_values(), **grant(1, node="n1"), **observed_record("n1"), **told}
    node = observe.observed(mirror_of({**values, **registration("n1")}), "run", MEMORY, 0.0, 0.0).nodes["n1"]
    assert node.warm is (said == "ready")
    assert not observe.observed(mirror_of(values), "run", MEMORY, 0.0, 0.0).nodes["n1"].warm, "its last words"


def test_the_host_of_a_node_that_is_gone_is_remembered_and_its_last_words_are_not() -> None:
    memory = replace(MEMORY, groups={**MEMORY.groups, 0: replace(MEMORY.groups[0], seats=(Seat("n1", "h1"),))})
    told = {keys.observed("n1"): encode(NodeObserved(node="n1", sequence=1, leaving="time limit"))}
    node = observe.observed(mirror_of({**run_values(memory), **told}), "run", memory, 0.0, 0.0).nodes["n1"]
    assert (node.registered, node.host, node.leaving) == (False, "h1", "")


def test_a_host_that_was_given_again_is_of_the_allocation_that_is_not_gone() -> None:
    allocations = {**MEMORY.allocations, "run-a3": replace(MEMORY.allocations["run-a1"], key="run-a3")}
    memory = replace(MEMORY, allocations=allocations)
    for gone, there in ((1, 3), (3, 1)):
        values = {**run_values(memory), **grant(gone, "gone", "n1"), **grant(there, node="n1"), **observed_record("n1")}
        assert observe.observed(mirror_of(values), "run", memory, 0.0, 0.0).nodes["n1"].allocation == f"run-a{there}"


def test_an_unreadable_observed_record_is_a_node_of_which_nothing_is_known() -> None:
    mirror = mirror_of({**run_values(), **registration("n1"), keys.observed("n1"): b"{torn"})
    node = observe.observed(mirror, "run", MEMORY, 0.0, 0.0).nodes["n1"]
    assert node.ranks == ()
    assert keys.observed("n1") in mirror.unreadable


def gate(generation: int = 1) -> dict[str, bytes]:
    record = GateObserved(
        run="run", node="host", generation=generation, address="host:9",
        groups=(GateGroup(group=0, generation=1, hearing="beating"), GateGroup(group=1, generation=2, hearing="gone")),
    )  # fmt: skip
    return {keys.gate("host", "run"): encode(record)}


def test_the_gate_is_seen_when_it_is_the_seated_one() -> None:
    mirror = mirror_of({**run_values(), **registration("host", role="service"), **gate()})
    seen = observe.observed(mirror, "run", MEMORY, 0.0, 0.0).gate
    assert seen is not None
    assert (seen.address, seen.admitted, seen.hearing) == ("host:9", {0: 1, 1: 2}, {0: "beating", 1: "gone"})


def test_a_gate_of_another_generation_is_not_seen() -> None:
    assert observe.observed(mirror_of({**run_values(), **gate(2)}), "run", MEMORY, 0.0, 0.0).gate is None
    assert observe.observed(mirror_of({**run_values(), **gate()}), "run", Memory(), 0.0, 0.0).gate is None


def test_what_a_person_asks_is_seen() -> None:
    control = encode(Control(paused=True, restarts={1: 2}))
    seen = observe.observed(mirror_of({**run_values(), keys.control("run"): control}), "run", MEMORY, 0.0, 0.0).control
    assert (seen.paused, seen.stop, seen.restarts) == (True, False, {1: 2})
    assert not observe.observed(mirror_of(run_values()), "run", MEMORY, 0.0, 0.0).control.paused


def test_grants_are_seen() -> None:
    mirror = mirror_of({**run_values(), **grant(1, "gone", "n1")})
    (seen,) = observe.observed(mirror, "run", MEMORY, 0.0, 0.0).grants.values()
    assert (seen.key, seen.state, seen.nodes, seen.engine_id, seen.reason) == ("run-a1", "gone", ("n1",), "e", "r")


def test_what_is_said_of_gpus_is_kept_apart_from_the_other_facts() -> None:
    """An Xid is bound to generations of this run. Another run's, and unknown names, are no evidence here."""
    seen = [
        Fact(kind="disk_full", subject="/", evidence="full"),
        Fact(kind="gpu_lost", subject="GPU 1", evidence="GPU 1 is lost", rank=1),
        Fact(kind="gpu_xid", subject="GPU 0", evidence="e", xid=79, rank=0, during=("run.0.3", "other.1.7", "odd")),
        Fact(kind="gpu_xid", subject="GPU 0", evidence="e", xid=48, during=()),
    ]
    health = Health(
        node="n1", sequence=1, warm="off", disk_free_bytes=1, memory_available_bytes=1, load_1m=0.0, facts=tuple(seen)
    )
    values = {keys.health("n1"): encode(health), **registration("n1"), **grant(1, node="n1")}
    node = observe.observed(mirror_of({**run_values(), **values}), "run", MEMORY, 0.0, 0.0).nodes["n1"]
    assert node.facts == {"disk_full": "full"}
    assert node.gpus == (
        GpuFact(kind="gpu_lost", evidence="GPU 1 is lost", rank=1),
        GpuFact(kind="gpu_xid", evidence="e", xid=79, rank=0, during=frozenset({(0, 3)})),
        GpuFact(kind="gpu_xid", evidence="e", xid=48, during=frozenset()),
    )
