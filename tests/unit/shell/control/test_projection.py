"""The records that etcd must hold for a memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.code import CodeVersion
from supervisor.core.model.decision import Action, Decision
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import Checkpoint, Grant, NodeView, Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.model.spec import EnvSpec, GroupsSpec, HooksSpec, PolicySpec, RunSpec, TrainerSpec
from supervisor.core.remediation.restore import ENDED
from supervisor.shell.control import codes, projection
from supervisor.shell.control.projection import Spread
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import CheckpointMark, Digest, LeaderRecord, NodeDesired, TrainerDesired, decode, encode
from tests.helpers.reasons import text
from tests.unit.shell.records import INCIDENT, MEMORY, SPEC


def trainers(memory: Memory) -> dict[str, TrainerDesired]:
    wanted = projection.desired(SPEC, "/runs/run", memory)
    return {node: d.trainers[0] for node, d in wanted.items() if d.trainers}


RUNNING = replace(
    MEMORY,
    groups={
        0: GroupMemory(
            group=0, generation=3, seats=(Seat("n1"),), phase="running", checkpoint=Checkpoint(10, "old", 0, 1)
        ),
        1: GroupMemory(group=1, generation=2, seats=(Seat("n2"),), phase="starting", resume="peers"),
    },
    silent=(),
)


def test_memory_is_kept_in_parts() -> None:
    found = projection.memory_records(SPEC, MEMORY, (INCIDENT,))
    assert set(found) == {
        keys.memory("run", "run"),
        keys.memory("run", "group-0"),
        keys.memory("run", "group-1"),
        keys.allocation("run", "run-a1"),
        keys.allocation("run", "run-a2"),
        keys.incident("run", "i1"),
    }
    base = decode(found[keys.memory("run", "run")], Memory)
    assert (base.groups, base.allocations, base.incidents) == ({}, {}, {})


def test_only_incidents_that_changed_are_written() -> None:
    assert keys.incident("run", "i1") not in projection.memory_records(SPEC, MEMORY, ())


def test_every_started_group_is_admitted_by_its_current_generation_alone() -> None:
    memory = replace(MEMORY, groups={**MEMORY.groups, 2: GroupMemory(group=2)})
    found = projection.desired(SPEC, "/runs/run", memory)["host"].lighthouses[0].admitted
    assert {g: (a.generation, a.node) for g, a in found.items()} == {0: (1, "n1"), 1: (2, "")}, "2 was never started"


def test_a_lighthouse_that_is_closed_is_reached_by_nobody() -> None:
    seat = replace(RUNNING.lighthouse, closing=True, address="", quorum_ids_above=7)
    wanted = projection.desired(SPEC, "/runs/run", replace(RUNNING, lighthouse=seat))
    assert (wanted["host"].lighthouses[0].close, wanted["host"].lighthouses[0].quorum_ids_above) == (True, 7)
    assert {t.gate for d in wanted.values() for t in d.trainers} == {""}


def test_a_trainer_is_wanted_of_the_allocation_by_which_its_group_was_placed() -> None:
    groups = {**RUNNING.groups, 0: replace(RUNNING.groups[0], seats=(Seat("n1", allocation="run-a1"),))}
    found = {node: t.allocation for node, t in trainers(replace(RUNNING, groups=groups)).items()}
    assert found == {"n1": "run-a1", "n2": ""}


def test_a_fencing_group_runs_nowhere() -> None:
    wanted = projection.desired(SPEC, "/runs/run", MEMORY)
    assert {node: [t.group for t in d.trainers] for node, d in wanted.items()} == {"host": [], "n1": [0]}
    assert [light.generation for light in wanted["host"].lighthouses] == [1]


@pytest.mark.parametrize("phase", ["unplaced", "fencing", "placing", "finished"])
def test_only_starting_and_running_groups_are_desired(phase: str) -> None:
    memory = replace(
        RUNNING,
        groups={0: GroupMemory(group=0, generation=1, seats=(Seat("n1"),), phase=phase)},  # type: ignore[arg-type]
    )
    assert trainers(memory) == {}


def spare(name: str, allocation: str = "run-a1", **fields: Any) -> NodeView:
    return NodeView(
        name=name, **{"registered": True, "role": "trainer", "allocation": allocation, "slots": 1, **fields}
    )


NODES = {node.name: node for node in (
    spare("n1"), spare("n3"), spare("lost", registered=False), spare("host", role="service"), spare("theirs", "other-a1"),
    spare("ill", failed="a check failed"), spare("barred", host="bad"), spare("leaves", leaving="preempted"), spare("left"),
)}  # fmt: skip
SEEN = Observed(
    revision=1, now=1.0, store_stable_s=1.0, nodes=NODES,
    grants={"run-a1": Grant(key="run-a1", state="granted", nodes=tuple(NODES))},
)  # fmt: skip
BUILT = replace(SPEC, policy=PolicySpec(standby="built"))


def test_a_spare_builds_a_start_of_any_group_that_never_changes() -> None:
    ends = replace(RUNNING.groups[1], phase="fencing", seats=(), left=(Seat("left"),))
    cordons = {"bad": Reason.of(Code.NODE_UNFIT, node="barred", why="")}
    memory = replace(RUNNING, phase="running", groups={**RUNNING.groups, 1: ends}, cordons=cordons)
    assert memory.allocations["run-a1"].state == "wanted"
    found = projection.spares(BUILT, memory, SEEN)
    assert found == {"n3"}
    records = projection.intent_records(BUILT, "/runs/run", memory, spares=found)
    record = decode(records[keys.desired("n3", "run")], NodeDesired)
    assert record.trainers == ()
    assert record.standby is not None
    assert (record.standby.generation, record.standby.hold, record.standby.standby) == (0, True, "built")
    moved = replace(memory, silent=(0,), checkpoint=Checkpoint(20, "new", 0, 1), stop_at_step=30)
    later = projection.intent_records(BUILT, "/runs/run", moved, spares=found)
    assert later[keys.desired("n3", "run")] == records[keys.desired("n3", "run")]


def test_a_spare_builds_the_ranks_of_a_groups_last_node() -> None:
    several = replace(BUILT, groups=GroupsSpec(count=2, ranks_per_group=6, nodes_per_group=3, ranks_per_node=2))
    records = projection.intent_records(several, "/runs/run", RUNNING, spares=frozenset({"n3"}))
    standby = decode(records[keys.desired("n3", "run")], NodeDesired).standby
    assert standby is not None
    assert (standby.nodes, list(standby.ranks)) == (3, [4, 5])


@pytest.mark.parametrize(
    ("spec", "memory"),
    [
        (replace(SPEC, policy=PolicySpec(standby="warm")), RUNNING),
        (replace(BUILT, trainer=TrainerSpec(command=("python", "train.py"))), RUNNING),
        (replace(BUILT, hooks=HooksSpec(before=("true",))), RUNNING),
        (BUILT, replace(RUNNING, groups={g: replace(m, phase="starting") for g, m in RUNNING.groups.items()})),
        (BUILT, replace(RUNNING, phase="stopping")),
    ],
)
def test_a_spare_builds_nothing_ahead(spec: RunSpec, memory: Memory) -> None:
    memory = memory if memory.phase == "stopping" else replace(memory, phase="running", incidents={})
    assert not projection.spares(spec, memory, SEEN)


def test_a_spare_keeps_its_start_while_every_group_has_failed() -> None:
    failing = {g: replace(m, phase="starting") for g, m in RUNNING.groups.items()}
    memory = replace(RUNNING, phase="running", groups=failing, incidents={"i1": INCIDENT})
    assert "n3" in projection.spares(BUILT, memory, SEEN)


@pytest.mark.parametrize("phase", ["finished", "stopped", "halted"])
def test_an_ended_run_wants_nothing_anywhere(phase: str) -> None:
    assert projection.desired(SPEC, "/runs/run", replace(RUNNING, phase=phase)) == {}  # type: ignore[arg-type]


def test_a_trainer_gets_what_its_group_was_started_with() -> None:
    wanted = trainers(RUNNING)["n2"]
    assert (wanted.group, wanted.generation, wanted.resume, wanted.gate) == (1, 2, "peers", "host:1")
    assert wanted.checkpoint is None
    assert (wanted.run_dir, wanted.world_size, wanted.groups) == ("/runs/run", 1, 2)


def test_the_lowest_running_group_writes_and_knows_the_newest_checkpoint() -> None:
    found = trainers(RUNNING)
    assert [t.writer for t in found.values()] == [True, False]
    assert found["n1"].checkpoint == CheckpointMark(step=50, path="step-50", group=0, generation=1)


def test_a_new_checkpoint_rewrites_the_writers_record_alone() -> None:
    later = replace(RUNNING, checkpoint=Checkpoint(60, "step-60", 0, 3))
    before = projection.intent_records(SPEC, "/runs/run", RUNNING)
    after = projection.intent_records(SPEC, "/runs/run", later)
    assert {k for k in after if after[k] != before[k]} == {keys.checkpoint("run"), keys.desired("n1", "run")}


def test_with_none_running_the_lowest_starting_group_writes() -> None:
    groups = {
        0: replace(RUNNING.groups[0], phase="fencing", seats=()),
        1: RUNNING.groups[1],
    }
    found = trainers(replace(RUNNING, groups=groups))  # type: ignore[arg-type]
    assert [t.writer for t in found.values()] == [True]


def test_the_others_are_told_who_is_silent() -> None:
    found = trainers(replace(RUNNING, silent=(0,)))
    assert (found["n1"].lost, found["n2"].lost) == ((), (0,))


def test_the_drain_step_is_told_only_while_stopping() -> None:
    assert trainers(replace(RUNNING, stop_at_step=9))["n1"].stop_at_step is None
    assert trainers(replace(RUNNING, stop_at_step=9, phase="stopping"))["n1"].stop_at_step == 9


def test_the_step_of_a_hand_over_is_told_only_while_the_run_goes_on() -> None:
    assert {t.stop_at_step for t in trainers(replace(RUNNING, handover_at_step=7)).values()} == {7}
    ending = replace(RUNNING, handover_at_step=7, stop_at_step=9, phase="stopping")
    assert {t.stop_at_step for t in trainers(ending).values()} == {9}


def test_the_same_memory_gives_the_same_bytes() -> None:
    assert projection.intent_records(SPEC, "/r", MEMORY) == projection.intent_records(SPEC, "/r", replace(MEMORY))
    assert projection.memory_records(SPEC, MEMORY, (INCIDENT,)) == projection.memory_records(
        SPEC, replace(MEMORY), (INCIDENT,)
    )


@pytest.mark.parametrize("count", [0, 1, 16, 17, 500])
def test_a_digest_has_a_bound_and_says_what_it_leaves_out(count: int) -> None:
    actions = tuple(Action(verb="cordon", key=f"cordon:{'h' * 300}:i{n}", reason=text("x" * 999)) for n in range(count))
    incidents = tuple(replace(INCIDENT, id=f"i{10**6 + n}") for n in range(count))
    decision = Decision(memory=MEMORY, actions=actions, incidents=incidents)
    by = projection.Decider(2**40, "h" * 253, "0.1.0 (rules 01234567)", 99)
    (record,) = projection.digest_record("run", decision, by, "f" * 16).values()
    assert len(record) <= 2048
    digest = decode(record, Digest)
    assert len(digest.actions) + digest.more == count


def test_a_host_that_also_trains_keeps_both() -> None:
    groups = {0: replace(RUNNING.groups[0], seats=(Seat("host"),))}
    record = projection.intent_records(SPEC, "/r", replace(RUNNING, groups=groups))[keys.desired("host", "run")]
    wanted = decode(record, NodeDesired)
    assert (len(wanted.trainers), len(wanted.lighthouses)) == (1, 1)


def test_the_spec_reaches_the_node() -> None:
    spec = replace(SPEC, groups=GroupsSpec(count=2, ranks_per_group=4, min_groups=2))
    wanted = projection.desired(spec, "/r", RUNNING)
    trainer, light = wanted["n1"].trainers[0], wanted["host"].lighthouses[0]
    assert (trainer.world_size, trainer.min_groups, light.min_groups) == (4, 2, 2)
    assert trainer.term_grace_s == spec.policy.term_grace_s


@pytest.mark.parametrize(
    ("policy", "timeout_s"),
    [
        (PolicySpec(), projection.A_DAY_S),
        (PolicySpec(observe=("crash",)), projection.A_DAY_S),
        (PolicySpec(mode="observe"), 0.0),
        (PolicySpec(observe=("hang",)), 0.0),
    ],
)
def test_peers_wait_for_a_rank_in_the_debugger_where_the_supervisor_ends_what_hangs(
    policy: PolicySpec, timeout_s: float
) -> None:
    (trainer,) = projection.desired(replace(SPEC, policy=policy), "/r", RUNNING)["n1"].trainers
    assert trainer.collective_timeout_s == timeout_s


def test_the_environment_and_hooks_reach_each_trainer_and_an_older_record_has_none() -> None:
    spec = replace(
        SPEC, env=EnvSpec(set={"A": "1"}, pass_=("B_*",), files={"C": "/c"}), hooks=HooksSpec(before=("/stage.sh",))
    )
    wanted = projection.desired(spec, "/runs/run", RUNNING)["n1"]
    assert [(t.env, t.hooks) for t in wanted.trainers] == [(spec.env, spec.hooks)]
    body = json.loads(encode(wanted))
    assert decode(json.dumps(body), NodeDesired) == wanted
    for name in ("env", "hooks"):
        del body["trainers"][0][name]
    (read,) = decode(json.dumps(body), NodeDesired).trainers
    assert read == replace(wanted.trainers[0], env=EnvSpec(), hooks=HooksSpec())


# --- code ---

CODE = CodeVersion(version="1" * 64, folder="/home/me/code")


def spread(memory: Memory, spec: RunSpec, spread: Spread | None) -> dict[str, NodeDesired]:
    found = projection.intent_records(spec, "/runs/run", memory, None, spread)
    prefix = keys.DESIRED
    return {
        key[len(prefix) :].split("/")[0]: decode(value, NodeDesired)
        for key, value in found.items()
        if key.startswith(prefix)
    }


def test_code_goes_to_every_node_of_the_run_and_a_started_group_keeps_its_own() -> None:
    before = CodeVersion(version="2" * 64, folder="/home/me/code")
    memory = replace(RUNNING, groups={**RUNNING.groups, 0: replace(RUNNING.groups[0], code=before)})
    found = spread(memory, SPEC, Spread(CODE, "http://leader:1/", frozenset({"n1", "n2", "spare"})))
    assert {
        node: (d.code, d.code_from) for node, d in found.items() if node != memory.lighthouse.node
    } == dict.fromkeys(("n1", "n2", "spare"), (CODE, "http://leader:1/"))
    assert [t.code for t in (*found["n1"].trainers, *found["n2"].trainers)] == [before, None]
    assert not found["spare"].trainers
    assert all(d.code is None for d in spread(memory, SPEC, None).values())


@pytest.mark.parametrize("phase", ENDED)
def test_code_goes_nowhere_for_a_run_that_has_ended(phase: Any) -> None:
    assert spread(replace(RUNNING, phase=phase), SPEC, Spread(CODE, "http://leader:1/", frozenset({"n1"}))) == {}


def test_code_goes_to_the_nodes_of_a_pool_that_it_has_not_lent() -> None:
    pool = replace(SPEC, groups=GroupsSpec(count=0))
    grants = {
        "run-a1": Grant(key="run-a1", state="granted", nodes=("n1",)),
        "run-a2": Grant(key="run-a2", state="granted", nodes=("n2",)),
        "run-a3": Grant(key="run-a3", state="pending", nodes=("n3",)),
    }
    seen = Observed(revision=1, now=0.0, store_stable_s=0.0, grants=grants, lent={"run-a2": "first"}, code=CODE)
    store = MemoryStore()
    store.put(keys.LEADER, encode(LeaderRecord(host="h", pid=1, home="", page="http://leader:1/")))
    found = codes.spread(Mirror(store.list(keys.PREFIX)), pool, seen)
    assert found == Spread(CODE, "http://leader:1/", frozenset({"n1"}))
    assert [d.code for d in spread(replace(MEMORY, groups={}), pool, found).values()] == [CODE]
    assert codes.spread(Mirror(store.list(keys.PREFIX)), pool, replace(seen, code=None)) is None
