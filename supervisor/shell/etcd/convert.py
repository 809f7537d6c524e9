"""Converts between the port's values and etcd's messages."""

from __future__ import annotations

from typing import Any

from supervisor.ports.store import Expect, Item
from supervisor.shell.etcd.stubs import rpc


def bytes_of(key: str) -> bytes:
    """Encodes a key. A foreign key may hold any bytes: they survive both ways."""
    return key.encode("utf-8", "surrogateescape")


def key_of(key: bytes) -> str:
    """Reverses `bytes_of`."""
    return key.decode("utf-8", "surrogateescape")


def item_of(kv: Any) -> Item:
    """Converts etcd's KeyValue to an Item."""
    return Item(key_of(kv.key), kv.value, kv.create_revision, kv.mod_revision, kv.lease)


def range_of(prefix: str) -> tuple[bytes, bytes]:
    """Returns the first key and the end (exclusive) of a prefix; NUL to NUL is everything."""
    start = bytes_of(prefix)
    end = start.rstrip(b"\xff")
    return (start, end[:-1] + bytes([end[-1] + 1])) if end else (b"\0", b"\0")


def compares(expect: Expect) -> list[Any]:
    """Returns etcd's compares for one expectation: one for each given revision."""
    key, equal = bytes_of(expect.key), rpc.Compare.EQUAL
    found = []
    if expect.create_revision is not None:
        revision = expect.create_revision
        found.append(rpc.Compare(key=key, result=equal, target=rpc.Compare.CREATE, create_revision=revision))
    if expect.mod_revision is not None:
        revision = expect.mod_revision
        found.append(rpc.Compare(key=key, result=equal, target=rpc.Compare.MOD, mod_revision=revision))
    return found


def put(key: str, value: bytes, lease: int) -> Any:
    """Returns a put for a transaction."""
    return rpc.RequestOp(request_put=rpc.PutRequest(key=bytes_of(key), value=value, lease=lease))


def delete(key: str) -> Any:
    """Returns a delete for a transaction."""
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=bytes_of(key)))


def words(expect: Expect) -> str:
    """Writes an expectation for people."""
    parts = [("created", expect.create_revision), ("modified", expect.mod_revision)]
    return f"{expect.key} " + " and ".join(f"{name} at {value}" for name, value in parts if value is not None)
