"""A supervisor does not lead on a state that is too new for it to read, nor on half a restore."""

from __future__ import annotations

import json

import pytest

from supervisor.ports.store import Item, Snapshot
from supervisor.shell.control.audit import audit
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.control.version_guard import newer_records, why_not
from supervisor.wire import keys, records
from supervisor.wire.records import Control, Restoring, encode

NEWER = b'{"$kind":"Control","$version":2,"colour":"blue"}'


def _mirror(values: dict[str, bytes]) -> Mirror:
    return Mirror(Snapshot(1, tuple(Item(key, value, 1, 1) for key, value in values.items())))


def _why(values: dict[str, bytes]) -> str:
    mirror = _mirror(values)
    return why_not(mirror, mirror.items)


@pytest.mark.parametrize("value", [NEWER, b" " + NEWER, json.dumps(json.loads(NEWER), indent=2).encode()])
def test_a_newer_record_is_named_with_its_key_and_what_to_do(value: bytes) -> None:
    said = _why({keys.control("run"): value, keys.spec("run"): encode(Control())})
    assert f"{keys.control('run')}: version 2 is newer than this program's 1" in said
    assert "docs/UPGRADES.md" in said


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{torn",
        b"\xff",
        b"[]",
        b'{"$kind":"Control"}',
        b'{"$version":7}',
        b'{"$kind":"Control","$version":' + b"7" * 5000 + b"}",
        encode(Control()),
    ],
)
def test_what_is_corrupt_or_ours_is_no_newer_state(value: bytes) -> None:
    assert _why({keys.control("run"): value}) == ""


def test_a_key_that_only_a_newer_program_knows_counts() -> None:
    assert _why({keys.PREFIX + "weather": b'{"$kind":"Weather","$version":2}'}) != ""


NODES = ("n1", "n2", "n3", "n4")
AHEAD = b'{"$kind":"NodeObserved","$version":2}'


@pytest.mark.parametrize("name", ["zzz", "zzz/zzz", "health", "registration", "gate/run"])
@pytest.mark.parametrize("version", [2, 99])
def test_one_node_never_decides(name: str, version: int) -> None:
    live = {keys.registration(node): b"?" for node in NODES}
    key = f"{keys.NODES}n1/{name}"
    values = {**live, key: b'{"$kind":"X","$version":%d}' % version}
    assert _why(values) == ""
    assert key in audit(_mirror(values), [key]), "it is reported"


def test_a_fleet_that_is_newer_counts() -> None:
    live = {keys.registration(node): b"?" for node in NODES}
    ahead = {keys.observed(node): AHEAD for node in NODES}
    half = dict([*ahead.items()][:2])
    assert _why({**live, **half}) == ""
    values = {**live, **half, keys.health("n3"): b'{"$kind":"Health","$version":2}'}
    assert "3 records of a newer program" in _why(values)
    assert [*newer_records(_mirror(values), [keys.health("n3")])] == [keys.health("n3")], "one changed, all are counted"


def test_nodes_count_while_their_agents_live() -> None:
    ahead = {keys.observed(node): AHEAD for node in NODES}
    assert _why(ahead) == ""
    assert _why({**ahead, keys.registration("n5"): b"?"}) == ""


def test_only_what_changed_is_looked_at() -> None:
    assert newer_records(_mirror({keys.control("run"): NEWER}), [keys.spec("run")]) == {}


def test_a_restore_that_has_not_ended() -> None:
    assert "restore" in _why({keys.RESTORING: encode(Restoring(file="f", host="h", pid=1))})


def test_a_kind_of_its_own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(records.VERSIONS, "Control", 2)
    assert _why({keys.control("run"): NEWER}) == ""
    assert json.loads(encode(Control()))["$version"] == 2
    assert json.loads(encode(Restoring(file="", host="", pid=1)))["$version"] == 1
    assert records.decode(NEWER, Control) == Control()
    with pytest.raises(records.NewerRecord, match="version 3 is newer than this program's 2"):
        records.decode(NEWER.replace(b"2", b"3"), Control)
