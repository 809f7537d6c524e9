"""Maps gRPC's errors to the ports' errors, by status code, and by text only for one of etcd's messages."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from supervisor.ports.errors import Fatal, Fenced, Retryable
from supervisor.shell.etcd.stubs import etcd3, rpc

NOSPACE_MEND = (
    "etcd's database has reached its quota (alarm NOSPACE): it refuses puts and leases until someone runs "
    "`etcdctl compact REVISION`, `etcdctl defrag`, `etcdctl alarm disarm`, in this order; then raise "
    "--quota-backend-bytes or shorten --auto-compaction-retention"
)

DEFAULT_REQUEST_LIMIT = 1_572_864
"""Bytes of one request that etcd accepts by default (--max-request-bytes)."""

MUTE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
"""The member is away, or has no leader: another one may do better."""

_REFUSED = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""Codes of requests that will be refused again. All others (among them UNKNOWN and INTERNAL, which gRPC uses for broken
streams) may pass."""


_AUTH_MOVED_ON = "etcdserver: revision of auth store is old"
"""etcd's message for a request in flight while users or roles changed. It has the code of a malformed request, so that
only this text tells them apart."""


class OutOfSpace(Retryable):
    """The store is full. It works again once a person repairs it; the text says how."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: {NOSPACE_MEND}", after_s=5.0)


class LeaseLost(Fenced):
    """The lease of a write is gone: nothing was written, and its keys may belong to another client by now."""


def code_of(error: BaseException | None) -> grpc.StatusCode:
    """Returns the status code of an RpcError; UNKNOWN for anything else."""
    code = getattr(error, "code", None)
    found = code() if callable(code) else None
    return found if isinstance(found, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


def details_of(error: BaseException | None) -> str:
    """Returns the message of the server or gRPC, for people."""
    details = getattr(error, "details", None)
    text = details() if callable(details) else None
    return str(text or error or "no reason given")


def is_denied(error: BaseException | None) -> bool:
    """Returns true if a port's error says that etcd does not allow this to our user."""
    return error is not None and code_of(error.__cause__) is grpc.StatusCode.PERMISSION_DENIED


def is_refusal(error: BaseException | None) -> bool:
    """Returns true if the same request would be refused again."""
    return code_of(error) in _REFUSED


def raise_port_error(
    error: BaseException | None, what: str, writes: bool, client: Any, size: int, user: str = ""
) -> NoReturn:
    """Raises the port's error for an RpcError.

    `what` names the request; `writes` is true if it may have taken effect all the same. `size` is roughly the number of
    bytes sent; `user` is the name in our certificate.
    """
    code, said = code_of(error), details_of(error)
    if code is grpc.StatusCode.PERMISSION_DENIED:
        who = f"the user {user!r} (the common name of our certificate)" if user else "a client without a certificate"
        raise Fatal(
            f"{what}: etcd does not allow this to {who}: use the certificate of a user who may, or create this "
            "user with `supervisor init-auth`"
        ) from error
    if code is grpc.StatusCode.INVALID_ARGUMENT and said == _AUTH_MOVED_ON:
        raise Retryable(f"{what}: etcd's users or roles were changed just now", after_s=0.1) from error
    if code in _REFUSED:
        raise Fatal(f"{what}: etcd refuses ({code.name}: {said})") from error
    if code is grpc.StatusCode.NOT_FOUND:
        raise LeaseLost(f"{what}: the lease is gone ({said})") from error
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if int(rpc.NOSPACE) in alarms_of(client):
            raise OutOfSpace(what) from error
        if size > DEFAULT_REQUEST_LIMIT:
            raise Fatal(f"{what}: {size} bytes in one request are more than etcd accepts ({said})") from error
        raise Retryable(f"{what}: etcd is overloaded ({said})") from error
    if writes:
        raise Retryable(f"unknown outcome of {what} ({code.name}: {said}): read again before repeating it") from error
    raise Retryable(f"{what}: etcd is away ({code.name}: {said})") from error


def alarms_of(client: Any) -> frozenset[int]:
    """Returns the kinds of active alarms; empty if etcd cannot list them."""
    try:
        return frozenset(int(alarm.alarm_type) for alarm in client.list_alarms())
    except (grpc.RpcError, etcd3.Etcd3Exception):
        return frozenset()
