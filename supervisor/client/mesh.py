"""A Monarch mesh on the idle nodes of a pool (docs/MONARCH.md). Monarch is imported when the first mesh is made."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from supervisor.client.errors import EverstepError
from supervisor.ports.errors import PortError
from supervisor.ports.store import Store
from supervisor.shell.enroll.ephemeral import Authority
from supervisor.shell.inspect import asking
from supervisor.wire import monarch
from supervisor.wire.address import towards
from supervisor.wire.node_requests import UNTIL_CLOSED_S, NodeRequest
from supervisor.wire.person import who
from supervisor.wire.version import DISTRIBUTION, missing

if TYPE_CHECKING:
    from supervisor.shell.control.state_cache import Mirror
    from supervisor.shell.inspect.asking import Said
    from supervisor.shell.inspect.pools import PoolStatus

log = logging.getLogger(__name__)

LEASE_S = 15
"""Seconds after which a mesh ends whose program was killed, or whose etcd is away."""
BEGINS_WITHIN_S = 90.0
"""Seconds until all workers listen, and until Monarch has reached them."""
INSTALL = f"pip install '{DISTRIBUTION}[monarch]'"
STOPS_WITHIN_S = 5.0
ENDS_WITHIN_S = 10.0


class Mesh:
    """Monarch's HostMesh on nodes of a pool, made by `Pool.mesh`. It ends with the block, with `close`, with this program,
    and with the pool."""

    def __init__(self, store: Store, mirror: Mirror, requests: Mapping[str, NodeRequest]) -> None:
        self.nodes = tuple(requests)
        """Its nodes, in the order of the mesh's dimension `hosts`."""
        self.host_mesh: Any = None
        """monarch.actor.HostMesh, of one dimension: `hosts`."""
        self._store = store
        self._lost: dict[str, str] = {}
        self._at: dict[str, str] = {}
        self._news = threading.Condition()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, args=(mirror, requests), name="mesh", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Mesh of {', '.join(self.nodes)}>"

    @property
    def lost(self) -> dict[str, str]:
        """Nodes whose part of the mesh has ended, each with the reason. Calls on them raise an exception of Monarch."""
        with self._news:
            return dict(self._lost)

    def close(self) -> None:
        """Ends the mesh and all that runs on it. The nodes are free again within seconds."""
        if self._over.is_set():
            return
        atexit.unregister(self.close)
        if self.host_mesh is not None and not self.lost:
            try:
                self.host_mesh.stop().get(timeout=STOPS_WITHIN_S)
            except Exception as error:  # noqa: BLE001 - whatever Monarch says: the agents end what is left
                log.info("Monarch did not stop %r: %s", self, error)
        self._over.set()
        self._thread.join(ENDS_WITHIN_S)

    def wait_for_workers(self) -> list[str]:
        """Returns the workers' addresses. Raises EverstepError if one does not start."""
        until = time.monotonic() + BEGINS_WITHIN_S
        with self._news:
            while len(self._at) < len(self.nodes) and not self._lost:
                if not self._news.wait(max(0.0, until - time.monotonic())):
                    late = ", ".join(node for node in self.nodes if node not in self._at)
                    raise EverstepError(f"no worker listens on {late} after {BEGINS_WITHIN_S:g} s: see its agent's log")
            if self._lost:
                raise EverstepError("\n".join(f"{node}: {why}" for node, why in sorted(self._lost.items())))
            return [self._at[node] for node in self.nodes]

    def _follow(self, mirror: Mirror, requests: Mapping[str, NodeRequest]) -> None:
        """Holds the requests, in a thread of its own, until the mesh is closed."""
        why = "this program no longer holds it"
        try:
            for said in asking.ask(self._store, mirror, requests, LEASE_S, self._over):
                self._take(said)
        except PortError as error:
            why = str(error)
        except Exception as error:
            log.exception("the mesh is no longer held")
            why = f"{type(error).__name__}: {error}"
        if not self._over.is_set():
            for node in self.nodes:
                self._lose(node, why)

    def _take(self, said: Said) -> None:
        for item in said.items:
            if item.get("release") != (ours := version_of("torchmonarch")):
                self._lose(said.node, f"it has torchmonarch {item.get('release')}, and this program {ours}")
            with self._news:
                self._at[said.node] = str(item.get("address"))
                self._news.notify_all()
        if said.last:
            self._lose(said.node, said.error or "its part of the mesh has ended")

    def _lose(self, node: str, why: str) -> None:
        with self._news:
            if node in self._lost:
                return
            self._lost[node] = why
            self._news.notify_all()
        if self.host_mesh is not None:
            log.warning("the mesh has lost %s: %s", node, why)


def made(store: Store, mirror: Mirror, pool: PoolStatus, count: int | None) -> Mesh:
    """Makes a mesh on `count` idle nodes of a pool, on all of them if None. Raises EverstepError."""
    _require_monarch()
    nodes = _idle(pool, count)
    addresses = {node: record.address for node, record in asking.registered(mirror).items() if node in nodes}
    if gone := [node for node in nodes if node not in addresses]:
        raise EverstepError(f"node {gone[0]} is not registered: its agent does not run, or does not reach etcd")
    client = _Client.of_this_process(_towards(addresses[nodes[0]]))
    requests = {
        node: NodeRequest(
            node=node, what="mesh", by=who(), limit_s=UNTIL_CLOSED_S, pems=client.authority.pems(node, addresses[node])
        )
        for node in nodes
    }
    mesh = Mesh(store, mirror, requests)
    try:
        mesh.host_mesh = client.attached(mesh.wait_for_workers())
    except BaseException:
        mesh.close()
        raise
    atexit.register(mesh.close)  # after Monarch's own: it goes first
    return mesh


def _require_monarch() -> None:
    try:
        have = version_of("torchmonarch")
    except PackageNotFoundError as error:
        raise EverstepError(f"a mesh {missing('monarch')}") from error
    if have != monarch.RELEASE:
        raise EverstepError(f"torchmonarch {have} is installed, and only {monarch.RELEASE} fits: {INSTALL}")


def _idle(pool: PoolStatus, count: int | None) -> list[str]:
    """Returns the nodes of a mesh. Raises EverstepError if there are too few."""
    there = [each for each in pool.nodes if each.state == "granted"]
    free = [each for each in there if not each.run and not each.mesh]
    if count is not None and count < 1:
        raise EverstepError(f"a mesh of {count} nodes: it has one at least")
    if not free or (count is not None and len(free) < count):
        wanted = f"{count} nodes free" if count is not None else "a free node"
        users = "".join(
            f"; {n.node}: {f'run {n.run}' if n.run else f'a mesh of {n.mesh}'}" for n in there if n not in free
        )
        raise EverstepError(
            f"pool {pool.pool} does not have {wanted} for a mesh (nodes: {pool.wanted}; free: {len(free)}{users})"
        )
    return [each.node for each in free[:count]]


def _towards(address: str) -> str:
    try:
        return towards(f"[{address}]:1" if ":" in address else f"{address}:1")
    except (OSError, ValueError) as error:
        raise EverstepError(f"no way from here to the node at {address}: {error}") from error


class _Client:
    """This process as Monarch's client. Monarch binds its transport and its certificates once in a process."""

    _lock = threading.Lock()
    _made: ClassVar[_Client | None] = None

    def __init__(self, address: str) -> None:
        """Raises EverstepError, and leaves environment and settings as they were."""
        import tempfile
        from pathlib import Path

        from monarch._rust_bindings.monarch_hyperactor.config import reload_config_from_env
        from monarch.actor import enable_transport

        self.address = address
        self.authority = Authority()
        self._folder = tempfile.TemporaryDirectory(prefix="everstep-mesh-")
        before = {name: os.environ.get(name) for name in (*monarch.PEMS.values(), *monarch.TUNED)}
        try:
            os.environ.update(monarch.settle(Path(self._folder.name), self.authority.pems("client", address)))
            for name, value in monarch.TUNED.items():
                os.environ.setdefault(name, value)
            reload_config_from_env()
            enable_transport(monarch.url(address, 0))
        except BaseException as error:
            for name, was in before.items():
                os.environ.pop(name, None)
                if was is not None:
                    os.environ[name] = was
            reload_config_from_env()
            self._folder.cleanup()
            if isinstance(error, RuntimeError):
                raise EverstepError(
                    "this program has used Monarch already, which binds its transport once: call pool.mesh() before "
                    "anything else of Monarch"
                ) from error
            raise

    @classmethod
    def of_this_process(cls, address: str) -> _Client:
        """Returns the one client of this process. Raises EverstepError if it has another address."""
        with cls._lock:
            if cls._made is None:
                cls._made = cls(address)
            if cls._made.address != address:
                raise EverstepError(
                    f"this program's first mesh goes by its address {cls._made.address}, and these nodes are reached from "
                    f"{address}: Monarch binds one address in a program, so make this mesh in another one"
                )
            return cls._made

    def attached(self, workers: list[str]) -> Any:
        """Returns the HostMesh of these workers. Raises EverstepError if they are not reached."""
        import monarch.actor
        from monarch._src.actor import supervision

        if monarch.actor.unhandled_fault_hook is supervision.unhandled_fault_hook:
            monarch.actor.unhandled_fault_hook = _note_fault
        found = monarch.actor.attach_to_workers(ca="trust_all_connections", workers=workers)
        try:
            found.initialized.get(timeout=BEGINS_WITHIN_S)
        except Exception as error:
            raise EverstepError(f"Monarch does not reach the workers at {', '.join(workers)}: {error}") from error
        return found


def _note_fault(failure: Any) -> None:
    """Takes the place of Monarch's hook, which ends the program. Calls on what has failed raise the same failure."""
    log.warning("Monarch reports a failure that no actor handles: %s", str(failure).strip())
