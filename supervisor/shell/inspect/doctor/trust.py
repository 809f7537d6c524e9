"""Examines the connection's security: encryption, expiry of certificates, and excess permissions of this user."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence

import grpc

from supervisor.ports.errors import PortError
from supervisor.shell.etcd import EtcdStore, auth, holes
from supervisor.shell.etcd.convert import range_of
from supervisor.shell.etcd.errors import code_of
from supervisor.shell.etcd.stubs import rpc
from supervisor.shell.inspect.doctor.finding import Finding, bad, good, note
from supervisor.wire.expiry import expiries
from supervisor.wire.security import ROOT, Security, SecurityError, load, read_certificate, socket_of

SOON_S = 10 * 86400.0
"""A third of the life of the certificates that deploy/certificates.sh makes."""

RENEW = "replace the files (deploy/certificates.sh makes new ones); no restart is needed"

Permission = tuple[bytes, bytes, bool]
"""Start, end (exclusive), and true if the user may write there."""


def certificates(security: Security, now: float) -> Iterator[Finding]:
    """Yields when the files in use expire: our own, the authority's, the deny list, and the nodes' that can be read here."""
    if not security.tls:
        return
    try:
        for what, until in expiries(security):
            yield expiry(what, until, now)
    except (SecurityError, OSError) as error:
        yield bad(str(error), RENEW)
    for path in sorted(security.nodes_folder.glob("node-*.toml")):
        try:
            theirs = load(path)
            if theirs.tls and theirs.cert != security.cert:
                yield expiry(f"the certificate {theirs.cert}", read_certificate(theirs).not_after_unix_s, now)
        except SecurityError as error:
            yield bad(str(error), RENEW)


def expiry(what: str, not_after_unix_s: float, now: float) -> Finding:
    left = not_after_unix_s - now
    if left == math.inf:
        return good(f"{what} has no end")
    if left <= 0:
        return bad(f"{what} has expired", RENEW)
    said = f"{what} is valid for {left / 86400:.0f} more days"
    return note(said, RENEW) if left < SOON_S else good(said)


def talk(endpoints: Sequence[str], security: Security) -> Finding:
    """Reports whether the connection to etcd is encrypted."""
    if security.tls and all(e.strip().startswith("https://") for e in endpoints):
        return good("TLS to etcd, both ways")
    if security.insecure:
        return note("insecure = true: nothing is encrypted", "docs/TLS.md says how to make certificates")
    return good("etcd without TLS, only on loopback")


def rights(store: EtcdStore, endpoints: Sequence[str], security: Security) -> Iterator[Finding]:
    """Checks that etcd enforces permissions, and that this user has exactly those that it needs. Writes nothing."""
    checks = _checks(store)
    tls = security.tls and all(e.strip().startswith("https://") for e in endpoints)
    if checks is None:
        yield note("etcd does not report if it checks permissions", "look at its log")
    elif not checks and tls:
        yield bad(
            "etcd checks no permissions: anyone with a certificate may write everything",
            "supervisor init-auth --security root.toml --node NAME ...",
        )
    elif not checks and all(socket_of(e.strip()) for e in endpoints):
        yield good("etcd is at a socket that only its user can reach")
    elif not checks:
        yield note(
            "etcd checks no permissions: anyone who reaches it may write everything",
            "acceptable only on a machine of your own",
        )
    if not checks or not tls:
        return
    try:
        user = read_certificate(security).name
        yield from surplus(user, _permissions(store, user))
        tried = holes.tried(store, endpoints, security)
        for hole in tried.holes:
            yield bad(f"etcd does not hold its users to their roles: {hole.sentence}", holes.mend([hole]))
        if tried.left:
            again = "run this again once a supervisor leads"
            yield note(
                tried.sentence, again if tried.node else "a supervisor with `signs` in its file tries all of them"
            )
    except (SecurityError, PortError) as error:
        yield note(f"cannot read the permissions of this user: {error}", "run this with the certificate of `root`")


def _checks(store: EtcdStore) -> bool | None:
    """Returns true if etcd's auth is on, None if unknown. etcd 3.4 has no query for it, but rejects an empty name and
    password with different errors."""
    try:
        auth.ask(store, "Authenticate", rpc.AuthenticateRequest(name="", password=""), writes=False)
    except PortError as error:
        code = code_of(error.__cause__)
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            return False
        return True if code is grpc.StatusCode.INVALID_ARGUMENT else None
    return None


def _permissions(store: EtcdStore, user: str) -> set[Permission]:
    reads = int(rpc.auth_pb2.Permission.READ)
    found = set()
    for role in auth.ask(store, "UserGet", rpc.AuthUserGetRequest(name=user), writes=False).roles:
        if role == ROOT:
            found.add((b"\0", b"\0", True))
            continue
        for p in auth.ask(store, "RoleGet", rpc.AuthRoleGetRequest(role=role), writes=False).perm:
            found.add((bytes(p.key), bytes(p.range_end), int(p.permType) != reads))
    return found


def surplus(user: str, given: Collection[Permission]) -> Iterator[Finding]:
    """Compares a user's permissions with those that `init-auth` grants."""
    mend = "supervisor init-auth with the certificate of `root` corrects this (give --node for each node)"
    if user == ROOT:
        yield note(
            "this is the certificate of `root`, which may do everything", "use that of `supervisor` for daily work"
        )
        return
    node = user.removeprefix("node-") if user.startswith("node-") else ""
    must = {
        (*range_of(prefix), kind == auth.READWRITE)
        for prefix, kind in auth.roles([node] if node else []).get(user, {}).items()
    }
    if not must:
        yield bad(
            f"etcd knows {user!r}, which is not a user of this program",
            "give a certificate that docs/SECURITY.md names",
        )
        return
    more, less = set(given) - must, must - set(given)
    for start, _, writes in sorted(more):
        yield bad(f"user {user} may {'write' if writes else 'read'} {_key(start)}, which it must not", mend)
    for start, _, writes in sorted(less):
        yield bad(f"user {user} may not {'write' if writes else 'read'} {_key(start)}, which it must", mend)
    if not more and not less:
        yield good(f"etcd checks permissions; user {user} may do what it must and no more")


def _key(start: bytes) -> str:
    return start.decode(errors="replace").replace("\0", "") or "everything"


def examine(endpoints: Sequence[str], security: Security) -> Iterator[Finding]:
    """Yields all findings that need no etcd."""
    yield talk(endpoints, security)
    yield from certificates(security, time.time())
