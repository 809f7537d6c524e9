"""`supervisor init-auth`: creates etcd's users and roles as docs/adr/0007-security.md defines them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from supervisor.ports.errors import Fatal
from supervisor.ports.store import MAX_OPERATIONS
from supervisor.shell.etcd import EtcdStore, connect, holes
from supervisor.shell.etcd.convert import range_of
from supervisor.shell.etcd.errors import LeaseLost
from supervisor.shell.etcd.stubs import rpc
from supervisor.wire import keys, node_requests
from supervisor.wire.records import RemovedNode, encode
from supervisor.wire.security import ROOT, Security, SecurityError, node_name, read_certificate

SUPERVISOR = "supervisor"
READER = "reader"

READ, READWRITE = "read", "readwrite"

Permissions = Mapping[str, str]
"""READ or READWRITE, by prefix."""

PROBE_S = 30
"""The lease of a key that a node must not write."""

OLDEST = (3, 4)
"""Oldest etcd version that works: older servers have no users without a password, and would accept an empty one."""


def roles(nodes: Sequence[str]) -> dict[str, Permissions]:
    """Returns each role's permissions, with those of the node that only tries. Each role has one user, of the same
    name."""
    ours = {keys.PREFIX: READWRITE, node_requests.PREFIX: READWRITE}
    found: dict[str, Permissions] = {SUPERVISOR: ours, READER: {keys.PREFIX: READ}}
    for node in (holes.PROBE, *nodes):
        found[node_name(node)] = {
            keys.desired(node, ""): READ,
            f"{keys.NODES}{node}/": READWRITE,
            node_requests.asked(node, ""): READ,
            f"{node_requests.ANSWERS}{node}/": READWRITE,
        }
    return found


def init_auth(
    endpoints: Sequence[str], security: Security, nodes: Sequence[str], removed: Sequence[str] = ()
) -> Iterator[str]:
    """Creates what is missing, revokes excess permissions of our roles, takes the users of `removed` nodes away, and enables
    the checks. Yields a sentence after each change. Then tries, with the certificate of a node, if etcd holds its users
    to their roles.

    Raises SecurityError without certificates; Fatal, also when the certificate is not that of `root`, or when etcd has
    open holes, or no node's certificate to try them is here, and this security file does not accept that; Retryable when
    etcd is away.
    """
    if not security.tls:
        raise SecurityError(
            "init-auth needs --security FILE with the certificate of `root`: etcd knows its users by certificates"
        )
    who = read_certificate(security).name
    if who != ROOT:
        raise Fatal(f"{security.cert} is the certificate of {who!r}: init-auth is only for `root`")
    plain = [endpoint for endpoint in endpoints if not endpoint.strip().startswith("https://")]
    if plain:
        raise Fatal(f"etcd at {plain[0]} is addressed without TLS, so it sees no certificate: give https://HOST:PORT")
    with connect(endpoints, security=security) as store:
        _check_version(store)
        yield from _removals(store, removed)
        yield from _changes(store, nodes)
        yield from _probe(store, endpoints, security)


def _check_version(store: EtcdStore) -> None:
    version = store.status().version
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise Fatal(f"etcd {version} has no users without a password: use 3.4 or newer")


def _changes(store: EtcdStore, nodes: Sequence[str]) -> Iterator[str]:
    for node in nodes:
        if store.get(keys.removed_node(node)) is not None:
            store.commit({}, [keys.removed_node(node)])
            yield f"node {node} may ask for certificates again"
    known = set(ask(store, "UserList", rpc.AuthUserListRequest()).users)
    existing = set(ask(store, "RoleList", rpc.AuthRoleListRequest()).roles)
    for role, permissions in roles(nodes).items():
        if role not in existing:
            ask(store, "RoleAdd", rpc.AuthRoleAddRequest(name=role))
            yield f"role {role} made"
        yield from _set_permissions(store, role, permissions)
    for user in (ROOT, *roles(nodes)):
        if user not in known:
            options = rpc.auth_pb2.UserAddOptions(no_password=True)
            ask(store, "UserAdd", rpc.AuthUserAddRequest(name=user, options=options))
            yield f"user {user} made"
        if user not in ask(store, "UserGet", rpc.AuthUserGetRequest(name=user)).roles:
            ask(store, "UserGrantRole", rpc.AuthUserGrantRoleRequest(user=user, role=user))
            yield f"user {user} has the role {user}"
    ask(store, "AuthEnable", rpc.AuthEnableRequest())
    yield "etcd checks permissions"


def _removals(store: EtcdStore, nodes: Sequence[str]) -> Iterator[str]:
    """Ends the rights of nodes, and what they have written: etcd knows them by certificates that may be valid for long. A
    watch that is open stays open, for etcd checks it at its begin alone."""
    known = set(ask(store, "UserList", rpc.AuthUserListRequest()).users)
    existing = set(ask(store, "RoleList", rpc.AuthRoleListRequest()).roles)
    for node in nodes:
        name = node_name(node)
        if name in known:
            ask(store, "UserDelete", rpc.AuthUserDeleteRequest(name=name))
            yield f"user {name} removed"
        else:
            yield f"there is no user {name}"
        if name in existing:
            ask(store, "RoleDelete", rpc.AuthRoleDeleteRequest(role=name))
            yield f"role {name} removed"
        written = [
            item
            for prefix in (f"{keys.NODES}{node}/", f"{node_requests.ANSWERS}{node}/")
            for item in store.list(prefix).items
        ]
        for lease in {item.lease for item in written if item.lease}:
            with store.connection.call(f"revoke a lease of {node}", writes=True) as client, suppress(LeaseLost):
                client.revoke_lease(lease)
        for at in range(0, len(written), MAX_OPERATIONS):
            store.commit({}, deletes=[item.key for item in written[at : at + MAX_OPERATIONS]])
    for node in nodes:  # last: an etcd that a node has filled takes deletes alone
        store.put(keys.removed_node(node), encode(RemovedNode(node=node)))


def _probe(store: EtcdStore, endpoints: Sequence[str], security: Security) -> Iterator[str]:
    lease = store.lease(PROBE_S)
    store.put(holes.OUTSIDE, b"", lease.id)
    try:
        tried = holes.tried(store, endpoints, security, lease.id)
    finally:
        lease.revoke()
    yield from holes.refuse(tried, security)
    if not tried.user and not security.accepts_holes:
        raise Fatal(
            f"{tried.sentence}. So it is not proved that etcd holds its users to their roles; all else is done. Or write "
            "`insecure = true` into the security file if every node may do anything"
        )
    yield tried.sentence


def _set_permissions(store: EtcdStore, role: str, permissions: Permissions) -> Iterator[str]:
    kinds = {READ: rpc.auth_pb2.Permission.READ, READWRITE: rpc.auth_pb2.Permission.READWRITE}
    given = {(p.key, p.range_end): p.permType for p in ask(store, "RoleGet", rpc.AuthRoleGetRequest(role=role)).perm}
    for prefix, kind in permissions.items():
        start, end = range_of(prefix)
        if given.pop((start, end), None) != kinds[kind]:
            permission = rpc.auth_pb2.Permission(permType=kinds[kind], key=start, range_end=end)
            ask(store, "RoleGrantPermission", rpc.AuthRoleGrantPermissionRequest(name=role, perm=permission))
            yield f"role {role} may {kind} {prefix}"
    for start, end in given:
        ask(store, "RoleRevokePermission", rpc.AuthRoleRevokePermissionRequest(role=role, key=start, range_end=end))
        yield f"role {role} may no longer use {start.decode(errors='replace')}"


def ask(store: EtcdStore, what: str, request: Any, writes: bool = True) -> Any:
    """Makes one call of etcd's auth service, through a store's connection. Raises Retryable or Fatal."""
    with store.connection.call(what, writes=writes) as client:
        make: Any = rpc.AuthStub  # built at run time, so it has no types
        return getattr(make(client.channel), what)(request, store.timeout_s)
