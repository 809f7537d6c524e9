"""Changes a record that others may change at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from supervisor.ports.errors import Fenced
from supervisor.ports.store import Expect, Store
from supervisor.wire.records import decode, encode

T = TypeVar("T")


def rewrite(store: Store, key: str, kind: type[T], change: Callable[[T | None], T]) -> T:
    """Reads a record (None if there is none), changes it and writes it; retries if another writer came in between.
    Raises RecordError if it is unreadable, PortError if the store does not answer."""
    while True:
        item = store.get(key)
        wanted = change(decode(item.value, kind) if item is not None else None)
        try:
            store.commit({key: encode(wanted)}, expect=[Expect(key, mod_revision=item.mod_revision if item else 0)])
        except Fenced:
            continue
        return wanted
