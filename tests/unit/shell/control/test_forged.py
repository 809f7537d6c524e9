"""Records in which a node names another, for every kind that a node may write: a new kind is among them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.decide import decide
from supervisor.core.model.memory import AllocationMemory, Memory
from supervisor.core.model.observed import Grant
from supervisor.core.model.seats import Seat
from supervisor.shell.control import audit, cordons, observe
from supervisor.shell.control.audit import _KINDS
from supervisor.wire import keys
from supervisor.wire.records import CheckResult, NodeCheck, Registration, RunRecord, decode, encode
from tests.helpers.forged import OF_NODES, forged_of, least, tame
from tests.helpers.reasons import STARTS
from tests.helpers.told import ToldWorld
from tests.unit.shell.records import MEMORY, SPEC, mirror_of, registration, run_values


def test_they_are_those_that_a_node_may_write() -> None:
    assert {"nodes/n1/registration", "nodes/n1/observed", "nodes/n1/gate/run"} <= OF_NODES.keys()
    assert not any(keys.NODES in pattern.pattern and pattern.pattern.startswith(keys.RUNS) for pattern, _ in _KINDS)


@pytest.mark.parametrize("key", OF_NODES)
def test_a_record_that_names_another_is_not_read(key: str) -> None:
    at, kind = keys.PREFIX + key, OF_NODES[key]
    right: Any = least(kind)
    own = {"node": "n1", "host": "n1", "run": "run"}
    fields = {name: value for name, value in own.items() if hasattr(right, name)}
    assert "node" in fields, "a record of a node says whose it is"
    right = replace(right, **fields)
    mirror = mirror_of({at: encode(right)})
    assert mirror.record(at, kind) == right
    assert audit.audit(mirror, [at]) == {}
    for name in fields:
        for other in ("n2", "n[1-999]", "n1,n2", "n1x", "n"):
            mirror = mirror_of({at: encode(replace(right, **{name: other}))})
            assert mirror.record(at, kind) is None
            assert f"it names the {name} {other!r}" in audit.audit(mirror, [at])[at]


@pytest.mark.parametrize("address", ["10.0.0.1/metrics?x=", "h:1,g:2", "a b", "\x1b[2J", "[fd00::1]:22/"])
def test_an_address_that_is_none_is_not_read(address: str) -> None:
    at = keys.registration("n1")
    assert mirror_of(registration("n1", address=address)).record(at, Registration) is None
    for right in ("10.0.0.1", "fd00::1", "fe80::1%eth0", "n1.example.org", ""):
        assert mirror_of(registration("n1", address=right)).record(at, Registration) is not None


def test_a_node_of_one_run_is_no_service_host_of_another() -> None:
    """Its processes would be the other run's lighthouse."""
    forged = registration("n1", role="service", allocation="")
    other = replace(SPEC, name="other")
    launched = {keys.spec("other"): encode(RunRecord(spec=other, run_dir="/runs/other", launched_unix_s=0.0))}
    for state, there in (("granted", False), ("gone", True)):
        grant = {keys.grant("run", "run-a1"): encode(Grant(key="run-a1", state=state, nodes=("n1",)))}
        values = mirror_of({**run_values(OTHERS), **launched, **forged, **grant})
        assert ("n1" in observe.observed(values, "other", Memory(), 0.0, 0.0).nodes) is there


def test_a_host_of_several_nodes_is_one() -> None:
    at = keys.registration("n1.77")
    for host, read in (("n1", True), ("n1.77", True), ("", True), ("n", False), ("n1.7", False), ("n2", False)):
        values = registration("n1.77", host=host)
        assert (mirror_of(values).record(at, Registration) is not None) is read, host


def test_a_failed_check_of_anothers_host_bars_nobody() -> None:
    result = CheckResult(name="disk", outcome="failed", evidence="broken")
    told = NodeCheck(node="n1", host="n2", state="failed", why="by hand", results=(result,))
    mirror = mirror_of({keys.check("n1"): encode(told), **registration("n1"), **registration("n2")})
    assert cordons.by_host(mirror) == {}
    assert cordons.by_host(mirror_of({keys.check("n1"): encode(replace(told, host="n1"))})).keys() == {"n1"}


OTHERS = replace(
    MEMORY,
    groups={
        **MEMORY.groups,
        1: replace(MEMORY.groups[1], phase="running", seats=(Seat("n2", allocation="run-a2"),), left=()),
    },
    allocations={
        key: AllocationMemory(key=key, state="wanted", since=1.0, reason=STARTS) for key in ("run-a1", "run-a2")
    },
)


@pytest.mark.parametrize(
    ("forged", "registered"),
    [
        ({"allocation": "run-a1"}, True),
        ({"allocation": "run-a2"}, False),
        ({"allocation": "run-a1", "role": "service"}, False),
        ({"allocation": "", "role": "service"}, False),
        ({"allocation": "other-a1"}, True),
    ],
    ids=[
        "its own",
        "another's",
        "a service host too",
        "a service host alone",
        "of another user's run, as a reused name",
    ],
)
def test_a_node_of_this_run_is_no_other(forged: dict[str, Any], registered: bool) -> None:
    grants = {
        keys.grant("run", f"run-a{n}"): encode(Grant(key=f"run-a{n}", state="granted", nodes=(f"n{n}",)))
        for n in (1, 2)
    }
    values = {**run_values(OTHERS), **grants, **registration("n1", **forged), **registration("n2", allocation="run-a2")}
    nodes = observe.observed(mirror_of(values), "run", OTHERS, 0.0, 0.0).nodes
    assert (nodes["n1"].registered, nodes["n1"].role) == (registered, "trainer")
    assert nodes["n2"].registered
    assert nodes["n1"].allocation == (forged["allocation"] if registered else "run-a1")


HURTS_ITSELF = ("n2", "n4")
"""A node that turned, and the spare that may take its place."""


def _played(values: dict[str, bytes], world: ToldWorld) -> list[tuple[Any, ...]]:
    """Returns what three rounds make of the groups that the node is not of, of the lighthouse and of the checkpoint."""
    memory, found = world.memory, []
    for number in range(1, 4):
        now = world.now + 1.5 * number
        decision = decide(observe.observed(mirror_of(values), "run", memory, now, 1e6), world.spec, memory)
        memory = decision.memory
        others = {g: group for g, group in memory.groups.items() if g != 1}
        done = [(a.verb, a.key) for a in decision.actions if a.group in others]
        held = {host for host in memory.cordons if host not in HURTS_ITSELF}
        found.append((others, done, held, memory.lighthouse, memory.checkpoint, memory.phase, memory.silent))
    return found


@pytest.mark.parametrize("kind", ["registration", "health", "observed", "check"])
def test_whatever_a_compromised_node_writes_of_itself_the_other_groups_go_on(kind: str) -> None:
    """A new field of a record, at any depth, is among what is forged."""
    world = ToldWorld(groups=3, spares=1, ranks=1)
    world.lead()
    world.bring_up()
    world.train(3)
    world.save(1, 3)
    world.round(0.1)
    values = {item.key: item.value for item in world.store.list(keys.PREFIX).items}
    (node,) = world.group(1).nodes
    assert node in HURTS_ITSELF
    key, sort = f"{keys.NODES}{node}/{kind}", OF_NODES[f"nodes/n1/{kind}"]
    record = decode(values[key], sort) if key in values else NodeCheck(node=node, host=node, state="passed", why="")
    right = _played(values, world)
    assert len({repr(each) for each in right}) <= 2, "nothing happens to the others"
    tried = 0
    for forged in forged_of(record, sort, tame):
        tried += 1
        assert _played({**values, key: encode(forged)}, world) == right, forged
    assert tried > {"registration": 30, "health": 30, "observed": 200, "check": 10}[kind]
