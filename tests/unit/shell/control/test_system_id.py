"""The system's name at a scheduler: made once, by the first process that needs it."""

from __future__ import annotations

import re

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.ports.errors import Fatal
from supervisor.ports.store import Item
from supervisor.shell.control.system_id import LENGTH, system_id
from supervisor.wire import keys
from supervisor.wire.records import System, encode

THEIRS = encode(System(name="theirs"))


def test_it_is_made_once_and_stays() -> None:
    store = MemoryStore()
    made = system_id(store)
    assert re.fullmatch(rf"[a-z][a-z0-9]{{{LENGTH - 1}}}", made)
    assert system_id(store) == made
    assert len(store.commits) == 1
    assert system_id(MemoryStore()) != made


def test_the_loser_reads_the_winners() -> None:
    class Late(MemoryStore):
        """A store in which another process writes between the look and the write."""

        def get(self, key: str) -> Item | None:
            found = super().get(key)
            if found is None:
                super().commit({key: THEIRS})
            return found

    store = Late()
    assert system_id(store) == "theirs"
    assert [dict(c) for c in store.commits] == [{keys.SYSTEM: THEIRS}]


def test_what_is_no_name_is_refused() -> None:
    store = MemoryStore()
    store.put(keys.SYSTEM, encode(System(name="a b/c")))
    with pytest.raises(Fatal, match="which is not a valid name"):
        system_id(store)
    store.put(keys.SYSTEM, b"abc")
    with pytest.raises(Fatal, match="cannot be read"):
        system_id(store)
