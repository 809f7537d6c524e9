"""A supervisor does not lead on a state that is too new for it to read, nor on half a restore."""

from __future__ import annotations

import json

import pytest

from supervisor.ports.store import Item, Snapshot
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


def test_a_node_counts_while_its_agent_lives() -> None:
    left = {keys.observed("n1"): b'{"$kind":"NodeObserved","$version":2}'}
    assert _why(left) == ""
    assert keys.observed("n1") in _why({**left, keys.registration("n1"): b"?"})


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
