"""The name that marks this system's jobs at a scheduler, where one user may have several systems."""

from __future__ import annotations

import re
import secrets

from supervisor.ports.errors import Fatal, Fenced
from supervisor.ports.store import Expect, Store
from supervisor.wire import keys
from supervisor.wire.records import RecordError, System, decode, encode

_FIRST, _OTHERS = "abcdefghijkmnpqrstuvwxyz", "abcdefghijkmnpqrstuvwxyz23456789"  # pragma: allowlist secret
"""Letters and digits without l, o, 0 and 1, since people read the name out to each other."""

LENGTH = 8


def system_id(store: Store) -> str:
    """Returns the name: 8 small letters and digits, made if missing. Raises Retryable; Fatal for an invalid one."""
    while True:
        item = store.get(keys.SYSTEM)
        if item is not None:
            return _read(item.value)
        made = secrets.choice(_FIRST) + "".join(secrets.choice(_OTHERS) for _ in range(LENGTH - 1))
        try:
            store.commit({keys.SYSTEM: encode(System(name=made))}, expect=[Expect(keys.SYSTEM, create_revision=0)])
        except Fenced:
            continue  # another process was faster: its name counts
        return made


def _read(value: bytes) -> str:
    try:
        name = decode(value, System).name
    except RecordError as error:
        raise Fatal(f"{keys.SYSTEM} cannot be read ({error}): jobs carry this name; restore its old value") from error
    if not re.fullmatch(r"[a-z][a-z0-9]{0,31}", name):
        raise Fatal(f"{keys.SYSTEM} is {name!r}, which is not a valid name: jobs carry it; restore its old value")
    return name
