"""An unreadable record under our prefix is reported, with its key."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from supervisor.ports.store import Changes, Item
from supervisor.shell.control.audit import audit
from supervisor.wire import keys
from supervisor.wire.records import Control, encode, version_of
from tests.unit.shell.records import mirror_of, registration, run_values

_SAMPLES: dict[str, Any] = {
    "node": "n1", "run": "run", "group": 1, "incident": "i1", "key": "run-a1", "part": "run", "host": "h1", "slot": 63, "about": "i1-3",
    "number": 2,
}  # fmt: skip

KINDS = {
    "registration": "Registration",
    "second": "SecondAgent",
    "removed_node": "RemovedNode",
    "health": "Health",
    "observed": "NodeObserved",
    "check": "NodeCheck",
    "gate": "GateObserved",
    "desired": "NodeDesired",
    "spec": "RunRecord",
    "next_spec": "Relaunch",
    "earlier_spec": "RunRecord",
    "control": "Control",
    "policy": "PolicySet",
    "code": "SyncedCode",
    "memory": "Memory",
    "gate_presence": "GatePresence",
    "incident": "Incident",
    "allocation": "AllocationMemory",
    "grant": "Grant",
    "decision": "Digest",
    "notice": "Notice",
    "faults": "FaultsMade",
    "account": "Account",
    "checkpoint": "CheckpointMark",
    "removed": "Removed",
    "cordon": "Cordon",
    "suspicion": "Suspicion",
}
"""The kind of record at each key of `wire.keys`."""


def of_functions() -> dict[str, str]:
    """name -> a key, for every key function."""
    return {
        name: function(**{p: _SAMPLES[p] for p in inspect.signature(function).parameters})
        for name, function in inspect.getmembers(keys, inspect.isfunction)
    }


KEYS = [
    *((key, KINDS.get(name, "?")) for name, key in of_functions().items()),
    (keys.LEADER, "LeaderRecord"),
    (keys.EPOCHS_BEFORE, "EpochsBefore"),
    (keys.SYSTEM, "System"),
    (keys.memory("run", "group-12"), "GroupMemory"),
]


def test_every_key_function_is_covered() -> None:
    assert set(of_functions()) == set(KINDS)


def check(key: str, value: bytes) -> dict[str, str]:
    return audit(mirror_of({key: value}), [key])


@pytest.mark.parametrize(("key", "kind"), KEYS)
def test_each_key_has_its_kind(key: str, kind: str) -> None:
    assert check(key, b'{"$kind":"Other","$version":1}') == {key: f"kind is 'Other', expected '{kind}'"}


@pytest.mark.parametrize(("key", "kind"), KEYS)
def test_a_newer_version_is_reported(key: str, kind: str) -> None:
    known = version_of(kind)
    value = json.dumps({"$kind": kind, "$version": known + 1}).encode()
    assert check(key, value) == {key: f"version {known + 1} is newer than this program's {known}"}


@pytest.mark.parametrize("value", [b"", b"{", b"\xff\xfe", b"null", b"[]", b"\0\0\0"])
@pytest.mark.parametrize(("key", "kind"), KEYS)
def test_a_corrupt_value_is_reported(key: str, kind: str, value: bytes) -> None:
    (why,) = check(key, value).values()
    assert why.startswith(("not JSON: ", "kind is "))


def test_a_field_of_a_wrong_type_is_reported() -> None:
    key = keys.control("run")
    (why,) = check(key, b'{"$kind":"Control","$version":1,"paused":"perhaps"}').values()
    assert why.startswith("paused: ")


@pytest.mark.parametrize(
    "key",
    [
        "anything",
        "leader/1",
        "nodes/n1",
        "nodes/n1/registration/more",
        "nodes/n1/weather",
        "desired/n1",
        "cordons/h1",
        "cordons/h1/incident/run",
        "runs/run",
        "runs/run/memory/group-x",
        "runs/run/memory/other",
        "runs/run/groups/one",
        "runs/run/checkpoint/1",
    ],
)
def test_a_key_that_is_none_of_ours_is_reported(key: str) -> None:
    assert check(keys.PREFIX + key, encode(Control())) == {keys.PREFIX + key: "no key of this program's"}


def test_what_we_write_is_read() -> None:
    values = {**run_values(), **registration("n1"), keys.control("run"): encode(Control())}
    assert len(values) > 10
    assert audit(mirror_of(values), values) == {}


def test_only_what_changed_is_looked_at() -> None:
    mirror = mirror_of({keys.control("run"): b"?", keys.spec("run"): b"?"})
    assert set(audit(mirror, [keys.spec("run")])) == {keys.spec("run")}
    assert audit(mirror, []) == {}


def test_a_key_that_is_gone_again_is_no_problem() -> None:
    assert audit(mirror_of({}), [keys.control("run")]) == {}


def test_a_record_that_was_mended_is_read_again() -> None:
    key = keys.control("run")
    mirror = mirror_of({key: b"?"})
    assert set(audit(mirror, mirror.fresh())) == {key}
    mirror.apply(Changes(revision=2, puts=(Item(key, encode(Control(paused=True)), 1, 2),)))
    assert audit(mirror, mirror.fresh()) == {}
    assert mirror.unreadable == {}
