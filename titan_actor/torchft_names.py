"""Everything of TorchFT 0.2 that Everstep uses beside its documented interface: private names, and what its native
servers are given. No other module touches these (`tests/architecture/test_torchft.py`), so that a new TorchFT changes
this file: docs/DEPENDENCIES.md lists what 0.3 changes.

Imports nothing large before it is called: the lighthouse loads TorchFT's native module alone.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from typing import Any

from supervisor.wire import local_peer
from titan_actor import address

Call = Callable[..., Any]
Wrap = Callable[[Call], Call]

# --- a manager ---


class _Later:
    """Stands for a manager that is yet to be made. What is set on it before is set on that."""

    def __init__(self, make: Call, **options: Any) -> None:
        vars(self).update(_make=functools.partial(make, **options), _made=None, _set={"_pg": options["pg"]})

    def __getattr__(self, name: str) -> Any:
        if self._made is not None:
            return getattr(self._made, name)
        try:
            return self._set[name]
        except KeyError:
            raise AttributeError(f"TorchFT's manager is not made yet, and has no {name}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if self._made is not None:
            setattr(self._made, name, value)
        else:
            self._set[name] = value


@contextmanager
def later() -> Iterator[None]:
    """Has what is constructed inside get a manager that `make` makes: it serves and calls from its construction on."""
    import torchft

    manager = torchft.Manager
    torchft.Manager = functools.partial(_Later, manager)
    try:
        yield
    finally:
        torchft.Manager = manager


COUNTS = "-counts"
"""End of the replica id of a group whose step counts where it heals in it. All ranks of all groups see the ids alike: an
older one adds zeros in such a step, and divides by fewer, so none may count beside it."""


def counts(replica_id: str) -> bool:
    """Returns true for the id of a group that counts in a step in which it heals."""
    return replica_id.endswith(COUNTS)


@contextmanager
def named(before: str) -> Iterator[None]:
    """Has a manager that is made inside take the whole id of the group's start before; empty, or an older version's: one of
    its own. The lighthouse need not drop that one first, and the quorum waits for no one. Needs `join_anew`."""
    import torchft.manager as module

    uuid = module.uuid
    own = before.partition(":")[2] if counts(before) else f"{uuid.uuid4()}{COUNTS}"
    module.uuid = types.SimpleNamespace(uuid4=lambda: own)
    try:
        yield
    finally:
        module.uuid = uuid


def join_anew(manager: Any) -> None:
    """Has the manager's first quorum be a new one, also if its members' ids are those of the last: the others must meet this
    process. It asks as one whose commit has failed."""
    manager._commit_failures = 1


def take_place(ft_manager: Any, group: int) -> None:
    """Has what TorchTitan has around a manager of `later` be of another group. Raises what a missing name raises."""
    options = ft_manager.manager._make.keywords
    prefix = options["replica_id"].removesuffix(str(ft_manager.replica_id))
    options["replica_id"], ft_manager.replica_id = f"{prefix}{group}", group


def make(manager: Any) -> None:
    """Makes a manager of `later`, by the environment of now. Raises what TorchFT raises."""
    made = manager._make()
    for name, value in manager._set.items():
        setattr(made, name, value)
    vars(manager)["_made"] = made


def replica_id(manager: Any) -> str:
    """Returns a group's id in the quorum: the prefix that its script gave, and a uuid of this start."""
    return str(manager._store.get("replica_id").decode())


def heal_address(manager: Any) -> str:
    """Returns the URL at which this rank gives its state to peers that heal."""
    return str(manager._checkpoint_transport.address())


def addresses(manager: Any) -> tuple[str, str]:
    """Returns the URLs of the group's manager server and of this rank's heal server."""
    return manager._store.get("manager_addr").decode(), heal_address(manager)


def quorum_id(manager: Any) -> int:
    """Returns the number of the newest quorum; -1 before the first."""
    return int(manager._quorum_id)


def is_pending(manager: Any) -> bool:
    """Returns true while a quorum that was asked for is not there."""
    future = manager._quorum_future
    return future is not None and not future.done()


def place(manager: Any) -> tuple[int, int | None]:
    """Returns how many groups take part in the newest quorum, and this one's number among them. Waits for no quorum."""
    return manager._participating_replica_world_size, manager._participating_replica_rank


def process_group(manager: Any) -> Any:
    """Returns the process group between groups, which each new quorum configures."""
    return manager._pg


def notice_members(manager: Any, seen: Callable[[list[str]], None]) -> None:
    """Calls `seen` with the replica ids of each new quorum, before its process group is configured."""
    manager._client = _Noticing(manager._client, seen)


class _Noticing:
    def __init__(self, client: Any, seen: Callable[[list[str]], None]) -> None:
        self._client, self._seen = client, seen
        self.place: tuple[int, int] | None = None
        """This group's number in the newest quorum, and the size of that."""
        self.heals = False
        """True if a group heals in the newest quorum."""
        self.all_count = False
        """True if all groups of the newest quorum count in a step in which one of them heals."""
        self.groups: frozenset[int] = frozenset()
        """Numbers of the groups in the newest quorum: those at the end of their replica ids, before TorchFT's uuid."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _quorum(self, *args: Any, **kwargs: Any) -> Any:
        quorum = self._client._quorum(*args, **kwargs)
        self.place = quorum.replica_rank, quorum.replica_world_size
        self.all_count = all(map(counts, quorum.replica_ids))
        behind = quorum.max_world_size < quorum.replica_world_size
        found = (re.search(r"\d+$", name.partition(":")[0]) for name in quorum.replica_ids)
        self.groups = frozenset(int(number[0]) for number in found if number is not None)
        # at step 0 none is behind: all take the state of one, and that gives it
        self.heals = behind or quorum.heal or bool(quorum.recover_dst_replica_ranks)
        self._seen(list(quorum.replica_ids))
        return quorum


def wrap_waits(wrap: Wrap) -> None:
    """Wraps the wait for every collective between groups. On the class: on each work it would be a cycle, which holds
    the gradient until the next garbage collection."""
    from torchft.manager import _ManagedWork

    _ManagedWork.wait = wrap(_ManagedWork.wait)


def done(tensor: Any) -> Any:
    """Returns a collective that is over."""
    from torchft.work import _DummyWork

    return _DummyWork(tensor)


# --- a heal ---


def wrap_transfers(manager: Any, receive: Wrap, send: Wrap) -> None:
    """Wraps the calls that fetch a peer's state and give ours, in whatever thread they run."""
    transport = manager._checkpoint_transport
    transport.recv_checkpoint, transport.send_checkpoint = (
        receive(transport.recv_checkpoint),
        send(transport.send_checkpoint),
    )


def groups(manager: Any) -> frozenset[int]:
    """Returns the numbers of the groups in the newest quorum, as their replica ids have them. After `notice_members`."""
    return frozenset(manager._client.groups)


def heals(manager: Any) -> bool:
    """Returns true if a group heals in the newest quorum. After `notice_members`."""
    return bool(manager._client.heals)


def all_count(manager: Any) -> bool:
    """Returns true if all groups of the newest quorum count in a step in which one heals. After `notice_members`."""
    return bool(manager._client.all_count)


def limit_collectives(manager: Any, limit: timedelta) -> None:
    """Sets how long a collective between groups may take from now on. A process group that does not take it keeps
    its own, as one in a process of its own does."""
    from torch.distributed import ProcessGroupGloo
    from torchft.process_group import ProcessGroup

    groups = manager._pg
    while isinstance(groups, ProcessGroup):
        with suppress(NotImplementedError):
            groups.set_timeout(limit)  # NCCL's, for each as it begins
        groups = getattr(groups, "_pg", None)
    for device in groups._device_types if groups is not None else ():
        backend = groups._get_backend(device)
        # NCCL's own is left: it is of a watchdog that ends the process
        if isinstance(backend, ProcessGroupGloo):
            backend._set_default_timeout(limit)


def limit_heals(manager: Any, limit: timedelta) -> None:
    """Sets how long a group that gives its state waits for its reader, before its own next step. TorchFT raises after
    it, which ends the group that gives."""
    lock = getattr(manager._checkpoint_transport, "_checkpoint_lock", None)
    if lock is not None:
        lock.timeout = max(lock.timeout, limit.total_seconds())


def notice_heal(manager: Any, part: Callable[[], AbstractContextManager[None]], loaded: Callable[[], None]) -> None:
    """Runs inside `part` what loads a peer's state, which TorchFT does at the quorum or before the commit. Calls
    `loaded` once it is loaded; not where an error kept it from being fetched."""
    apply = manager._apply_pending_state_dict

    def applying() -> None:
        manager.wait_quorum()
        fetched = manager._pending_state_dict is not None
        with part():
            apply()
        if fetched:
            loaded()

    manager._apply_pending_state_dict = applying


def all_take_part(manager: Any, waited: bool) -> None:
    """Has all groups of the newest quorum count in its step, those that heal in it too: TorchFT's rule for a quorum that
    was waited for. One that heals and has not `waited` adds zeros, and has no place. After `notice_members`.

    From the lighthouse's answer: the ranks of a group must agree on it, also where one has met an error since."""
    if manager._client.place is not None:
        place, manager._participating_replica_world_size = manager._client.place
        manager._participating_replica_rank = None if manager._healing and not waited else place


def load_now(manager: Any, begins: Callable[[], None]) -> None:
    """Loads the peer's state before the first forward pass instead of after it, if this rank heals. `begins` is called
    before that."""
    if not manager._healing or manager.errored() is not None:
        return
    begins()
    if manager._recovery_event is not None:
        manager._recovery_event.synchronize()
    manager._apply_pending_state_dict()
    manager._healing = False


# --- native servers, by TorchFT's native module or its package ---


def lighthouse(
    torchft: Any, min_replicas: int, join_timeout_ms: int, quorum_tick_ms: int, heartbeat_timeout_ms: int
) -> Any:
    """Starts a lighthouse on loopback, at a port of its choice. Raises RuntimeError if it cannot listen."""
    return torchft.LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=min_replicas,
        join_timeout_ms=join_timeout_ms,
        quorum_tick_ms=quorum_tick_ms,
        heartbeat_timeout_ms=heartbeat_timeout_ms,
    )


def manager_server(torchft: Any, lighthouse_at: str, replica_id: str, host: str, beat_every: timedelta) -> Any:
    """Starts the manager server of a group of one rank that holds no state. Raises what TorchFT raises."""
    return torchft.ManagerServer(
        replica_id=replica_id,
        lighthouse_addr=lighthouse_at,
        hostname=host,
        bind=f"{host}:0",
        store_addr="",
        world_size=1,
        heartbeat_interval=beat_every,
        connect_timeout=timedelta(seconds=1),
        quorum_retries=0,
    )


def ask_for_quorum(client: Any, step: int, commit_failures: int, timeout: timedelta) -> Any:
    """Asks for a quorum by the client of such a server, and returns it. Raises what TorchFT raises."""
    request = {"group_rank": 0, "checkpoint_metadata": "", "shrink_only": False, "init_sync": False}
    return client._quorum(step=step, commit_failures=commit_failures, timeout=timeout, **request)


# --- mends: titan_actor/mends.py has the fault of each ---


def listen_at_node() -> None:
    """Has a manager's server listen at the node's address, and advertise it."""
    import torchft.manager as manager

    server = manager.ManagerServer

    def at_node(**options: Any) -> Any:
        if (node := address.node()) is not None:
            host = f"[{node}]" if ":" in node else node
            port = options["bind"].rpartition(":")[2]
            options |= {"hostname": host, "bind": f"{host}:{port}"}
        try:
            return server(**options)
        except RuntimeError as error:
            # the native part does not name the address
            raise RuntimeError(f"TorchFT's manager cannot listen at {options['bind']}: {error}") from error

    manager.ManagerServer = at_node


def heal_at_node() -> None:
    """Has the server of heal state listen at the node's address, and advertise it. Other users of the node get nothing."""
    import socket
    import socketserver
    from http.server import ThreadingHTTPServer

    import torchft.checkpointing.http_transport as transport

    wildcard = transport._IPv6HTTPServer
    by_name = transport.HTTPTransport.address

    class NodeServer(ThreadingHTTPServer):
        daemon_threads = True

        def server_bind(self) -> None:
            # HTTPServer.server_bind asks the DNS for its own name
            socketserver.TCPServer.server_bind(self)
            self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

        def verify_request(self, request: Any, client_address: Any) -> bool:
            try:
                return not local_peer.is_another_users(request)
            except OSError:
                return False  # it is gone

    def serve(bind: tuple[str, int], handler: Any) -> Any:
        if (node := address.node()) is None:
            return wildcard(bind, handler)
        NodeServer.address_family = socket.AF_INET6 if ":" in node else socket.AF_INET
        return NodeServer((node, bind[1]), handler)

    def at_node(self: Any) -> str:
        if (node := address.node()) is None:
            return str(by_name(self))
        host = f"[{node}]" if ":" in node else node
        return f"http://{host}:{self._server.server_port}/checkpoint/"

    transport._IPv6HTTPServer = serve
    transport.HTTPTransport.address = at_node


def heal_without_proxy() -> None:
    """Has heal state be fetched directly."""
    import urllib.request

    import torchft.checkpointing.http_transport as transport

    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    # only its own name of the module: other downloads still use the proxy
    transport.urllib = types.SimpleNamespace(request=types.SimpleNamespace(urlopen=direct.open))


def heal_by_tensors_only() -> None:
    """Has heal state be read as tensors and plain values, never as code."""
    import torchft.checkpointing.http_transport as transport

    load = transport._streaming_load

    def tensors_only(stream: Any, weights_only: bool = True) -> Any:
        return load(stream, weights_only=True)

    transport._streaming_load = tensors_only


class _Counted:
    """A stream that reports the bytes that are read from it."""

    def __init__(self, stream: Any, counted: Callable[[int], None]) -> None:
        self._stream, self._counted = stream, counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, size: int = -1) -> Any:
        data = self._stream.read(size)
        self._counted(len(data))
        return data


def count_heals(counted: Callable[[int], None]) -> None:
    """Has each part of a peer's state that comes, a tensor at most, be reported by its bytes, in the thread that reads it."""
    import torchft.checkpointing.http_transport as transport

    load = transport._streaming_load

    def counting(stream: Any, weights_only: bool = True) -> Any:
        return load(_Counted(stream, counted), weights_only=weights_only)

    transport._streaming_load = counting


def wait_in_ddp_hook() -> None:
    """Has DistributedDataParallel wait for its collective where its hook is called."""
    import torch
    import torchft.ddp as ddp

    # torch refuses a hook without these annotations
    @functools.wraps(ddp.DistributedDataParallel._comm_hook)
    def wait_here(state: Any, bucket: Any) -> Any:
        # after the wait the bucket holds the average, or what the step is not committed with
        state.allreduce(bucket.buffer()).wait()
        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    ddp.DistributedDataParallel._comm_hook = staticmethod(wait_here)


def wrap_gloo(create: Wrap, abort: Wrap) -> None:
    """Wraps how gloo groups between groups are made and aborted."""
    from torchft.process_group import ProcessGroupGloo

    ProcessGroupGloo._create_pg = create(ProcessGroupGloo._create_pg)
    ProcessGroupGloo.abort = abort(ProcessGroupGloo.abort)
